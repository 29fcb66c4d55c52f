//! The results of validating a trace: numbers, and descriptions of the first failures.
//!
//! A read that no order explains belongs to one class:
//!
//! | class | the returned value |
//! |---|---|
//! | stale | was acceptable at some instant before the read. Its *age* is the time from the last such instant to the read's start, and it is *behind* by the number of writes that ended in that time |
//! | fractured | is a list whose elements were each acceptable during the read, but not together (and never were before) |
//! | future | becomes acceptable only after the read: a clock or the tool is wrong |
//! | phantom | is a content, or a list with an element, that was never written |
//! | never | combines existing writes in a way that was never acceptable |
//! | untold | is of one of the last three classes, or older than the retained history; used only during a run |
//!
//! Independently of the classes there are levels. Each has its own result ([`Report::levels`]) and one combined with
//! the levels below it ([`Report::refused_up_to`]):
//!
//! | level | validates | condition |
//! |---|---|---|
//! | [`Level::Bg`] | counts, sizes of lists | the number is possible: BG's own check |
//! | [`Level::Members`] | lists, contents | each element is possible, at an instant of its own |
//! | [`Level::Snapshot`] | lists, contents | all elements are possible at one instant |
//! | [`Level::Atomic`] | reads that passed so far | the read misses nothing that an earlier read saw |
//! | [`Level::Joint`] | calls that read several counts | all are possible at one instant, and the writes of one call become visible together |
//!
//! The first three levels are exact. `Atomic` is exact for contents that were each written once. For counts and
//! lists, and for contents that were written twice, it rejects only reads that no order of all calls explains. It may
//! accept reads that only three or more reads together disprove (`trace/earlier` defines the compared pairs). `Joint`
//! is exact unless writes replace one another's elements; then it may accept too much.
//!
//! Invariants:
//!
//! 1. Each read whose outcome is done is acceptable, undecided, or in exactly one class. Its verdict is that of `Bg`
//!    for a count and that of `Snapshot` for a list or a content. `Atomic` and `Joint` never change it.
//! 2. [`Report::refused_up_to`] is nondecreasing in the level; at `Snapshot` it is the number of unpredictable reads.
//! 3. Reads of the end state are only in [`Report::end_state`].

mod witness;

use std::collections::{BTreeMap, BTreeSet};

use crate::Verdict;
use crate::histogram::Histogram;

pub use witness::{
    Difference, Effect, Failure, Names, Observation, Plain, Witness, WitnessWrite, seconds,
};
pub(crate) use witness::{keep_first, order};

/// The results for the reads of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Writes that happened or may have happened.
    pub writes: u64,
    /// All reads except those of the end state.
    pub total: Tally,
    /// Indexed by the action's number.
    pub actions: BTreeMap<u8, Tally>,
    /// Indexed by the kind of the item: its highest 8 bits.
    pub kinds: BTreeMap<u8, Tally>,
    /// Indexed by [`Level`], each level separately.
    pub levels: [LevelTally; 5],
    /// Indexed by [`Level`]: reads rejected at that level or below, each counted once.
    pub refused_up_to: [u64; 5],
    /// Sessions with at least one unpredictable read.
    pub unpredictable_sessions: BTreeSet<u32>,
    /// The reads after the run, compared with what the writes allow ([`crate::record::END_STATE`]).
    pub end_state: Tally,
    /// Ages of stale reads, in nanoseconds.
    pub ages: Histogram,
    /// The number of writes that stale reads missed.
    pub versions_behind: Histogram,
    pub freshness: Freshness,
    /// The first failures, ordered by the start of the read.
    pub witnesses: Vec<Witness>,
}

/// Numbers of reads by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Reads that returned a value.
    pub reads: u64,
    pub acceptable: u64,
    pub undecided: u64,
    pub stale: u64,
    pub fractured: u64,
    pub future: u64,
    pub phantom: u64,
    pub never: u64,
    pub unclassified: u64,
}

/// The results at one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelTally {
    pub judged: u64,
    pub refused: u64,
    pub undecided: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    Bg,
    Members,
    Snapshot,
    Atomic,
    Joint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Stale { age_ns: u64, behind: u64 },
    Fractured,
    Future,
    Phantom,
    Never,
    Unclassified,
}

/// The probability that a read sees all acknowledged writes, as a function of the time since the last of them. Index
/// i counts the reads that started a number of nanoseconds with i bits after it. Reads of items without writes, and
/// undecided reads, are excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    pub reads: [u64; 65],
    /// The number of those that were acceptable.
    pub fresh: [u64; 65],
}

impl Report {
    /// Returns the number of reads that no order of the writes explains.
    pub fn unpredictable(&self) -> u64 {
        self.total.unpredictable()
    }

    pub fn level(&self, level: Level) -> LevelTally {
        self.levels[level as usize]
    }

