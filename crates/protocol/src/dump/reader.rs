//! Decodes strings, and hashes in all their encodings.

use super::{DumpValue, DumpedField};

/// A reader of values at the front of `rest`.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// Maximum size of all remaining strings together.
    budget: usize,
}

/// A length, or the number of a special string encoding.
enum Length {
    Bytes(u64),
    Special(u8),
}

impl<'a> Reader<'a> {
    /// Reads a value from all bytes; `None` if they are malformed, or more bytes follow the value.
    pub fn all<T>(
        bytes: &'a [u8],
        budget: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Option<T>,
    ) -> Option<T> {
        let mut reader = Reader {
            rest: bytes,
            budget,
        };
        read(&mut reader).filter(|_| reader.rest.is_empty())
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Takes bytes from the budget.
    fn spend(&mut self, bytes: usize) -> Option<()> {
        self.budget = self.budget.checked_sub(bytes)?;
        Some(())
    }

    fn any_length(&mut self) -> Option<Length> {
        let first = self.byte()?;
        Some(match (first >> 6, first) {
            (0, _) => Length::Bytes(u64::from(first)),
            (1, _) => Length::Bytes(u64::from(first & 63) << 8 | u64::from(self.byte()?)),
            (2, 0x80) => Length::Bytes(u64::from(u32::from_be_bytes(self.array()?))),
            (2, 0x81) => Length::Bytes(u64::from_be_bytes(self.array()?)),
            (3, _) => Length::Special(first & 63),
            _ => return None,
        })
    }

    fn length(&mut self) -> Option<u64> {
        match self.any_length()? {
            Length::Bytes(length) => Some(length),
            Length::Special(_) => None,
        }
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.length()?).ok()
    }

    pub fn string(&mut self) -> Option<Vec<u8>> {
        let string = match self.any_length()? {
            Length::Bytes(length) => self.take(usize::try_from(length).ok()?)?.to_vec(),
            Length::Special(0) => text(i8::from_le_bytes(self.array()?)),
            Length::Special(1) => text(i16::from_le_bytes(self.array()?)),
            Length::Special(2) => text(i32::from_le_bytes(self.array()?)),
            Length::Special(3) => {
                let (packed, plain) = (self.size()?, self.size()?);
                let packed = self.take(packed)?;
                (plain <= self.budget).then(|| lzf_decompress(packed, plain))??
            }
            Length::Special(_) => return None,
        };
        self.spend(string.len())?;
        Some(string)
    }

    pub fn hash(&mut self, expires: bool) -> Option<DumpValue> {
        let first = if expires {
            u64::from_le_bytes(self.array()?)
        } else {
            0
        };
        let count = self.size()?;
        // Names are distinct, so at most one of them is empty and takes nothing from the budget.
        if count > self.budget + 1 {
            return None;
        }
        let mut fields = Vec::new();
        for _ in 0..count {
            let after = if expires { self.length()? } else { 0 };
            let expires_at_ms = match after.checked_sub(1) {
                None => None,
                Some(after) => Some(time(first.checked_add(after)?)?),
            };
            fields.push(DumpedField {
                name: self.string()?,
                value: self.string()?,
                expires_at_ms,
            });
        }
        (!fields.is_empty()).then_some(DumpValue::Hash(fields))
    }

    pub fn ziplist(&mut self) -> Option<DumpValue> {
        let list = self.string()?;
        let elements = Reader::all(&list, list.len(), Reader::ziplist_elements)?;
        hash_of(elements, false)
    }

    pub fn listpack(&mut self, expires: bool) -> Option<DumpValue> {
        if expires {
            // The earliest expiration time of a field. The fields have it, too.
            self.array::<8>()?;
        }
        let list = self.string()?;
        let elements = Reader::all(&list, list.len(), Reader::listpack_elements)?;
        hash_of(elements, expires)
    }

