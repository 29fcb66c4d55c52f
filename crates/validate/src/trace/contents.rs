//! Reads of one content.

use super::sink::Sink;
use super::{Ends, Note, deciding, written};
use crate::Verdict;
use crate::record::{Record, What};
use crate::register::{Content, Registers, judge_together};
use crate::report::{Class, Effect, Failure, Found, Level, Saw, Witness};

#[derive(Default)]
pub(super) struct ContentLane {
    initial: u64,
    writes: Vec<Content>,
    notes: Vec<Note>,
    ends: Ends,
}

impl ContentLane {
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn clear(&mut self) {
        self.writes.clear();
        self.notes.clear();
    }

    pub fn start(&mut self, initial: u64) {
        self.initial = initial;
    }

    pub fn push(&mut self, write: &Record) {
        if let What::WriteContent(value) = write.what {
            self.writes.push(Content {
                span: written(write),
                value,
            });
            self.notes.push(Note::of(write));
        }
    }

    pub fn judge(&mut self, reads: &[&Record], sink: &mut Sink<'_>) {
        let registers = Registers::new(self.initial, &self.writes);
        self.ends.of(self.writes.iter().map(|write| write.span));
        let mut explained = Vec::with_capacity(reads.len());
        for read in reads {
            let verdict = registers.judge(content(read));
            sink.level(read, Level::Members, verdict);
            sink.level(read, Level::Snapshot, verdict);
            let found = if verdict == Verdict::Acceptable {
                explained.push(*read);
                Found::Acceptable
            } else {
                self.refused(&registers, read, sink)
            };
            sink.judged(read, found, self.ends.since(read.span));
        }
        let contents: Vec<Content> = explained.iter().map(|read| content(read)).collect();
        let verdicts = judge_together(&registers, &self.writes, &contents);
        for (read, verdict) in explained.iter().zip(verdicts) {
            sink.level(read, Level::Atomic, verdict);
            if verdict == Verdict::Unacceptable {
                sink.failed(read, Failure::WentBack, |failure| {
                    self.witness(read, failure, None)
                });
            }
        }
    }

    fn refused(&self, registers: &Registers, read: &Record, sink: &mut Sink<'_>) -> Found {
        let value = content(read).value;
        let last = registers.last_acceptable_before(read.span.start, value);
        let class = match last {
            Some(last) => Class::Stale {
                age_ns: read.span.start - last,
                behind: self.ends.between(last, read.span),
            },
            None if registers.knows(value) => Class::Future,
            None => Class::Phantom,
        };
        sink.failed(read, Failure::Class(class), |failure| {
            self.witness(read, failure, last)
        });
        Found::Failed(class)
    }

    fn witness(&self, read: &Record, failure: Failure, since: Option<u64>) -> Witness {
        let writes = self.writes.iter().zip(&self.notes);
        let writes = writes.map(|(write, note)| (write.span, Effect::Write(write.value), *note));
        Witness {
            item: read.item,
            action: read.action,
            session: read.session,
            read: read.span,
            failure,
            saw: Saw::Content(content(read).value),
            beside: Vec::new(),
            could: None,
            writes: deciding(writes, read.span, since),
        }
    }
}

fn content(read: &Record) -> Content {
    Content {
        span: read.span,
        value: match read.what {
            What::ReadContent(value) => value,
            _ => 0,
        },
    }
}
