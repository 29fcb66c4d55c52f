//! Commands on complete stores: STORE.LIST, STORE.INFO and STORE.VERSION.

use std::sync::Arc;

use larder_protocol::resp::Request;

use super::super::reads::unreadable;
use super::super::state::ConnectionState;
use crate::catalog::{LiveStore, Lookup, Snapshot};

pub(in crate::resp) fn store_list(state: &mut ConnectionState, snapshot: &Snapshot) {
    let live = snapshot.iter().map(|live| live.name.as_str());
    let mut names: Vec<&str> = live
        .chain(snapshot.unavailable().map(|store| store.name.as_str()))
        .collect();
    names.sort_unstable();
    let mut encoder = state.encoder();
    encoder.array(names.len());
    for name in names {
        encoder.text(name);
    }
}

pub(in crate::resp) fn store_info(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    request: Request<'_>,
) {
    with_store(state, snapshot, request.arg(1), encode_info);
}

pub(in crate::resp) fn store_version(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    request: Request<'_>,
) {
    with_store(state, snapshot, request.arg(1), |state, live| {
        state.encoder().count(live.version_id.0);
    });
}

/// Calls `answer` with the live store, or returns the error for a store that cannot be read.
fn with_store(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    name: &[u8],
    answer: impl FnOnce(&mut ConnectionState, &Arc<LiveStore>),
) {
    match snapshot.lookup(name) {
        Lookup::Live(live) => {
            state.series = Some(state.core.store_series(live.name.as_str()));
            answer(state, live);
        }
        other => state.refuse(unreadable(&other, name)),
    }
}

fn encode_info(state: &mut ConnectionState, live: &Arc<LiveStore>) {
    let (version, manifest) = (&live.version, live.version.manifest());
    let residency = version.residency();
    let counts = [
        ("version", live.version_id.0),
        ("records", manifest.record_count),
        ("size_bytes", manifest.size_bytes),
        ("key_bytes", manifest.key_bytes),
        ("value_bytes", manifest.value_bytes),
        ("partitions", u64::from(manifest.partitions)),
        ("resident_bytes", residency.resident_bytes),
        ("index_memory_bytes", version.index_memory_bytes() as u64),
    ];
    let mut encoder = state.encoder();
    encoder.map(counts.len() + 3);
    encoder.text("name");
    encoder.text(live.name.as_str());
    for (name, count) in counts {
        encoder.text(name);
        encoder.count(count);
    }
    encoder.text("compression");
    encoder.text(&manifest.compression.to_string());
    encoder.text("digest");
    encoder.text(&manifest.digest);
}
