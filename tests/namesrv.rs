//! The name server over real sockets: whole and split frames, broken ones, connections that end,
//! idle or take too much.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use twinmq::base::json;
use twinmq::namesrv::{Namesrv, NamesrvSettings};
use twinmq::remoting::codes::{request, response};
use twinmq::remoting::command::Serialize;
use twinmq::remoting::frame::FRAME_MAX;
use twinmq::remoting::{Client, Command, Fields};

const PATIENCE: Duration = Duration::from_secs(10);

fn settings() -> NamesrvSettings {
    NamesrvSettings {
        address: "127.0.0.1:0".to_owned(),
        ..NamesrvSettings::default()
    }
}

fn start() -> Namesrv {
    start_with(settings())
}

fn start_with(settings: NamesrvSettings) -> Namesrv {
    Namesrv::start(settings).expect("a name server on a free port")
}

fn client(namesrv: &Namesrv) -> Client {
    Client::connect(&namesrv.address().to_string(), PATIENCE).expect("a connection")
}

fn raw(namesrv: &Namesrv) -> TcpStream {
    let stream = TcpStream::connect(namesrv.address()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn registration(address: &str, topics: usize) -> Command {
    let table: serde_json::Map<String, Value> = (0..topics)
        .map(|n| {
            (
                format!("T{n}"),
                json!({"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}),
            )
        })
        .collect();
    let body = json!({"topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}});
    let ext = Fields::default()
        .with("brokerName", "b")
        .with("clusterName", "c")
        .with("brokerId", 0)
        .with("brokerAddr", address)
        .with("haServerAddr", "10.0.0.1:10912");
    Command::request(request::REGISTER_BROKER, ext).with_body(json::write(&body))
}

fn route_request() -> Command {
    let ext = Fields::default().with("topic", "T0");
    Command::request(request::GET_ROUTEINFO_BY_TOPIC, ext)
}

fn route_code(client: &mut Client) -> i32 {
    let reply = client.call(route_request(), PATIENCE).expect("an answer");
    reply.code()
}

fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !test() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The peer closes, and says nothing before.
fn closes(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_broker_is_found_until_its_connection_closes() {
    let namesrv = start();
    let (mut broker, mut asks) = (client(&namesrv), client(&namesrv));
    assert_eq!(route_code(&mut asks), response::TOPIC_NOT_EXIST);
    broker
        .ask(registration("10.0.0.1:10911", 2), PATIENCE)
        .expect("registered");
    let reply = asks.ask(route_request(), PATIENCE).expect("a route");
    let route = json::parse(reply.body()).expect("JSON");
    assert_eq!(
        route["brokerDatas"][0]["brokerAddrs"],
        json!({"0": "10.0.0.1:10911"})
    );
    drop(broker);
    eventually("the broker's connection is closed", || {
        route_code(&mut asks) == response::TOPIC_NOT_EXIST
    });
    namesrv.stop();
}

#[test]
fn one_way_requests_are_served_and_not_answered() {
    let namesrv = start();
    let (mut broker, mut asks) = (client(&namesrv), client(&namesrv));
    let mut register = registration("10.0.0.1:10911", 2).oneway();
    register.header.ext.add("heartbeatTimeoutMillis", 1500);
    broker.post(register).expect("sent");
    eventually("the one-way registration is there", || {
        route_code(&mut asks) == response::SUCCESS
    });
    let fields = || {
        Fields::default()
            .with("brokerName", "b")
            .with("clusterName", "c")
            .with("brokerAddr", "10.0.0.1:10911")
            .with("brokerId", 0)
    };
    let until = Instant::now() + Duration::from_secs(4);
    for code in [request::QUERY_DATA_VERSION, request::BROKER_HEARTBEAT]
        .iter()
        .cycle()
    {
        if Instant::now() >= until {
            break;
        }
        broker
            .post(Command::request(*code, fields()).oneway())
            .expect("sent");
        assert_eq!(route_code(&mut asks), response::SUCCESS, "it is kept alive");
        std::thread::sleep(Duration::from_millis(300));
    }
    broker
        .receive(Instant::now() + Duration::from_millis(100))
        .expect_err("no answer to any");
    eventually("a silent broker is gone, and its connection too", || {
        route_code(&mut asks) == response::TOPIC_NOT_EXIST
    });
    broker
        .receive(Instant::now() + PATIENCE)
        .expect_err("closed");
}

#[test]
fn frames_may_come_in_any_pieces() {
    let namesrv = start();
    let mut stream = raw(&namesrv);
    let mut binary = route_request();
    binary.serialize = Serialize::RocketMq;
    binary.header.opaque = -3;
    let mut json = route_request();
    json.header.opaque = i32::MAX;
    let both = [binary.to_bytes(), json.to_bytes()].concat();
    stream.write_all(&both).expect("sent in one piece");
    expect_both(&mut stream);
    for byte in both {
        stream.write_all(&[byte]).expect("sent");
        std::thread::sleep(Duration::from_micros(200));
    }
    expect_both(&mut stream);
}

fn expect_both(stream: &mut TcpStream) {
    let (first, second) = (read_reply(stream), read_reply(stream));
    assert_eq!(
        (first.serialize, first.header.opaque),
        (Serialize::RocketMq, -3)
    );
    assert_eq!(
        (second.serialize, second.header.opaque),
        (Serialize::Json, i32::MAX)
    );
    assert_eq!(first.code(), response::TOPIC_NOT_EXIST);
}

fn read_reply(stream: &mut TcpStream) -> Command {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame).expect("a length");
    let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
    frame.resize(4 + length as usize, 0);
    stream.read_exact(&mut frame[4..]).expect("a frame");
    Command::decode(frame).expect("a reply")
}

#[test]
fn broken_frames_close_their_connection_and_no_other() {
    let namesrv = start();
    let mut asks = client(&namesrv);
    let frame = |length: i32, mark: u32, body: &[u8]| {
        [&length.to_be_bytes()[..], &mark.to_be_bytes(), body].concat()
    };
    let too_long = FRAME_MAX as i32 - 3;
    for (what, bytes) in [
        ("over 16 MiB", frame(too_long, 10, b"")),
        ("negative", frame(-1, 0, b"")),
        ("header beyond frame", frame(50, 1000, &[0; 46])),
        ("serialize type 9", frame(24, 9 << 24 | 20, &[b'x'; 20])),
        ("not JSON", frame(24, 20, &[b'{'; 20])),
        ("not binary", frame(24, 1 << 24 | 20, &[0xff; 20])),
        ("TLS hello", vec![0x16, 3, 1]),
        ("HTTP", b"GET / HTTP/1.0\r\n\r\n".to_vec()),
    ] {
        let mut stream = raw(&namesrv);
        stream.write_all(&bytes).expect("sent");
        assert!(closes(&mut stream), "{what}");
        assert_eq!(route_code(&mut asks), response::TOPIC_NOT_EXIST, "{what}");
    }
}

#[test]
fn unfinished_frames_and_idle_connections_are_closed() {
    let namesrv = start_with(NamesrvSettings {
        frame_time_max: Duration::from_secs(1),
        idle_max: Duration::from_secs(3),
        ..settings()
    });
    let started = Instant::now();
    let mut idle = raw(&namesrv);
    let mut slow = raw(&namesrv);
    let frame = route_request().to_bytes();
    // A byte now and then keeps it from being idle, not from being late.
    for byte in &frame[..8] {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(closes(&mut slow));
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    assert!(closes(&mut idle));
    assert!(started.elapsed() >= Duration::from_secs(3));
}

#[test]
fn connections_beyond_the_cap_are_closed_and_the_others_served() {
    let namesrv = start_with(NamesrvSettings {
        connections_per_address_max: 3,
        ..settings()
    });
    let mut clients: Vec<Client> = (0..3).map(|_| client(&namesrv)).collect();
    for client in &mut clients {
        assert_eq!(route_code(client), response::TOPIC_NOT_EXIST);
    }
    assert!(closes(&mut raw(&namesrv)));
    clients.pop();
    eventually("the place is free again", || {
        let mut next = client(&namesrv);
        next.call(route_request(), PATIENCE).is_ok()
    });
}

#[test]
fn of_many_large_unfinished_frames_the_largest_is_closed() {
    let namesrv = start_with(NamesrvSettings {
        unfinished_bytes_max: 2 * 1024 * 1024,
        ..settings()
    });
    let start_frame = |bytes: usize| {
        let mut stream = raw(&namesrv);
        let length = 16_000_000i32;
        stream.write_all(&length.to_be_bytes()).expect("sent");
        stream.write_all(&100u32.to_be_bytes()).expect("sent");
        stream.write_all(&vec![b' '; bytes]).expect("sent");
        stream
    };
    let mut small = start_frame(700_000);
    let mut large = start_frame(1_000_000);
    let mut last = start_frame(700_000);
    assert!(closes(&mut large));
    for stream in [&mut small, &mut last] {
        stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("a timeout");
        let error = stream
            .read(&mut [0; 1])
            .expect_err("neither closed nor answered");
        assert!(matches!(
            error.kind(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut
        ));
    }
}

/// Each answer has 3 MB; the peer asks for 100 of them and fetches none at first.
#[test]
fn a_peer_that_does_not_fetch_its_answers_is_held_back() {
    let namesrv = start();
    let mut asks = client(&namesrv);
    let value = "v".repeat(200_000);
    for key in 0..15 {
        let ext = Fields::default().with("namespace", "n").with("key", key);
        let put = Command::request(request::PUT_KV_CONFIG, ext.with("value", &value));
        asks.ask(put, PATIENCE).expect("put");
    }
    let all = Fields::default().with("namespace", "n");
    let get = Command::request(request::GET_KVLIST_BY_NAMESPACE, all);
    let mut greedy = raw(&namesrv);
    greedy.write_all(&get.to_bytes().repeat(100)).expect("sent");
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(route_code(&mut asks), response::TOPIC_NOT_EXIST);
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "others wait {:?}",
            begun.elapsed()
        );
    }
    let resident = resident_bytes();
    assert!(resident < 150 << 20, "{resident} bytes are resident");
    for _ in 0..100 {
        let reply = read_reply(&mut greedy);
        assert!(reply.body().len() > 3_000_000);
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the system's figures");
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number of pages") * 4096
}

#[test]
fn a_taken_port_is_named() {
    let namesrv = start();
    let address = namesrv.address().to_string();
    let settings = NamesrvSettings {
        address: address.clone(),
        ..settings()
    };
    let error = Namesrv::start(settings).err().expect("the port is taken");
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn a_stopped_name_server_closes_its_connections_and_its_port() {
    let namesrv = start();
    let mut stream = raw(&namesrv);
    let address = namesrv.address();
    assert!(namesrv.is_alive());
    namesrv.stop();
    assert!(closes(&mut stream));
    TcpStream::connect(address).expect_err("nobody listens");
}
