//! The length prefix: where one frame ends and the next begins.
//!
//! | bytes | field                                                                       |
//! |------:|-----------------------------------------------------------------------------|
//! |     4 | length of everything behind itself                                          |
//! |     4 | header mark: type of the header (top byte), length of the header (low 24)   |
//! |     H | header: JSON text, or the ROCKETMQ binary form                              |
//! |     n | body, opaque                                                                |

use std::fmt;

use crate::base::reader::Reader;

/// Longest frame, the length word included (`com.rocketmq.remoting.frameMaxLength`).
pub const FRAME_MAX: usize = 16 * 1024 * 1024;
/// Longest header: 32 KiB of properties, every byte of which JSON may write as six, and the rest.
const HEADER_MAX: usize = 256 * 1024;
/// Bytes before the header.
pub const PREFIX: usize = 8;
/// First byte of a TLS hello. A frame's first byte is 0 or 1: lengths stay below 16 MiB.
const TLS_HELLO: u8 = 0x16;

/// The bytes are no frame. The connection is closed: nothing behind them can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    Length(i32),
    HeaderLength { header: usize, frame: usize },
    Tls,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Length(length) => {
                write!(f, "frame length {length} is not in 4..={FRAME_MAX}")
            }
            FrameError::HeaderLength { header, frame } => {
                write!(f, "header of {header} bytes in a frame of {frame}")
            }
            FrameError::Tls => write!(f, "a TLS hello on a plain port"),
        }
    }
}

/// The length of the frame that `input` begins with, prefix included, once it is all there.
pub fn complete(input: &[u8]) -> Result<Option<usize>, FrameError> {
    if input.first() == Some(&TLS_HELLO) {
        return Err(FrameError::Tls);
    }
    let mut reader = Reader::new(input);
    let Ok(length) = reader.i32() else {
        return Ok(None);
    };
    let frame = usize::try_from(length).map_err(|_| FrameError::Length(length))? + 4;
    if !(PREFIX..=FRAME_MAX).contains(&frame) {
        return Err(FrameError::Length(length));
    }
    let Ok(mark) = reader.i32() else {
        return Ok(None);
    };
    let header = (mark & 0x00ff_ffff) as usize;
    if header > (frame - PREFIX).min(HEADER_MAX) {
        return Err(FrameError::HeaderLength { header, frame });
    }
    Ok((input.len() >= frame).then_some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_complete_with_its_last_byte_only() {
        let frame = [0, 0, 0, 6, 0, 0, 0, 2, b'{', b'}', 9, 9];
        for len in 0..10 {
            assert_eq!(complete(&frame[..len]), Ok(None), "{len}");
        }
        assert_eq!(complete(&frame), Ok(Some(10)));
    }

    #[test]
    fn impossible_lengths_are_refused_before_their_bytes_come() {
        let start =
            |length: i32, header: u32| [length.to_be_bytes(), header.to_be_bytes()].concat();
        assert_eq!(complete(&start(FRAME_MAX as i32 - 4, 10)), Ok(None));
        assert_eq!(
            complete(&start(FRAME_MAX as i32 - 3, 10)),
            Err(FrameError::Length(FRAME_MAX as i32 - 3))
        );
        assert_eq!(
            complete(&(-1i32).to_be_bytes()),
            Err(FrameError::Length(-1))
        );
        assert_eq!(complete(&3i32.to_be_bytes()), Err(FrameError::Length(3)));
        assert!(matches!(
            complete(&start(50, 1000)),
            Err(FrameError::HeaderLength { .. })
        ));
        assert_eq!(complete(b"\x16\x03\x01"), Err(FrameError::Tls));
    }
}
