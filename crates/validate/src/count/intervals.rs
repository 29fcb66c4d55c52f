//! Writes by start, with a tree of their ends: finds the writes in flight at an instant, in O(log n) per result.

use crate::Span;

/// One write: a delta or an absolute value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flight {
    pub span: Span,
    pub value: i32,
    /// Its index among all writes of the item.
    pub index: u32,
}

pub struct Intervals {
    /// Ordered by start.
    writes: Vec<Flight>,
    /// Prefix sums of the values, each including its own write.
    sums: Vec<i64>,
    /// The maximum end below each node, in the layout of `extent`.
    ends: Vec<u64>,
    leaves: usize,
}

struct Search {
    begun: usize,
    ending_from: u64,
    most: usize,
}

impl Intervals {
    pub fn new(mut writes: Vec<Flight>) -> Intervals {
        writes.sort_unstable();
        let leaves = writes.len().next_power_of_two();
        let mut ends = vec![0; leaves * 2];
        let mut sums = Vec::with_capacity(writes.len());
        let mut sum = 0;
        for (index, write) in writes.iter().enumerate() {
            ends[leaves + index] = write.span.end;
            sum += i64::from(write.value);
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

    /// Returns the writes with `start <= begun_by` and `end >= ending_from`.
    pub fn holding(&self, begun_by: u64, ending_from: u64) -> Vec<Flight> {
        self.holding_few(begun_by, ending_from, usize::MAX)
    }

    /// Like [`Intervals::holding`], but returns at most `most + 1` writes.
    pub fn holding_few(&self, begun_by: u64, ending_from: u64, most: usize) -> Vec<Flight> {
        let mut found = Vec::new();
        let begun = self.begun(begun_by);
        let search = Search {
            begun,
            ending_from,
            most,
        };
        self.collect(1, 0, self.leaves, &search, &mut found);
        found
    }

    fn collect(
        &self,
        node: usize,
        first: usize,
        size: usize,
        search: &Search,
        found: &mut Vec<Flight>,
    ) {
        if first >= search.begun
            || self.ends[node] < search.ending_from
            || found.len() > search.most
        {
            return;
        }
        if node >= self.leaves {
            found.push(self.writes[first]);
            return;
        }
        let half = size / 2;
        self.collect(node * 2, first, half, search, found);
        self.collect(node * 2 + 1, first + half, half, search, found);
    }

    /// Returns the sum of the values of all writes that started at or before `instant`.
    pub fn started_sum(&self, instant: u64) -> i64 {
        self.begun(instant)
            .checked_sub(1)
            .map_or(0, |last| self.sums[last])
    }

    /// Returns `first`, and then each distinct start in `(first, last]`.
    pub fn starts_from(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        let inside = &self.writes[self.begun(first)..self.begun(last).max(self.begun(first))];
        let mut before = first;
        let later = inside.iter().filter_map(move |write| {
            let new = write.span.start != before;
            before = write.span.start;
            new.then_some(before)
        });
        std::iter::once(first).chain(later)
    }

    fn begun(&self, instant: u64) -> usize {
        self.writes
            .partition_point(|write| write.span.start <= instant)
    }
}