    /// Returns the elements of a listpack, numbers as texts. The count in the header is not needed.
    fn listpack_elements(&mut self) -> Option<Vec<Vec<u8>>> {
        let length = self.rest.len();
        if usize::try_from(u32::from_le_bytes(self.array()?)).ok()? != length {
            return None;
        }
        self.array::<2>()?;
        let mut elements = Vec::new();
        loop {
            let before = self.rest.len();
            let first = self.byte()?;
            elements.push(match first {
                0xff => return Some(elements),
                0..0x80 => text(first),
                0x80..0xc0 => self.take(usize::from(first & 0x3f))?.to_vec(),
                0xc0..0xe0 => {
                    // Thirteen bits. The highest is the sign.
                    let bits = u16::from_be_bytes([first & 0x1f, self.byte()?]);
                    text((bits << 3) as i16 >> 3)
                }
                0xe0..0xf0 => {
                    let length = u16::from_be_bytes([first & 0x0f, self.byte()?]);
                    self.take(usize::from(length))?.to_vec()
                }
                0xf0 => {
                    let length = u32::from_le_bytes(self.array()?);
                    self.take(usize::try_from(length).ok()?)?.to_vec()
                }
                0xf1 => text(i16::from_le_bytes(self.array()?)),
                0xf2 => text(self.three_bytes()?),
                0xf3 => text(i32::from_le_bytes(self.array()?)),
                0xf4 => text(i64::from_le_bytes(self.array()?)),
                _ => return None,
            });
            // The entry's length follows the entry, for backward iteration, with seven bits in each byte.
            self.take(match before - self.rest.len() {
                0..128 => 1,
                128..16_384 => 2,
                16_384..2_097_152 => 3,
                2_097_152..268_435_456 => 4,
                _ => 5,
            })?;
        }
    }

    /// Returns the elements of a ziplist, numbers as texts. The count and the tail's offset in the header are not needed.
    fn ziplist_elements(&mut self) -> Option<Vec<Vec<u8>>> {
        let length = self.rest.len();
        if usize::try_from(u32::from_le_bytes(self.array()?)).ok()? != length {
            return None;
        }
        self.array::<6>()?;
        let mut elements = Vec::new();
        loop {
            // The length of the previous entry, for backward iteration.
            match self.byte()? {
                0xff => return Some(elements),
                0xfe => {
                    self.array::<4>()?;
                }
                _ => {}
            }
            let first = self.byte()?;
            elements.push(match first {
                0..0x40 => self.take(usize::from(first))?.to_vec(),
                0x40..0x80 => {
                    let length = u16::from_be_bytes([first & 0x3f, self.byte()?]);
                    self.take(usize::from(length))?.to_vec()
                }
                0x80 => {
                    let length = u32::from_be_bytes(self.array()?);
                    self.take(usize::try_from(length).ok()?)?.to_vec()
                }
                0xc0 => text(i16::from_le_bytes(self.array()?)),
                0xd0 => text(i32::from_le_bytes(self.array()?)),
                0xe0 => text(i64::from_le_bytes(self.array()?)),
                0xf0 => text(self.three_bytes()?),
                0xfe => text(i8::from_le_bytes(self.array()?)),
                0xf1..=0xfd => text((first & 0x0f) - 1),
                _ => return None,
            });
        }
    }

    fn three_bytes(&mut self) -> Option<i32> {
        let [low, middle, high] = self.array()?;
        Some(i32::from_le_bytes([0, low, middle, high]) >> 8)
    }
}

/// Returns milliseconds since 1970 if they fit into a signed number.
fn time(ms: u64) -> Option<u64> {
    (ms <= i64::MAX as u64).then_some(ms)
}

fn text(number: impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Returns the hash whose fields are consecutive elements of a list: a name, a value and, with `expires`, a time.
fn hash_of(elements: Vec<Vec<u8>>, expires: bool) -> Option<DumpValue> {
    let width = if expires { 3 } else { 2 };
    if elements.is_empty() || !elements.len().is_multiple_of(width) {
        return None;
    }
    let mut elements = elements.into_iter();
    let mut fields = Vec::new();
    while let Some(name) = elements.next() {
        let value = elements.next()?;
        let at = if expires {
            std::str::from_utf8(&elements.next()?).ok()?.parse().ok()?
        } else {
            0
        };
        fields.push(DumpedField {
            name,
            value,
            expires_at_ms: match at {
                0 => None,
                at => Some(time(at)?),
            },
        });
    }
    Some(DumpValue::Hash(fields))
}

/// Decompresses LZF, the compression of RDB files; `None` if the result does not have `length` bytes.
fn lzf_decompress(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    /// Three bytes decompress to at most 264.
    const EXPANSION_MAX: usize = 88;
    if length > packed.len().saturating_mul(EXPANSION_MAX) {
        return None;
    }
    let mut reader = Reader {
        rest: packed,
        budget: 0,
    };
    let mut out: Vec<u8> = Vec::with_capacity(length);
    while let Some(control) = reader.byte().map(usize::from) {
        if control < 32 {
            out.extend_from_slice(reader.take(control + 1)?);
        } else {
            let mut count = control >> 5;
            if count == 7 {
                count += usize::from(reader.byte()?);
            }
            let distance = (control & 31) << 8 | usize::from(reader.byte()?);
            let start = out.len().checked_sub(distance + 1)?;
            // The source and the destination of the copy may overlap.
            for at in start..start + count + 2 {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}
