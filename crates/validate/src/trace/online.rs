//! Validation during a run: accepts records as calls end, returns verdicts as soon as they are final, and discards
//! the rest.
//!
//! ```text
//!   feed(records) ──► waiting ── advance(watermark) ──► reads that ended before it ──► judged
//!                       ▲                                 writes ──► ItemState (by item) ──► settled into a base
//!                       └──── reads that ended later ◄────┘
//! ```
//!
//! All calls that are still to be fed started at or after the *watermark*: it is the lowest start of the outstanding
//! calls, or the present if there are none. For a read that ended before it, every write that can explain it is
//! present.
//!
//! Invariants:
//!
//! 1. The verdicts at each level are those of [`super::judge`] on the complete trace, whatever the feeding order. The
//!    classes are the same, with two exceptions: a read that is neither stale nor fractured is untold, and the age of
//!    a stale read is known only within the retained history.
//! 2. Writes are kept as long as a pending read may show them, and then as history. A base remains of items that were
//!    written (a number, or the elements that changed). Reads are kept until they are validated: at most [`BATCH`] in
//!    addition to those whose verdict must wait.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::contents::ContentLane;
use super::counts::CountLane;
use super::joint::{self, ItemHistory};
use super::lists::ListLane;
use super::sink::Sink;
use super::{Initial, List, Options, Reads};
use crate::record::{Outcome, Record, RecordKind};
use crate::report::Report;

/// The number of records to collect before they are validated: enough to amortize the pass over the items.
pub const BATCH: usize = 1 << 18;

/// A validator that is fed during the run. It uses one core: divide records among several with [`super::part`] and
/// add up their reports.
pub struct OnlineValidator<I> {
    initial: I,
    history_ns: u64,
    sink: Sink,
    watermark: u64,
    waiting: Vec<Record>,
    /// The number of waiting records that were examined before.
    seen: usize,
    /// The empty buffer of the previous batch: allocating it again would cost up to a tenth of the validation.
    spare: Vec<Record>,
    by_item: Vec<(u64, usize)>,
    items: HashMap<u64, ItemState, BuildHasherDefault<ItemHasher>>,
    /// Items with retained writes.
    unsettled: Vec<u64>,
}

/// The state of an item that was written.
#[derive(Default)]
struct ItemState {
    now: Lanes,
    /// The same with older writes, for the age of stale reads; `None` while nothing was discarded.
    past: Option<Lanes>,
    /// When to discard the next part of the past.
    past_until: u64,
    unsettled: bool,
    /// True if its number was written.
    of_number: bool,
    /// True if its elements were written.
    of_elements: bool,
}

#[derive(Clone, Default)]
struct Lanes {
    counts: Option<Box<CountLane>>,
    lists: Option<Box<ListLane>>,
    contents: Option<Box<ContentLane>>,
}

impl<I: Initial> OnlineValidator<I> {
    /// Creates a validator. `history_ns` is the time for which settled writes are kept, for the age of stale reads;
    /// `u64::MAX` keeps them forever.
    pub fn new(initial: I, options: &Options, history_ns: u64) -> OnlineValidator<I> {
        OnlineValidator {
            initial,
            history_ns,
            sink: Sink::new(options, true),
            watermark: 0,
            waiting: Vec::new(),
            seen: 0,
            spare: Vec::new(),
            by_item: Vec::new(),
            items: HashMap::default(),
            unsettled: Vec::new(),
        }
    }

    /// Adds records of calls that ended; those of one call must be passed together. None of them may have started
    /// before the watermark.
    pub fn feed(&mut self, records: &[Record]) {
        self.waiting.extend_from_slice(records);
    }

    /// Raises the watermark: no call that started before it is still to be fed. A lower value than before has no
    /// effect.
    pub fn advance(&mut self, watermark: u64) {
        self.watermark = self.watermark.max(watermark);
        if self.waiting.len() - self.seen >= BATCH {
            self.judge();
        }
    }

    /// Validates everything that can be validated, and returns the report so far.
    pub fn report(&mut self) -> &Report {
        self.judge();
        self.sink.report()
    }

    /// WriteEnds the run: there are no more calls.
    pub fn finish(mut self) -> Report {
        self.watermark = u64::MAX;
        self.judge();
        self.sink.into_report()
    }

    /// Returns the number of waiting records and retained writes.
    pub fn retained_records(&self) -> usize {
        let held = self.items.values();
        let lanes = held.flat_map(|held| [Some(&held.now), held.past.as_ref()]);
        self.waiting.len() + lanes.flatten().map(Lanes::len).sum::<usize>()
    }

