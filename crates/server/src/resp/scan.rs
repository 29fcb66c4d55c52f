//! SCAN: returns the keys of one store block by block, read on a disk thread.
//!
//! A cursor contains the position in the version and, above it, the low 15 bits of the version's number, so the server
//! keeps no state between calls. An iteration stays in the version where it started. Once that version is gone, the
//! cursor is rejected, because its position has no meaning in another version.
//!
//! In a cluster, a node scans the partitions that it has, and forwards the request to another node for the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_batch::manifest::slots_of;
use larder_cluster::map::NodeId;
use larder_cluster::replication::Place;
use larder_protocol::commands::{Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::dispatch::{integer, not_an_integer};
use super::incoming::Incoming;
use super::nodes::{BatchTarget, RoutedBatch};
use super::place::view_for_own_slots;
use super::reads::{lookup_error, resolve};
use super::state::ConnectionState;
use super::tables::wait_for_change;
use crate::catalog::{LiveStore, Snapshot};
use crate::cluster::{View, core_of};
use crate::error::Refusal;
use crate::glob::Glob;

const COUNT_DEFAULT: usize = 10;
const COUNT_MAX: i64 = 10_000;
const POSITION_BITS: u32 = 48;
const VERSION_MASK: u64 = 0x7fff;
/// Maximum time to retry on other nodes while owners change.
const RETRY_TIME_MAX: Duration = Duration::from_secs(3);

/// A parsed SCAN.
pub(super) struct ScanJob {
    /// The version in which the iteration started.
    live: Arc<LiveStore>,
    /// The position in the version.
    cursor: u64,
    /// The original request, for forwarding to another node.
    request: OwnedCommand,
    count: usize,
    /// Matches complete Redis keys; `None` matches all.
    pattern: Option<Glob>,
}

/// Parses SCAN. Returns `None` after appending an error.
pub(super) fn parse_scan(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    request: Request<'_>,
) -> Option<ScanJob> {
    let cursor = std::str::from_utf8(request.arg(1))
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    let Some(cursor) = cursor else {
        state.error(Code::BadRequest, "invalid cursor");
        return None;
    };
    let (mut pattern, mut count, mut strings) = (None, COUNT_DEFAULT, true);
    let mut at = 2;
    while let Some(option) = request.get(at) {
        let Some(value) = request.get(at + 1) else {
            state.error(Code::Syntax, "syntax error");
            return None;
        };
        match option.to_ascii_uppercase().as_slice() {
            b"MATCH" => pattern = Some(value),
            b"TYPE" => strings = value.eq_ignore_ascii_case(b"string"),
            b"COUNT" => match integer(value) {
                None => return not_an_integer(state),
                Some(..=0) => {
                    state.error(Code::Syntax, "syntax error");
                    return None;
                }
                Some(requested) => count = requested.min(COUNT_MAX) as usize,
            },
            _ => {
                state.error(Code::Syntax, "syntax error");
                return None;
            }
        }
        at += 2;
    }
    let live = choose_store(state, snapshot, pattern)?;
    let pattern = match pattern.map(Glob::parse).transpose() {
        Ok(pattern) => pattern,
        Err(refusal) => {
            state.refuse(refusal);
            return None;
        }
    };
    if let Some(glob) = &pattern {
        count = count.min(glob.texts_max());
    }
    if !strings {
        write_page(state, 0, &[]);
        return None;
    }
    let version = cursor >> POSITION_BITS;
    let live = if cursor == 0 || version == live.version_id.0 & VERSION_MASK {
        live
    } else {
        match find_kept_version(state, &live, version) {
            Some(version) => version,
            None => {
                let message = format!(
                    "cursor {cursor} belongs to a version of store {} that no longer exists: start again with cursor 0",
                    live.name
                );
                state.error(Code::BadRequest, &message);
                return None;
            }
        }
    };
    Some(ScanJob {
        live,
        cursor: cursor & ((1 << POSITION_BITS) - 1),
        request: OwnedCommand::of(Id::Scan, (1..request.len()).map(|at| request.arg(at))),
        count,
        pattern,
    })
}

/// Returns the version of a store in which the iteration started, if it is kept; if several match, the newest.
fn find_kept_version(
    state: &ConnectionState,
    live: &LiveStore,
    number: u64,
) -> Option<Arc<LiveStore>> {
    let store = state.core.shared.stores.get(live.name.as_str()).ok()?;
    let mut ids = store.kept_versions();
    ids.retain(|id| id.0 & VERSION_MASK == number);
    let version_id = *ids.last()?;
    Some(Arc::new(LiveStore {
        name: live.name.clone(),
        version_id,
        version: store.checked_version(version_id).ok()?,
    }))
}

/// Returns the store that the pattern names, or the only existing store.
fn choose_store(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    pattern: Option<&[u8]>,
) -> Option<Arc<LiveStore>> {
    let literal = pattern.filter(|pattern| {
        let name = pattern
            .split(|byte| *byte == b':')
            .next()
            .unwrap_or_default();
        name.len() < pattern.len() && !name.iter().any(|byte| b"*?[]\\".contains(byte))
    });
    if let Some(pattern) = literal {
        return match resolve(snapshot, pattern) {
            Ok((live, _)) => Some(live.clone()),
            Err(refusal) => {
                state.refuse(refusal);
                None
            }
        };
    }
    let mut stores = snapshot.iter();
    match (stores.next(), stores.next()) {
        (None, _) => write_page(state, 0, &[]),
        (Some(only), None) => return Some(only.clone()),
        _ => state.error(
            Code::BadRequest,
            "SCAN iterates over one store: add MATCH store:*; STORE.LIST lists the stores",
        ),
    }
    None
}

impl ScanJob {
    pub async fn run(&mut self, state: &mut ConnectionState) {
        state.series = Some(state.core.store_series(self.live.name.as_str()));
        let (live, cursor, count) = (self.live.clone(), self.cursor, self.count);
        let own_view = view_for_own_slots(state);
        let page = tokio::task::spawn_blocking(move || {
            let partitions = live.version.manifest().partitions;
            let is_own_partition = |partition: u32| {
                let first = slots_of(partition, partitions).0;
                let owner = |view: &Arc<View>| view.lookup.placement(first).owner == Some(view.me);
                own_view.as_ref().is_none_or(owner)
            };
            live.version
                .scan_partitions(cursor, count, &is_own_partition)
        });
        let page = page.await;
        match page {
            Err(error) => state.error(Code::Io, &error.to_string()),
            Ok(Err(larder_batch::Error::Limit { .. })) => {
                state.error(Code::BadRequest, "invalid cursor");
            }
            Ok(Err(larder_batch::Error::NotHere { partition, .. }))
                if state.core.nodes.is_some() && !state.executes_part =>
            {
                match self.scan_on_other_node(state, partition).await {
                    Ok(reply) => state.output.tail.extend_from_slice(&reply),
                    Err(refusal) => state.refuse(refusal),
                }
            }
            Ok(Err(error)) => state.refuse(lookup_error(&error)),
            Ok(Ok(page)) => {
                let prefix = format!("{}:", self.live.name).into_bytes();
                let mut keys: Vec<Vec<u8>> = page
                    .keys
                    .iter()
                    .map(|key| [&prefix[..], key].concat())
                    .collect();
                if let Some(pattern) = &self.pattern {
                    keys.retain(|key| pattern.matches(key));
                }
                let next = match page.next_cursor {
                    0 => 0,
                    position => (self.live.version_id.0 & VERSION_MASK) << POSITION_BITS | position,
                };
                write_page(state, next, &keys);
            }
        }
    }
}

impl ScanJob {
    /// Returns the reply of another node that has the partition at the cursor.
    async fn scan_on_other_node(
        &self,
        state: &ConnectionState,
        partition: u32,
    ) -> Result<Vec<u8>, Refusal> {
        let (core, started) = (&state.core, Instant::now());
        let mut reason = "no running node has it".to_owned();
        loop {
            let view = core.tables.view();
            let places = view.map_or_else(Vec::new, |view| {
                partition_places(&view, &self.live, partition)
            });
            for place in places {
                let command = self.request.command();
                let mut routed_batch = RoutedBatch::of(command.into(), state.proto, &state.client);
                routed_batch.target = BatchTarget::Part(place);
                routed_batch.versions = vec![(self.live.name.to_string(), self.live.version_id.0)];
                let mut incoming = Incoming::request_owner(core, Some(place), routed_batch);
                match incoming.reply().await {
                    Some(reply) if reply.first() != Some(&b'-') => return Ok(reply),
                    Some(error) => reason = String::from_utf8_lossy(&error[1..]).trim().to_owned(),
                    None => {
                        reason = incoming
                            .rejection()
                            .unwrap_or("the node did not reply")
                            .to_owned()
                    }
                }
            }
            if started.elapsed() > RETRY_TIME_MAX {
                let LiveStore {
                    name, version_id, ..
                } = &*self.live;
                return Err((
                    Code::ClusterDown,
                    format!(
                        "cannot scan partition {partition} of version {version_id} of store {name} on another node: {reason}"
                    ),
                ));
            }
            wait_for_change(core, core.tables.map_epoch()).await;
        }
    }
}

/// Returns a place on each other node that should have a partition, owners of its slots first.
fn partition_places(view: &View, live: &LiveStore, partition: u32) -> Vec<u16> {
    let (first, last) = slots_of(partition, live.version.manifest().partitions);
    let holders = view
        .nodes_with_store_slots(&live.name, first..=last)
        .into_iter();
    let place = |node: NodeId| {
        let member = view.map.member(node)?;
        let core = core_of(first, member.registration.cores);
        view.places.number(Place { node, core })
    };
    holders.filter_map(place).collect()
}

fn write_page(state: &mut ConnectionState, cursor: u64, keys: &[Vec<u8>]) {
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text(&cursor.to_string());
    encoder.array(keys.len());
    for key in keys {
        encoder.bulk(key);
    }
}
