//! Row statistics that determine the layout of a segment.

use crate::segment::{LARGE_VALUE_BYTES_MIN, SegmentPlan};

#[derive(Debug, Clone, Copy, Default)]
pub struct RowCounts {
    pub rows: u64,
    /// Bytes of keys, and of values that are stored in blocks.
    inline_bytes: u64,
    sizes: RowSizes,
}

/// The sizes of keys and values: the same in all rows, or not.
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

impl RowCounts {
    /// Returns the statistics of no rows. If `are_collected`, the values of a key are combined to longer ones, so
    /// sizes are mixed.
    pub fn new(are_collected: bool) -> RowCounts {
        RowCounts {
            sizes: if are_collected {
                RowSizes::Mixed
            } else {
                RowSizes::NoRows
            },
            ..RowCounts::default()
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

    pub fn add(&mut self, other: RowCounts) {
        self.rows += other.rows;
        self.inline_bytes += other.inline_bytes;
        self.sizes = self.sizes.with(other.sizes);
    }

    /// Returns the layout of a segment of these rows. Resolving duplicates may reduce their number.
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
