//! Bounds-checked big-endian reads. Bytes of peers and files are taken apart here and nowhere
//! else, so a wrong length ends as an error and never as a panic or a huge allocation.

use byteorder::{BigEndian, ByteOrder};

/// The bytes ended before the value that was asked for, or a length was negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short;

/// Takes values off the front of a byte slice.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, taken: 0 }
    }

    /// Bytes taken so far.
    pub fn position(&self) -> usize {
        self.taken
    }

    /// What is left, without taking it.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.taken..]
    }

    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let part = self.rest().get(..len).ok_or(Short)?;
        self.taken += len;
        Ok(part)
    }

    pub fn u8(&mut self) -> Result<u8, Short> {
        Ok(self.take(1)?[0])
    }

    pub fn i16(&mut self) -> Result<i16, Short> {
        Ok(BigEndian::read_i16(self.take(2)?))
    }

    pub fn i32(&mut self) -> Result<i32, Short> {
        Ok(BigEndian::read_i32(self.take(4)?))
    }

    pub fn i64(&mut self) -> Result<i64, Short> {
        Ok(BigEndian::read_i64(self.take(8)?))
    }

    /// Bytes behind a signed 16-bit length.
    pub fn bytes16(&mut self) -> Result<&'a [u8], Short> {
        let len = usize::try_from(self.i16()?).map_err(|_| Short)?;
        self.take(len)
    }

    /// Bytes behind a signed 32-bit length.
    pub fn bytes32(&mut self) -> Result<&'a [u8], Short> {
        let len = usize::try_from(self.i32()?).map_err(|_| Short)?;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_the_end_and_below_zero_are_errors() {
        assert_eq!(Reader::new(&[0, 0, 0, 5, 1, 2]).bytes32(), Err(Short));
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff]).bytes32(), Err(Short));
        assert_eq!(Reader::new(&[0x80, 0]).bytes16(), Err(Short));
        assert_eq!(Reader::new(&[0, 2, 7, 8, 9]).bytes16(), Ok(&[7, 8][..]));
    }

    #[test]
    fn a_failed_read_takes_nothing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.i32(), Err(Short));
        assert_eq!(reader.i16(), Ok(0x0102));
        assert_eq!(reader.position(), 2);
    }
}
