//! Determines the memory for decoding a Parquet column chunk from its page headers, before any page is unpacked.
//!
//! A page of a few kilobytes can declare that it unpacks to gigabytes, and decoders trust it. The headers are not
//! compressed (Thrift's compact protocol; `PageHeader` in parquet.thrift), so reading them is cheap and bounds the
//! memory.

use crate::parquet::FileReader;
use crate::thrift::{ThriftError, ThriftReader, kind};

/// The batch sizes, in rows, that are considered.
pub(crate) const BATCH_ROWS: [u64; 6] = [1024, 256, 64, 16, 4, 1];

/// The memory for one column chunk, in bytes.
#[derive(Debug, Default, Clone)]
pub(crate) struct ChunkNeeds {
    /// The largest page, unpacked and packed.
    pub page_bytes_max: u64,
    pub packed_bytes_max: u64,
    /// All data pages, unpacked.
    pub pages_bytes: u64,
    /// Dictionary pages, which are kept until the end of the chunk.
    pub dictionary_bytes: u64,
    /// The maximum number of values that a page declares.
    pub page_values_max: u64,
    /// True if values may share prefixes with earlier values, so that a page decodes to more than its size.
    pub has_shared_prefixes: bool,
    /// For each of [`BATCH_ROWS`], the maximum size of the pages that one batch touches; `None` if pages do not
    /// declare their rows.
    pub windows: Option<Windows>,
}

/// Batches start at a chunk's first row; a batch keeps every page that it touches.
#[derive(Debug, Default, Clone)]
pub(crate) struct Windows {
    /// The first row of the next page.
    row: u64,
    sizes: [Window; BATCH_ROWS.len()],
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    /// The last batch that was touched, and the size of its pages so far.
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

    /// Returns the maximum size of the pages in one batch of `BATCH_ROWS[size]` rows.
    pub fn bytes_max(&self, size: usize) -> u64 {
        self.sizes[size].bytes_max
    }
}

/// A header takes some dozens of bytes, or more with statistics of long values.
const HEADER_BYTES_FIRST: usize = 4 << 10;
const HEADER_BYTES_MAX: usize = 16 << 20;

/// Reads the page headers in `[begin, begin + length)` until `values` values are covered. In a flat column every
/// value is a row.
pub(crate) fn measure_chunk(
    file: &FileReader,
    (begin, length): (u64, u64),
    values: u64,
    is_flat: bool,
) -> Result<ChunkNeeds, String> {
    let end = begin.checked_add(length).filter(|end| *end <= file.size());
    let end = end.ok_or("a column chunk is outside the file")?;
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
            let rows = if is_flat {
                Some(page_values)
            } else {
                header.rows.and_then(|rows| u64::try_from(rows).ok())
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
            "a column chunk has {seen} values, but its footer declares {values}"
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
    /// Present only in pages of version 2.
    rows: Option<i64>,
}

fn read_header(file: &FileReader, at: u64, end: u64) -> Result<(PageHeader, usize), String> {
    let mut length = HEADER_BYTES_FIRST;
    loop {
        let available = (end - at).min(length as u64) as usize;
        let bytes = file
            .read_at(at, available)
            .map_err(|e| format!("it cannot be read: {e}"))?;
        let mut thrift = ThriftReader {
            bytes: &bytes,
            at: 0,
            value_bytes_max: HEADER_BYTES_MAX as u64,
        };
        match page_header(&mut thrift) {
            Ok(header) => return Ok((header, thrift.at)),
            Err(ThriftError::Malformed) => return Err("a page header is damaged".into()),
            Err(ThriftError::TooShort) if available < length || length >= HEADER_BYTES_MAX => {
                return Err("a page header is cut off".into());
            }
            Err(ThriftError::TooShort) => length *= 8,
        }
    }
}

/// Maximum nesting of skipped values.
const NESTING_MAX: u32 = 17;

fn page_header(thrift: &mut ThriftReader<'_>) -> Result<PageHeader, ThriftError> {
    let mut header = PageHeader::default();
    let mut id = 0;
    while let Some(kind) = thrift.field(&mut id)? {
        match (id, kind) {
            (1, kind::I32) => header.page_type = thrift.zigzag()?,
            (2, kind::I32) => header.unpacked_bytes = thrift.zigzag()?,
            (3, kind::I32) => header.packed_bytes = thrift.zigzag()?,
            // The headers of data pages and of dictionary pages begin with the number of values and the encoding.
            (5 | 7, kind::STRUCT) => {
                [header.values, header.encoding, ..] = read_struct_numbers(thrift)?;
            }
            // Those of data pages v2 begin with the numbers of values, nulls and rows, and the encoding.
            (8, kind::STRUCT) => {
                let [values, _, rows, encoding] = read_struct_numbers(thrift)?;
                (header.values, header.rows, header.encoding) = (values, Some(rows), encoding);
            }
            _ => thrift.skip(kind, NESTING_MAX)?,
        }
    }
    Ok(header)
}

/// Returns the fields 1 to 4 of a struct, if they are 32-bit numbers.
fn read_struct_numbers(thrift: &mut ThriftReader<'_>) -> Result<[i64; 4], ThriftError> {
    let (mut id, mut numbers) = (0, [0; 4]);
    while let Some(kind) = thrift.field(&mut id)? {
        match (id, kind) {
            (1..=4, kind::I32) => numbers[(id - 1) as usize] = thrift.zigzag()?,
            _ => thrift.skip(kind, NESTING_MAX - 1)?,
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_keeps_every_page_it_overlaps() {
        let mut windows = Windows::default();
        // Two small pages, one long value alone in its page, and a page that spans several batches.
        for (rows, bytes) in [(1000, 10), (10, 10), (1, 5000), (4000, 40)] {
            windows.add(rows, bytes);
        }
        let most = |rows| windows.bytes_max(BATCH_ROWS.iter().position(|r| *r == rows).unwrap());
        assert_eq!(most(1024), 10 + 10 + 5000 + 40);
        assert_eq!(most(4), 10 + 5000 + 40);
        assert_eq!(most(1), 5000);
    }
}
