//! The two buffers of a connection: what came in and is not yet understood, what shall go out
//! and is not yet taken.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};

/// Bytes read in one call.
const READ_SIZE: usize = 64 * 1024;
/// Room that an idle connection's buffer may keep.
const KEEP: usize = 16 * 1024;
/// Buffers handed to the kernel in one writev.
const SLICES_PER_WRITE: usize = 64;

/// How a read or write on a non-blocking socket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The socket has no more for now: wait for its next event.
    Blocked,
    /// The bound of this turn is reached: there may be more without a new event.
    More,
    /// The peer has closed its side.
    Closed,
}

/// Bytes received, from the first one not yet consumed.
#[derive(Default)]
pub struct Input {
    buffer: Vec<u8>,
    consumed: usize,
}

impl Input {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// The first `len` bytes are done with.
    pub fn consume(&mut self, len: usize) {
        assert!(
            len <= self.buffer.len() - self.consumed,
            "more consumed than received"
        );
        self.consumed += len;
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
            self.buffer.shrink_to(KEEP);
        }
    }

    /// Reads what is there, at most about `bound` bytes.
    pub fn fill(&mut self, source: &mut impl Read, bound: usize) -> io::Result<Progress> {
        self.buffer.drain(..std::mem::take(&mut self.consumed));
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(READ_SIZE, 0);
            let mut taken = 0;
            while taken < bound {
                match source.read(scratch) {
                    Ok(0) => return Ok(Progress::Closed),
                    Ok(count) => {
                        self.buffer.extend_from_slice(&scratch[..count]);
                        taken += count;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Progress::Blocked);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(Progress::More)
        })
    }
}

thread_local! {
    /// Where a loop reads to, before it knows how much there is. A buffer of this size in every
    /// connection would cost 64 MB with a thousand idle clients.
    static SCRATCH: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Bytes to send, in order.
#[derive(Default)]
pub struct Output {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the first part that are already sent.
    sent: usize,
    queued: usize,
}

impl Output {
    pub fn push(&mut self, part: Vec<u8>) {
        if !part.is_empty() {
            self.queued += part.len();
            self.parts.push_back(part);
        }
    }

    /// Bytes not yet taken by the socket.
    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Writes until all is out or the socket takes no more.
    pub fn flush(&mut self, target: &mut impl Write) -> io::Result<Progress> {
        while !self.is_empty() {
            match self.write_once(target) {
                Ok(0) => return Ok(Progress::Closed),
                Ok(count) => self.taken(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::More)
    }

    fn write_once(&self, target: &mut impl Write) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
        let mut used = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(if used == 0 { &part[self.sent..] } else { part });
            used += 1;
        }
        target.write_vectored(&slices[..used])
    }

    fn taken(&mut self, mut count: usize) {
        self.queued -= count;
        while let Some(part) = self.parts.front() {
            let left = part.len() - self.sent;
            if count < left {
                self.sent += count;
                return;
            }
            count -= left;
            self.sent = 0;
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and gives a few bytes at a time, then blocks.
    struct Narrow {
        data: Vec<u8>,
        step: usize,
        calls: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(self.step);
            self.data.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let joined: Vec<u8> = slices
                .iter()
                .flat_map(|slice| slice.iter().copied())
                .collect();
            self.write(&joined)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_keeps_its_order_over_partial_writes() {
        let mut output = Output::default();
        for part in [&b"abc"[..], b"", b"d", b"efghij"] {
            output.push(part.to_vec());
        }
        let mut target = Narrow {
            data: Vec::new(),
            step: 4,
            calls: 0,
        };
        while !output.is_empty() {
            output
                .flush(&mut target)
                .expect("a narrow socket is no broken one");
        }
        assert_eq!(target.data, b"abcdefghij");
    }

    #[test]
    fn input_keeps_what_is_not_consumed() {
        let mut input = Input::default();
        let mut source: &[u8] = b"hello world";
        assert_eq!(
            input.fill(&mut source, 100).expect("memory"),
            Progress::Closed
        );
        input.consume(6);
        let mut more: &[u8] = b"!";
        input.fill(&mut more, 100).expect("memory");
        assert_eq!(input.bytes(), b"world!");
        input.consume(6);
        assert_eq!(input.bytes(), b"");
    }
}
