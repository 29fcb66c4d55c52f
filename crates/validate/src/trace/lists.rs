//! Validates the reads of one list and of its size. [`crate::set`] determines the possible lists; this module decides
//! which writes are retained, and reports failures.

use super::earlier::{Earlier, Orders, Sized, key};
use super::joint::Call;
use super::sink::Sink;
use super::{Ends, Note, deciding, written};
use crate::Verdict;
use crate::record::{Record, What};
use crate::report::{Class, Effect, Failure, Found, Level, Saw, Witness};
use crate::set::{self, Answer, Before, Cursor, History, Sketch};

/// Maximum number of acceptable values in a witness.
const COULD_MAX: i64 = 12;

#[derive(Clone, Default)]
pub(super) struct ListLane {
    seed: u64,
    item: u64,
    /// The elements before the retained writes.
    certain: Sketch,
    /// Elements whose state before the retained writes differs from that at the start of the trace; ascending.
    changed: Vec<(u64, bool)>,
    writes: Vec<set::Write>,
    notes: Vec<Note>,
    ends: Ends,
    /// The number of writes, including discarded ones.
    pushed: u64,
    earlier: Earlier<Sized>,
    orders: Orders,
}

/// An accepted read, and what it reveals at the level `Atomic`.
struct Passed<'a> {
    read: &'a Record,
    /// It misses what an earlier read saw.
    back: bool,
    /// The writes, and whether each had taken effect.
    told: Vec<(u64, bool)>,
}

/// Returns whether an element was in the list at the start of the trace.
pub(super) type Initially<'a> = &'a dyn Fn(u64) -> bool;

impl ListLane {
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
    pub fn start(&mut self, seed: u64, item: u64, certain: Sketch) {
        self.begin(seed, item, certain);
        self.changed.clear();
        self.writes.clear();
        self.notes.clear();
        self.ends.clear();
        self.forget_reads();
    }

    /// Discards the history of reads, for a copy that only determines ages.
    pub fn forget_reads(&mut self) {
        self.earlier.clear();
        self.orders.clear();
    }

    pub fn begin(&mut self, seed: u64, item: u64, certain: Sketch) {
        (self.seed, self.item, self.certain) = (seed, item, certain);
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
        self.notes.push(Note::of(self.pushed, write));
        self.pushed += 1;
    }

    fn holds(&self, element: u64, initially: Initially<'_>) -> bool {
        let found = self.changed.binary_search_by_key(&element, |it| it.0);
        found.map_or_else(|_| initially(element), |at| self.changed[at].1)
    }

    pub fn history(&self, initially: Initially<'_>) -> History {
        let before = Before {
            certain: self.certain,
            holds: &|element| self.holds(element, initially),
        };
        History::new(self.seed, self.item, &before, &self.writes)
    }

    pub fn calls(&self) -> Vec<Call> {
        let all = self.writes.iter().zip(&self.notes);
        all.map(|(write, note)| note.call(write.span)).collect()
    }

    /// Validates reads. `past` is the same item with its older writes, for the age of stale reads; `None` if all
    /// writes are still here.
    pub fn judge(
        &mut self,
        lists: &[&Record],
        sizes: &[&Record],
        initially: Initially<'_>,
        past: Option<&mut ListLane>,
        sink: &mut Sink,
    ) {
        let history = self.history(initially);
        self.ends.of(self.writes.iter().map(|write| write.span));
        let mut reads: Vec<&Record> = [lists, sizes].concat();
        if !self.writes.is_empty() || past.is_some() {
            reads.sort_unstable_by_key(|read| read.span);
        }
        let (mut refused, mut passed) = (Vec::new(), Vec::new());
        let mut cursor = Cursor::new(&history);
        for read in reads {
            match self.verdict(&mut cursor, read, sink) {
                Verdict::Acceptable => {
                    sink.judged(read, Found::Acceptable, self.ends.since(read.span));
                    if cursor.is_quiet() {
                        sink.level(read, Level::Atomic, Verdict::Acceptable);
                    } else {
                        passed.push(self.hear(&cursor, read));
                    }
                }
                Verdict::Undecided => {
                    sink.judged(read, Found::Undecided, self.ends.since(read.span));
                }
                Verdict::Unacceptable => match past {
                    None => self.refuse(&cursor, read, initially, &self.ends, sink),
                    Some(_) => refused.push(read),
                },
            }
        }
        self.judge_together(&history, passed, initially, sink);
        if let Some(past) = past
            && !refused.is_empty()
        {
            past.ends.of(past.writes.iter().map(|write| write.span));
            let history = past.history(initially);
            let mut cursor = Cursor::new(&history);
            for read in refused {
                seek(&mut cursor, read);
                past.refuse(&cursor, read, initially, &self.ends, sink);
            }
        }
    }

