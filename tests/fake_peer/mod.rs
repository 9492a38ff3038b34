//! A name server or broker under a test's control: it answers as the test says, and remembers what
//! it was asked.

#![allow(dead_code)] // each test program uses its own part of this

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use twinmq::remoting::{Command, frame};

pub const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Box<dyn Fn(&Command) -> Option<Command> + Send + Sync>;

pub struct FakePeer {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<(Instant, Command)>>>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl FakePeer {
    /// `answer` gives each request its reply, or none.
    pub fn start(answer: impl Fn(&Command) -> Option<Command> + Send + Sync + 'static) -> FakePeer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        FakePeer::on(listener, answer)
    }

    pub fn on(
        listener: TcpListener,
        answer: impl Fn(&Command) -> Option<Command> + Send + Sync + 'static,
    ) -> FakePeer {
        let peer = FakePeer {
            address: listener.local_addr().expect("an address"),
            asked: Arc::default(),
            connections: Arc::default(),
        };
        let answer: Arc<Answer> = Arc::new(Box::new(answer));
        let (asked, connections) = (peer.asked.clone(), peer.connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let copy = stream.try_clone().expect("a copy");
                connections.lock().expect("the list").push(copy);
                let (asked, answer) = (asked.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &asked, &answer));
            }
        });
        peer
    }

    /// All requests so far with this code.
    pub fn asked(&self, code: i32) -> Vec<Command> {
        self.asked_at(code)
            .into_iter()
            .map(|(_, request)| request)
            .collect()
    }

    pub fn asked_at(&self, code: i32) -> Vec<(Instant, Command)> {
        let asked = self.asked.lock().expect("the list");
        asked
            .iter()
            .filter(|(_, request)| request.code() == code)
            .cloned()
            .collect()
    }

    /// Waits until there were so many requests with this code.
    pub fn wait_for(&self, code: i32, count: usize) -> Vec<Command> {
        eventually(&format!("{count} requests with code {code}"), || {
            self.asked(code).len() >= count
        });
        self.asked(code)
    }

    pub fn connections(&self) -> usize {
        self.connections.lock().expect("the list").len()
    }

    /// Writes a frame to the newest connection, as a peer that asks something itself.
    pub fn push(&self, command: &Command) {
        let connections = self.connections.lock().expect("the list");
        let mut newest = connections.last().expect("a connection");
        newest.write_all(&command.to_bytes()).expect("written");
    }
}

fn serve(mut stream: TcpStream, asked: &Mutex<Vec<(Instant, Command)>>, answer: &Answer) {
    let mut input = Vec::new();
    let mut part = [0; 64 * 1024];
    loop {
        while let Some(length) = frame::complete(&input).expect("frames") {
            let bytes = input.drain(..length).collect();
            let request = Command::decode(bytes).expect("a command");
            let reply = answer(&request);
            asked
                .lock()
                .expect("the list")
                .push((Instant::now(), request));
            if let Some(reply) = reply
                && stream.write_all(&reply.to_bytes()).is_err()
            {
                return;
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(count) => input.extend_from_slice(&part[..count]),
        }
    }
}

pub fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !test() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
