//! Figures of the server: DBSIZE, LASTSAVE, ROLE, TIME and WAIT.

use std::sync::Arc;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::dispatch::{NOT_AN_INTEGER, integer};
use super::super::place::view_for_own_slots;
use super::super::state::ConnectionState;
use crate::catalog::{LiveStore, Snapshot};
use crate::clock::unix_time;
use crate::cluster::View;

pub(in crate::resp) fn db_size(state: &mut ConnectionState, snapshot: &Snapshot) {
    let own = view_for_own_slots(state);
    let records = |live: &Arc<LiveStore>| match &own {
        None => live.version.manifest().record_count,
        Some(view) => count_own_records(live, view),
    };
    let records: u64 = snapshot.iter().map(records).sum();
    state.core.tables.publish_stats();
    let rows = state.core.shared.tables.stats().rows;
    let records = if state.executes_part { 0 } else { records };
    state.encoder().count(records + rows);
}

/// Counts the records of the store's partitions whose first slot this node owns. The number of records per partition is
/// unknown for a delta, so the owner of slot 0 counts all of its records.
fn count_own_records(live: &LiveStore, view: &View) -> u64 {
    let manifest = live.version.manifest();
    let owns = |slot: u16| view.lookup.placement(slot).owner == Some(view.me);
    if manifest.layers.is_empty() {
        let own = manifest.segments.iter().filter(|it| owns(it.slots.0));
        own.map(|it| it.record_count).sum()
    } else {
        manifest.record_count * u64::from(owns(0))
    }
}

pub(in crate::resp) fn last_save(state: &mut ConnectionState) {
    let at = unix_time().saturating_sub(state.core.shared.started_at.elapsed());
    state.encoder().count(at.as_secs());
}

pub(in crate::resp) fn role(state: &mut ConnectionState) {
    let mut encoder = state.encoder();
    encoder.array(3);
    encoder.text("master");
    encoder.integer(0);
    encoder.array(0);
}

pub(in crate::resp) fn time(state: &mut ConnectionState) {
    let now = unix_time();
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text(&now.as_secs().to_string());
    encoder.text(&now.subsec_micros().to_string());
}

/// WAIT: returns the minimum number of in-sync replicas. A write is acknowledged only once all of them have it, so
/// every acknowledged write has that many copies.
pub(in crate::resp) fn wait(state: &mut ConnectionState, request: Request<'_>) {
    let (Some(_), Some(timeout)) = (integer(request.arg(1)), integer(request.arg(2))) else {
        return state.error(Code::BadRequest, NOT_AN_INTEGER);
    };
    if timeout < 0 {
        return state.error(Code::BadRequest, "timeout is negative");
    }
    let view = state.core.tables.view();
    let in_sync = view.map_or(0, |view| view.in_sync_replicas_min());
    state.encoder().count(in_sync as u64);
}