    fn judge(&mut self) {
        let spare = std::mem::take(&mut self.spare);
        let mut records = std::mem::replace(&mut self.waiting, spare);
        let mut by_item = std::mem::take(&mut self.by_item);
        let items = records.iter().map(|record| record.item.rotate_left(8));
        by_item.extend(items.zip(0..));
        by_item.sort_unstable();
        let mut left: Vec<usize> = Vec::new();
        for unit in by_item.chunk_by(|a, b| a.0 >> 8 == b.0 >> 8) {
            let mut earliest = self.watermark;
            for entry in unit {
                let record = &records[entry.1];
                if is_read(record) {
                    if self.must_wait(record) {
                        earliest = earliest.min(record.span.start);
                        left.push(entry.1);
                    }
                } else if record.outcome != Outcome::NotDone {
                    self.write(record);
                }
            }
            for of_item in unit.chunk_by(|a, b| a.0 == b.0) {
                self.judge_item(&records, of_item);
            }
            self.judge_calls(&records, unit);
            for of_item in unit.chunk_by(|a, b| a.0 == b.0) {
                self.settle(of_item[0].0.rotate_right(8), earliest);
            }
            self.sink.forget();
        }
        self.settle_untouched(&records, &left);
        left.sort_unstable();
        self.waiting
            .extend(left.into_iter().map(|index| records[index]));
        self.seen = self.waiting.len();
        records.clear();
        by_item.clear();
        (self.spare, self.by_item) = (records, by_item);
    }

    /// Returns whether a write that is not present yet may explain the read. After the run there is none.
    fn must_wait(&self, read: &Record) -> bool {
        read.span.end >= self.watermark && self.watermark < u64::MAX
    }

    fn write(&mut self, record: &Record) {
        self.sink.writes(1);
        let held = self.items.entry(record.item).or_default();
        let seed = self.sink.options.seed;
        for lanes in [Some(&mut held.now), held.past.as_mut()]
            .into_iter()
            .flatten()
        {
            lanes.push(record, &self.initial, seed);
        }
        match record.what {
            RecordKind::AddCount(_) | RecordKind::SetCount(_) => held.of_number = true,
            RecordKind::PutElement(_) | RecordKind::RemoveElement(_) => held.of_elements = true,
            _ => {}
        }
        if !held.unsettled {
            held.unsettled = true;
            self.unsettled.push(record.item);
        }
    }

    fn judge_item(&mut self, records: &[Record], of_item: &[(u64, usize)]) {
        let mut reads = Reads::default();
        for entry in of_item {
            let record = &records[entry.1];
            if is_read(record) && !self.must_wait(record) {
                reads.take(record);
            }
        }
        let item = of_item[0].0.rotate_right(8);
        let (sink, initial) = (&mut self.sink, &self.initial);
        let seed = sink.options.seed;
        let mut none = ItemState::default();
        let held = self.items.get_mut(&item).unwrap_or(&mut none);
        let of_list = held.is_list();
        let past = &mut held.past;
        let sizes: &[&Record] = if of_list { &reads.counts } else { &[] };
        if !reads.lists.is_empty() || !sizes.is_empty() {
            let initially = |element| initial.contains(item, element);
            let lane = held.now.lists(item, initial, seed);
            let past = past.as_mut().map(|past| past.lists(item, initial, seed));
            lane.judge(&reads.lists, sizes, &initially, past, sink);
        }
        if !reads.counts.is_empty() && !of_list {
            let lane = held.now.counts(item, initial);
            let past = past.as_mut().map(|past| past.counts(item, initial));
            lane.judge(&reads.counts, past, sink);
        }
        if !reads.contents.is_empty() {
            let lane = held.now.contents(item, initial);
            let past = past.as_mut().map(|past| past.contents(item, initial));
            lane.judge(&reads.contents, past, sink);
        }
    }

    /// Validates the level `Joint`.
    fn judge_calls(&mut self, records: &[Record], unit: &[(u64, usize)]) {
        if unit[0].0 == unit[unit.len() - 1].0 {
            return;
        }
        let calls = unit
            .iter()
            .filter(|entry| !self.must_wait(&records[entry.1]));
        let calls = calls
            .filter_map(|entry| joint::together(records, entry.1))
            .collect();
        let initial = &self.initial;
        let items = &mut self.items;
        joint::judge(
            calls,
            &mut |item| {
                let mut none = ItemState::default();
                let held = items.get_mut(&item).unwrap_or(&mut none);
                match &held.now.lists {
                    Some(list) if held.is_list() => {
                        let initially = |element| initial.contains(item, element);
                        ItemHistory::of_list(list, &initially)
                    }
                    _ => ItemHistory::of_number(held.now.counts(item, initial)),
                }
            },
            &mut self.sink,
        );
    }

