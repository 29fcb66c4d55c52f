//! Computed rows that clients cache: the engine reports the key of each whose value may have changed since it was read.
//!
//! ```text
//!  read a row ──► track ──► a change of the row, of its fill or of a join upstream ──► stale ──► take_stale, by the host
//! ```
//!
//! 1. A key is tracked only while a settled fill of a maintained join covers it, so that each change of it is seen
//!    here.
//! 2. A key is reported once, and then no longer tracked. A report may be unnecessary; a change is never missing.
//! 3. Base rows are not tracked here: the host sees their changes in the log.

use crate::base::key_range::{KeyRange, table_name};
use crate::engine::Engine;
use crate::evaluate::view::plan_fill;
use crate::join::{Join, JoinId};
use crate::language::grammar::JoinMode;

impl Engine {
    /// Makes [`Engine::take_stale`] report a computed row when its value may have changed. Returns `false` if the
    /// engine could not notice a change: the mode is `pull`, `snapshot` or `auto`, or the row's range is not filled.
    /// Call it in the same step as the read.
    pub fn track(&mut self, key: &[u8]) -> bool {
        let Some(table) = table_name(key).and_then(|name| self.tables.named(name)) else {
            return true;
        };
        let makers = self.tables[table].makers.clone();
        let range = KeyRange::point(key);
        // Changes before this call must not make the key stale.
        self.collect_stale();
        if !makers.iter().all(|&maker| self.is_fresh(maker, &range)) {
            return false;
        }
        for maker in makers {
            if let Some(join) = self.joins.get_mut(maker) {
                join.tracked.insert(key);
            }
        }
        self.writes.is_tracking = true;
        true
    }

    /// Returns whether a range of a join's output is up to date, and maintenance keeps it so.
    fn is_fresh(&self, maker: JoinId, range: &KeyRange) -> bool {
        let Some(join) = self.joins.get(maker) else {
            return false;
        };
        let is_maintained = |join: &Join| join.definition.mode == JoinMode::Push;
        let is_idle = |id: &JoinId| {
            let upstream = self.joins.get(*id);
            upstream.is_some_and(|join| is_maintained(join) && join.fills.unsettled().is_empty())
        };
        let is_settled = match join.covering(range) {
            Some(fill) => join.fills.get(fill).unsettled().is_none(),
            // The join cannot have a row there.
            None => plan_fill(join, range).is_none(),
        };
        is_maintained(join) && is_settled && join.upstream.iter().all(is_idle)
    }

    /// Returns the tracked keys whose rows may have changed since they were read.
    #[inline]
    pub fn take_stale(&mut self) -> Vec<Box<[u8]>> {
        if !self.writes.is_tracking {
            return Vec::new();
        }
        self.collect_stale();
        self.writes.is_tracking = self.joins.all().any(|join| !join.tracked.is_empty());
        std::mem::take(&mut self.writes.stale)
    }

    fn collect_stale(&mut self) {
        for id in 0..self.joins.next_id() {
            let Some(join) = self.joins.get_mut(id) else {
                continue;
            };
            if !join.tracked.take_downstream_stale() {
                continue;
            }
            let table = join.table;
            for reader in self.lineage().downstream(table) {
                if let Some(reader) = self.joins.get_mut(reader) {
                    reader.tracked.mark_all_stale();
                }
            }
        }
        for id in 0..self.joins.next_id() {
            if let Some(join) = self.joins.get_mut(id) {
                join.tracked.take_stale(&mut self.writes.stale);
            }
        }
    }
}