    /// Validates the read separately, at each level.
    fn verdict(&self, cursor: &mut Cursor<'_>, read: &Record, sink: &mut Sink) -> Verdict {
        let answer = seek(cursor, read);
        sink.level(read, Level::Bg, answer.size);
        if let What::ReadSet(_) = read.what {
            sink.level(read, Level::Members, answer.apart);
            sink.level(read, Level::Snapshot, answer.whole);
        }
        answer.whole
    }

    /// Classifies the read at the cursor, and reports the failure. `ends` has the ends of the newest writes.
    fn refuse(
        &self,
        cursor: &Cursor<'_>,
        read: &Record,
        initially: Initially<'_>,
        ends: &Ends,
        sink: &mut Sink,
    ) {
        let holds = |element| self.holds(element, initially);
        let (class, last) = match read.what {
            What::ReadSet(sketch) => cursor.class(question(read, sketch), &holds),
            What::ReadCount(size) => cursor.size_class(read.span, size),
            _ => return,
        };
        let class = match (class, last) {
            (Class::Stale { age_ns, .. }, Some(last)) => Class::Stale {
                age_ns,
                behind: self.ends.between(last, read.span),
            },
            _ => sink.told(class),
        };
        sink.failed(read, Failure::Class(class), |failure| {
            self.witness(cursor, read, failure, last, &holds)
        });
        sink.judged(read, Found::Failed(class), ends.since(read.span));
    }

    /// Collects what the read at the cursor reveals about writes, together with reads that ended before it.
    fn hear<'a>(&mut self, cursor: &Cursor<'_>, read: &'a Record) -> Passed<'a> {
        let mut back = false;
        let mut told = Vec::new();
        for (write, seen) in cursor.told() {
            back |= self.notes[write].told(read.span, seen);
            told.push((self.notes[write].id, seen));
        }
        let size = match read.what {
            What::ReadSet(sketch) => sketch.count.into(),
            What::ReadCount(size) => size,
            _ => 0,
        };
        if let Some((members, decided, others)) = cursor.open_at(size) {
            let decided = decided.into_iter();
            let sized = Sized {
                members,
                decided: decided
                    .map(|(write, put)| (self.notes[write].id, put))
                    .collect(),
                others,
            };
            back |= !self
                .earlier
                .lead_to(read.span, |earlier| earlier.leads_to(&sized));
            if !back {
                self.earlier.keep(read, sized);
            }
        }
        Passed { read, back, told }
    }

    /// Validates the level `Atomic`, for reads that were accepted while writes were in flight. Processes them in the
    /// order of their ends, so that the recorded orders of writes do not depend on when they are validated.
    fn judge_together(
        &mut self,
        history: &History,
        mut passed: Vec<Passed<'_>>,
        initially: Initially<'_>,
        sink: &mut Sink,
    ) {
        passed.sort_by_key(|passed| key(passed.read));
        for Passed { read, back, told } in passed {
            let back = back || !self.orders.tell(&told);
            let verdict = match (back, told.is_empty()) {
                (true, _) => Verdict::Unacceptable,
                (false, false) => Verdict::Acceptable,
                (false, true) => Verdict::Undecided,
            };
            sink.level(read, Level::Atomic, verdict);
            if back {
                let holds = |element| self.holds(element, initially);
                sink.failed(read, Failure::WentBack, |failure| {
                    let mut cursor = Cursor::new(history);
                    seek(&mut cursor, read);
                    self.witness(&cursor, read, failure, None, &holds)
                });
            }
        }
    }

