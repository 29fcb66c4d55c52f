//! Validates the reads of one number. [`crate::count`] determines the possible numbers; this module decides which
//! writes are retained, and reports failures.

use super::earlier::{CountRead, EarlierReads};
use super::joint::WriteCall;
use super::sink::Sink;
use super::{WriteEnds, WriteNote, deciding, written};
use crate::Verdict;
use crate::count::{self, Counts, Flights};
use crate::record::{Record, RecordKind};
use crate::report::{Class, Effect, Failure, Level, Observation, ReadResult, Witness};

/// Maximum number of acceptable values in a witness.
const COULD_MAX: usize = 12;

#[derive(Clone, Default)]
pub(super) struct CountLane {
    initial: i64,
    writes: Vec<count::Write>,
    notes: Vec<WriteNote>,
    /// The start of the first absolute write.
    absolute: Option<u64>,
    ends: WriteEnds,
    /// The number of writes, including discarded ones.
    pushed: u64,
    earlier: EarlierReads<CountRead>,
}

impl CountLane {
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn any_ended(&self, before: u64) -> bool {
        self.writes.iter().any(|write| write.span.end < before)
    }

    /// Resets to the state before any write.
    pub fn start(&mut self, initial: i64) {
        self.initial = initial;
        self.writes.clear();
        self.notes.clear();
        self.absolute = None;
        self.ends.clear();
        self.forget_reads();
    }

    /// Discards the history of reads, for a copy that only determines ages.
    pub fn forget_reads(&mut self) {
        self.earlier.clear();
    }

    pub fn begin(&mut self, initial: i64) {
        self.initial = initial;
    }

    pub fn push(&mut self, write: &Record) {
        let span = written(write);
        let effect = match write.what {
            RecordKind::AddCount(delta) => count::Effect::Add(delta),
            RecordKind::SetCount(value) => {
                let earlier = self.absolute.unwrap_or(u64::MAX);
                self.absolute = Some(earlier.min(span.start));
                count::Effect::Set(value)
            }
            _ => return,
        };
        self.writes.push(count::Write { span, effect });
        self.notes.push(WriteNote::of(self.pushed, write));
        self.pushed += 1;
    }

    pub fn counts(&self) -> Counts {
        Counts::new(self.initial, &self.writes)
    }

    pub fn flights(&self) -> Flights {
        Flights::new(self.initial, &self.writes, self.absolute)
    }

    pub fn calls(&self) -> Vec<WriteCall> {
        let all = self.writes.iter().zip(&self.notes);
        all.map(|(write, note)| note.call(write.span)).collect()
    }

    /// Validates reads. `past` is the same item with its older writes, for the age of stale reads; `None` if all
    /// writes are still here.
    pub fn judge(&mut self, reads: &[&Record], past: Option<&mut CountLane>, sink: &mut Sink) {
        let counts = self.counts();
        self.ends.of(self.writes.iter().map(|write| write.span));
        let (mut moving, mut refused) = (Vec::new(), Vec::new());
        for read in reads {
            let (verdict, moves) = counts.judge_moving(read.span, value(read));
            sink.level(read, Level::Bg, verdict);
            let found = match verdict {
                Verdict::Acceptable if moves => {
                    moving.push(*read);
                    ReadResult::Acceptable
                }
                Verdict::Acceptable => {
                    sink.level(read, Level::Atomic, Verdict::Acceptable);
                    ReadResult::Acceptable
                }
                Verdict::Undecided => ReadResult::Undecided,
                Verdict::Unacceptable => {
                    refused.push(*read);
                    continue;
                }
            };
            sink.record_verdict(read, found, self.ends.since(read.span));
        }
        match past {
            _ if refused.is_empty() => {}
            None => self.record_failures(&counts, &refused, &self.ends, sink),
            Some(past) => {
                past.ends.of(past.writes.iter().map(|write| write.span));
                past.record_failures(&past.counts(), &refused, &self.ends, sink);
            }
        }
        if !moving.is_empty() {
            self.judge_atomic(&counts, moving, sink);
        }
    }

    fn record_failures(
        &self,
        counts: &Counts,
        reads: &[&Record],
        ends: &WriteEnds,
        sink: &mut Sink,
    ) {
        for read in reads {
            let value = value(read);
            let last = counts.last_acceptable_before(read.span.start, value);
            let class = match last {
                Some(last) => Class::Stale {
                    age_ns: read.span.start - last,
                    behind: self.ends.between(last, read.span),
                },
                None if counts
                    .first_acceptable_after(read.span.end, value)
                    .is_some() =>
                {
                    sink.known_class(Class::Future)
                }
                None => sink.known_class(Class::Never),
            };
            sink.failed(read, Failure::Class(class), |failure| {
                self.witness(counts, read, failure, last)
            });
            sink.record_verdict(read, ReadResult::Failed(class), ends.since(read.span));
        }
    }