    /// Returns the number of reads that this level or one below it rejects. For [`Level::Snapshot`] those are the
    /// unpredictable reads.
    pub fn rejected_up_to(&self, level: Level) -> u64 {
        self.refused_up_to[level as usize]
    }

    /// Adds the report of another part of the same trace, and keeps at most `witnesses_max` witnesses of both.
    pub fn add(&mut self, other: Report, witnesses_max: usize) {
        self.writes += other.writes;
        self.total.add(&other.total);
        for (mine, theirs) in [
            (&mut self.actions, other.actions),
            (&mut self.kinds, other.kinds),
        ] {
            for (key, tally) in theirs {
                mine.entry(key).or_default().add(&tally);
            }
        }
        for (mine, theirs) in self.levels.iter_mut().zip(other.levels) {
            mine.judged += theirs.judged;
            mine.refused += theirs.refused;
            mine.undecided += theirs.undecided;
        }
        for (mine, theirs) in self.refused_up_to.iter_mut().zip(other.refused_up_to) {
            *mine += theirs;
        }
        self.unpredictable_sessions
            .extend(other.unpredictable_sessions);
        self.end_state.add(&other.end_state);
        self.ages.add(&other.ages);
        self.versions_behind.add(&other.versions_behind);
        self.freshness.add(&other.freshness);
        self.witnesses.extend(other.witnesses);
        witness::keep_first(&mut self.witnesses, witnesses_max);
    }
}

impl Tally {
    /// Returns the number of reads that no order of the writes explains.
    pub fn unpredictable(&self) -> u64 {
        self.stale + self.fractured + self.future + self.phantom + self.never + self.unclassified
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.reads += other.reads;
        self.acceptable += other.acceptable;
        self.undecided += other.undecided;
        self.stale += other.stale;
        self.fractured += other.fractured;
        self.future += other.future;
        self.phantom += other.phantom;
        self.never += other.never;
        self.unclassified += other.unclassified;
    }

    pub(crate) fn count(&mut self, found: ReadResult) {
        self.reads += 1;
        *match found {
            ReadResult::Acceptable => &mut self.acceptable,
            ReadResult::Undecided => &mut self.undecided,
            ReadResult::Failed(Class::Stale { .. }) => &mut self.stale,
            ReadResult::Failed(Class::Fractured) => &mut self.fractured,
            ReadResult::Failed(Class::Future) => &mut self.future,
            ReadResult::Failed(Class::Phantom) => &mut self.phantom,
            ReadResult::Failed(Class::Never) => &mut self.never,
            ReadResult::Failed(Class::Unclassified) => &mut self.unclassified,
        } += 1;
    }
}

/// The result for one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    Acceptable,
    Undecided,
    Failed(Class),
}

impl LevelTally {
    pub(crate) fn count(&mut self, verdict: Verdict) {
        self.judged += 1;
        match verdict {
            Verdict::Acceptable => {}
            Verdict::Unacceptable => self.refused += 1,
            Verdict::Undecided => self.undecided += 1,
        }
    }
}

impl Level {
    pub const ALL: [Level; 5] = [
        Level::Bg,
        Level::Members,
        Level::Snapshot,
        Level::Atomic,
        Level::Joint,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Level::Bg => "counts",
            Level::Members => "members",
            Level::Snapshot => "snapshot",
            Level::Atomic => "atomic",
            Level::Joint => "joint",
        }
    }
}

impl Default for Freshness {
    fn default() -> Freshness {
        Freshness {
            reads: [0; 65],
            fresh: [0; 65],
        }
    }
}

impl Freshness {
    /// Returns the nonempty steps of the curve: an upper bound of the time since the last acknowledged write in
    /// nanoseconds (exclusive, a power of two), the number of reads, and the share of them that was acceptable.
    pub fn curve(&self) -> impl Iterator<Item = (u64, u64, f64)> {
        let steps = self.reads.iter().zip(&self.fresh).enumerate();
        steps
            .filter(|(_, (reads, _))| **reads > 0)
            .map(|(bits, (reads, fresh))| {
                let below = 1u64.checked_shl(bits as u32).unwrap_or(u64::MAX);
                (below, *reads, *fresh as f64 / *reads as f64)
            })
    }

    pub(crate) fn count(&mut self, since_ns: u64, fresh: bool) {
        let bits = 64 - since_ns.leading_zeros() as usize;
        self.reads[bits] += 1;
        self.fresh[bits] += u64::from(fresh);
    }

    fn add(&mut self, other: &Freshness) {
        for (mine, theirs) in [
            (&mut self.reads, &other.reads),
            (&mut self.fresh, &other.fresh),
        ] {
            let pairs = mine.iter_mut().zip(theirs);
            pairs.for_each(|(mine, theirs)| *mine += theirs);
        }
    }
}
