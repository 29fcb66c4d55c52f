//! What a Parquet column chunk will take to decode, read from its page headers before any page is unpacked.
//!
//! A page of a few kilobytes can say that it unpacks to gigabytes, and decoders believe it. The headers say so
//! in the clear (Thrift's compact protocol; `PageHeader` in parquet.thrift), so walking them costs little and bounds memory.

use crate::parquet::FileReader;

/// The rows of a batch, in the sizes that are considered.
pub(crate) const BATCH_ROWS: [u64; 6] = [1024, 256, 64, 16, 4, 1];

/// The needs of one column chunk, in bytes.
#[derive(Debug, Default, Clone)]
pub(crate) struct ChunkNeeds {
    /// The largest page unpacked, and packed.
    pub page_bytes_max: u64,
    pub packed_bytes_max: u64,
    /// All data pages unpacked.
    pub pages_bytes: u64,
    /// Dictionary pages stay until the chunk is done.
    pub dictionary_bytes: u64,
    /// The most values that one page says to hold.
    pub page_values_max: u64,
    /// Whether values may repeat the begins of those before them, so that a page unpacks to more than its size.
    pub has_shared_prefixes: bool,
    /// For each of [`BATCH_ROWS`], the most bytes of pages that one batch touches; `None` where pages do not say their rows.
    pub windows: Option<Windows>,
}

/// Batches are cut from a chunk's first row on; a batch keeps every page that it touches.
#[derive(Debug, Default, Clone)]
pub(crate) struct Windows {
    /// Where the next page begins.
    row: u64,
    sizes: [Window; BATCH_ROWS.len()],
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    /// The last batch that was touched, and the bytes of the pages that it touches so far.
    batch: u64,
    bytes: u64,
    bytes_max: u64,
}

impl Windows {
    fn add(&mut self, rows: u64, bytes: u64) {
        let end = self.row.saturating_add(rows);
        for (window, batch_rows) in self.sizes.iter_mut().zip(BATCH_ROWS) {
            if self.row / batch_rows != window.batch {
                (window.batch, window.bytes) = (self.row / batch_rows, 0);
            }
            window.bytes = window.bytes.saturating_add(bytes);
            window.bytes_max = window.bytes_max.max(window.bytes);
            let last = end.saturating_sub(1) / batch_rows;
            if rows > 0 && last != window.batch {
                (window.batch, window.bytes) = (last, bytes);
            }
        }
        self.row = end;
    }

    /// The most bytes of pages in one batch of `BATCH_ROWS[size]` rows.
    pub fn bytes_max(&self, size: usize) -> u64 {
        self.sizes[size].bytes_max
    }
}

/// A header is some dozens of bytes, and more when it holds statistics of long values.
const HEADER_BYTES_FIRST: usize = 4 << 10;
const HEADER_BYTES_MAX: usize = 16 << 20;

/// Walks the pages in `[begin, begin + length)` until `values` values are seen. In a flat column every value is a row.
pub(crate) fn walk(
    file: &FileReader,
    (begin, length): (u64, u64),
    values: u64,
    is_flat: bool,
) -> Result<ChunkNeeds, String> {
    let end = begin.checked_add(length).filter(|end| *end <= file.size());
    let end = end.ok_or("a column chunk lies outside of the file")?;
    let (mut at, mut seen) = (begin, 0_u64);
    let mut needs = ChunkNeeds {
        windows: Some(Windows::default()),
        ..ChunkNeeds::default()
    };
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
            needs.pages_bytes = needs.pages_bytes.saturating_add(unpacked);
            needs.has_shared_prefixes |= header.encoding == DELTA_BYTE_ARRAY;
            let rows = match is_flat {
                true => Some(page_values),
                false => header.rows.and_then(|rows| u64::try_from(rows).ok()),
            };
            match (rows, &mut needs.windows) {
                (Some(rows), Some(windows)) => windows.add(rows, unpacked),
                _ => needs.windows = None,
            }
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
const DELTA_BYTE_ARRAY: i64 = 7;

#[derive(Default)]
struct PageHeader {
    page_type: i64,
    unpacked_bytes: i64,
    packed_bytes: i64,
    values: i64,
    encoding: i64,
    /// Only pages of version 2 say so.
    rows: Option<i64>,
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
                // The headers of data pages and of dictionary pages begin with the number of values and the encoding.
                (5 | 7, 12) => [header.values, header.encoding, ..] = self.numbers_of_struct()?,
                // Those of data pages v2 with the numbers of values, nulls and rows, and the encoding.
                (8, 12) => {
                    let [values, _, rows, encoding] = self.numbers_of_struct()?;
                    (header.values, header.rows, header.encoding) = (values, Some(rows), encoding);
                }
                _ => self.skip(kind, 0)?,
            }
        }
        Ok(header)
    }

    /// The fields 1 to 4 of a struct, where they are 32-bit numbers.
    fn numbers_of_struct(&mut self) -> Result<[i64; 4], Cut> {
        let (mut id, mut numbers) = (0, [0; 4]);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (1..=4, 5) => numbers[(id - 1) as usize] = self.zigzag()?,
                _ => self.skip(kind, 1)?,
            }
        }
        Ok(numbers)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_keeps_every_page_that_it_touches() {
        let mut windows = Windows::default();
        // Two small pages, one long value alone in its page, and a page that reaches over several batches.
        for (rows, bytes) in [(1000, 10), (10, 10), (1, 5000), (4000, 40)] {
            windows.add(rows, bytes);
        }
        let most = |rows| windows.bytes_max(BATCH_ROWS.iter().position(|r| *r == rows).unwrap());
        assert_eq!(most(1024), 10 + 10 + 5000 + 40);
        assert_eq!(most(4), 10 + 5000 + 40);
        assert_eq!(most(1), 5000);
    }
}
