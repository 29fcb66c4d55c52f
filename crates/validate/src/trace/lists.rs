//! Reads of one list, and of its size.

use super::sink::Sink;
use super::{Ends, Note, deciding, written};
use crate::Verdict;
use crate::record::{Record, What};
use crate::report::{Class, Effect, Failure, Found, Level, Saw, Witness};
use crate::set::{self, Before, Cursor, History, Sketch};

/// Values that a witness names.
const COULD_MAX: i64 = 12;

#[derive(Default)]
pub(super) struct ListLane {
    seed: u64,
    item: u64,
    /// Ascending.
    initial: Vec<u64>,
    writes: Vec<set::Write>,
    notes: Vec<Note>,
    ends: Ends,
}

impl ListLane {
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

    pub fn start(&mut self, seed: u64, item: u64, mut initial: Vec<u64>) {
        initial.sort_unstable();
        (self.seed, self.item, self.initial) = (seed, item, initial);
    }

    pub fn push(&mut self, write: &Record) {
        let (element, member) = match write.what {
            What::PutElement(element) => (element, true),
            What::RemoveElement(element) => (element, false),
            _ => return,
        };
        self.writes.push(set::Write {
            span: written(write),
            element,
            member,
        });
        self.notes.push(Note::of(write));
    }

    pub fn judge(&mut self, lists: &[&Record], sizes: &[&Record], sink: &mut Sink<'_>) {
        let initial = std::mem::take(&mut self.initial);
        let holds = |element| initial.binary_search(&element).is_ok();
        let certain = Sketch::of(self.seed, self.item, initial.iter().copied());
        let before = Before {
            certain,
            holds: &holds,
        };
        let history = History::new(self.seed, self.item, &before, &self.writes);
        self.ends.of(self.writes.iter().map(|write| write.span));
        let mut reads: Vec<&Record> = [lists, sizes].concat();
        if !self.writes.is_empty() {
            reads.sort_unstable_by_key(|read| read.span);
        }
        let mut cursor = Cursor::new(&history);
        for read in reads {
            let verdict = match read.what {
                What::ReadSet(sketch) => self.judge_list(&mut cursor, read, sketch, &holds, sink),
                What::ReadCount(size) => self.judge_size(&mut cursor, read, size, sink),
                _ => continue,
            };
            if verdict == Verdict::Acceptable {
                self.judge_together(&cursor, read, &holds, sink);
            }
        }
    }

    fn judge_list(
        &self,
        cursor: &mut Cursor<'_>,
        read: &Record,
        sketch: Sketch,
        holds: &dyn Fn(u64) -> bool,
        sink: &mut Sink<'_>,
    ) -> Verdict {
        let question = set::Read {
            span: read.span,
            sketch,
        };
        let answer = cursor.judge(question);
        sink.level(read, Level::Bg, answer.size);
        sink.level(read, Level::Members, answer.apart);
        sink.level(read, Level::Snapshot, answer.whole);
        let found = match answer.whole {
            Verdict::Acceptable => Found::Acceptable,
            Verdict::Undecided => Found::Undecided,
            Verdict::Unacceptable => {
                let apart = answer.apart == Verdict::Acceptable;
                let (class, last) = cursor.class(question, apart, holds);
                self.failed(cursor, read, class, last, holds, sink)
            }
        };
        sink.judged(read, found, self.ends.since(read.span));
        answer.whole
    }

    fn judge_size(
        &self,
        cursor: &mut Cursor<'_>,
        read: &Record,
        size: i64,
        sink: &mut Sink<'_>,
    ) -> Verdict {
        let verdict = cursor.judge_size(read.span, size);
        sink.level(read, Level::Bg, verdict);
        let found = if verdict == Verdict::Acceptable {
            Found::Acceptable
        } else {
            let (class, last) = cursor.size_class(read.span, size);
            self.failed(cursor, read, class, last, &|_| false, sink)
        };
        sink.judged(read, found, self.ends.since(read.span));
        verdict
    }

    /// The class with the writes it is behind, and the failure told.
    fn failed(
        &self,
        cursor: &Cursor<'_>,
        read: &Record,
        class: Class,
        last: Option<u64>,
        holds: &dyn Fn(u64) -> bool,
        sink: &mut Sink<'_>,
    ) -> Found {
        let class = match (class, last) {
            (Class::Stale { age_ns, .. }, Some(last)) => Class::Stale {
                age_ns,
                behind: self.ends.between(last, read.span),
            },
            _ => class,
        };
        sink.failed(read, Failure::Class(class), |failure| {
            self.witness(cursor, read, failure, last, holds)
        });
        Found::Failed(class)
    }

    /// The level `Atomic`.
    fn judge_together(
        &mut self,
        cursor: &Cursor<'_>,
        read: &Record,
        holds: &dyn Fn(u64) -> bool,
        sink: &mut Sink<'_>,
    ) {
        if cursor.is_quiet() {
            return sink.level(read, Level::Atomic, Verdict::Acceptable);
        }
        let (mut back, mut told) = (false, false);
        for (write, seen) in cursor.told() {
            told = true;
            back |= self.notes[write].told(read.span, seen);
        }
        let verdict = match (back, told) {
            (true, _) => Verdict::Unacceptable,
            (false, true) => Verdict::Acceptable,
            (false, false) => Verdict::Undecided,
        };
        sink.level(read, Level::Atomic, verdict);
        if back {
            sink.failed(read, Failure::WentBack, |failure| {
                self.witness(cursor, read, failure, None, holds)
            });
        }
    }

    fn witness(
        &self,
        cursor: &Cursor<'_>,
        read: &Record,
        failure: Failure,
        since: Option<u64>,
        holds: &dyn Fn(u64) -> bool,
    ) -> Witness {
        let writes = self.writes.iter().zip(&self.notes).map(|(write, note)| {
            let effect = match write.member {
                true => Effect::Put(write.element),
                false => Effect::Remove(write.element),
            };
            (write.span, effect, *note)
        });
        let (saw, could) = match read.what {
            What::ReadSet(sketch) => {
                let difference = cursor.difference(sketch, holds);
                let count = sketch.count;
                (Saw::List { count, difference }, None)
            }
            What::ReadCount(size) => {
                let sizes = cursor.sizes();
                let few = sizes.hi - sizes.lo < COULD_MAX;
                (
                    Saw::Count(size),
                    few.then(|| (sizes.lo..=sizes.hi).collect()),
                )
            }
            _ => (Saw::Count(0), None),
        };
        Witness {
            item: read.item,
            action: read.action,
            session: read.session,
            read: read.span,
            failure,
            saw,
            beside: Vec::new(),
            could,
            writes: deciding(writes, read.span, since),
        }
    }
}
