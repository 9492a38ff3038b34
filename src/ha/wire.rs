//! The replication wire format: the two units a master and a slave exchange.
//!
//! A slave opens one TCP connection to the master's HA port. There is no handshake; each
//! direction is a sequence of one unit. Integers are big-endian and signed.
//!
//! Transfer, master to slave (`TRANSFER_HEADER_SIZE` bytes, then the body):
//!
//! | offset | size | field    | meaning                                                 |
//! |-------:|-----:|----------|---------------------------------------------------------|
//! |      0 |    8 | start    | log offset of the first body byte                       |
//! |      8 |    4 | length   | body bytes that follow; 0 makes the unit a heartbeat    |
//! |     12 |    n | body     | the log's bytes from `start`; may end inside a record   |
//!
//! Report, slave to master (`REPORT_SIZE` bytes):
//!
//! | offset | size | field    | meaning                                                 |
//! |-------:|-----:|----------|---------------------------------------------------------|
//! |      0 |    8 | received | end of the slave's log: every byte before it is there   |
//!
//! The first report on a connection is the request to start there; later ones acknowledge.
//! twinmq-ha(7) tells the whole protocol, timeouts included.

use crate::base::reader::{Reader, Short};

/// Bytes before a transfer's body.
pub const TRANSFER_HEADER_SIZE: usize = 8 + 4;
/// Most body bytes in one transfer that we send, unless `haTransferBatchSize` says otherwise.
pub const TRANSFER_BODY_DEFAULT: usize = 32 * 1024;
/// Most that we send or take: an original slave's buffer is 4 MiB, and a transfer that does not
/// fit stops it for ever.
pub const TRANSFER_BODY_MAX: usize = 4 * 1024 * 1024 - TRANSFER_HEADER_SIZE;
/// Bytes of a report.
pub const REPORT_SIZE: usize = 8;

/// What precedes a transfer's body, as it was sent: nothing in it is checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferHeader {
    pub start: i64,
    pub length: i32,
}

impl TransferHeader {
    pub fn encode(self) -> [u8; TRANSFER_HEADER_SIZE] {
        let mut bytes = [0; TRANSFER_HEADER_SIZE];
        bytes[..8].copy_from_slice(&self.start.to_be_bytes());
        bytes[8..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<TransferHeader, Short> {
        let mut reader = Reader::new(bytes);
        Ok(TransferHeader {
            start: reader.i64()?,
            length: reader.i32()?,
        })
    }
}

/// A report's bytes.
pub fn encode_report(received: u64) -> [u8; REPORT_SIZE] {
    // Log offsets are signed in Java; ours stay below that bound since file names have it too.
    received.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_header_has_the_documented_bytes() {
        // The specification's example: 904 bytes from offset 4096.
        let header = TransferHeader {
            start: 4096,
            length: 904,
        };
        let bytes = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 3, 0x88];
        assert_eq!(header.encode(), bytes);
        assert_eq!(TransferHeader::decode(&bytes), Ok(header));
        assert_eq!(TransferHeader::decode(&bytes[..11]), Err(Short));
    }

    #[test]
    fn a_report_has_the_documented_bytes() {
        assert_eq!(encode_report(5000), [0, 0, 0, 0, 0, 0, 0x13, 0x88]);
    }
}
