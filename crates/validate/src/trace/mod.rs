//! A whole trace judged: records in any order in, a report out, item by item over the cores.
//!
//! ```text
//!   records ──► by identity (the low 56 bits of the item: one member, one resource)
//!                 └► by item ──► counts | lists | contents ──► Sink ──► Report
//!                 └► calls that read several counts of it ──► joint
//! ```
//!
//! An item's count and its list are one thing seen in two ways. Where the changes of its elements are recorded
//! ([`What::PutElement`], [`What::RemoveElement`]), its count is the size of that list; where its number's are ([`What::AddCount`],
//! [`What::SetCount`]), it is that number. A trace has one or the other for all changes of an item's count.
//!
//! Invariants:
//!
//! 1. Each read whose outcome is `Done` is in exactly one class of the report, or acceptable, or undecided.
//! 2. The report does not depend on `cores`, nor on the order of the records except that those of one call stand together.

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
use crate::record::{Outcome, Record, What};
use crate::report::{Change, Effect, Report};
use crate::set::Sketch;
use contents::ContentLane;
use counts::CountLane;
use joint::ItemHistory;
use lists::ListLane;
pub use online::{BATCH, Online};
use sink::Sink;

/// What the items were before the first record. Asked once for each item that the trace names, or not at all.
pub trait Initial: Sync {
    fn count(&self, item: u64) -> i32;
    /// Each element once.
    fn set(&self, item: u64) -> Vec<u64>;
    fn content(&self, item: u64) -> u64;

    /// Whether an element is in the set of an item. Worth having where it is known without the others: it is asked often.
    fn contains(&self, item: u64, element: u64) -> bool {
        self.set(item).contains(&element)
    }
}

/// Nothing is there at first.
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
    /// Threads to use; at least one is.
    pub cores: usize,
    /// Failures told.
    pub witnesses_max: usize,
}

/// Judges all reads of a trace.
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

/// Which of so many parts a record belongs to: those of one identity are in one part, where a part is judged by itself.
pub fn part(item: u64, parts: usize) -> usize {
    let mixed = identity(item).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // The product's high half: even shares without a division.
    (mixed as usize * parts) >> 32
}

/// The member or resource that an item belongs to, whatever its kind.
fn identity(item: u64) -> u64 {
    item << 8
}

/// The identities of one core, one by one.
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

/// The calls of one item, sorted by what they are about.
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
                What::AddCount(_) | What::SetCount(_) => self.counts.push(call),
                What::PutElement(_) | What::RemoveElement(_) => self.lists.push(call),
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

    /// Of what was gathered.
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

    /// False if the call is no read.
    fn take(&mut self, call: &'a Record) -> bool {
        let reads = match call.what {
            What::ReadCount(_) => &mut self.counts,
            What::ReadSet(_) => &mut self.lists,
            What::ReadContent(_) => &mut self.contents,
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
    /// Ascending.
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

/// A write's interval; that of a write of unknown outcome has no end.
fn written(record: &Record) -> Span {
    match record.outcome {
        Outcome::Unknown => Span::unanswered(record.span.start()),
        Outcome::Done | Outcome::NotDone => record.span,
    }
}

/// What is told of a write beside its effect.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Among all writes of the item, also those that are forgotten.
    id: u64,
    action: u8,
    session: u32,
    /// The earliest end of the reads that certainly saw it; `u64::MAX` if none did.
    seen_by: u64,
}

impl Note {
    fn of(id: u64, record: &Record) -> Note {
        Note {
            id,
            action: record.action,
            session: record.session,
            seen_by: u64::MAX,
        }
    }

    fn call(&self, span: Span) -> joint::Call {
        (self.session, self.action, span)
    }

    /// A read shows whether the write had taken effect. True if an earlier read had seen what this one did not.
    fn told(&mut self, read: Span, seen: bool) -> bool {
        if seen {
            self.seen_by = self.seen_by.min(read.end);
        }
        !seen && self.seen_by < read.start
    }
}

/// Of so many writes at most: those that ended last before the read, from `since` on if that is known; then those in flight.
fn deciding(
    writes: impl Iterator<Item = (Span, Effect, Note)>,
    read: Span,
    since: Option<u64>,
) -> Vec<Change> {
    const EACH: usize = 3;
    let mut all: Vec<Change> = writes
        .filter(|(span, _, _)| {
            span.start <= read.end && since.is_none_or(|since| span.end >= since)
        })
        .map(|(span, effect, note)| Change {
            action: note.action,
            session: note.session,
            span,
            effect,
        })
        .collect();
    all.sort_by_key(|change| (change.span.end, change.span.start, format!("{change:?}")));
    let ended = all.partition_point(|change| change.span.end < read.start);
    // The first that a stale read missed are what made it stale; of others the last ones are.
    let missed = match since {
        Some(_) => 0..ended.min(EACH),
        None => ended.saturating_sub(EACH)..ended,
    };
    let flying = ended..all.len().min(ended + EACH);
    [&all[missed], &all[flying]].concat()
}

/// The ends of writes that were acknowledged.
#[derive(Clone, Default)]
struct Ends {
    /// Ascending.
    ends: Vec<u64>,
    /// The last of those that were forgotten.
    forgotten: Option<u64>,
}

impl Ends {
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

    /// Nanoseconds from the last acknowledged write to the read's start.
    fn since(&self, read: Span) -> Option<u64> {
        let ended = self.ends.partition_point(|end| *end < read.start);
        let last = ended.checked_sub(1).map(|last| self.ends[last]);
        let forgotten = self.forgotten.filter(|end| *end < read.start);
        last.max(forgotten).map(|last| read.start - last)
    }

    /// How many were acknowledged from an instant on, before the read began.
    fn between(&self, from: u64, read: Span) -> u64 {
        let before = |instant: u64| self.ends.partition_point(|end| *end < instant);
        before(read.start).saturating_sub(before(from)) as u64
    }
}
