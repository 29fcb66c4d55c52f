//! The wire encoding between nodes: fixed-size little-endian numbers, and length-prefixed byte strings.
//!
//! Bytes from a socket are not trusted: every length is checked against the remaining bytes before anything is read
//! or allocated.

/// Appends a byte string with a 4-byte length prefix.
///
/// # Panics
/// If it is 4 GiB or longer.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a number of elements (4 bytes).
///
/// # Panics
/// If there are 4 Gi elements or more.
pub fn put_count(out: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("a message is far smaller than 4 GiB");
    out.extend_from_slice(&count.to_le_bytes());
}

/// Error for bytes that do not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

const SHORT: Malformed = Malformed("the message ends before its announced length");

/// A decoder that consumes a byte slice from the front.
#[derive(Debug, Clone, Copy)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    pub fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader { rest: bytes }
    }

    /// # Errors
    /// If fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.rest.split_first_chunk::<N>().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*first)
    }

    /// # Errors
    /// Like [`WireReader::array`].
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// # Errors
    /// Like [`WireReader::array`].
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// Like [`WireReader::array`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// Like [`WireReader::array`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a byte that is 0 or 1.
    ///
    /// # Errors
    /// If it is neither; or like [`WireReader::array`].
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    /// Reads a byte string with its length prefix.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let size = self.u32()? as usize;
        let (bytes, rest) = self.rest.split_at_checked(size).ok_or(SHORT)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a number of elements, each of which takes at least `bytes_min` bytes. The result is bounded by the
    /// remaining bytes.
    ///
    /// # Errors
    /// If the remaining bytes cannot hold so many elements.
    pub fn count(&mut self, bytes_min: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        match count.checked_mul(bytes_min) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(SHORT),
        }
    }

    /// Returns the remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// # Errors
    /// If bytes are left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("the message continues after its end"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_values_round_trip_and_other_bytes_are_rejected() {
        let mut out = vec![7];
        out.extend_from_slice(&9_u64.to_le_bytes());
        put_bytes(&mut out, b"post|bob|1");
        put_count(&mut out, 2);
        out.extend([1, 0]);
        let mut reader = WireReader::new(&out);
        assert_eq!((reader.u8(), reader.u64()), (Ok(7), Ok(9)));
        assert_eq!(reader.bytes(), Ok(&b"post|bob|1"[..]));
        assert!(reader.end().is_err());
        assert_eq!(reader.count(1), Ok(2));
        assert_eq!((reader.flag(), reader.flag()), (Ok(true), Ok(false)));
        assert_eq!((reader.end(), reader.u8()), (Ok(()), Err(SHORT)));
    }

    #[test]
    fn a_size_beyond_the_end_is_refused_before_anything_is_allocated() {
        let huge = u32::MAX.to_le_bytes();
        assert_eq!(WireReader::new(&huge).bytes(), Err(SHORT));
        assert_eq!(WireReader::new(&huge).count(1), Err(SHORT));
        assert!(WireReader::new(&[2]).flag().is_err());
    }
}
