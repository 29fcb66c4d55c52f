//! Validates a complete trace: takes records in any order and returns a report. The items are distributed over the
//! cores.
//!
//! ```text
//!   records ──► by identity (the low 56 bits of the item: one member, one resource)
//!                 └► by item ──► counts | lists | contents ──► Sink ──► Report
//!                 └► calls that read several counts of it ──► joint
//! ```
//!
//! An item's count and its list are two views of the same state. If the changes of its elements are recorded
//! ([`RecordKind::PutElement`], [`RecordKind::RemoveElement`]), its count is the size of that list. If the changes of its number
//! are recorded ([`RecordKind::AddCount`], [`RecordKind::SetCount`]), its count is that number. A trace uses one of the two for
//! all changes of an item's count.
//!
//! Invariants:
//!
//! 1. Each read whose outcome is `Done` is in exactly one class of the report, or acceptable, or undecided.
//! 2. The report depends neither on `cores` nor on the order of the records, provided that the records of one call
//!    are consecutive.

mod contents;
mod counts;
mod earlier;
mod joint;
mod lists;
mod online;
mod sink;

use std::sync::Arc;
use std::thread;

use crate::Span;
use crate::record::{Outcome, Record, RecordKind};
use crate::report::{Effect, Report, WitnessWrite};
use crate::set::Sketch;
use contents::ContentLane;
use counts::CountLane;
use joint::ItemHistory;
use lists::ListLane;
pub use online::{BATCH, OnlineValidator};
use sink::Sink;

/// The state of the items before the first record. Called at most once for each item of the trace.
pub trait Initial: Sync {
    fn count(&self, item: u64) -> i32;
    /// Returns each element once.
    fn set(&self, item: u64) -> Vec<u64>;
    fn content(&self, item: u64) -> u64;

    /// Returns whether an element is in an item's set. Called often; override it if it can be computed without the
    /// other elements.
    fn contains(&self, item: u64, element: u64) -> bool {
        self.set(item).contains(&element)
    }
}

/// All items are empty initially.
pub struct Empty;

impl Initial for Empty {
    fn count(&self, _: u64) -> i32 {
        0
    }

    fn set(&self, _: u64) -> Vec<u64> {
        Vec::new()
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

impl<I: Initial + Send + ?Sized> Initial for Arc<I> {
    fn count(&self, item: u64) -> i32 {
        (**self).count(item)
    }

    fn set(&self, item: u64) -> Vec<u64> {
        (**self).set(item)
    }

    fn content(&self, item: u64) -> u64 {
        (**self).content(item)
    }

    fn contains(&self, item: u64, element: u64) -> bool {
        (**self).contains(item, element)
    }
}

impl<I: Initial + ?Sized> Initial for &I {
    fn count(&self, item: u64) -> i32 {
        (**self).count(item)
    }

    fn set(&self, item: u64) -> Vec<u64> {
        (**self).set(item)
    }

    fn content(&self, item: u64) -> u64 {
        (**self).content(item)
    }

    fn contains(&self, item: u64, element: u64) -> bool {
        (**self).contains(item, element)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of the sketches in the trace.
    pub seed: u64,
    /// The number of threads; 0 means 1.
    pub cores: usize,
    /// Maximum number of witnesses.
    pub witnesses_max: usize,
}

/// Validates all reads of a trace.
pub fn judge(records: &[Record], initial: &dyn Initial, options: &Options) -> Report {
    let cores = options.cores.max(1);
    let mut report = Report::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores)
            .map(|core| scope.spawn(move || judge_share(records, core, cores, initial, options)))
            .collect();
        for worker in workers {
            let share = worker.join().expect("checkers do not panic");
            report.add(share, options.witnesses_max);
        }
    });
    report
}

/// Returns the part, out of `parts`, to which a record belongs. All records of one identity are in one part, so parts
/// can be validated separately.
pub fn part(item: u64, parts: usize) -> usize {
    let mixed = identity(item).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // The high half of the product: equal shares without a division.
    (mixed as usize * parts) >> 32
}

/// Returns the member or resource to which an item belongs, independent of the kind.
fn identity(item: u64) -> u64 {
    item << 8
}

