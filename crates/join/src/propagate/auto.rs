//! Auto mode: copies the rows of a source range to its readers on writes or on reads, whichever costs less.
//!
//! An updater list (one source range and all fills computed from it) is *pulled* if its rows are not copied to the
//! outputs: a write visits none of the readers, and each reader merges the rows when it reads. Otherwise it is
//! *pushed*. Copying a row to one reader costs about as much as one lookup of the rows by a read. A range is therefore
//! pulled while it is written clearly more often than its average reader reads; a hundred thousand idle followers of a
//! busy author then cost nothing. The rates are compared, on a sample of the readers, when a pushed range has been
//! written 4, 8, 16, ... times, and when a pulled one is written or was read several more times.
//!
//! 1. The output contains the rows of pushed lists and none of pulled ones. A fill records which of its leaves are
//!    pulled.
//! 2. A list with many readers is converted in steps. The conversion waits in the list's queue like a change: it is
//!    applied to entries in turn, and to a fill before the fill is read. Later changes wait behind it.

use crate::base::key_range::{Flow, KeyRange, successor};
use crate::base::pattern::Binding;
use crate::base::row_buffer::RowBuffer;
use crate::engine::Engine;
use crate::join::combine::{apply_combination, row_matches};
use crate::join::run::{RowSink, Run};
use crate::join::updater::{Entry, Event};
use crate::join::{Join, TableId};
use crate::tables::scan::View;

/// Number of readers whose read rate is sampled.
const SAMPLED_READERS: usize = 32;
/// Minimum cost ratio at which the mode changes.
const COST_RATIO_MIN: f64 = 2.0;
/// At this count, a count and its time span are halved, so that older events weigh less.
const COUNT_HALVED_AT: u64 = 64;

impl Engine {
    /// Counts a write to a list's range. Returns whether the write must be applied to the list's entries.
    pub(crate) fn count_write(&mut self, join: &mut Join, number: u32) -> bool {
        let level = join.last_level();
        let list = join.nodes.list_mut(level, number);
        list.writes += 1;
        !list.pulled || !list.queue.is_empty()
    }

    /// Reviews the lists that the last operation wrote or read. No other operation is in progress now.
    pub(crate) fn review_lists(&mut self) {
        for (id, number) in std::mem::take(&mut self.writes.to_review) {
            self.with_join(id, |engine, join| {
                let level = join.last_level();
                if join.nodes.has_list(level, number) {
                    engine.review_list(join, number);
                }
            });
        }
    }

    /// Compares the rates of a list if that is due, and changes its mode if that clearly pays.
    fn review_list(&mut self, join: &mut Join, number: u32) {
        let level = join.last_level();
        let list = join.nodes.list_mut(level, number);
        let pulled = list.is_pulled(list.queue.len());
        let is_due = pulled || (list.writes >= 4 && list.writes.is_power_of_two());
        if !is_due || list.entries.is_empty() {
            return;
        }
        let written = rate(list.writes.into(), list.since, self.time.ticks);
        if u64::from(list.writes) >= COUNT_HALVED_AT {
            list.writes /= 2;
            list.since += (self.time.ticks - list.since) / 2;
        }
        let step = list.entries.len().div_ceil(SAMPLED_READERS);
        let entries = &join.nodes.list(level, number).entries;
        let sample = entries.iter().step_by(step);
        let rates: Vec<f64> = sample
            .map(|e| join.fills.get(e.fill))
            .map(|fill| rate(fill.reads, fill.opened, self.time.ticks))
            .collect();
        let read = rates.iter().sum::<f64>() / rates.len() as f64;
        if !pulled && written > read * COST_RATIO_MIN {
            self.convert(join, number, true);
        } else if pulled && read > written * COST_RATIO_MIN {
            self.convert(join, number, false);
        }
    }

    /// Takes the rows of a list's range out of the outputs of all its readers, or adds them: immediately, or in steps
    /// if there are many.
    fn convert(&mut self, join: &mut Join, number: u32, pulled: bool) {
        let level = join.last_level();
        join.statistics.converted += 1;
        let list = join.nodes.list_mut(level, number);
        let rows = self.count_rows(join.tables[level], &list.prefix);
        let is_small = list.entries.len().saturating_mul(rows) <= self.budget.left();
        if !is_small || !list.queue.is_empty() {
            return self.enqueue(join, level, number, Event::Convert { pulled });
        }
        self.budget.spend(list.entries.len() * rows);
        list.pulled = pulled;
        let entries = list.entries.clone();
        self.convert_entries(join, &entries, pulled);
    }

