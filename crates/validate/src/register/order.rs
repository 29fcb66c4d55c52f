//! Validates the reads of a content together: is there one order of all calls, writes and reads, that explains every
//! result?
//!
//! A write and the reads that returned its content form a *cluster*: in any order they are adjacent, with the write
//! first. Let `first(A)` be the earliest end in a cluster and `last(A)` the latest start. If `first(A) < last(B)`,
//! then A comes before B. There is no order exactly if two clusters must each come before the other (Gibbons and
//! Korach, "Testing shared memories", 1997, for histories in which all writes differ).
//!
//! Reads are processed by their end. A read that would make two clusters come before each other *goes back* and is
//! excluded from its cluster. The number of such reads is therefore the number that must be excluded, one by one, for
//! the rest to have an order.
//!
//! Only reads during which more than one content was possible matter. Otherwise the content's write ended before the
//! read, and all others completely precede it or follow the read, so the read changes neither `first` nor `last` in a
//! relevant way.

use super::{Content, Registers, Writer};
use crate::Verdict;

/// The bounds that accepted reads add to a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadBounds {
    pub first_end: Option<u64>,
    pub last_start: Option<u64>,
}

/// The bounds that earlier reads have established.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlierBounds {
    /// The cluster of the initial content.
    pub initial: ReadBounds,
    /// The cluster of each write.
    pub writes: Vec<ReadBounds>,
    /// The latest `last` of clusters to which no further read can belong.
    pub late: Option<u64>,
}

/// Returns a verdict per read, in order: [`Verdict::Unacceptable`] if it goes back, undecided if it may show any of
/// several writes of the same content. Each read must be acceptable individually.
pub fn judge_together(
    registers: &Registers,
    writes: &[Content],
    reads: &[Content],
) -> Vec<Verdict> {
    let mut before = EarlierBounds {
        writes: vec![ReadBounds::default(); writes.len()],
        ..EarlierBounds::default()
    };
    judge_after(registers, writes, reads, &mut before)
}

/// Like [`judge_together`], for reads that all end later than those validated before.
pub(crate) fn judge_after(
    registers: &Registers,
    writes: &[Content],
    reads: &[Content],
    before: &mut EarlierBounds,
) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Acceptable; reads.len()];
    let mut order: Vec<usize> = (0..reads.len())
        .filter(|index| registers.is_contested(reads[*index].span))
        .collect();
    if order.is_empty() {
        return verdicts;
    }
    order.sort_unstable_by_key(|index| {
        let read = reads[*index];
        (read.span.end, read.span.start, read.value)
    });
    let mut clusters = Clusters::new(writes, before);
    for index in order {
        let read = reads[index];
        let cluster = match registers.writer(read) {
            Writer::Initial => 0,
            Writer::Write(write) => write + 1,
            Writer::OneOf => {
                verdicts[index] = Verdict::Undecided;
                continue;
            }
        };
        clusters.begin_until(read.span.end.into());
        if clusters.goes_back(cluster, read.span.start.into()) {
            verdicts[index] = Verdict::Unacceptable;
            continue;
        }
        clusters.take(cluster, read);
        let shown = match cluster {
            0 => &mut before.initial,
            _ => &mut before.writes[cluster - 1],
        };
        let earliest = shown.first_end.unwrap_or(u64::MAX).min(read.span.end);
        shown.first_end = Some(earliest);
        shown.last_start = shown.last_start.max(Some(read.span.start));
    }
    verdicts
}

/// An instant, or -1 for before all instants.
type Instant = i128;

const NEVER: Instant = i128::MAX;

struct Clusters {
    first: Vec<Instant>,
    last: Vec<Instant>,
    late: Instant,
    /// The clusters that have a `first`, ordered by it; the rest of `coming` follows later.
    begun: Vec<Instant>,
    place: Vec<Option<usize>>,
    /// The greatest `last` below each node, by place: a complete binary tree as in `count`.
    tree: Vec<Instant>,
    coming: Vec<(Instant, usize)>,
    next: usize,
}

impl Clusters {
    fn new(writes: &[Content], before: &EarlierBounds) -> Clusters {
        let count = writes.len() + 1;
        let known =
            |instant: Option<u64>, otherwise: Instant| instant.map_or(otherwise, Into::into);
        let mut first = vec![-1];
        let mut last = vec![known(before.initial.last_start, -1)];
        for (write, shown) in writes.iter().zip(&before.writes) {
            let answered = (write.span.end < u64::MAX).then_some(write.span.end);
            first.push(known(answered, NEVER).min(known(shown.first_end, NEVER)));
            last.push(known(shown.last_start, -1).max(write.span.start.into()));
        }
        let mut coming: Vec<(Instant, usize)> = first.iter().copied().zip(0..).collect();
        coming.retain(|(first, _)| *first < NEVER);
        coming.sort_unstable();
        Clusters {
            first,
            last,
            late: known(before.late, -1),
            begun: Vec::with_capacity(count),
            place: vec![None; count],
            tree: vec![-1; count.next_power_of_two() * 2],
            coming,
            next: 0,
        }
    }

    /// Returns whether this cluster, with a further read that starts at `start`, must come after another one that
    /// must come after it.
    fn goes_back(&self, cluster: usize, start: Instant) -> bool {
        let before = self.begun.partition_point(|first| *first < start);
        let others = match self.place[cluster] {
            Some(place) if place < before => {
                self.latest(0, place).max(self.latest(place + 1, before))
            }
            _ => self.latest(0, before),
        };
        self.first[cluster] < others.max(self.late)
    }

    fn begin_until(&mut self, instant: Instant) {
        while let Some((first, cluster)) = self.coming.get(self.next).copied()
            && first <= instant
        {
            self.next += 1;
            if self.place[cluster].is_none() {
                self.begin(cluster);
            }
        }
    }

    fn take(&mut self, cluster: usize, read: Content) {
        self.last[cluster] = self.last[cluster].max(read.span.start.into());
        match self.place[cluster] {
            Some(place) => self.note(place, self.last[cluster]),
            None => {
                self.first[cluster] = read.span.end.into();
                self.begin(cluster);
            }
        }
    }

    fn begin(&mut self, cluster: usize) {
        let place = self.begun.len();
        self.place[cluster] = Some(place);
        self.begun.push(self.first[cluster]);
        self.note(place, self.last[cluster]);
    }

    fn note(&mut self, place: usize, last: Instant) {
        let mut node = self.tree.len() / 2 + place;
        while node > 0 {
            self.tree[node] = self.tree[node].max(last);
            node /= 2;
        }
    }

    fn latest(&self, from: usize, to: usize) -> Instant {
        let leaves = self.tree.len() / 2;
        let (mut left, mut right) = (leaves + from, leaves + to);
        let mut latest = -1;
        while left < right {
            if left % 2 == 1 {
                latest = latest.max(self.tree[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                latest = latest.max(self.tree[right]);
            }
            left /= 2;
            right /= 2;
        }
        latest
    }
}
