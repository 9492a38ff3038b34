//! Real processes of the program under test, on free loopback ports, each with a directory of its
//! own. They are killed when the test ends, however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::client::Client;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A base port with `count` free ports from it on. Below the range that outgoing connections
/// take theirs from; another process may still be quicker, then the broker says so and the test
/// fails with that line.
pub fn free_ports(count: u16) -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..2000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let spread = (std::process::id() as u16).wrapping_mul(97);
        let base = 12_000 + (spread.wrapping_add(step.wrapping_mul(10)) % 18_000);
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (base..base + count).all(free) {
            return base;
        }
    }
    panic!("no {count} free ports next to each other");
}

/// One running process.
pub struct Process {
    child: Child,
    pub log: PathBuf,
}

impl Process {
    fn spawn(arguments: &[String], directory: &Path) -> Process {
        let log = directory.join("log");
        let stderr = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_twinmq"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (said, heard) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        let process = Process { child, log };
        match heard.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with("ready") => process,
            other => panic!("not ready but {other:?}; its log:\n{}", process.log_text()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// As a power failure of the process: kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and the exit status that follows within `PATIENCE`.
    pub fn stop(&mut self) -> i32 {
        self.signal("TERM");
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return status.code().unwrap_or(-1);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!(
            "it did not stop within {PATIENCE:?}; its log:\n{}",
            self.log_text()
        );
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status();
        assert!(status.expect("kill is there").success(), "kill -{name}");
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A name server.
pub struct Namesrv {
    pub process: Process,
    pub address: String,
    _directory: tempfile::TempDir,
}

impl Namesrv {
    pub fn start() -> Namesrv {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = free_ports(1);
        let arguments = ["namesrv", "-p", &port.to_string(), "-b", "127.0.0.1"].map(String::from);
        let process = Process::spawn(&arguments, directory.path());
        Namesrv {
            process,
            address: format!("127.0.0.1:{port}"),
            _directory: directory,
        }
    }
}

/// A broker: its configuration, its directory, and its process while it runs.
pub struct Broker {
    pub process: Option<Process>,
    directory: tempfile::TempDir,
    port: u16,
    settings: Vec<String>,
}

impl Broker {
    /// A master or slave with small files; `settings` are `key=value` and win over the defaults.
    pub fn new(role: &str, name: &str, namesrv: Option<&Namesrv>, settings: &[&str]) -> Broker {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = free_ports(5) + 2;
        let id = u8::from(role == "SLAVE");
        let mut all = vec![
            format!("brokerRole={role}"),
            format!("brokerName={name}"),
            format!("brokerId={id}"),
            format!("listenPort={port}"),
            format!(
                "storePathRootDir={}",
                directory.path().join("store").display()
            ),
            "brokerIP1=127.0.0.1".into(),
            "mappedFileSizeCommitLog=1048576".into(),
            "mappedFileSizeConsumeQueue=20000".into(),
            "maxHashSlotNum=1000".into(),
            "maxIndexNum=10000".into(),
            "slaveReadEnable=true".into(),
        ];
        all.extend(namesrv.map(|n| format!("namesrvAddr={}", n.address)));
        all.extend(settings.iter().map(|s| s.to_string()));
        Broker {
            process: None,
            directory,
            port,
            settings: all,
        }
    }

    pub fn started(mut self) -> Broker {
        self.start();
        self
    }

    pub fn start(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let mut arguments = vec!["broker".to_string()];
        arguments.extend(self.settings.iter().cloned());
        self.process = Some(Process::spawn(&arguments, self.directory.path()));
    }

    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the broker runs")
    }

    pub fn kill(&mut self) {
        self.process.take().expect("the broker runs").kill();
    }

    /// A polite stop, which must end with status 0.
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("the broker runs");
        assert_eq!(process.stop(), 0, "{}", process.log_text());
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn ha_address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port + 1).into()
    }

    pub fn fast_address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port - 2).into()
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.address().to_string())
    }

    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// All bytes of the commit log up to `end`, in order, from its first file.
    pub fn log_bytes(&self, end: u64) -> Vec<u8> {
        let mut names: Vec<_> = fs::read_dir(self.store().join("commitlog"))
            .expect("a commit log")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        names.sort();
        let mut bytes = Vec::new();
        for name in names {
            bytes.extend(fs::read(name).expect("a log file"));
        }
        bytes.truncate(end as usize);
        bytes
    }
}

/// Waits until `found` gives something; fails with `what` when it never does.
pub fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < end, "never within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A master and a slave that is linked to it.
pub struct Pair {
    pub namesrv: Namesrv,
    pub master: Broker,
    pub slave: Broker,
}

impl Pair {
    pub fn start(role: &str, settings: &[&str]) -> Pair {
        let namesrv = Namesrv::start();
        let master = Broker::new(role, "broker-a", Some(&namesrv), settings).started();
        let slave = Broker::new("SLAVE", "broker-a", Some(&namesrv), settings).started();
        let pair = Pair {
            namesrv,
            master,
            slave,
        };
        pair.wait_linked();
        pair
    }

    pub fn wait_linked(&self) {
        eventually("the slave is linked", || {
            let status = self.master.client().call(907, &[]);
            let body: serde_json::Value = serde_json::from_slice(status.body()).ok()?;
            (body["inSyncSlaveNums"].as_i64()? > 0).then_some(())
        });
    }

    /// Waits until the slave knows a topic: its metadata follows on a way of its own.
    pub fn wait_topic(&self, topic: &str) {
        let mut slave = self.slave.client();
        eventually("the slave knows the topic", || {
            slave.json(21, &[])["topicConfigTable"].get(topic).cloned()
        });
    }

    /// Waits until the slave has all of the master's log; returns its end.
    pub fn wait_equal(&self) -> u64 {
        let (mut master, mut slave) = (self.master.client(), self.slave.client());
        eventually("the slave has the master's log", || {
            let end = master.log_end();
            (slave.log_end() == end).then_some(end)
        })
    }

    /// Both logs, byte by byte.
    pub fn assert_equal_logs(&self) {
        let end = self.wait_equal();
        let (master, slave) = (self.master.log_bytes(end), self.slave.log_bytes(end));
        assert_eq!(master.len() as u64, end);
        assert!(master == slave, "the logs differ before {end}");
    }
}
