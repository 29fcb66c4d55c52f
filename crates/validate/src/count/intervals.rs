//! Writes by their start, with a tree of their ends: what was in flight at an instant, in O(log n) for each found.

use crate::Span;

pub struct Intervals {
    /// By start.
    writes: Vec<(Span, i32)>,
    /// The sum of the values of the writes up to and with this one.
    sums: Vec<i64>,
    /// The greatest end below each node; laid out as in `extent`.
    ends: Vec<u64>,
    leaves: usize,
}

impl Intervals {
    pub fn new(mut writes: Vec<(Span, i32)>) -> Intervals {
        writes.sort_unstable_by_key(|(span, value)| (span.start, span.end, *value));
        let leaves = writes.len().next_power_of_two();
        let mut ends = vec![0; leaves * 2];
        let mut sums = Vec::with_capacity(writes.len());
        let mut sum = 0;
        for (index, (span, value)) in writes.iter().enumerate() {
            ends[leaves + index] = span.end;
            sum += i64::from(*value);
            sums.push(sum);
        }
        for node in (1..leaves).rev() {
            ends[node] = ends[node * 2].max(ends[node * 2 + 1]);
        }
        Intervals {
            writes,
            sums,
            ends,
            leaves,
        }
    }

    /// The writes with `start <= begun_by` and `end >= ending_from`.
    pub fn holding(&self, begun_by: u64, ending_from: u64) -> Vec<(Span, i32)> {
        let mut found = Vec::new();
        self.collect(
            1,
            0,
            self.leaves,
            self.begun(begun_by),
            ending_from,
            &mut found,
        );
        found
    }

    fn collect(
        &self,
        node: usize,
        first: usize,
        size: usize,
        begun: usize,
        ending_from: u64,
        found: &mut Vec<(Span, i32)>,
    ) {
        if first >= begun || self.ends[node] < ending_from {
            return;
        }
        if node >= self.leaves {
            found.push(self.writes[first]);
            return;
        }
        let half = size / 2;
        self.collect(node * 2, first, half, begun, ending_from, found);
        self.collect(node * 2 + 1, first + half, half, begun, ending_from, found);
    }

    /// The sum of the values of all writes that began by `instant`.
    pub fn started_sum(&self, instant: u64) -> i64 {
        self.begun(instant)
            .checked_sub(1)
            .map_or(0, |last| self.sums[last])
    }

    /// `first`, and then each different start in `(first, last]`.
    pub fn starts_from(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        let inside = &self.writes[self.begun(first)..self.begun(last).max(self.begun(first))];
        let mut before = first;
        let later = inside.iter().filter_map(move |(span, _)| {
            let new = span.start != before;
            before = span.start;
            new.then_some(span.start)
        });
        std::iter::once(first).chain(later)
    }

    fn begun(&self, instant: u64) -> usize {
        self.writes
            .partition_point(|(span, _)| span.start <= instant)
    }
}
