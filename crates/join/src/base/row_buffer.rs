//! The rows gathered for one read: keys and values in one memory block, sorted by key.

use std::cmp::Ordering;

use crate::base::key_range::KeyRange;

#[derive(Debug, Default)]
pub struct RowBuffer {
    bytes: Vec<u8>,
    rows: Vec<RowSpan>,
}

#[derive(Debug, Clone, Copy)]
struct RowSpan {
    start: usize,
    key_len: u32,
    value_len: u32,
}

impl RowSpan {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.start + self.key_len as usize]
    }

    fn compare(self, other: RowSpan, bytes: &[u8]) -> Ordering {
        self.key(bytes).cmp(other.key(bytes))
    }
}

impl RowBuffer {
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.rows.push(RowSpan {
            start: self.bytes.len(),
            key_len: key.len() as u32,
            value_len: value.len() as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.rows.capacity() * size_of::<RowSpan>()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the key and value of row `at`.
    pub fn row(&self, at: usize) -> (&[u8], &[u8]) {
        let place = self.rows[at];
        let value = place.start + place.key_len as usize;
        let end = value + place.value_len as usize;
        (place.key(&self.bytes), &self.bytes[value..end])
    }

    /// Returns the number of rows outside `range`, at its beginning or at its end. The rows must be sorted.
    pub fn count_outside(&self, range: &KeyRange, at_end: bool) -> usize {
        let key = |place: &RowSpan| place.key(&self.bytes);
        if at_end {
            let inside = self.rows.partition_point(|row| *key(row) < *range.hi);
            self.rows.len() - inside
        } else {
            self.rows.partition_point(|row| *key(row) < *range.lo)
        }
    }

    /// Sorts the rows by key.
    pub fn sort(&mut self) {
        let bytes = &self.bytes;
        if !self.rows.is_sorted_by(|a, b| a.compare(*b, bytes).is_le()) {
            self.rows.sort_unstable_by(|a, b| a.compare(*b, bytes));
        }
    }

    /// Drops all rows whose key does not satisfy `wanted`.
    pub fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        let bytes = &self.bytes;
        self.rows.retain(|place| keep(place.key(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_in_order_with_their_values() {
        let mut rows = RowBuffer::default();
        for (key, value) in [("c", "3"), ("a", ""), ("bb", "two")] {
            rows.push(key.as_bytes(), value.as_bytes());
        }
        rows.sort();
        rows.retain(|key| key != b"c");
        assert_eq!(rows.len(), 2);
        assert_eq!(rows.row(0), (&b"a"[..], &b""[..]));
        assert_eq!(rows.row(1), (&b"bb"[..], &b"two"[..]));
    }
}
