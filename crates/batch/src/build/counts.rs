//! What is counted of rows on their way: it decides how the segment is laid out that they come to.

use crate::segment::{LARGE_VALUE_BYTES_MIN, SegmentPlan};

#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub rows: u64,
    /// Bytes of keys and of the values that stay in blocks.
    inline_bytes: u64,
    sizes: RowSizes,
}

/// Whether rows all have one key size and one value size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RowSizes {
    #[default]
    NoRows,
    Same(u32, u32),
    Mixed,
}

impl RowSizes {
    #[inline]
    fn with(self, other: RowSizes) -> RowSizes {
        match (self, other) {
            (RowSizes::NoRows, sizes) | (sizes, RowSizes::NoRows) => sizes,
            (sizes, other) if sizes == other => sizes,
            _ => RowSizes::Mixed,
        }
    }
}

impl Counts {
    /// Of no rows yet. If they are to be collected, they make values that are longer than they are.
    pub fn new(are_collected: bool) -> Counts {
        Counts {
            sizes: match are_collected {
                true => RowSizes::Mixed,
                false => RowSizes::NoRows,
            },
            ..Counts::default()
        }
    }

    #[inline]
    pub fn add_row(&mut self, key: &[u8], value: &[u8]) {
        self.rows += 1;
        let sizes = RowSizes::Same(key.len() as u32, value.len() as u32);
        self.sizes = self.sizes.with(sizes);
        self.inline_bytes += key.len() as u64;
        if value.len() <= LARGE_VALUE_BYTES_MIN {
            self.inline_bytes += value.len() as u64;
        }
    }

    pub fn add(&mut self, other: Counts) {
        self.rows += other.rows;
        self.inline_bytes += other.inline_bytes;
        self.sizes = self.sizes.with(other.sizes);
    }

    /// The layout of a segment of these rows. Duplicates may fall away from them.
    pub fn plan(self, partition: u32, partitions: u32) -> SegmentPlan {
        SegmentPlan {
            partition,
            partitions,
            record_count: self.rows,
            inline_bytes: self.inline_bytes,
            sizes: match self.sizes {
                RowSizes::Same(key, value) => Some((key, value)),
                _ => None,
            },
        }
    }
}