/// Validates the identities of one core, one by one.
fn judge_share(
    records: &[Record],
    core: usize,
    cores: usize,
    initial: &dyn Initial,
    options: &Options,
) -> Report {
    let mut mine: Vec<(u64, usize)> = records
        .iter()
        .enumerate()
        .filter(|(_, record)| part(record.item, cores) == core)
        .map(|(index, record)| (record.item.rotate_left(8), index))
        .collect();
    mine.sort_unstable();
    let mut sink = Sink::new(options, false);
    let mut item = Item::default();
    for unit in mine.chunk_by(|a, b| a.0 >> 8 == b.0 >> 8) {
        for group in unit.chunk_by(|a, b| a.0 == b.0) {
            item.gather(group.iter().map(|entry| &records[entry.1]));
            item.judge(initial, &mut sink);
        }
        if unit[0].0 != unit[unit.len() - 1].0 {
            let calls = unit.iter();
            let calls = calls.filter_map(|entry| joint::together(records, entry.1));
            joint::judge(
                calls.collect(),
                &mut |name| {
                    let own = unit.iter().map(|entry| &records[entry.1]);
                    item.gather(own.filter(|record| record.item == name));
                    item.history(name, initial, options.seed)
                },
                &mut sink,
            );
        }
        sink.forget();
    }
    sink.into_report()
}

/// The calls of one item, by kind.
#[derive(Default)]
struct Item<'a> {
    counts: CountLane,
    lists: ListLane,
    contents: ContentLane,
    reads: Reads<'a>,
}

#[derive(Default)]
struct Reads<'a> {
    counts: Vec<&'a Record>,
    lists: Vec<&'a Record>,
    contents: Vec<&'a Record>,
}

impl<'a> Item<'a> {
    fn gather(&mut self, calls: impl Iterator<Item = &'a Record>) {
        self.counts.start(0);
        self.lists.start(0, 0, Sketch::default());
        self.contents.start(0);
        self.reads.clear();
        for call in calls {
            if self.reads.take(call) || call.outcome == Outcome::NotDone {
                continue;
            }
            match call.what {
                RecordKind::AddCount(_) | RecordKind::SetCount(_) => self.counts.push(call),
                RecordKind::PutElement(_) | RecordKind::RemoveElement(_) => self.lists.push(call),
                _ => self.contents.push(call),
            }
        }
    }

    fn judge(&mut self, initial: &dyn Initial, sink: &mut Sink) {
        sink.writes(self.counts.len() + self.lists.len() + self.contents.len());
        let reads = &self.reads;
        let of_list = self.counts.is_empty() && !self.lists.is_empty();
        if let [read, ..] = reads.lists[..] {
            let sizes: &[&Record] = if of_list { &reads.counts } else { &[] };
            let list = List::of(initial, read.item);
            self.lists
                .begin(sink.options.seed, read.item, list.sketch(sink.options.seed));
            let initially = |element| list.holds(element);
            self.lists
                .judge(&reads.lists, sizes, &initially, None, sink);
        } else if let [read, ..] = reads.counts[..]
            && of_list
        {
            let list = List::of(initial, read.item);
            self.lists
                .begin(sink.options.seed, read.item, list.sketch(sink.options.seed));
            let initially = |element| list.holds(element);
            self.lists.judge(&[], &reads.counts, &initially, None, sink);
        }
        if let [read, ..] = reads.counts[..]
            && !of_list
        {
            self.counts.begin(initial.count(read.item).into());
            self.counts.judge(&reads.counts, None, sink);
        }
        if let [read, ..] = reads.contents[..] {
            self.contents.begin(initial.content(read.item));
            self.contents.judge(&reads.contents, None, sink);
        }
    }

    /// Returns the history of the gathered writes.
    fn history(&mut self, item: u64, initial: &dyn Initial, seed: u64) -> ItemHistory {
        if self.counts.is_empty() && !self.lists.is_empty() {
            let list = List::of(initial, item);
            self.lists.begin(seed, item, list.sketch(seed));
            return ItemHistory::of_list(&self.lists, &|element| list.holds(element));
        }
        self.counts.begin(initial.count(item).into());
        ItemHistory::of_number(&self.counts)
    }
}

impl<'a> Reads<'a> {
    fn clear(&mut self) {
        self.counts.clear();
        self.lists.clear();
        self.contents.clear();
    }

    /// Returns false if the call is not a read.
    fn take(&mut self, call: &'a Record) -> bool {
        let reads = match call.what {
            RecordKind::ReadCount(_) => &mut self.counts,
            RecordKind::ReadSet(_) => &mut self.lists,
            RecordKind::ReadContent(_) => &mut self.contents,
            _ => return false,
        };
        if call.outcome == Outcome::Done {
            reads.push(call);
        }
        true
    }
}