    /// Discards writes that ended before this instant. No later read starts before it.
    pub fn settle(&mut self, before: u64) {
        self.earlier.settle(before);
        let absolute = |write: &count::Write| matches!(write.effect, count::Effect::Set(_));
        if self.writes.iter().any(absolute) {
            return self.settle_absolute(before);
        }
        let mut kept = 0;
        for index in 0..self.writes.len() {
            let write = self.writes[index];
            match write.effect {
                count::Effect::Add(delta) if write.span.end < before => {
                    self.initial += i64::from(delta);
                    self.ends.settled(write.span);
                }
                _ => {
                    self.writes[kept] = write;
                    self.notes[kept] = self.notes[index];
                    kept += 1;
                }
            }
        }
        self.writes.truncate(kept);
        self.notes.truncate(kept);
    }

    /// Settles an item with absolute writes: discards what the last of them certainly overwrote, and adds what
    /// certainly came after it.
    fn settle_absolute(&mut self, before: u64) {
        let sets = |write: &&count::Write| matches!(write.effect, count::Effect::Set(_));
        let ended = self.writes.iter().filter(sets);
        let ended = ended.filter(|write| write.span.end < before);
        let Some(replaced) = ended.map(|write| write.span.start).max() else {
            return;
        };
        let live = self
            .writes
            .iter()
            .filter(sets)
            .filter(|write| write.span.end >= replaced);
        let last = live.map(|write| write.span.end).max().unwrap_or(u64::MAX);
        let is_after = |write: &count::Write| {
            last < write.span.start && write.span.end < before && !sets(&write)
        };
        let after = self.writes.iter().filter(|write| is_after(write));
        let added: i64 = after
            .map(|write| match write.effect {
                count::Effect::Add(delta) => i64::from(delta),
                count::Effect::Set(_) => 0,
            })
            .sum();
        let sum = |value: i32| i32::try_from(i64::from(value) + added);
        let fits = self.writes.iter().all(|write| match write.effect {
            count::Effect::Set(value) => sum(value).is_ok(),
            count::Effect::Add(_) => true,
        });
        let mut kept = 0;
        for index in 0..self.writes.len() {
            let mut write = self.writes[index];
            if write.span.end < replaced || fits && is_after(&write) {
                self.ends.settled(write.span);
                continue;
            }
            if let count::Effect::Set(value) = &mut write.effect
                && let Ok(sum) = sum(*value)
                && fits
            {
                *value = sum;
            }
            self.writes[kept] = write;
            self.notes[kept] = self.notes[index];
            kept += 1;
        }
        self.writes.truncate(kept);
        self.notes.truncate(kept);
    }

    /// Validates the level `Atomic`, for reads that were acceptable while writes were in flight.
    fn judge_atomic(&mut self, counts: &Counts, mut reads: Vec<&Record>, sink: &mut Sink) {
        reads.sort_unstable_by_key(|read| read.span);
        let flights = self.flights();
        for read in reads {
            let after_others = self.is_after_others(&flights, read);
            let revealed = flights.revealed(read.span, value(read));
            let is_revealed = revealed.is_some();
            let mut back = !after_others;
            for (write, seen) in revealed.into_iter().flatten() {
                back |= self.notes[write].record_read(read.span, seen);
            }
            let verdict = match (back, is_revealed) {
                (true, _) => Verdict::Unacceptable,
                (false, true) => Verdict::Acceptable,
                (false, false) => Verdict::Undecided,
            };
            sink.level(read, Level::Atomic, verdict);
            if back {
                sink.failed(read, Failure::WentBack, |failure| {
                    self.witness(counts, read, failure, None)
                });
            }
        }
    }

    /// Returns whether the read is consistent with the results of earlier reads; if so, it is added to them.
    fn is_after_others(&mut self, flights: &Flights, read: &Record) -> bool {
        let Some((certain, flying)) = flights.during(read.span) else {
            return true;
        };
        let flying = flying.iter().map(|flight| {
            let id = self.notes[flight.index as usize].id;
            (id, i64::from(flight.value), flight.span.end)
        });
        let counted = CountRead {
            value: value(read),
            certain,
            flights: flying.collect(),
        };
        let leads = |earlier: &CountRead| earlier.leads_to(&counted, read.span);
        let leads = self.earlier.lead_to(read.span, leads);
        if leads {
            self.earlier.keep(read, counted);
        }
        leads
    }

    fn witness(
        &self,
        counts: &Counts,
        read: &Record,
        failure: Failure,
        since: Option<u64>,
    ) -> Witness {
        let writes = self.writes.iter().zip(&self.notes).map(|(write, note)| {
            let effect = match write.effect {
                count::Effect::Add(delta) => Effect::Add(delta),
                count::Effect::Set(value) => Effect::Set(value),
            };
            (write.span, effect, *note)
        });
        Witness {
            could: counts.acceptable(read.span, COULD_MAX),
            writes: deciding(writes, read.span, since),
            ..Witness::of(read, failure, Observation::Count(value(read)))
        }
    }
}

fn value(read: &Record) -> i64 {
    match read.what {
        RecordKind::ReadCount(value) => value,
        _ => 0,
    }
}
