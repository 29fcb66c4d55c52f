//! Reads of one number.

use super::sink::Sink;
use super::{Ends, Note, deciding, written};
use crate::Verdict;
use crate::count::{self, Counts, Flights};
use crate::record::{Record, What};
use crate::report::{Class, Effect, Failure, Found, Level, Saw, Witness};

/// Values that a witness names.
const COULD_MAX: usize = 12;

#[derive(Default)]
pub(super) struct CountLane {
    initial: i64,
    writes: Vec<count::Write>,
    notes: Vec<Note>,
    ends: Ends,
}

impl CountLane {
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn clear(&mut self) {
        self.writes.clear();
        self.notes.clear();
    }

    pub fn start(&mut self, initial: i64) {
        self.initial = initial;
    }

    pub fn push(&mut self, write: &Record) {
        let effect = match write.what {
            What::AddCount(delta) => count::Effect::Add(delta),
            What::SetCount(value) => count::Effect::Set(value),
            _ => return,
        };
        self.writes.push(count::Write {
            span: written(write),
            effect,
        });
        self.notes.push(Note::of(write));
    }

    pub fn judge(&mut self, reads: &[&Record], sink: &mut Sink<'_>) {
        let counts = Counts::new(self.initial, &self.writes);
        self.ends.of(self.writes.iter().map(|write| write.span));
        let mut moving = Vec::new();
        for read in reads {
            let value = value(read);
            let (verdict, moves) = counts.judge_moving(read.span, value);
            sink.level(read, Level::Bg, verdict);
            let found = match verdict {
                Verdict::Acceptable if moves => {
                    moving.push(*read);
                    Found::Acceptable
                }
                Verdict::Acceptable => {
                    sink.level(read, Level::Atomic, Verdict::Acceptable);
                    Found::Acceptable
                }
                Verdict::Undecided => Found::Undecided,
                Verdict::Unacceptable => self.refused(&counts, read, sink),
            };
            sink.judged(read, found, self.ends.since(read.span));
        }
        if !moving.is_empty() {
            self.judge_together(&counts, moving, sink);
        }
    }

    fn refused(&self, counts: &Counts, read: &Record, sink: &mut Sink<'_>) -> Found {
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
                Class::Future
            }
            None => Class::Never,
        };
        sink.failed(read, Failure::Class(class), |failure| {
            self.witness(counts, read, failure, last)
        });
        Found::Failed(class)
    }

    /// The level `Atomic`, of reads that were acceptable while something was in flight.
    fn judge_together(&mut self, counts: &Counts, mut reads: Vec<&Record>, sink: &mut Sink<'_>) {
        reads.sort_unstable_by_key(|read| read.span);
        let flights = Flights::new(self.initial, &self.writes);
        for read in reads {
            let told = flights
                .as_ref()
                .and_then(|flights| flights.told(read.span, value(read)));
            let Some(told) = told else {
                sink.level(read, Level::Atomic, Verdict::Undecided);
                continue;
            };
            let mut back = false;
            for (write, seen) in told {
                back |= self.notes[write].told(read.span, seen);
            }
            if back {
                sink.level(read, Level::Atomic, Verdict::Unacceptable);
                sink.failed(read, Failure::WentBack, |failure| {
                    self.witness(counts, read, failure, None)
                });
            } else {
                sink.level(read, Level::Atomic, Verdict::Acceptable);
            }
        }
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
            item: read.item,
            action: read.action,
            session: read.session,
            read: read.span,
            failure,
            saw: Saw::Count(value(read)),
            beside: Vec::new(),
            could: counts.acceptable(read.span, COULD_MAX),
            writes: deciding(writes, read.span, since),
        }
    }
}

fn value(read: &Record) -> i64 {
    match read.what {
        What::ReadCount(value) => value,
        _ => 0,
    }
}
