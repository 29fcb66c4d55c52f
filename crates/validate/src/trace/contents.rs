//! Validates the reads of one content, such as a profile. [`crate::register`] determines the contents that a read may
//! return; this module decides which writes are retained, and reports failures.

use super::sink::Sink;
use super::{WriteEnds, WriteNote, deciding, written};
use crate::Verdict;
use crate::record::{Record, RecordKind};
use crate::register::{Content, EarlierBounds, ReadBounds, Registers, judge_after};
use crate::report::{Class, Effect, Failure, Level, Observation, ReadResult, Witness};

#[derive(Clone, Default)]
pub(super) struct ContentLane {
    initial: u64,
    writes: Vec<Content>,
    notes: Vec<WriteNote>,
    /// The bounds that the reads validated so far have established.
    shown: EarlierBounds,
    ends: WriteEnds,
}

impl ContentLane {
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn any_ended(&self, before: u64) -> bool {
        self.writes.iter().any(|write| write.span.end < before)
    }

    /// Resets to the state before any write.
    pub fn start(&mut self, initial: u64) {
        self.initial = initial;
        self.writes.clear();
        self.notes.clear();
        self.shown.writes.clear();
        (self.shown.initial, self.shown.late) = (ReadBounds::default(), None);
        self.ends.clear();
    }

    pub fn begin(&mut self, initial: u64) {
        self.initial = initial;
    }

    pub fn push(&mut self, write: &Record) {
        if let RecordKind::WriteContent(value) = write.what {
            self.writes.push(Content {
                span: written(write),
                value,
            });
            self.notes.push(WriteNote::of(0, write));
            self.shown.writes.push(ReadBounds::default());
        }
    }

    /// Validates reads. `past` is the same item with its older writes, for the age of stale reads; `None` if all
    /// writes are still here.
    pub fn judge(&mut self, reads: &[&Record], past: Option<&mut ContentLane>, sink: &mut Sink) {
        let registers = Registers::new(self.initial, &self.writes);
        self.ends.of(self.writes.iter().map(|write| write.span));
        let (mut contested, mut refused) = (Vec::new(), Vec::new());
        for read in reads {
            let (verdict, differ) = registers.judge_contested(content(read));
            sink.level(read, Level::Members, verdict);
            sink.level(read, Level::Snapshot, verdict);
            if verdict != Verdict::Acceptable {
                refused.push(*read);
                continue;
            }
            sink.record_verdict(read, ReadResult::Acceptable, self.ends.since(read.span));
            if differ {
                contested.push(*read)
            } else {
                sink.level(read, Level::Atomic, verdict)
            }
        }
        match past {
            _ if refused.is_empty() => {}
            None => self.record_failures(&registers, &refused, &self.ends, sink),
            Some(past) => {
                past.ends.of(past.writes.iter().map(|write| write.span));
                let registers = Registers::new(past.initial, &past.writes);
                past.record_failures(&registers, &refused, &self.ends, sink);
            }
        }
        let contents: Vec<Content> = contested.iter().map(|read| content(read)).collect();
        let verdicts = judge_after(&registers, &self.writes, &contents, &mut self.shown);
        for (read, verdict) in contested.iter().zip(verdicts) {
            sink.level(read, Level::Atomic, verdict);
            if verdict == Verdict::Unacceptable {
                sink.failed(read, Failure::WentBack, |failure| {
                    self.witness(read, failure, None)
                });
            }
        }
    }

    fn record_failures(
        &self,
        registers: &Registers,
        reads: &[&Record],
        ends: &WriteEnds,
        sink: &mut Sink,
    ) {
        for read in reads {
            let value = content(read).value;
            let last = registers.last_acceptable_before(read.span.start, value);
            let class = match last {
                Some(last) => Class::Stale {
                    age_ns: read.span.start - last,
                    behind: self.ends.between(last, read.span),
                },
                None if registers.was_written(value) => sink.known_class(Class::Future),
                None => sink.known_class(Class::Phantom),
            };
            sink.failed(read, Failure::Class(class), |failure| {
                self.witness(read, failure, last)
            });
            sink.record_verdict(read, ReadResult::Failed(class), ends.since(read.span));
        }
    }

    /// Discards writes that were certainly replaced before this instant. No later read starts before it.
    pub fn settle(&mut self, before: u64) {
        let ended = self.writes.iter().filter(|write| write.span.end < before);
        let Some(replaced) = ended.map(|write| write.span.start).max() else {
            return;
        };
        let mut kept = 0;
        for index in 0..self.writes.len() {
            let (write, shown) = (self.writes[index], self.shown.writes[index]);
            if write.span.end < replaced {
                let last = shown.last_start.max(Some(write.span.start));
                self.shown.late = self.shown.late.max(last);
                self.ends.settled(write.span);
                continue;
            }
            self.writes[kept] = write;
            self.notes[kept] = self.notes[index];
            self.shown.writes[kept] = shown;
            kept += 1;
        }
        self.writes.truncate(kept);
        self.notes.truncate(kept);
        self.shown.writes.truncate(kept);
    }

    fn witness(&self, read: &Record, failure: Failure, since: Option<u64>) -> Witness {
        let writes = self.writes.iter().zip(&self.notes);
        let writes = writes.map(|(write, note)| (write.span, Effect::Write(write.value), *note));
        Witness {
            writes: deciding(writes, read.span, since),
            ..Witness::of(read, failure, Observation::Content(content(read).value))
        }
    }
}

fn content(read: &Record) -> Content {
    Content {
        span: read.span,
        value: match read.what {
            RecordKind::ReadContent(value) => value,
            _ => 0,
        },
    }
}
