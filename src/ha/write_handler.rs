//! Transfers and heartbeats out.
//!
//! Several transfers go out in one `writev`: one call a transfer costs a third of the throughput.
//! A transfer is only begun when everything before it is written or queued in order, and a
//! heartbeat only when nothing is queued.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::ops::Deref;

use super::wire::{TRANSFER_HEADER_SIZE, TransferHeader};

/// Most transfers queued, and so in one `writev`.
const QUEUE_MAX: usize = 8;
/// Most bytes queued, bodies larger than usual included.
const QUEUED_BYTES_MAX: usize = 512 * 1024;

/// What is on its way to one slave.
pub struct WriteHandler<C> {
    queue: VecDeque<Transfer<C>>,
    queued_bytes: usize,
    /// Bytes of the first transfer that are with the socket already.
    written: usize,
    /// Every log byte before it was handed to the socket.
    sent: u64,
}

struct Transfer<C> {
    header: [u8; TRANSFER_HEADER_SIZE],
    start: u64,
    /// A heartbeat has none.
    body: Option<C>,
}

impl<C: Deref<Target = [u8]>> Transfer<C> {
    fn body(&self) -> &[u8] {
        self.body.as_deref().unwrap_or_default()
    }

    fn size(&self) -> usize {
        TRANSFER_HEADER_SIZE + self.body().len()
    }
}

impl<C: Deref<Target = [u8]>> WriteHandler<C> {
    /// Nothing is sent yet; the first transfer will be the one at `start`.
    pub fn starting_at(start: u64) -> WriteHandler<C> {
        WriteHandler {
            queue: VecDeque::new(),
            queued_bytes: 0,
            written: 0,
            sent: start,
        }
    }

    pub fn sent(&self) -> u64 {
        self.sent
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_MAX && self.queued_bytes < QUEUED_BYTES_MAX
    }

    /// First log byte that is neither sent nor queued.
    pub fn next(&self) -> u64 {
        self.queue
            .back()
            .map_or(self.sent, |last| last.start + last.body().len() as u64)
    }

    /// Queues the log's bytes that follow what is sent and queued.
    pub fn transfer(&mut self, body: C) {
        let start = self.next();
        self.push(start, Some(body));
    }

    /// Queues a heartbeat, which tells where the next transfer will start.
    pub fn heartbeat(&mut self) {
        assert!(self.is_idle(), "a heartbeat is due only on a quiet link");
        self.push(self.sent, None);
    }

    fn push(&mut self, start: u64, body: Option<C>) {
        let length = body.as_ref().map_or(0, |body| body.len());
        let header = TransferHeader {
            start: i64::try_from(start).expect("log offsets fit Java's long"),
            length: i32::try_from(length).expect("a body is at most 4 MiB"),
        };
        self.queued_bytes += TRANSFER_HEADER_SIZE + length;
        self.queue.push_back(Transfer {
            header: header.encode(),
            start,
            body,
        });
    }

    /// Hands what is queued to the socket, in one call; the bytes that it took. A socket that is
    /// full takes 0, which is no error.
    pub fn write(&mut self, socket: &mut impl Write) -> io::Result<usize> {
        if self.is_idle() {
            return Ok(0);
        }
        let bytes = loop {
            match self.writev(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => break bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        self.take_off(bytes);
        Ok(bytes)
    }

    fn writev(&self, socket: &mut impl Write) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); 2 * QUEUE_MAX];
        let mut used = 0;
        let mut skip = self.written;
        for transfer in &self.queue {
            for part in [&transfer.header[..], transfer.body()] {
                let rest = &part[skip.min(part.len())..];
                skip -= part.len() - rest.len();
                if !rest.is_empty() {
                    slices[used] = IoSlice::new(rest);
                    used += 1;
                }
            }
        }
        socket.write_vectored(&slices[..used])
    }

    fn take_off(&mut self, bytes: usize) {
        self.written += bytes;
        while let Some(first) = self.queue.front() {
            let body_written = self.written.saturating_sub(TRANSFER_HEADER_SIZE);
            self.sent = first.start + body_written.min(first.body().len()) as u64;
            let size = first.size();
            if self.written < size {
                break;
            }
            self.written -= size;
            self.queued_bytes -= size;
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes at most `room` bytes, then blocks.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let n = bytes.len().min(self.room);
            self.taken.extend_from_slice(&bytes[..n]);
            self.room -= n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn sent_counts_body_bytes_that_the_socket_took_and_no_header() {
        // C-10, B134: cut after every byte, the stream is the same and `sent` is exact.
        let mut socket = Narrow {
            taken: Vec::new(),
            room: 0,
        };
        let mut handler = WriteHandler::starting_at(100);
        handler.transfer(vec![1; 5]);
        handler.transfer(vec![2; 3]);
        let mut sent = vec![];
        while !handler.is_idle() {
            assert_eq!(handler.write(&mut socket).expect("no error"), 0);
            socket.room = 1;
            assert_eq!(handler.write(&mut socket).expect("no error"), 1);
            sent.push(handler.sent());
        }
        let mut expected = vec![100; 12];
        expected.extend([101, 102, 103, 104, 105]);
        expected.extend([105; 12]);
        expected.extend([106, 107, 108]);
        assert_eq!(sent, expected);
        let mut wire = vec![0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 5, 1, 1, 1, 1, 1];
        wire.extend([0, 0, 0, 0, 0, 0, 0, 105, 0, 0, 0, 3, 2, 2, 2]);
        assert_eq!(socket.taken, wire);
    }

    #[test]
    fn a_heartbeat_carries_the_next_offset_and_sends_nothing() {
        let mut handler = WriteHandler::<Vec<u8>>::starting_at(77);
        handler.heartbeat();
        let mut wire = Vec::new();
        handler.write(&mut wire).expect("a vector takes all");
        assert_eq!(wire, [0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0]);
        assert_eq!((handler.sent(), handler.is_idle()), (77, true));
    }

    #[test]
    fn the_queue_has_a_bound_in_transfers_and_in_bytes() {
        let mut handler = WriteHandler::starting_at(0);
        for _ in 0..QUEUE_MAX {
            assert!(handler.has_room());
            handler.transfer(vec![0; 10]);
        }
        assert!(!handler.has_room());
        let mut handler = WriteHandler::starting_at(0);
        handler.transfer(vec![0; 4 << 20]);
        assert!(!handler.has_room());
    }
}
