//! Contents, all reads together: is there one order of all calls, writes and reads, that explains every answer?
//!
//! Each write and the reads that returned what it wrote form a *cluster*: in any order they stand together, the write
//! first. Let `first(A)` be the earliest end in a cluster and `last(A)` the latest start. If `first(A) < last(B)` then A comes before B.
//! So there is no order exactly if two clusters each come before the other (Gibbons and Korach, "Testing shared
//! memories", 1997, for histories in which all writes differ).
//!
//! Reads are taken by their start; one that would make two clusters come before each other *goes back* and is left out of
//! its cluster, so what is counted is how many reads must be left out, one by one, for the rest to have an order.
//!
//! Only reads during which more than one content was possible matter: else the content's write ended before the read, and all others
//! wholly precede it or follow the read, so the read changes neither `first` nor `last` in a way that counts.

use super::{Content, Registers, Writer};
use crate::Verdict;

/// The content at the start, and the write of each index.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cluster {
    /// None before the first of its calls ended.
    first: Option<i128>,
    last: i128,
}

/// A verdict for each read, in their order: [`Verdict::Unacceptable`] if it goes back, undecided if nobody can tell which of several writes of the
/// same content it shows. All reads must be acceptable by themselves.
pub fn judge_together(
    registers: &Registers,
    writes: &[Content],
    reads: &[Content],
) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Acceptable; reads.len()];
    let mut order: Vec<usize> = (0..reads.len())
        .filter(|index| registers.is_contested(reads[*index].span))
        .collect();
    if order.is_empty() {
        return verdicts;
    }
    order.sort_unstable_by_key(|index| (reads[*index].span, reads[*index].value));
    let mut events: Vec<(u64, bool, Call)> = Vec::with_capacity(writes.len() * 2);
    for (index, write) in writes.iter().enumerate() {
        events.push((write.span.start, false, Call::Write(index + 1)));
        events.push((write.span.end, true, Call::Write(index + 1)));
    }
    for (rank, index) in order.iter().enumerate() {
        let cluster = match registers.writer(reads[*index]) {
            Writer::Initial => 0,
            Writer::Write(write) => write + 1,
            Writer::OneOf => {
                verdicts[*index] = Verdict::Undecided;
                continue;
            }
        };
        events.push((reads[*index].span.start, false, Call::Read(rank, cluster)));
        events.push((reads[*index].span.end, true, Call::Read(rank, cluster)));
    }
    // Calls that touch are concurrent: at one instant they begin before they end.
    events.sort_unstable();
    let mut clusters = Clusters::new(writes.len() + 1);
    for (time, ends, call) in events {
        match (call, ends) {
            (Call::Write(_), true) if time == u64::MAX => {}
            (Call::Write(cluster), true) => clusters.end(cluster, time),
            (Call::Write(cluster), false) => clusters.begin(cluster, time),
            (Call::Read(rank, cluster), true) if verdicts[order[rank]] == Verdict::Acceptable => {
                clusters.end(cluster, time);
            }
            (Call::Read(..), true) => {}
            (Call::Read(rank, cluster), false) if clusters.goes_back(cluster) => {
                verdicts[order[rank]] = Verdict::Unacceptable;
            }
            (Call::Read(_, cluster), false) => clusters.begin(cluster, time),
        }
    }
    verdicts
}

/// In the order in which calls of one instant are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// Of a cluster.
    Write(usize),
    /// By rank, of a cluster.
    Read(usize, usize),
}

struct Clusters {
    all: Vec<Cluster>,
    /// The two latest `last` among the clusters of which a call has ended, with the cluster.
    latest: [(i128, usize); 2],
}

impl Clusters {
    fn new(count: usize) -> Clusters {
        let mut all = vec![
            Cluster {
                first: None,
                last: -1,
            };
            count
        ];
        // What was there at the start was written before everything.
        all[0].first = Some(-1);
        Clusters {
            all,
            latest: [(-1, 0), (-2, usize::MAX)],
        }
    }

    /// Whether another cluster, of which a call has ended, must come after this one.
    fn goes_back(&self, cluster: usize) -> bool {
        let [best, next] = self.latest;
        let (last, _) = if best.1 == cluster { next } else { best };
        self.all[cluster].first.is_some_and(|first| first < last)
    }

    fn begin(&mut self, cluster: usize, time: u64) {
        self.all[cluster].last = i128::from(time);
        if self.all[cluster].first.is_some() {
            self.note(cluster);
        }
    }

    fn end(&mut self, cluster: usize, time: u64) {
        if self.all[cluster].first.is_none() {
            self.all[cluster].first = Some(i128::from(time));
            self.note(cluster);
        }
    }

    fn note(&mut self, cluster: usize) {
        let new = (self.all[cluster].last, cluster);
        let [best, next] = self.latest;
        let others = [best, next].into_iter().filter(|old| old.1 != cluster);
        let mut three: Vec<(i128, usize)> = others.chain([new]).collect();
        three.sort_unstable_by_key(|(last, _)| std::cmp::Reverse(*last));
        three.resize(2, (-2, usize::MAX));
        self.latest = [three[0], three[1]];
    }
}
