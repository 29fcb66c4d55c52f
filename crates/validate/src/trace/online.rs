//! Judging while the run goes on: records in as calls end, verdicts as soon as nothing can change them, the rest forgotten.
//!
//! ```text
//!   feed(records) ──► waiting ── advance(watermark) ──► reads that ended before it ──► judged
//!                       ▲                                 writes ──► Held (by item) ──► settled into a base
//!                       └──── reads that ended later ◄────┘
//! ```
//!
//! The *watermark* is an instant before which no call began that is yet to be fed: the lowest start of outstanding calls, or
//! the present if there are none. Of a read that ended before it, every write that can explain it is here.
//!
//! Invariants:
//!
//! 1. The verdicts are those of [`super::judge`] on the whole trace, at each level, whatever the feeding order; classes, too, except that what is neither stale
//!    nor fractured is untold, and that a stale read is known by its age only as far back as the history that is kept.
//! 2. Writes are kept as long as a read that is not judged yet may show them, and as history; of items that were written a base remains (a number, or the
//!    elements that changed). Reads are kept until they are judged: no more than [`BATCH`] beyond those whose verdict must wait.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::contents::ContentLane;
use super::counts::CountLane;
use super::joint::{self, ItemHistory};
use super::lists::ListLane;
use super::sink::Sink;
use super::{Initial, List, Options, Reads};
use crate::record::{Outcome, Record, What};
use crate::report::Report;

/// Records that may wait together before they are judged: enough to make up for going through the items.
pub const BATCH: usize = 1 << 18;

/// A judge fed while the run goes on. One core's work: split records by [`super::part`] among several and add up their reports.
pub struct Online<I> {
    initial: I,
    history_ns: u64,
    sink: Sink,
    watermark: u64,
    waiting: Vec<Record>,
    /// How many of the waiting were looked at before.
    seen: usize,
    /// Memory of the batch before, empty: asking for it anew costs as much as a tenth of the judging.
    spare: Vec<Record>,
    by_item: Vec<(u64, usize)>,
    items: HashMap<u64, Held, BuildHasherDefault<ItemHasher>>,
    /// Items of which writes are held.
    unsettled: Vec<u64>,
}

/// What is kept of an item that was written.
#[derive(Default)]
struct Held {
    now: Lanes,
    /// The same with older writes, to tell how old an answer is; None while nothing was forgotten.
    past: Option<Lanes>,
    /// When to forget more of the past.
    past_until: u64,
    unsettled: bool,
    /// Its number was written, and its elements were.
    of_number: bool,
    of_elements: bool,
}

#[derive(Clone, Default)]
struct Lanes {
    counts: Option<Box<CountLane>>,
    lists: Option<Box<ListLane>>,
    contents: Option<Box<ContentLane>>,
}

impl<I: Initial> Online<I> {
    /// `history_ns`: writes are kept this long after they were settled, to tell the age of stale answers; `u64::MAX` for ever.
    pub fn new(initial: I, options: &Options, history_ns: u64) -> Online<I> {
        Online {
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

    /// Takes records of calls that ended; those of one call together. None of them began before the watermark.
    pub fn feed(&mut self, records: &[Record]) {
        self.waiting.extend_from_slice(records);
    }

    /// No call that began before this instant is yet to be fed. An earlier one than before changes nothing.
    pub fn advance(&mut self, watermark: u64) {
        self.watermark = self.watermark.max(watermark);
        if self.waiting.len() - self.seen >= BATCH {
            self.judge();
        }
    }

    /// Judges all that can be judged, and says what came of it so far.
    pub fn report(&mut self) -> &Report {
        self.judge();
        self.sink.report()
    }

    /// The run is over: no more calls.
    pub fn finish(mut self) -> Report {
        self.watermark = u64::MAX;
        self.judge();
        self.sink.into_report()
    }

    /// Records that wait, and writes that are kept.
    pub fn held(&self) -> usize {
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

    /// Whether a write that is not here yet may explain the read. At the end of the run none may.
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
            What::AddCount(_) | What::SetCount(_) => held.of_number = true,
            What::PutElement(_) | What::RemoveElement(_) => held.of_elements = true,
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
        let mut none = Held::default();
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

    /// The level `Joint`.
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
                let mut none = Held::default();
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

    /// Forgets what no read from this instant on can show.
    fn settle(&mut self, item: u64, before: u64) {
        let Some(held) = self.items.get_mut(&item) else {
            return;
        };
        if held.past.is_none() && self.history_ns > 0 && held.now.any_ended(before) {
            held.past = Some(held.now.to_tell_ages());
        }
        held.now.settle(item, before, &self.initial);
        if let Some(past) = &mut held.past
            && let Some(oldest) = before.checked_sub(self.history_ns)
            && oldest >= held.past_until
        {
            past.settle(item, oldest, &self.initial);
            // Going through the past each time would cost more than what it frees.
            held.past_until = oldest.saturating_add(self.history_ns / 4);
        }
    }

    /// Items that held writes and of which nothing was fed now.
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
        What::ReadCount(_) | What::ReadSet(_) | What::ReadContent(_)
    )
}

impl Held {
    /// Whether its count is the size of its list.
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
            What::AddCount(_) | What::SetCount(_) => self.counts(write.item, initial).push(write),
            What::PutElement(_) | What::RemoveElement(_) => {
                self.lists(write.item, initial, seed).push(write);
            }
            _ => self.contents(write.item, initial).push(write),
        }
    }

    /// A copy that keeps no more of reads.
    fn to_tell_ages(&self) -> Lanes {
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

/// Items are numbers: mixed, not hashed.
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
