//! What a Parquet column chunk will take to decode, read from its page headers before any page is unpacked.
//!
//! A page of a few kilobytes can say that it unpacks to gigabytes, and decoders believe it. The headers say so
//! in the clear (Thrift's compact protocol; `PageHeader` in parquet.thrift), so walking them costs little and bounds memory.

use crate::parquet::FileReader;

/// The needs of one column chunk, in bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ChunkNeeds {
    /// The largest page unpacked, and packed.
    pub page_bytes_max: u64,
    pub packed_bytes_max: u64,
    /// Dictionary pages stay until the chunk is done.
    pub dictionary_bytes: u64,
    /// The most values that one page says to hold.
    pub page_values_max: u64,
}

/// A header is some dozens of bytes, and more when it holds statistics of long values.
const HEADER_BYTES_FIRST: usize = 4 << 10;
const HEADER_BYTES_MAX: usize = 16 << 20;

/// Walks the pages in `[begin, begin + length)` until `values` values are seen.
pub(crate) fn walk(
    file: &FileReader,
    begin: u64,
    length: u64,
    values: u64,
) -> Result<ChunkNeeds, String> {
    let end = begin.checked_add(length).filter(|end| *end <= file.size());
    let end = end.ok_or("a column chunk lies outside of the file")?;
    let (mut at, mut seen) = (begin, 0_u64);
    let mut needs = ChunkNeeds::default();
    while at < end && seen < values {
        let (header, header_bytes) = read_header(file, at, end)?;
        let unpacked =
            u64::try_from(header.unpacked_bytes).map_err(|_| "a page has a negative size")?;
        let packed =
            u64::try_from(header.packed_bytes).map_err(|_| "a page has a negative size")?;
        let page_values =
            u64::try_from(header.values).map_err(|_| "a page has a negative number of values")?;
        at = at + header_bytes as u64 + packed;
        if at > end {
            return Err("a page runs past the end of its column chunk".into());
        }
        needs.packed_bytes_max = needs.packed_bytes_max.max(packed);
        if header.page_type == DICTIONARY_PAGE {
            needs.dictionary_bytes += unpacked;
        } else {
            needs.page_bytes_max = needs.page_bytes_max.max(unpacked);
            needs.page_values_max = needs.page_values_max.max(page_values);
            seen += page_values;
        }
    }
    if seen < values {
        return Err(format!(
            "a column chunk holds {seen} values where its footer says {values}"
        ));
    }
    Ok(needs)
}

const DICTIONARY_PAGE: i64 = 2;

#[derive(Default)]
struct PageHeader {
    page_type: i64,
    unpacked_bytes: i64,
    packed_bytes: i64,
    values: i64,
}

fn read_header(file: &FileReader, at: u64, end: u64) -> Result<(PageHeader, usize), String> {
    let mut length = HEADER_BYTES_FIRST;
    loop {
        let available = (end - at).min(length as u64) as usize;
        let bytes = file
            .read_at(at, available)
            .map_err(|e| format!("it cannot be read: {e}"))?;
        let mut thrift = Thrift {
            bytes: &bytes,
            at: 0,
        };
        match thrift.page_header() {
            Ok(header) => return Ok((header, thrift.at)),
            Err(Cut::Malformed) => return Err("a page header is damaged".into()),
            Err(Cut::TooShort) if available < length || length >= HEADER_BYTES_MAX => {
                return Err("a page header is cut off".into());
            }
            Err(Cut::TooShort) => length *= 8,
        }
    }
}

enum Cut {
    TooShort,
    Malformed,
}

/// Just enough of Thrift's compact protocol.
struct Thrift<'b> {
    bytes: &'b [u8],
    at: usize,
}

const NESTING_MAX: u32 = 16;

impl Thrift<'_> {
    fn page_header(&mut self) -> Result<PageHeader, Cut> {
        let mut header = PageHeader::default();
        let mut id = 0;
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (1, 5) => header.page_type = self.zigzag()?,
                (2, 5) => header.unpacked_bytes = self.zigzag()?,
                (3, 5) => header.packed_bytes = self.zigzag()?,
                // The headers of data pages, dictionary pages and data pages v2 begin with the number of values.
                (5 | 7 | 8, 12) => header.values = self.first_number_of_struct()?,
                _ => self.skip(kind, 0)?,
            }
        }
        Ok(header)
    }

    fn first_number_of_struct(&mut self) -> Result<i64, Cut> {
        let (mut id, mut number) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            if (id, kind) == (1, 5) {
                number = self.zigzag()?;
            } else {
                self.skip(kind, 1)?;
            }
        }
        Ok(number)
    }

    fn byte(&mut self) -> Result<u8, Cut> {
        let byte = *self.bytes.get(self.at).ok_or(Cut::TooShort)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Cut> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Cut::Malformed)
    }

    fn zigzag(&mut self) -> Result<i64, Cut> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field's kind, with `id` moved on to it; `None` at the struct's end.
    fn field(&mut self, id: &mut i64) -> Result<Option<u8>, Cut> {
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

    fn jump(&mut self, bytes: u64) -> Result<(), Cut> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > HEADER_BYTES_MAX as u64 {
            return Err(Cut::Malformed);
        }
        if bytes > left {
            return Err(Cut::TooShort);
        }
        self.at += bytes as usize;
        Ok(())
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), Cut> {
        if depth > NESTING_MAX {
            return Err(Cut::Malformed);
        }
        match kind {
            1 | 2 => Ok(()),
            3 => self.jump(1),
            4..=6 => self.varint().map(drop),
            7 => self.jump(8),
            8 => {
                let length = self.varint()?;
                self.jump(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 {
                    self.varint()?
                } else {
                    u64::from(head >> 4)
                };
                for _ in 0..count {
                    match head & 15 {
                        // Booleans take a byte in a list, and none in a struct.
                        1 | 2 => self.jump(1)?,
                        kind => self.skip(kind, depth + 1)?,
                    }
                }
                Ok(())
            }
            12 => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(Cut::Malformed),
        }
    }
}
