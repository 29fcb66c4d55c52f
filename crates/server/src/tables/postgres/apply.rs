//! Applies loaded rows and changes from PostgreSQL to the engine.

use larder_join::{Engine, KeyRange};
use larder_postgres::Change;

use super::super::{Gate, Tables};
use super::distribute::PostgresUpdate;

impl Tables {
    /// Applies an update. Changes of one update become visible together.
    pub(super) fn apply_postgres_update(&self, update: PostgresUpdate) {
        let now = self.now();
        let mut engine = self.engine.borrow_mut();
        let engine = &mut *engine;
        let progress = &self.postgres_progress;
        match update {
            PostgresUpdate::Supply { ranges, rows, done } => {
                supply(engine, &ranges, rows);
                for done in done {
                    // The requester may be gone.
                    let _ = done.send(Ok(()));
                }
            }
            PostgresUpdate::Apply { number, changes } => {
                let before = progress.last_change.get();
                for change in &changes.changes {
                    let waits_for = apply(engine, change, now);
                    progress
                        .last_change
                        .set(progress.last_change.get().max(waits_for));
                }
                if progress.last_change.get() > before {
                    self.wake_maintenance();
                }
                progress.applied_number.set(number);
            }
            PostgresUpdate::Forget { number, ranges } => {
                for range in &*ranges {
                    engine.discard_supplied(range);
                }
                progress.applied_number.set(number);
            }
            PostgresUpdate::WriteReplicated(seen) => match progress.last_change.get() {
                Some(change) if !engine.is_done(change) => {
                    progress
                        .unreflected_writes
                        .borrow_mut()
                        .push_back((change, seen));
                }
                _ => drop(seen),
            },
        }
        // Expired rows of other tables may have been removed. A failure is recorded and makes the next write fail.
        let _ = self.log(engine, &mut Gate::default());
    }
}

fn supply(engine: &mut Engine, ranges: &[KeyRange], mut rows: Vec<(Vec<u8>, Vec<u8>)>) {
    rows.sort_unstable();
    for range in ranges {
        let from = rows.partition_point(|(key, _)| **key < *range.lo);
        let to = rows.partition_point(|(key, _)| **key < *range.hi);
        let mut inside = rows[from..to.max(from)].iter().cloned();
        engine.supply(range, &mut inside);
    }
}

/// Applies one change; rows that are not in memory are ignored. Returns the change that outputs wait for.
fn apply(engine: &mut Engine, change: &Change, now: u64) -> Option<u64> {
    let forget = |engine: &mut Engine| {
        engine.discard_supplied(&change.range());
    };
    let written = match change {
        Change::Put { key, value } => engine.put(key, value, now),
        Change::Patch { key, patch } => {
            if !engine.is_loaded(key) {
                return None;
            }
            let mut patched = None;
            let _ = engine.get(key, now, &mut |before| patched = patch.apply(before));
            match patched {
                Some(value) => engine.put(key, &value, now),
                None => {
                    forget(engine);
                    return None;
                }
            }
        }
        Change::Remove { key } => engine.remove(key, now),
        Change::Clear { .. } | Change::Forget { .. } => {
            forget(engine);
            return None;
        }
    };
    match written {
        Ok(written) => written.waits_for,
        // Memory is short: drop the range. The next read loads it if there is memory then.
        Err(_) => {
            forget(engine);
            None
        }
    }
}
