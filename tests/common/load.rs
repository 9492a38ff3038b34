//! Producers that send without a pause and keep a ledger: which bodies were attempted, which were
//! acknowledged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::{Client, Got};

#[derive(Default)]
pub struct Ledger {
    /// Body of every attempt, and its outcome: a code, or nothing when no answer came.
    attempts: Mutex<BTreeMap<Vec<u8>, Option<i32>>>,
    stop: AtomicBool,
}

pub struct Load {
    pub ledger: Arc<Ledger>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// `producers` threads; each goes to the first of `addresses` that takes its message and
    /// stays there, as a producer of the original does with the brokers of its route.
    pub fn start(producers: usize, addresses: &[SocketAddr], topic: &str) -> Load {
        let ledger = Arc::new(Ledger::default());
        let threads = (0..producers)
            .map(|producer| {
                let (ledger, topic, addresses) =
                    (ledger.clone(), topic.to_owned(), addresses.to_vec());
                std::thread::spawn(move || produce(producer, &addresses, &topic, &ledger))
            })
            .collect();
        Load { ledger, threads }
    }

    pub fn stop(self) -> Arc<Ledger> {
        self.ledger.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("a producer ends");
        }
        self.ledger
    }
}

impl Ledger {
    pub fn acked(&self) -> usize {
        self.attempts
            .lock()
            .unwrap()
            .values()
            .filter(|outcome| **outcome == Some(0))
            .count()
    }

    /// I1 and I2: every acknowledged body is among `got`, and nothing that was never sent.
    pub fn check(&self, got: &[Got]) {
        let attempts = self.attempts.lock().unwrap();
        let mut times: BTreeMap<&[u8], usize> = BTreeMap::new();
        for message in got {
            assert!(
                attempts.contains_key(&message.body),
                "never sent: {:?}",
                message.body
            );
            *times.entry(&message.body).or_default() += 1;
        }
        let lost: Vec<_> = attempts
            .iter()
            .filter(|(body, outcome)| **outcome == Some(0) && !times.contains_key(body.as_slice()))
            .map(|(body, _)| String::from_utf8_lossy(body).into_owned())
            .collect();
        assert!(
            lost.is_empty(),
            "{} acknowledged messages are lost: {:?} ...",
            lost.len(),
            &lost[..lost.len().min(5)]
        );
    }

    /// I3: a message that was refused or timed out is unknown, everything else is one of these.
    pub fn codes(&self) -> Vec<i32> {
        let mut codes: Vec<i32> = self
            .attempts
            .lock()
            .unwrap()
            .values()
            .flatten()
            .copied()
            .collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

fn produce(producer: usize, addresses: &[SocketAddr], topic: &str, ledger: &Ledger) {
    let mut at = producer;
    let mut client = None;
    for serial in 0u64.. {
        if ledger.stop.load(Ordering::SeqCst) {
            return;
        }
        let body = format!(
            "producer {producer} message {serial} {}",
            "x".repeat((serial as usize * 37) % 1500)
        );
        let outcome = loop {
            if ledger.stop.load(Ordering::SeqCst) {
                return;
            }
            let address = addresses[at % addresses.len()].to_string();
            client = client.take().or_else(|| Client::try_connect(&address));
            let sent = match &mut client {
                None => None,
                Some(connected) => {
                    ledger
                        .attempts
                        .lock()
                        .unwrap()
                        .insert(body.clone().into_bytes(), None);
                    Some(connected.try_send(topic, (serial % 4) as i32, body.as_bytes(), ""))
                }
            };
            match sent {
                Some(Some(sent)) => break Some(sent.code),
                // The outcome is unknown: the ledger keeps it so, and the next message follows.
                Some(None) => {
                    client = None;
                    at += 1;
                    break None;
                }
                None => {
                    at += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        };
        ledger
            .attempts
            .lock()
            .unwrap()
            .insert(body.into_bytes(), outcome);
    }
}
