//! The backlog: a change that affects more outputs than one step may update waits in its updater list's queue, and is
//! applied in steps.
//!
//! 1. The queue of a list is applied to each entry in FIFO order.
//! 2. It is applied to all entries of a fill before the fill is read, or filling continues.

use std::collections::{BTreeSet, VecDeque};

use crate::budget::Budget;
use crate::engine::Engine;
use crate::join::updater::{Entry, Event};
use crate::join::{Join, JoinId};
use crate::propagate::maintain::SourceChange;

/// The lists with queued changes, and the changes that have not been applied to all entries.
#[derive(Default)]
pub struct Backlog {
    /// Join, level of the source, number of the list.
    lists: VecDeque<(JoinId, u8, u32)>,
    /// The last deferred change.
    last: u64,
    outstanding: BTreeSet<u64>,
}

impl Backlog {
    fn begin_change(&mut self) -> u64 {
        self.last += 1;
        self.outstanding.insert(self.last);
        self.last
    }

    fn end_change(&mut self, change: u64) {
        self.outstanding.remove(&change);
    }

    /// The last deferred change.
    #[inline]
    pub fn last_change(&self) -> u64 {
        self.last
    }

    /// Returns whether all outputs reflect a change and all earlier ones.
    pub fn is_done(&self, change: u64) -> bool {
        self.outstanding.first().is_none_or(|first| *first > change)
    }
}

impl Engine {
    /// Queues an event, to be applied to the entries of a list in steps.
    pub(crate) fn enqueue(&mut self, join: &mut Join, level: usize, number: u32, event: Event) {
        let backlog = &mut self.writes.backlog;
        let sequence = backlog.begin_change();
        if join.nodes.enqueue(level, number, event, sequence) {
            backlog.lists.push_back((join.id, level as u8, number));
        }
    }

    /// Applies queued changes to `rows_max` entries, then spends as much on each of: deferred reads, the state of
    /// dropped joins, and transient fills that were output. Returns whether work is left.
    pub fn step(&mut self, rows_max: usize) -> bool {
        self.drain_backlog(rows_max);
        self.continue_deferred_reads(rows_max);
        self.free_dropped(rows_max);
        let more = self.drop_transient(rows_max);
        more || !self.writes.backlog.lists.is_empty()
            || !self.reads.deferred.is_empty()
            || self.joins.has_dropped()
    }

    fn drain_backlog(&mut self, rows_max: usize) {
        self.set_budget(Budget::limited_to(Some(rows_max)));
        while !self.budget.is_spent()
            && let Some(&(id, level, number)) = self.writes.backlog.lists.front()
        {
            let worked =
                self.with_join(id, |engine, join| engine.process_list(join, level, number));
            if worked.is_none() {
                self.writes.backlog.lists.pop_front();
            }
        }
    }

    /// Applies the oldest queued change of a list to some entries. A list whose queue becomes empty leaves the backlog.
    fn process_list(&mut self, join: &mut Join, level: u8, number: u32) {
        self.apply_oldest(join, usize::from(level), number);
        let list = join.nodes.list(usize::from(level), number);
        if list.queue.is_empty() {
            self.remove_from_backlog(join, level, number);
        }
    }

    fn apply_oldest(&mut self, join: &mut Join, level: usize, number: u32) {
        let mut chunk = self.budget.left().min(1024);
        let list = join.nodes.list_mut(level, number);
        if let Some(Event::Convert { .. }) = list.queue.front().map(|waiting| &*waiting.event) {
            chunk = (chunk / self.count_rows(join.tables[level], &list.prefix)).max(1);
        }
        if let Some((event, range)) = list.advance(chunk) {
            self.budget.spend(range.len().max(1));
            let entries = list.entries[range].to_vec();
            // All entries reflect the events before this one.
            let pulled = list.pulled;
            self.apply_event(join, &entries, level, &event, pulled);
        }
        let list = join.nodes.list_mut(level, number);
        if let Some(sequence) = list.retire() {
            self.writes.backlog.end_change(sequence);
        }
    }

    /// Removes a list with an empty queue from the backlog.
    fn remove_from_backlog(&mut self, join: &mut Join, level: u8, number: u32) {
        join.nodes.remove_from_backlog(level, number);
        let lists = &mut self.writes.backlog.lists;
        lists.retain(|list| *list != (join.id, level, number));
    }

    /// Applies the queued changes of a join's lists. Returns whether all queues are empty.
    pub(crate) fn finish_lists(&mut self, join: &mut Join) -> bool {
        while let Some(&(level, number)) = join.nodes.backlog().first() {
            if self.budget.is_spent() {
                return false;
            }
            self.process_list(join, level, number);
        }
        true
    }

    /// Applies all queued changes to the entries of one fill.
    pub(crate) fn catch_up(&mut self, join: &mut Join, fill: u32) {
        for (level, number) in join.nodes.backlog().to_vec() {
            let level = usize::from(level);
            let mut at = join.nodes.list(level, number).first_stale_entry();
            while at < join.nodes.list(level, number).entries.len() {
                let list = join.nodes.list(level, number);
                if list.entries[at].fill != fill || list.next_event(at) == list.queue.len() {
                    at += 1;
                    continue;
                }
                let entry = list.entries[at];
                let mut place = at;
                for waiting in list.next_event(at)..list.queue.len() {
                    let list = join.nodes.list(level, number);
                    let event = list.queue[waiting].event.clone();
                    let pulled = list.is_pulled(waiting);
                    place = join.nodes.advance_entry(level, number, place, waiting);
                    self.apply_event(join, &[entry], level, &event, pulled);
                }
                // Another entry may have moved to this position. It is examined next, unless it was examined before.
                if place == at {
                    at += 1;
                }
            }
        }
    }

    /// Applies an event to entries of one list. `pulled` is their mode at that point.
    fn apply_event(
        &mut self,
        join: &mut Join,
        entries: &[Entry],
        level: usize,
        event: &Event,
        pulled: bool,
    ) {
        match event {
            Event::Convert { pulled } => self.convert_entries(join, entries, *pulled),
            // A removed row may still be in outputs: a conversion in progress did not see it.
            Event::Row(change) if pulled && change.new.is_some() => {}
            Event::Row(change) => {
                let seen = SourceChange {
                    level,
                    key: &change.key,
                    old: change.old.as_ref(),
                    new: change.new.as_ref(),
                };
                self.apply_change(join, entries, &seen);
            }
        }
    }
}
