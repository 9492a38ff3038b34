//! Where each request code goes.

use std::sync::Arc;
use std::time::Instant;

use super::outbox::Peer;
use super::{Broker, admin, pull};
use crate::remoting::Command;
use crate::remoting::codes::{request, response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The connection's batch, and with it the send thread.
    Send,
    /// The client loop itself: only tables in memory.
    Quick,
    /// A pull thread, since files may be touched; a pull may be held there.
    Disk,
}

pub fn route(code: i32) -> Route {
    match code {
        request::SEND_MESSAGE
        | request::SEND_MESSAGE_V2
        | request::SEND_BATCH_MESSAGE
        | request::CONSUMER_SEND_MSG_BACK => Route::Send,
        request::HEART_BEAT
        | request::UNREGISTER_CLIENT
        | request::UPDATE_CONSUMER_OFFSET
        | request::GET_CONSUMER_LIST_BY_GROUP
        | request::CHECK_CLIENT_CONFIG
        | request::LOCK_BATCH_MQ
        | request::UNLOCK_BATCH_MQ => Route::Quick,
        _ => Route::Disk,
    }
}

/// Answers what touches memory only.
pub fn serve_quick(broker: &Broker, request: &Command, peer: &Peer, now: Instant) -> Command {
    admin::serve_quick(&broker.admin, request, peer, now).unwrap_or_else(|| not_supported(request))
}

/// A pull thread's body.
pub fn run(broker: &Arc<Broker>) {
    while let Some(job) = broker.pulls.take() {
        // The fast port serves everything but pulls; there they end as an unknown code.
        let is_pull = is_pull(job.request.code()) && !job.peer.fast;
        if is_pull {
            pull::serve(broker, job);
        } else {
            let served = admin::serve(&broker.admin, &job.request, &job.peer);
            let reply = served.unwrap_or_else(|| refusal(broker, &job.request));
            broker.answer(&job.peer, &job.request, &reply);
        }
    }
}

fn is_pull(code: i32) -> bool {
    matches!(code, request::PULL_MESSAGE | request::LITE_PULL_MESSAGE)
}

/// A slave refuses the end of a transaction with the original's code; nothing here serves it.
fn refusal(broker: &Broker, request: &Command) -> Command {
    if request.code() == request::END_TRANSACTION && broker.is_slave() {
        let remark = "this broker is a slave, transactions end at the master";
        return Command::refusal(request, response::SLAVE_NOT_AVAILABLE, remark);
    }
    not_supported(request)
}

fn not_supported(request: &Command) -> Command {
    let remark = format!(" request type {} not supported", request.code());
    Command::refusal(request, response::REQUEST_CODE_NOT_SUPPORTED, remark)
}
