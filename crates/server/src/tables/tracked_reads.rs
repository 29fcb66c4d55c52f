//! A core's part of client-side caching: records reads of its rows, and reports their changes (see
//! `clients::tracking`).
//!
//! | key | changes are known from |
//! |---|---|
//! | base row, object | the log of changes |
//! | row of a maintained join | the engine, which also reports rows that it evicts or must recompute |
//! | row of a join that is not maintained, or in PostgreSQL | nothing: its value is stale as soon as it is read |
//! | group of rows (SMEMBERS, ZRANGE and similar) | nothing, as above |
//!
//! 1. A change is reported before its writer receives a reply, and before it is acknowledged to other engines.

use std::cell::{Cell, RefCell};

use larder_join::{Engine, LogEntry};
use larder_types::{row_key, text_row};

use super::Tables;
use crate::clients::{Client, Tracker, TrackingTable};

/// No client has this number.
const NO_CLIENT: u64 = 0;

#[derive(Default)]
pub(super) struct TrackedReads {
    table: RefCell<TrackingTable>,
    /// True if clients were notified that the lease has expired.
    lease_has_ended: Cell<bool>,
}

impl Tables {
    #[inline]
    pub fn is_tracking(&self) -> bool {
        self.handle.tracking.is_on()
    }

    /// Records that a client has just read a key here: its row, or a group of rows, whose changes are not reported
    /// under that key.
    pub fn track_read(&self, client: &Client, key: &[u8], is_group: bool) {
        let tracker = client.tracker.load_full();
        let tracker = tracker.filter(|tracker| tracker.tracks_reads());
        let tracking = &self.handle.tracking;
        if tracker.is_none() && !tracking.broadcasts(key) {
            return;
        }
        let has_own_row = !self.is_computed(key) && !self.is_mapped(key);
        if is_group || !(has_own_row || self.track_computed(key)) {
            if let Some(tracker) = tracker {
                tracker.send(Some(key));
            }
            return tracking.broadcast(key, NO_CLIENT);
        }
        if let Some(tracker) = tracker {
            self.tracked_reads
                .table
                .borrow_mut()
                .add(tracking, &tracker, key);
        }
    }

    /// Makes the engine report changes of a row that it computes. Returns whether it can.
    fn track_computed(&self, key: &[u8]) -> bool {
        let mut engine = self.engine.borrow_mut();
        let is_tracked = !self.is_supplied_in(&engine, key) && engine.track(&text_row(key));
        self.invalidate_stale(&mut engine);
        is_tracked
    }

    fn is_supplied_in(&self, engine: &Engine, key: &[u8]) -> bool {
        self.handle.has_mapped_tables && engine.is_supplied(key)
    }

    /// Reports changes of base rows and objects, and of what was computed from them.
    pub(super) fn invalidate_changes(&self, changes: &[LogEntry], engine: &mut Engine) {
        self.invalidate_stale(engine);
        if !self.is_tracking() {
            let mut table = self.tracked_reads.table.borrow_mut();
            if !table.is_empty() {
                table.clear(&self.handle.tracking);
            }
            return;
        }
        for change in changes {
            match change.row() {
                Some(row) => self.invalidate_key(row_key(row)),
                // Many rows were removed; or a join was created or dropped, and its keys belong to another table now.
                None => self.invalidate_all_reads(),
            }
        }
    }

    /// Reports rows that the engine has found to be stale.
    pub(super) fn invalidate_stale(&self, engine: &mut Engine) {
        let stale = engine.take_stale();
        self.invalidate(&stale);
    }

    fn invalidate(&self, rows: &[Box<[u8]>]) {
        rows.iter()
            .for_each(|row| self.invalidate_key(row_key(row)));
    }

    fn invalidate_key(&self, key: &[u8]) {
        let by = self.executing.borrow();
        let by = by.as_ref().filter(|by| by.writes && by.has_key(key));
        let by = by.map_or(NO_CLIENT, |by| by.client);
        let tracking = &self.handle.tracking;
        let skips = |tracker: &Tracker| tracker.noloop && tracker.client.id == by;
        let mut table = self.tracked_reads.table.borrow_mut();
        table.invalidate(tracking, key, &skips);
        drop(table);
        tracking.broadcast(key, by);
    }

    /// Makes all clients drop all keys: rows may change elsewhere, or have another meaning.
    pub(super) fn invalidate_all_reads(&self) {
        let tracking = &self.handle.tracking;
        self.tracked_reads.table.borrow_mut().clear(tracking);
        tracking.invalidate_all();
    }

    /// Handles the end or the renewal of the node's lease. Without it, other nodes may write the rows that clients have
    /// cached.
    pub(super) fn handle_lease_change(&self, is_held: bool) {
        let was_lost = self.tracked_reads.lease_has_ended.replace(!is_held);
        let has_keys = !self.tracked_reads.table.borrow().is_empty();
        if !is_held && self.is_tracking() && (has_keys || !was_lost) {
            self.invalidate_all_reads();
        }
    }
}
