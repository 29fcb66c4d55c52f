//! Bytes between nodes: numbers of fixed size, little-endian, and strings of bytes behind their size.
//!
//! What comes from a socket is not trusted: every size is checked against what is there before anything is taken or allocated.

/// Appends a string of bytes behind its size (4 bytes).
///
/// # Panics
/// It is 4 GiB or longer.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends how many there are of something (4 bytes).
///
/// # Panics
/// There are 4 Gi or more.
pub fn put_count(out: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("what is sent at once is far below 4 Gi");
    out.extend_from_slice(&count.to_le_bytes());
}

/// Bytes that do not say what they should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

const SHORT: Malformed = Malformed("the message ends before what it says it holds");

/// Takes bytes apart, from the front.
#[derive(Debug, Clone, Copy)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    pub fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader { rest: bytes }
    }

    /// # Errors
    /// There are fewer bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.rest.split_first_chunk::<N>().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*first)
    }

    /// # Errors
    /// As [`WireReader::array`].
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// # Errors
    /// As [`WireReader::array`].
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// As [`WireReader::array`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// As [`WireReader::array`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// It is neither; or as [`WireReader::array`].
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    /// A string of bytes behind its size.
    ///
    /// # Errors
    /// There are fewer bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let size = self.u32()? as usize;
        let (bytes, rest) = self.rest.split_at_checked(size).ok_or(SHORT)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// How many there are of something that takes `bytes_min` bytes or more: no more than can be there.
    ///
    /// # Errors
    /// There cannot be so many.
    pub fn count(&mut self, bytes_min: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        match count.checked_mul(bytes_min) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(SHORT),
        }
    }

    /// What has not been taken.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// # Errors
    /// There is more than was taken.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Malformed("the message goes on behind its end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken_and_nothing_else() {
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