/// An item's elements at the start of the trace.
struct List {
    item: u64,
    /// In ascending order.
    elements: Vec<u64>,
}

impl List {
    fn of(initial: &dyn Initial, item: u64) -> List {
        let mut elements = initial.set(item);
        elements.sort_unstable();
        List { item, elements }
    }

    fn sketch(&self, seed: u64) -> Sketch {
        Sketch::of(seed, self.item, self.elements.iter().copied())
    }

    fn holds(&self, element: u64) -> bool {
        self.elements.binary_search(&element).is_ok()
    }
}

/// Returns a write's interval, which has no end if the outcome is unknown.
fn written(record: &Record) -> Span {
    match record.outcome {
        Outcome::Unknown => Span::unanswered(record.span.start()),
        Outcome::Done | Outcome::NotDone => record.span,
    }
}

/// Data about a write that does not affect verdicts.
#[derive(Clone, Copy, Debug)]
struct WriteNote {
    /// The index among all writes of the item, including discarded ones.
    id: u64,
    action: u8,
    session: u32,
    /// The earliest end of the reads that certainly saw it; `u64::MAX` if there is none.
    seen_by: u64,
}

impl WriteNote {
    fn of(id: u64, record: &Record) -> WriteNote {
        WriteNote {
            id,
            action: record.action,
            session: record.session,
            seen_by: u64::MAX,
        }
    }

    fn call(&self, span: Span) -> joint::WriteCall {
        (self.session, self.action, span)
    }

    /// Records whether a read saw the write. Returns true if an earlier read saw it and this one did not.
    fn record_read(&mut self, read: Span, seen: bool) -> bool {
        if seen {
            self.seen_by = self.seen_by.min(read.end);
        }
        !seen && self.seen_by < read.start
    }
}

/// Returns a limited number of writes: those that ended last before the read, or the first ones from `since` on if
/// that is given; then those in flight.
fn deciding(
    writes: impl Iterator<Item = (Span, Effect, WriteNote)>,
    read: Span,
    since: Option<u64>,
) -> Vec<WitnessWrite> {
    const EACH: usize = 3;
    let mut all: Vec<WitnessWrite> = writes
        .filter(|(span, _, _)| {
            span.start <= read.end && since.is_none_or(|since| span.end >= since)
        })
        .map(|(span, effect, note)| WitnessWrite {
            action: note.action,
            session: note.session,
            span,
            effect,
        })
        .collect();
    all.sort_by_key(|change| (change.span.end, change.span.start, format!("{change:?}")));
    let ended = all.partition_point(|change| change.span.end < read.start);
    // The first writes that a stale read missed made it stale; for other reads the last ones are relevant.
    let missed = match since {
        Some(_) => 0..ended.min(EACH),
        None => ended.saturating_sub(EACH)..ended,
    };
    let flying = ended..all.len().min(ended + EACH);
    [&all[missed], &all[flying]].concat()
}

/// The ends of acknowledged writes.
#[derive(Clone, Default)]
struct WriteEnds {
    /// In ascending order.
    ends: Vec<u64>,
    /// The last end among the discarded writes.
    forgotten: Option<u64>,
}

impl WriteEnds {
    fn of(&mut self, spans: impl Iterator<Item = Span>) {
        self.ends.clear();
        let ends = spans.map(|span| span.end).filter(|end| *end < u64::MAX);
        self.ends.extend(ends);
        self.ends.sort_unstable();
    }

    fn clear(&mut self) {
        self.ends.clear();
        self.forgotten = None;
    }

    fn settled(&mut self, span: Span) {
        self.forgotten = self.forgotten.max(Some(span.end));
    }

    /// Returns the nanoseconds from the last acknowledged write to the read's start.
    fn since(&self, read: Span) -> Option<u64> {
        let ended = self.ends.partition_point(|end| *end < read.start);
        let last = ended.checked_sub(1).map(|last| self.ends[last]);
        let forgotten = self.forgotten.filter(|end| *end < read.start);
        last.max(forgotten).map(|last| read.start - last)
    }

    /// Returns the number of writes that were acknowledged between an instant and the read's start.
    fn between(&self, from: u64, read: Span) -> u64 {
        let before = |instant: u64| self.ends.partition_point(|end| *end < instant);
        before(read.start).saturating_sub(before(from)) as u64
    }
}
