//! A non-blocking socket's manners without a socket: reads what was put in, takes as much as it
//! has room for, and otherwise would block.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};

#[derive(Default)]
pub struct Pipe {
    /// What the owner reads next.
    pub input: VecDeque<u8>,
    /// The other side closed: after the input comes the end.
    pub ended: bool,
    /// What the owner wrote.
    pub output: Vec<u8>,
    /// How much more it may write.
    pub room: usize,
}

impl Pipe {
    /// One that takes everything.
    pub fn open() -> Pipe {
        Pipe {
            room: usize::MAX,
            ..Pipe::default()
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() && !self.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.input.read(buffer)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = bytes.len().min(self.room);
        self.output.extend_from_slice(&bytes[..taken]);
        self.room -= taken;
        Ok(taken)
    }

    /// Like a socket's: only what has no room is left over.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for part in parts {
            match self.write(part) {
                Ok(n) => taken += n,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
