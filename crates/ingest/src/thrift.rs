//! A minimal reader of Thrift's compact protocol, for Parquet's page headers and footers.

/// The types of the protocol, as in the header of a field.
pub(crate) mod kind {
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
    pub const UUID: u8 = 13;
}

/// The reason why bytes cannot be read.
pub(crate) enum ThriftError {
    /// They are truncated.
    TooShort,
    Malformed,
}

pub(crate) struct ThriftReader<'b> {
    pub bytes: &'b [u8],
    /// The position of the next byte.
    pub at: usize,
    /// Maximum length of one value, in bytes.
    pub value_bytes_max: u64,
}

impl ThriftReader<'_> {
    fn byte(&mut self) -> Result<u8, ThriftError> {
        let byte = *self.bytes.get(self.at).ok_or(ThriftError::TooShort)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ThriftError::Malformed)
    }

    pub fn zigzag(&mut self) -> Result<i64, ThriftError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Returns the type of a struct's next field, and advances `id` to it; `None` at the struct's end.
    pub fn field(&mut self, id: &mut i64) -> Result<Option<u8>, ThriftError> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        *id = match byte >> 4 {
            0 => self.zigzag()?,
            delta => id.saturating_add(i64::from(delta)),
        };
        Ok(Some(byte & 15))
    }

    /// Returns the number of a list's elements, and their type.
    pub fn list(&mut self) -> Result<(u64, u8), ThriftError> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => u64::from(few),
        };
        Ok((count, head & 15))
    }

    fn jump(&mut self, bytes: u64) -> Result<(), ThriftError> {
        if bytes > self.value_bytes_max {
            return Err(ThriftError::Malformed);
        }
        if bytes > (self.bytes.len() - self.at) as u64 {
            return Err(ThriftError::TooShort);
        }
        self.at += bytes as usize;
        Ok(())
    }

    /// Skips the value of a field, in which values are nested at most `depth` deep.
    pub fn skip(&mut self, kind: u8, depth: u32) -> Result<(), ThriftError> {
        match kind {
            // Their value is in the header.
            kind::TRUE | kind::FALSE => Ok(()),
            _ => self.skip_element(kind, depth),
        }
    }

    /// Skips an element of a list, which has at least one byte.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Result<(), ThriftError> {
        let depth = depth.checked_sub(1).ok_or(ThriftError::Malformed)?;
        match kind {
            kind::TRUE | kind::FALSE | kind::BYTE => self.jump(1),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.jump(8),
            kind::UUID => self.jump(16),
            kind::BINARY => {
                let length = self.varint()?;
                self.jump(length)
            }
            kind::LIST | kind::SET => {
                let (count, of) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(of, depth))
            }
            kind::MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let of = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_element(of >> 4, depth)?;
                    self.skip_element(of & 15, depth)
                })
            }
            kind::STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
                Ok(())
            }
            _ => Err(ThriftError::Malformed),
        }
    }
}