    /// Discards writes that were certainly replaced before this instant, and those that leave only one possible
    /// state. No later read starts before it.
    pub fn settle(&mut self, before: u64, initially: Initially<'_>) {
        let mut order: Vec<usize> = (0..self.writes.len()).collect();
        order.sort_by_key(|index| self.writes[*index].element);
        let (mut gone, mut left) = (vec![false; order.len()], Vec::new());
        for of_element in order.chunk_by(|a, b| self.writes[*a].element == self.writes[*b].element)
        {
            let own = |index: &usize| self.writes[*index];
            let ended = of_element
                .iter()
                .map(own)
                .filter(|write| write.span.end < before);
            let Some(replaced) = ended.map(|write| write.span.start).max() else {
                continue;
            };
            let write = own(&of_element[0]);
            let may_be = |member: bool| {
                let live = of_element.iter().map(own);
                let mut live = live.filter(|write| write.span.end >= replaced);
                live.any(|write| write.member == member)
            };
            let over = of_element.iter().all(|index| own(index).span.end < before);
            let settled = over && may_be(true) != may_be(false);
            for index in of_element {
                gone[*index] = settled || self.writes[*index].span.end < replaced;
            }
            if settled {
                left.push((write.element, may_be(true)));
            }
        }
        for (element, member) in left {
            self.leave(element, member, initially);
        }
        let mut kept = 0;
        for (index, gone) in gone.into_iter().enumerate() {
            if gone {
                self.ends.settled(self.writes[index].span);
                continue;
            }
            self.writes[kept] = self.writes[index];
            self.notes[kept] = self.notes[index];
            kept += 1;
        }
        self.writes.truncate(kept);
        self.notes.truncate(kept);
        self.earlier.settle(before);
        let notes = &self.notes;
        self.orders
            .settle(|id| notes.iter().any(|note| note.id == id));
    }

    /// Sets the state of an element from now on.
    fn leave(&mut self, element: u64, member: bool, initially: Initially<'_>) {
        if self.holds(element, initially) != member {
            let one = Sketch::of(self.seed, self.item, [element]);
            self.certain = if member {
                self.certain.with(one.keys)
            } else {
                self.certain.without(one.keys)
            };
        }
        let found = self.changed.binary_search_by_key(&element, |it| it.0);
        match (found, initially(element) == member) {
            (Ok(at), true) => drop(self.changed.remove(at)),
            (Ok(at), false) => self.changed[at].1 = member,
            (Err(_), true) => {}
            (Err(at), false) => self.changed.insert(at, (element, member)),
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
            let effect = if write.member {
                Effect::Put(write.element)
            } else {
                Effect::Remove(write.element)
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
            could,
            writes: deciding(writes, read.span, since),
            ..Witness::of(read, failure, saw)
        }
    }
}

/// Moves the cursor to a read and validates it again.
fn seek(cursor: &mut Cursor<'_>, read: &Record) -> Answer {
    match read.what {
        What::ReadSet(sketch) => cursor.judge(question(read, sketch)),
        What::ReadCount(size) => {
            let size = cursor.judge_size(read.span, size);
            Answer {
                size,
                apart: size,
                whole: size,
            }
        }
        _ => unreachable!("lists are read by element or by size"),
    }
}

fn question(read: &Record, sketch: Sketch) -> set::Read {
    set::Read {
        span: read.span,
        sketch,
    }
}
