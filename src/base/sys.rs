//! The system below: stop signals, the lock file, figures about memory and disks.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::Resource;

/// What a signal asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Stop,
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP, turned into values by whoever waits here.
pub struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    wake: std::os::unix::net::UnixStream,
}

impl Signals {
    /// Installs the handlers. A second stop signal ends the process at once.
    pub fn install() -> io::Result<Signals> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let (wake, write) = std::os::unix::net::UnixStream::pair()?;
        let (stop, reload) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
            signal_hook::flag::register(signal, stop.clone())?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        signal_hook::flag::register(SIGHUP, reload.clone())?;
        signal_hook::low_level::pipe::register(SIGHUP, write)?;
        Ok(Signals { stop, reload, wake })
    }

    /// The next signal; `None` when `patience` is over first.
    pub fn wait(&self, patience: Duration) -> Option<Signal> {
        if let Some(signal) = self.taken() {
            return Some(signal);
        }
        // A timeout and an interrupted read are the same to the caller: it looks again.
        let _ = self
            .wake
            .set_read_timeout(Some(patience.max(Duration::from_millis(1))));
        let _ = (&self.wake).read(&mut [0; 64]);
        self.taken()
    }

    fn taken(&self) -> Option<Signal> {
        if self.stop.load(Ordering::SeqCst) {
            return Some(Signal::Stop);
        }
        self.reload
            .swap(false, Ordering::SeqCst)
            .then_some(Signal::Reload)
    }
}

/// A file held with a POSIX record lock, as the original holds `lock` in a store. Closing any
/// other descriptor of that file in this process would drop the lock, so nobody else opens it.
pub struct LockFile {
    _file: File,
}

impl LockFile {
    /// Takes the lock without waiting; `WouldBlock` if another process has it.
    pub fn take(path: &Path) -> io::Result<LockFile> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Err(error) => return Err(error.into()),
        }
        file.write_all(b"lock")?;
        Ok(LockFile { _file: file })
    }
}

/// Bytes of memory in this machine; 0 if the system does not tell.
pub fn memory_total() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// Space on the file system that holds a path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    pub total: u64,
    /// What an unprivileged process may still use.
    pub available: u64,
    pub free: u64,
}

impl DiskSpace {
    pub fn of(path: &Path) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(DiskSpace {
            total: stat.f_blocks * stat.f_frsize,
            available: stat.f_bavail * stat.f_frsize,
            free: stat.f_bfree * stat.f_frsize,
        })
    }

    /// Used share of what an unprivileged process can use, as the original computes it: 0.00 to
    /// 1.00 in steps of a hundredth, rounded up.
    pub fn used_ratio(&self) -> f64 {
        let used = self.total.saturating_sub(self.free);
        match used + self.available {
            0 => 0.0,
            usable => (used * 100).div_ceil(usable) as f64 / 100.0,
        }
    }
}

/// Raises the soft limit of open files to the hard one: thousands of queues and connections.
pub fn raise_file_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, limit) {
        log::warn!("open file limit stays at its soft value: {error}");
    }
}

/// Starts a named thread. A thread that cannot be started at start-up is the caller's error.
pub fn spawn(
    name: impl Into<String>,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(512 * 1024)
        .spawn(body)
}

/// Ends the process when any thread panics: a broker with a thread missing would go silent.
pub fn abort_on_panic() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if PANICS.fetch_add(1, Ordering::SeqCst) == 0 {
            report(info);
        }
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_used_ratio_is_rounded_up_to_a_hundredth() {
        let space = DiskSpace {
            total: 1000,
            free: 301,
            available: 201,
        };
        assert_eq!(space.used_ratio(), 0.78); // 699 of 900
        assert_eq!(
            DiskSpace {
                total: 0,
                free: 0,
                available: 0
            }
            .used_ratio(),
            0.0
        );
    }

    #[test]
    fn a_lock_file_says_lock() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lock");
        let _lock = LockFile::take(&path).expect("a free lock");
        assert_eq!(std::fs::metadata(&path).expect("it exists").len(), 4);
    }
}