    /// Returns the number of rows with a prefix, plus one.
    pub(crate) fn count_rows(&self, table: TableId, prefix: &[u8]) -> usize {
        let rows = &self.tables[table].rows;
        rows.count(prefix, &successor(prefix)) as usize + 1
    }

    /// Takes the rows of a list's range out of the outputs of some readers, or adds them.
    pub(crate) fn convert_entries(&mut self, join: &mut Join, entries: &[Entry], pulled: bool) {
        let level = join.last_level();
        for entry in entries {
            let (fill, leaf) = (entry.fill, entry.node());
            let mut run = Run::for_fill(join, fill, false, 0);
            let mut binding = Binding::default();
            bind_leaf(join, fill, leaf, &mut binding);
            let sign = if pulled { -1 } else { 1 };
            self.apply_leaf(join, &mut run, &mut binding, sign);
            join.fills.take_unread(fill, level, leaf);
            let leaves = &mut join.fills.get_mut(fill).pulled;
            if pulled {
                leaves.push(leaf);
            } else {
                leaves.retain(|l| *l != leaf);
            }
        }
    }

    /// Applies all rows of one leaf's range.
    fn apply_leaf(&self, join: &mut Join, run: &mut Run, binding: &mut Binding, sign: i32) {
        let level = join.last_level();
        let range = join
            .source(level)
            .pattern
            .range(binding, run.bounds.as_ref());
        self.scan(
            join.tables[level],
            &range,
            &View::default(),
            &mut |key, value| {
                let mark = binding.mark();
                if row_matches(join, level, key, value, binding) {
                    apply_combination(join, run, binding, key, Some(value), sign);
                }
                binding.reset(mark);
                Flow::Continue(())
            },
        );
    }

    /// Returns the rows of pulled source ranges for a range, in key order.
    pub(crate) fn collect_pulled_rows(
        &mut self,
        join: &mut Join,
        range: &KeyRange,
        now: u64,
    ) -> RowBuffer {
        let mut rows = RowBuffer::default();
        if join.statistics.converted == 0
            || join
                .covering(range)
                .is_some_and(|fill| join.fills.get(fill).pulled.is_empty())
        {
            return rows;
        }
        for fill in join.fills.status().overlapping(&range.lo, &range.hi) {
            if join.fills.get(fill).pulled.is_empty() {
                continue;
            }
            if join.fills.get(fill).reads.is_power_of_two() {
                let lists = join
                    .fills
                    .get(fill)
                    .pulled
                    .iter()
                    .map(|leaf| join.nodes.leaf(*leaf).list);
                self.writes
                    .to_review
                    .extend(lists.map(|list| (join.id, list)));
            }
            let filled = &join.fills.get(fill).range;
            let part = KeyRange::new((&range.lo).max(&filled.lo), (&range.hi).min(&filled.hi));
            let mut fixed = Binding::default();
            let Some(mut run) = Run::without_storing(join, &part, &mut fixed, now) else {
                continue;
            };
            run.sink = RowSink::Copies(std::mem::take(&mut rows));
            for leaf in join.fills.get(fill).pulled.clone() {
                let mut binding = Binding::default();
                bind_leaf(join, fill, leaf, &mut binding);
                self.apply_leaf(join, &mut run, &mut binding, 1);
            }
            if let RowSink::Copies(found) = run.sink {
                rows = found;
            }
        }
        rows.sort();
        rows
    }
}

/// Restores the binding with which a leaf was reached, from its fill, its context and its list's prefix.
pub(crate) fn bind_leaf(join: &Join, fill: u32, leaf: u32, binding: &mut Binding) {
    let (definition, level) = (&join.definition, join.last_level());
    let fill = join.fills.get(fill);
    binding.unpack(fill.fixed, &definition.slots, &fill.packed);
    let leaf = join.nodes.leaf(leaf);
    if let Some(context) = join.nodes.context(leaf) {
        binding.unpack(context.slots, &definition.slots, &context.packed);
    }
    let list = join.nodes.list(level, leaf.list);
    join.source(level)
        .pattern
        .bind_prefix(&list.prefix, list.elements, &definition.slots, binding);
}

fn rate(count: u64, since: u64, now: u64) -> f64 {
    count as f64 / (now - since).max(1) as f64
}

/// Counts a read of a fill.
pub fn count_read(reads: &mut u64, opened: &mut u64, now: u64) {
    *reads += 1;
    if *reads >= COUNT_HALVED_AT {
        *reads /= 2;
        *opened += (now - *opened) / 2;
    }
}
