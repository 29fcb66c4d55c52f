//! Validates the reads of one list and of its size. [`crate::set`] determines the possible lists; this module decides
//! which writes are retained, and reports failures.

use super::earlier::{EarlierReads, ListRead, Orders, key};
use super::joint::WriteCall;
use super::sink::Sink;
use super::{WriteEnds, WriteNote, deciding, written};
use crate::Verdict;
use crate::record::{Record, RecordKind};
use crate::report::{Class, Effect, Failure, Level, Observation, ReadResult, Witness};
use crate::set::{self, Cursor, History, InitialSet, ListVerdicts, Sketch};

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
    notes: Vec<WriteNote>,
    ends: WriteEnds,
    /// The number of writes, including discarded ones.
    pushed: u64,
    earlier: EarlierReads<ListRead>,
    orders: Orders,
}

/// An accepted read, and what it reveals at the level `Atomic`.
struct AcceptedRead<'a> {
    read: &'a Record,
    /// It misses what an earlier read saw.
    back: bool,
    /// The writes, and whether each had taken effect.
    revealed: Vec<(u64, bool)>,
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
            RecordKind::PutElement(element) => (element, true),
            RecordKind::RemoveElement(element) => (element, false),
            _ => return,
        };
        self.writes.push(set::Write {
            span: written(write),
            element,
            member,
        });
        self.notes.push(WriteNote::of(self.pushed, write));
        self.pushed += 1;
    }

    fn holds(&self, element: u64, initially: Initially<'_>) -> bool {
        let found = self.changed.binary_search_by_key(&element, |it| it.0);
        found.map_or_else(|_| initially(element), |at| self.changed[at].1)
    }

    pub fn history(&self, initially: Initially<'_>) -> History {
        let before = InitialSet {
            certain: self.certain,
            holds: &|element| self.holds(element, initially),
        };
        History::new(self.seed, self.item, &before, &self.writes)
    }

    pub fn calls(&self) -> Vec<WriteCall> {
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
        let (mut refused, mut accepted) = (Vec::new(), Vec::new());
        let mut cursor = Cursor::new(&history);
        for read in reads {
            match self.verdict(&mut cursor, read, sink) {
                Verdict::Acceptable => {
                    sink.record_verdict(read, ReadResult::Acceptable, self.ends.since(read.span));
                    if cursor.is_quiet() {
                        sink.level(read, Level::Atomic, Verdict::Acceptable);
                    } else {
                        accepted.push(self.accept(&cursor, read));
                    }
                }
                Verdict::Undecided => {
                    sink.record_verdict(read, ReadResult::Undecided, self.ends.since(read.span));
                }
                Verdict::Unacceptable => match past {
                    None => self.record_failures(&cursor, read, initially, &self.ends, sink),
                    Some(_) => refused.push(read),
                },
            }
        }
        self.judge_atomic(&history, accepted, initially, sink);
        if let Some(past) = past
            && !refused.is_empty()
        {
            past.ends.of(past.writes.iter().map(|write| write.span));
            let history = past.history(initially);
            let mut cursor = Cursor::new(&history);
            for read in refused {
                seek(&mut cursor, read);
                past.record_failures(&cursor, read, initially, &self.ends, sink);
            }
        }
    }

    /// Validates the read separately, at each level.
    fn verdict(&self, cursor: &mut Cursor<'_>, read: &Record, sink: &mut Sink) -> Verdict {
        let answer = seek(cursor, read);
        sink.level(read, Level::Bg, answer.size);
        if let RecordKind::ReadSet(_) = read.what {
            sink.level(read, Level::Members, answer.apart);
            sink.level(read, Level::Snapshot, answer.joint);
        }
        answer.joint
    }

    /// Classifies the read at the cursor, and reports the failure. `ends` has the ends of the newest writes.
    fn record_failures(
        &self,
        cursor: &Cursor<'_>,
        read: &Record,
        initially: Initially<'_>,
        ends: &WriteEnds,
        sink: &mut Sink,
    ) {
        let holds = |element| self.holds(element, initially);
        let (class, last) = match read.what {
            RecordKind::ReadSet(sketch) => cursor.class(question(read, sketch), &holds),
            RecordKind::ReadCount(size) => cursor.size_class(read.span, size),
            _ => return,
        };
        let class = match (class, last) {
            (Class::Stale { age_ns, .. }, Some(last)) => Class::Stale {
                age_ns,
                behind: self.ends.between(last, read.span),
            },
            _ => sink.known_class(class),
        };
        sink.failed(read, Failure::Class(class), |failure| {
            self.witness(cursor, read, failure, last, &holds)
        });
        sink.record_verdict(read, ReadResult::Failed(class), ends.since(read.span));
    }

    /// Collects what the read at the cursor reveals about writes, together with reads that ended before it.
    fn accept<'a>(&mut self, cursor: &Cursor<'_>, read: &'a Record) -> AcceptedRead<'a> {
        let mut back = false;
        let mut revealed = Vec::new();
        for (write, seen) in cursor.revealed() {
            back |= self.notes[write].record_read(read.span, seen);
            revealed.push((self.notes[write].id, seen));
        }
        let size = match read.what {
            RecordKind::ReadSet(sketch) => sketch.count.into(),
            RecordKind::ReadCount(size) => size,
            _ => 0,
        };
        if let Some((members, decided, others)) = cursor.open_at(size) {
            let decided = decided.into_iter();
            let sized = ListRead {
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
        AcceptedRead {
            read,
            back,
            revealed,
        }
    }

    /// Validates the level `Atomic`, for reads that were accepted while writes were in flight. Processes them in the
    /// order of their ends, so that the recorded orders of writes do not depend on when they are validated.
    fn judge_atomic(
        &mut self,
        history: &History,
        mut accepted: Vec<AcceptedRead<'_>>,
        initially: Initially<'_>,
        sink: &mut Sink,
    ) {
        accepted.sort_by_key(|accepted| key(accepted.read));
        for AcceptedRead {
            read,
            back,
            revealed,
        } in accepted
        {
            let back = back || !self.orders.add(&revealed);
            let verdict = match (back, revealed.is_empty()) {
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
            RecordKind::ReadSet(sketch) => {
                let difference = cursor.difference(sketch, holds);
                let count = sketch.count;
                (Observation::List { count, difference }, None)
            }
            RecordKind::ReadCount(size) => {
                let sizes = cursor.sizes();
                let few = sizes.hi - sizes.lo < COULD_MAX;
                (
                    Observation::Count(size),
                    few.then(|| (sizes.lo..=sizes.hi).collect()),
                )
            }
            _ => (Observation::Count(0), None),
        };
        Witness {
            could,
            writes: deciding(writes, read.span, since),
            ..Witness::of(read, failure, saw)
        }
    }
}

/// Moves the cursor to a read and validates it again.
fn seek(cursor: &mut Cursor<'_>, read: &Record) -> ListVerdicts {
    match read.what {
        RecordKind::ReadSet(sketch) => cursor.judge(question(read, sketch)),
        RecordKind::ReadCount(size) => {
            let size = cursor.judge_size(read.span, size);
            ListVerdicts {
                size,
                apart: size,
                joint: size,
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
