//! A bounded sample of rows: those with the smallest hashes. The sample therefore depends only on the rows, and the
//! samples of several threads can be merged ("bottom-k": E. Cohen, H. Kaplan, Summarizing data using bottom-k
//! sketches, 2007). Hashes are uniform, so the sample is unbiased; identical rows share a hash, and are sampled
//! together or not at all.

use std::collections::BinaryHeap;

/// Maximum number of sampled rows, if they have few columns.
pub const ROWS_MAX: usize = 4096;
/// Maximum number of cells of all sampled rows.
pub const CELLS_MAX: usize = 128 << 10;
/// Maximum number of bytes that are kept of a text.
pub const TEXT_MAX: usize = 48;

#[derive(Debug, Clone, PartialEq)]
pub enum Sampled {
    Number(f64),
    Boolean(bool),
    Empty,
    /// The front of a text, its length, and the hash of the complete text.
    Text {
        front: Box<[u8]>,
        bytes: u64,
        hash: u64,
    },
    Nested {
        bytes: u64,
        hash: u64,
    },
}

/// One row: its cells that are not null, with their column numbers.
#[derive(Debug, Clone)]
pub struct SampledRow {
    pub hash: u64,
    pub cells: Vec<(u32, Sampled)>,
}

impl PartialEq for SampledRow {
    fn eq(&self, other: &SampledRow) -> bool {
        self.hash == other.hash
    }
}

impl Eq for SampledRow {}

impl PartialOrd for SampledRow {
    fn partial_cmp(&self, other: &SampledRow) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SampledRow {
    fn cmp(&self, other: &SampledRow) -> std::cmp::Ordering {
        self.hash.cmp(&other.hash)
    }
}

#[derive(Default)]
pub struct Sample {
    /// A max-heap by hash.
    rows: BinaryHeap<SampledRow>,
    rows_max: usize,
}

impl Sample {
    /// Sets the number of columns. More columns make the sample smaller, never larger.
    pub fn set_columns(&mut self, columns: usize) {
        self.rows_max = rows_max(columns);
        while self.rows.len() > self.rows_max {
            self.rows.pop();
        }
    }

    #[inline]
    pub fn accepts(&self, hash: u64) -> bool {
        self.rows.len() < self.rows_max || self.rows.peek().is_some_and(|most| hash < most.hash)
    }

    pub fn add(&mut self, row: SampledRow) {
        if self.rows.len() >= self.rows_max {
            self.rows.pop();
        }
        self.rows.push(row);
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the rows in ascending order of their hashes.
    pub fn rows_by_hash(&self) -> Vec<&SampledRow> {
        let mut rows: Vec<&SampledRow> = self.rows.iter().collect();
        rows.sort_unstable();
        rows
    }

    /// Returns the rows in ascending order of their hashes.
    pub fn into_rows(self) -> Vec<SampledRow> {
        self.rows.into_sorted_vec()
    }
}

fn rows_max(columns: usize) -> usize {
    (CELLS_MAX / columns.max(1)).min(ROWS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_holds_the_rows_with_the_lowest_hashes_in_any_order() {
        let mut random = larder_types::Random::new(5);
        let hashes: Vec<u64> = (0..20_000).map(|_| random.word()).collect();
        let sample_of = |hashes: &[u64], columns| {
            let mut sample = Sample::default();
            sample.set_columns(1);
            for &hash in hashes {
                if sample.accepts(hash) {
                    sample.add(SampledRow {
                        hash,
                        cells: Vec::new(),
                    });
                }
            }
            sample.set_columns(columns);
            sample
                .into_rows()
                .into_iter()
                .map(|row| row.hash)
                .collect::<Vec<_>>()
        };
        let mut least = hashes.clone();
        least.sort_unstable();
        assert_eq!(sample_of(&hashes, 1), least[..ROWS_MAX]);
        let mut other = hashes.clone();
        other.reverse();
        assert_eq!(sample_of(&other, 1), least[..ROWS_MAX]);
        assert_eq!(sample_of(&other, 256), least[..512]);
    }
}
