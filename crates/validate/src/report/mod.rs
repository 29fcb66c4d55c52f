//! What became of the reads of a trace, in numbers and in the words of the first failures.
//!
//! A read that no order explains is of one class:
//!
//! | class | the answer |
//! |---|---|
//! | stale | was acceptable at some instant before the read; its *age* is the read's start less the last such instant, and so many writes *behind* as ended in that time |
//! | fractured | is a list whose elements were each so during the read, but not together (and never were before) |
//! | future | becomes acceptable only after the read: a clock or the tool is wrong |
//! | phantom | is a content, or a list with an element, that nobody ever wrote |
//! | never | is of writes that were, as they never were together |
//! | untold | is of one of the last three, or of a time that is forgotten: said while the run goes on |
//!
//! Beside the classes stand the levels, each by itself ([`Report::levels`]) and with those below it ([`Report::refused_up_to`]):
//!
//! | level | asks of | whether |
//! |---|---|---|
//! | [`Level::Bg`] | counts, sizes of lists | the number may be: BG's own question |
//! | [`Level::Members`] | lists, contents | each element may be, at an instant of its own |
//! | [`Level::Snapshot`] | lists, contents | all elements may be at one instant |
//! | [`Level::Atomic`] | what passed so far | the read goes behind nothing that an earlier read saw |
//! | [`Level::Joint`] | calls that read several counts | all may be at one instant, and writes of one call show together |
//!
//! The first three are exact. `Atomic` is exact for contents that were written once each; for counts and lists, and for contents
//! written twice, it refuses only what no order of all calls explains, but may let pass what only three or more reads together
//! disprove (`trace/earlier` says which two it compares). `Joint` is exact as far as writes do not replace one another's element; there it may let pass.
//!
//! Invariants:
//!
//! 1. Each read whose outcome is done is acceptable, undecided, or of exactly one class; its verdict is that of `Bg` for a count and of
//!    `Snapshot` for a list or a content. `Atomic` and `Joint` never change it.
//! 2. [`Report::refused_up_to`] rises with the level, and is the number of the unpredictable at `Snapshot`.
//! 3. Reads of the end state are in [`Report::end_state`] and nowhere else.

mod witness;

use std::collections::{BTreeMap, BTreeSet};

use crate::Verdict;
use crate::histogram::Histogram;

pub use witness::{Change, Difference, Effect, Failure, Names, Plain, Saw, Witness, seconds};
pub(crate) use witness::{keep_first, order};

/// What became of the reads of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Writes that were done, or may have been.
    pub writes: u64,
    /// All reads but those of the end state.
    pub total: Tally,
    /// By the number of the action.
    pub actions: BTreeMap<u8, Tally>,
    /// By the kind of the item: its highest 8 bits.
    pub kinds: BTreeMap<u8, Tally>,
    /// By [`Level`], each by itself.
    pub levels: [LevelTally; 5],
    /// By [`Level`]: reads refused there or at one below it, each once.
    pub refused_up_to: [u64; 5],
    /// Sessions with at least one unpredictable read.
    pub unpredictable_sessions: BTreeSet<u32>,
    /// What was found after the run, against what the writes allow ([`crate::record::END_STATE`]).
    pub end_state: Tally,
    /// Of stale reads, nanoseconds.
    pub ages: Histogram,
    /// Of stale reads, writes missed.
    pub versions_behind: Histogram,
    pub freshness: Freshness,
    /// The first failures by start of the read.
    pub witnesses: Vec<Witness>,
}

/// Reads by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those that returned something.
    pub reads: u64,
    pub acceptable: u64,
    pub undecided: u64,
    pub stale: u64,
    pub fractured: u64,
    pub future: u64,
    pub phantom: u64,
    pub never: u64,
    pub untold: u64,
}

/// Of one level.
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
    Untold,
}

/// How sure a read is to see all acknowledged writes, by the time since the last of them: at index i the reads that began so many nanoseconds
/// after it as have i bits. Reads of items that nobody had written, and undecided ones, are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    pub reads: [u64; 65],
    /// Of those, how many were acceptable.
    pub fresh: [u64; 65],
}

impl Report {
    /// Reads that no order of the writes explains.
    pub fn unpredictable(&self) -> u64 {
        self.total.unpredictable()
    }

    pub fn level(&self, level: Level) -> LevelTally {
        self.levels[level as usize]
    }

    /// Reads that are not as this level wants them, or not as one below it does. For [`Level::Snapshot`] those are the unpredictable.
    pub fn refused_up_to(&self, level: Level) -> u64 {
        self.refused_up_to[level as usize]
    }

    /// Adds what another part of the same trace came to, and keeps so many witnesses of both.
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
    /// Reads that no order of the writes explains.
    pub fn unpredictable(&self) -> u64 {
        self.stale + self.fractured + self.future + self.phantom + self.never + self.untold
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
        self.untold += other.untold;
    }

    pub(crate) fn count(&mut self, found: Found) {
        self.reads += 1;
        *match found {
            Found::Acceptable => &mut self.acceptable,
            Found::Undecided => &mut self.undecided,
            Found::Failed(Class::Stale { .. }) => &mut self.stale,
            Found::Failed(Class::Fractured) => &mut self.fractured,
            Found::Failed(Class::Future) => &mut self.future,
            Found::Failed(Class::Phantom) => &mut self.phantom,
            Found::Failed(Class::Never) => &mut self.never,
            Found::Failed(Class::Untold) => &mut self.untold,
        } += 1;
    }
}

/// What was found of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
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
    /// Each step of the curve that any read stands for: less than so many nanoseconds since the last acknowledged write (a power of two), reads, and the
    /// share of them that was acceptable.
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