    /// Discards what no read that starts at or after this instant can show.
    fn settle(&mut self, item: u64, before: u64) {
        let Some(held) = self.items.get_mut(&item) else {
            return;
        };
        if held.past.is_none() && self.history_ns > 0 && held.now.any_ended(before) {
            held.past = Some(held.now.clone_for_ages());
        }
        held.now.settle(item, before, &self.initial);
        if let Some(past) = &mut held.past
            && let Some(oldest) = before.checked_sub(self.history_ns)
            && oldest >= held.past_until
        {
            past.settle(item, oldest, &self.initial);
            // A pass over the past on every call would cost more than it frees.
            held.past_until = oldest.saturating_add(self.history_ns / 4);
        }
    }

    /// Settles items with retained writes that were not in this batch.
    fn settle_untouched(&mut self, records: &[Record], left: &[usize]) {
        let waiting: Vec<u64> = {
            let mut items: Vec<u64> = left.iter().map(|index| records[*index].item << 8).collect();
            items.sort_unstable();
            items
        };
        let items = std::mem::take(&mut self.unsettled);
        for item in items {
            if waiting.binary_search(&(item << 8)).is_err() {
                self.settle(item, self.watermark);
            }
            let held = self.items.get_mut(&item).expect("it was written");
            held.unsettled = held.now.len() > 0;
            if held.unsettled {
                self.unsettled.push(item);
            }
        }
    }
}

fn is_read(record: &Record) -> bool {
    matches!(
        record.what,
        RecordKind::ReadCount(_) | RecordKind::ReadSet(_) | RecordKind::ReadContent(_)
    )
}

impl ItemState {
    /// Returns whether its count is the size of its list.
    fn is_list(&self) -> bool {
        self.of_elements && !self.of_number
    }
}

impl Lanes {
    fn counts(&mut self, item: u64, initial: &dyn Initial) -> &mut CountLane {
        self.counts.get_or_insert_with(|| {
            let mut lane = Box::<CountLane>::default();
            lane.start(initial.count(item).into());
            lane
        })
    }

    fn lists(&mut self, item: u64, initial: &dyn Initial, seed: u64) -> &mut ListLane {
        self.lists.get_or_insert_with(|| {
            let mut lane = Box::<ListLane>::default();
            lane.start(seed, item, List::of(initial, item).sketch(seed));
            lane
        })
    }

    fn contents(&mut self, item: u64, initial: &dyn Initial) -> &mut ContentLane {
        self.contents.get_or_insert_with(|| {
            let mut lane = Box::<ContentLane>::default();
            lane.start(initial.content(item));
            lane
        })
    }

    fn push(&mut self, write: &Record, initial: &dyn Initial, seed: u64) {
        match write.what {
            RecordKind::AddCount(_) | RecordKind::SetCount(_) => {
                self.counts(write.item, initial).push(write)
            }
            RecordKind::PutElement(_) | RecordKind::RemoveElement(_) => {
                self.lists(write.item, initial, seed).push(write);
            }
            _ => self.contents(write.item, initial).push(write),
        }
    }

    /// Returns a copy without the history of reads.
    fn clone_for_ages(&self) -> Lanes {
        let mut lanes = self.clone();
        if let Some(lane) = &mut lanes.counts {
            lane.forget_reads();
        }
        if let Some(lane) = &mut lanes.lists {
            lane.forget_reads();
        }
        lanes
    }

    fn len(&self) -> usize {
        self.counts.as_ref().map_or(0, |lane| lane.len())
            + self.lists.as_ref().map_or(0, |lane| lane.len())
            + self.contents.as_ref().map_or(0, |lane| lane.len())
    }

    fn any_ended(&self, before: u64) -> bool {
        self.counts
            .as_ref()
            .is_some_and(|lane| lane.any_ended(before))
            || self
                .lists
                .as_ref()
                .is_some_and(|lane| lane.any_ended(before))
            || self
                .contents
                .as_ref()
                .is_some_and(|lane| lane.any_ended(before))
    }

    fn settle(&mut self, item: u64, before: u64, initial: &dyn Initial) {
        if let Some(lane) = &mut self.counts {
            lane.settle(before);
        }
        if let Some(lane) = &mut self.lists {
            lane.settle(before, &|element| initial.contains(item, element));
        }
        if let Some(lane) = &mut self.contents {
            lane.settle(before);
        }
    }
}

/// A hasher for item numbers: it mixes the bits.
#[derive(Default)]
struct ItemHasher(u64);

impl Hasher for ItemHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
