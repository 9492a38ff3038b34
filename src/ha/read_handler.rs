//! Reports in: cuts what a slave sends into reports of eight bytes.

use std::io::{self, Read};

use super::wire::REPORT_SIZE;

/// Most bytes taken from one slave in one turn. An honest slave sends eight a read of its own.
const READ_MAX: usize = 16 * 1024;

/// Holds the beginning of a report whose rest has not come yet.
#[derive(Default)]
pub struct ReadHandler {
    partial: [u8; REPORT_SIZE],
    filled: usize,
}

/// What one turn's reading gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// The last complete report. A slave that was busy sends several at once, and the last one
    /// says all; for the request at the beginning the original master looks at no other either.
    pub last: Option<i64>,
    /// Anything at all came, so the slave lives.
    pub any: bool,
    /// The slave closed its side.
    pub ended: bool,
    /// There may be more to read now.
    pub more: bool,
}

impl ReadHandler {
    /// Reads what is there, up to a bound.
    pub fn read(&mut self, socket: &mut impl Read) -> io::Result<Reports> {
        let mut reports = Reports::default();
        let mut taken = 0;
        let mut buffer = [0; 4096];
        while taken < READ_MAX {
            match socket.read(&mut buffer) {
                Ok(0) => {
                    reports.ended = true;
                    return Ok(reports);
                }
                Ok(n) => {
                    taken += n;
                    reports.any = true;
                    reports.last = self.on_bytes(&buffer[..n]).or(reports.last);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(reports),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        reports.more = true;
        Ok(reports)
    }

    /// The last report that these bytes complete.
    fn on_bytes(&mut self, bytes: &[u8]) -> Option<i64> {
        let mut last = None;
        for byte in bytes {
            self.partial[self.filled] = *byte;
            self.filled += 1;
            if self.filled == REPORT_SIZE {
                self.filled = 0;
                last = Some(i64::from_be_bytes(self.partial));
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(handler: &mut ReadHandler, bytes: &[u8]) -> Option<i64> {
        handler.read(&mut &bytes[..]).expect("a slice reads").last
    }

    #[test]
    fn a_report_in_two_parts_counts_when_it_is_complete() {
        // C-2.
        for cut in 1..REPORT_SIZE {
            let mut handler = ReadHandler::default();
            let bytes = 4711i64.to_be_bytes();
            assert_eq!(read(&mut handler, &bytes[..cut]), None);
            assert_eq!(read(&mut handler, &bytes[cut..]), Some(4711));
        }
    }

    #[test]
    fn of_several_reports_in_one_read_the_last_complete_one_counts() {
        // C-5, and half of a fourth behind them.
        let mut handler = ReadHandler::default();
        let bytes: Vec<u8> = [100i64, 200, 300, 400].map(i64::to_be_bytes).concat();
        assert_eq!(read(&mut handler, &bytes[..28]), Some(300));
        assert_eq!(read(&mut handler, &bytes[28..]), Some(400));
    }

    #[test]
    fn one_turn_reads_a_bounded_amount() {
        let endless = vec![0; 10 * READ_MAX];
        let mut rest = &endless[..];
        let reports = ReadHandler::default().read(&mut rest).expect("it reads");
        assert!(reports.more && !reports.ended);
        assert_eq!(rest.len(), 9 * READ_MAX);
    }
}
