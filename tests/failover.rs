//! Two masters, two slaves, a name server: one master dies and comes back.

mod common;

use std::collections::BTreeMap;

use common::client::{Client, Got};
use common::load::Load;
use common::process::{Broker, Namesrv, Pair, eventually};

/// Broker addresses by id, as the route tells them.
fn route(namesrv: &Namesrv, broker: &str) -> BTreeMap<String, String> {
    let reply = Client::connect(&namesrv.address).call(105, &[("topic", "T")]);
    let Ok(route) = twinmq::base::json::parse(reply.body()) else {
        return BTreeMap::new();
    };
    let data = route["brokerDatas"].as_array().cloned().unwrap_or_default();
    let found = data.iter().find(|data| data["brokerName"] == broker);
    let Some(addresses) = found.and_then(|data| data["brokerAddrs"].as_object()) else {
        return BTreeMap::new();
    };
    addresses
        .iter()
        .map(|(id, address)| (id.clone(), address.as_str().unwrap_or("").into()))
        .collect()
}

/// A consumer of one broker name: it reads from id 0, or from the lowest id that is left, and
/// goes on from where it was, wherever that was read.
struct Consumer {
    broker: &'static str,
    at: [i64; 4],
    got: Vec<Got>,
}

impl Consumer {
    fn new(broker: &'static str) -> Consumer {
        Consumer {
            broker,
            at: [0; 4],
            got: Vec::new(),
        }
    }

    fn drain(&mut self, namesrv: &Namesrv) {
        let Some(address) = route(namesrv, self.broker).into_values().next() else {
            return;
        };
        let Some(mut client) = Client::try_connect(&address) else {
            return;
        };
        for queue in 0..4 {
            let at = &mut self.at[queue as usize];
            let got = client.pull_all("T", queue, *at);
            *at += got.len() as i64;
            self.got.extend(got);
        }
    }
}

#[test]
fn producers_and_consumers_survive_the_death_of_a_master() {
    let namesrv = Namesrv::start();
    let start = |name: &'static str| {
        let master =
            Broker::new("SYNC_MASTER", name, Some(&namesrv), &["slaveTimeout=1000"]).started();
        let slave = Broker::new("SLAVE", name, Some(&namesrv), &[]).started();
        (master, slave)
    };
    let (mut a, slave_a) = start("broker-a");
    let (b, slave_b) = start("broker-b");
    for master in [&a, &b] {
        master.client().create_topic("T", 4);
        eventually("its slave is linked", || {
            master
                .client()
                .send("T", 0, b"producer 0 probe")
                .is_ok()
                .then_some(())
        });
    }
    for name in ["broker-a", "broker-b"] {
        eventually("the route has both", || {
            (route(&namesrv, name).len() == 2).then_some(())
        });
    }
    // The topic reaches the slave before its master dies, as it does within 10 s in life.
    eventually("the slave knows the topic", || {
        slave_a.client().json(21, &[])["topicConfigTable"]
            .get("T")
            .cloned()
    });
    let mut consumers = [Consumer::new("broker-a"), Consumer::new("broker-b")];
    let load = Load::start(4, &[a.address(), b.address()], "T");
    eventually("sends are acknowledged", || {
        (load.ledger.acked() > 200).then_some(())
    });
    consumers
        .iter_mut()
        .for_each(|consumer| consumer.drain(&namesrv));

    a.kill();
    let before = load.ledger.acked();
    eventually("producers go on with the other master", || {
        (load.ledger.acked() > before + 100).then_some(())
    });
    eventually("the dead master leaves the route", || {
        (route(&namesrv, "broker-a").keys().collect::<Vec<_>>() == ["1"]).then_some(())
    });
    // The dead one's messages come from its slave.
    consumers
        .iter_mut()
        .for_each(|consumer| consumer.drain(&namesrv));
    let drained = consumers[0].at;

    a.start();
    eventually("the master is in the route again", || {
        (route(&namesrv, "broker-a").len() == 2).then_some(())
    });
    let ledger = load.stop();
    let pair = Pair {
        namesrv,
        master: a,
        slave: slave_a,
    };
    pair.assert_equal_logs();
    consumers
        .iter_mut()
        .for_each(|consumer| consumer.drain(&pair.namesrv));
    for (queue, at) in drained.iter().enumerate() {
        assert!(
            consumers[0].at[queue] >= *at,
            "queue {queue} went back on the master's return"
        );
    }
    let mut all: Vec<Got> = consumers
        .into_iter()
        .flat_map(|consumer| consumer.got)
        .collect();
    all.retain(|message| message.body != b"producer 0 probe");
    ledger.check(&all);
    // I5 and I6: the same offset was never read twice, so no message came twice unless it was
    // sent twice.
    let mut offsets: Vec<_> = all.iter().map(|m| (m.log_offset, m.raw.clone())).collect();
    let count = offsets.len();
    offsets.sort();
    offsets.dedup();
    assert_eq!(offsets.len(), count);
    drop((b, slave_b));
}
