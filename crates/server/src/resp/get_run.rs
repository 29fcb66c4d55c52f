//! Batches consecutive GETs of a store.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::Id;

use super::command_stats::record_slow;
use super::core::CommandSeries;
use super::reads::{batch_len, find_record, get_consecutive, is_hooked};
use super::state::ConnectionState;
use crate::catalog::{LiveStore, Snapshot};

/// Maximum number of GETs in a batch.
const RUN_MAX: usize = 32;

/// Consecutive GETs of one in-memory store, batched so that their lookups overlap.
pub(super) struct GetRun<'s, 'i> {
    live: Option<&'s Arc<LiveStore>>,
    /// The store's name and the colon.
    prefix: &'i [u8],
    series: Option<Rc<CommandSeries>>,
    keys: [&'i [u8]; RUN_MAX],
    pub len: usize,
    len_max: usize,
}

impl<'s, 'i> GetRun<'s, 'i> {
    pub fn new() -> GetRun<'s, 'i> {
        GetRun {
            live: None,
            prefix: &[],
            series: None,
            len_max: RUN_MAX,
            keys: [&[]; RUN_MAX],
            len: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.len == self.len_max
    }

    /// Adds a key if it belongs to the batch's store, or if it starts a batch. Returns false otherwise. The batch must
    /// not be full. In a cluster, the key's partition may be on another node.
    #[inline]
    pub fn try_add(
        &mut self,
        snapshot: &'s Snapshot,
        redis_key: &'i [u8],
        is_of_cluster: bool,
    ) -> bool {
        if let Some(live) = self.live
            && let Some(key) = redis_key.strip_prefix(self.prefix)
            && !key.is_empty()
            && !is_hooked(key)
        {
            if is_of_cluster && !live.version.has_partition_of(key) {
                return false;
            }
            self.keys[self.len] = key;
            self.len += 1;
            return true;
        }
        if self.len > 0 {
            return false;
        }
        self.live = None;
        let Some((live, key)) = find_record(snapshot, redis_key) else {
            return false;
        };
        let is_unbatchable = !live.version.is_resident() || live.has_large_values();
        if key.is_empty() || is_unbatchable || is_hooked(key) {
            return false;
        }
        if is_of_cluster && !live.version.has_partition_of(key) {
            return false;
        }
        self.live = Some(live);
        self.prefix = &redis_key[..redis_key.len() - key.len()];
        self.series = None;
        self.len_max = batch_len(live, RUN_MAX);
        self.keys[0] = key;
        self.len = 1;
        true
    }

    /// Executes the batch and appends the replies.
    #[inline]
    pub fn execute(&mut self, state: &mut ConnectionState, clock: &mut Instant) {
        let Some(live) = self.live else { return };
        if self.len == 0 {
            return;
        }
        let keys = &self.keys[..std::mem::take(&mut self.len)];
        if let Some(hot) = &state.core.hot {
            hot.record(&live.name, keys);
        }
        let (absent, intact) = get_consecutive(state, live, keys);
        let now = Instant::now();
        let elapsed = now - std::mem::replace(clock, now);
        let core = &state.core;
        let store = self
            .series
            .get_or_insert_with(|| core.store_series(live.name.as_str()));
        let series = store.of(&core.stats, Id::Get);
        series.record(keys.len() as u64, elapsed);
        series.record_keys(keys.len() as u64, absent);
        if !intact {
            series.record_error();
        }
        state.client.set_last_command(Id::Get as usize);
        if core.shared.stats.is_slow(elapsed) {
            let redis_key = [self.prefix, keys[0]].concat();
            record_slow(state, elapsed, [&b"GET"[..], &redis_key].into_iter());
        }
    }
}
