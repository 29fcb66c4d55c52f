//! Maintenance of one core's tables: the work at the end of a turn of the core's loop, and the work of every second.
//!
//! ```text
//!  a write, a message, the journal's threads ─ wake_maintenance ─► run_maintenance ─┬─ pass writes to the journal, exchange messages
//!                                                                                   ├─ a step of large work: fan-outs, fills, expiry
//!                                                                                   └─ wake waiting gates and reads
//! ```

use std::collections::BTreeMap;
use std::rc::Rc;

use larder_join::{Engine, TableInfo};
use larder_types::row_key;

use super::{OnDisk, STEP_ROWS, Tables, TablesStats};

/// Source rows of a large fill, or outputs of a long fan-out, that one turn of the core's loop processes. Other clients
/// wait for a turn, so it is short: 512 rows take 0.1 to 0.8 ms.
const TURN_ROWS: usize = 512;

/// Maximum number of turns spent on rows computed from a join before it is dropped. Other clients may read them
/// meanwhile, and have them computed again.
const PREPARE_TURNS_MAX: usize = 10_000;

/// Counts a table's objects among its rows.
fn merge_object_tables(tables: Vec<TableInfo>) -> Vec<TableInfo> {
    let mut joined: BTreeMap<Vec<u8>, TableInfo> = BTreeMap::new();
    for table in tables {
        let name = match row_key(&table.name) {
            // Plain keys, which name no table, count as keys that begin with a separator.
            b"" => b"|".to_vec(),
            name => name.to_vec(),
        };
        match joined.get_mut(&name) {
            Some(merged) => {
                merged.rows += table.rows;
                merged.computed |= table.computed;
                merged.supplied |= table.supplied;
            }
            None => drop(joined.insert(name.clone(), TableInfo { name, ..table })),
        }
    }
    joined.into_values().collect()
}

impl Tables {
    /// Does the work at the end of a turn: passes writes to the journal, exchanges messages with other cores' engines,
    /// continues long fan-outs and large fills, and wakes the tasks that wait for any of it. Never returns.
    pub async fn run_maintenance(self: Rc<Self>) {
        loop {
            self.woken.notified().await;
            loop {
                self.is_woken.set(false);
                let mut more = self.exchange_step();
                if self.is_replicated() {
                    self.end_replication_turn()
                } else {
                    self.commit()
                }
                self.check_journal();
                more |= self.run_measured(&mut self.engine.borrow_mut(), |engine| {
                    engine.step(TURN_ROWS)
                });
                more |= self.expire_step();
                more |= Tables::index_paced(&self);
                more |= Tables::copy_paced(&self);
                more |= Tables::build_paced(&self);
                self.deliver_row_changes();
                self.invalidate_stale(&mut self.engine.borrow_mut());
                if self.has_stale_subscriptions() {
                    self.subscriptions.refresh_needed.notify_one();
                }
                self.acknowledge();
                self.release_reflected_writes();
                self.send_exchange();
                for waker in self.waiting.take() {
                    waker.wake();
                }
                if !more {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Once per second: removes expired rows, publishes statistics for other threads, and makes a snapshot when one is
    /// due. Never returns.
    pub async fn run_every_second(self: Rc<Self>) {
        let mut tick = tokio::time::interval(std::time::Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut snapshot_failure = None;
        loop {
            tick.tick().await;
            if !self.is_paused() {
                self.read(|_, _| ());
            }
            self.publish_stats();
            let before = std::mem::replace(&mut snapshot_failure, self.snapshot_failure());
            if self.index == 0
                && before != snapshot_failure
                && let Some(why) = &snapshot_failure
            {
                tracing::warn!(%why, "a snapshot of the tables failed; the log continues, and the server retries when the log has grown");
            }
            if self.write_refusal.borrow().is_some() {
                // Delayed replies have a time limit, which maintenance checks.
                self.wake_maintenance();
            }
            if self.index == 0 && self.journal.is_snapshot_due() {
                self.snapshot().await;
            }
        }
    }

    /// Publishes the statistics for INFO and `/metrics`.
    pub fn publish_stats(&self) {
        let sizes = self.journal.sizes();
        let engine = self.engine.borrow();
        let tables = merge_object_tables(engine.tables());
        let spaces = self.spaces.stats();
        self.handle.set_stats(
            self.index,
            TablesStats {
                rows: tables.iter().map(|table| table.rows).sum(),
                expiring: engine.expiry_summary(),
                tables,
                joins: engine.list(),
                spaces,
                memory_bytes: (engine.memory_bytes() + self.non_engine_bytes()) as u64,
                disk: self.values_on_disk(),
                visited_per_step_max: self.visited_per_step_max.get(),
                log_bytes: sizes.log_bytes,
                snapshot_bytes: sizes.snapshot_bytes,
                backlog_bytes: sizes.backlog_bytes,
                snapshot_failure: self.snapshot_failure(),
                replication: self.replication_stats(),
            },
        );
    }

    /// Memory outside the engine: replicas of other nodes' rows, and indexes of spaces.
    pub(super) fn non_engine_bytes(&self) -> usize {
        self.copies_bytes() + self.spaces.memory_bytes()
    }

    fn values_on_disk(&self) -> OnDisk {
        let Some(on_disk) = &self.on_disk else {
            return OnDisk::default();
        };
        let (used, file) = on_disk.file.bytes();
        OnDisk {
            used_bytes: used as u64,
            file_bytes: file as u64,
            refused: on_disk.file.failed_allocations(),
        }
    }

    /// Makes `run_maintenance` run in this turn of the core's loop.
    pub(super) fn wake_maintenance(&self) {
        if !self.is_woken.replace(true) {
            self.woken.notify_one();
        }
    }

    /// Wakes maintenance if there are expired rows, ranges to drop, or changes to report.
    pub(super) fn wake_maintenance_if_more(&self, engine: &Engine) {
        if engine.has_expired_rows() || engine.has_garbage() || engine.has_row_changes() {
            self.wake_maintenance();
        }
    }

    /// Removes more expired rows, except during a pause. Returns whether any are left.
    fn expire_step(&self) -> bool {
        let is_late = self.engine.borrow().has_expired_rows() || self.has_expired_fields();
        is_late
            && !self.is_paused()
            && (self.read(|engine, _| engine.has_expired_rows()) || self.has_expired_fields())
    }

    /// Drops rows computed from a join's output in several turns, so that dropping the join takes little time.
    pub async fn prepare_drop(&self, name: &str) {
        for _ in 0..PREPARE_TURNS_MAX {
            self.wait_while_paused(None).await;
            if self.prepare_drop_step(name) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Does one turn of [`Tables::prepare_drop`]. Returns whether it is complete.
    pub fn prepare_drop_step(&self, name: &str) -> bool {
        let mut engine = self.engine.borrow_mut();
        self.run_measured(&mut engine, |engine| engine.prepare_drop(name, STEP_ROWS))
    }
}
