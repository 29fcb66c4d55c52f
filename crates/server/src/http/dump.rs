//! Dumps all records of a version as lines of JSON. In a cluster, partitions that are not on this node come from other nodes.
//!
//! ```text
//!   partition 0, 1, 2 ...  ─┬─ here: read on a low-priority thread ─────────────────────┬─► lines
//!                           └─ elsewhere: another node's dump of that partition ────────┘
//! ```
//!
//! A partition's lines are equal on all nodes, so if one node fails, another continues at the same position. If no node can
//! supply a partition, or if it is damaged, the response is cut off before its end mark, so that no client mistakes a part for
//! the complete dump.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use larder_batch::manifest::slots_of;
use larder_batch::{Version, Walk};
use larder_cluster::map::NodeId;
use larder_protocol::http::{JSON_LINES, Record};
use larder_remote::ByteStream;
use larder_types::{StoreName, VersionId, VersionSelector};
use serde::Deserialize;
use tokio::sync::oneshot;

use super::Server;
use super::json_result::Failure;
use super::read_limiter::Admission;
use super::reads::{MaybeQuery, bad_query};
use super::remote_reads::{Peers, await_while_up};
use crate::Shared;
use crate::error::Error;

const CHUNK_BYTES: usize = 256 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DumpQuery {
    version: Option<VersionSelector>,
    /// Only one partition of this node: the form of a request from another node.
    partition: Option<u32>,
}

/// Streams every record as a line of JSON.
pub async fn dump(
    State(shared): Server,
    Path(name): Path<String>,
    query: MaybeQuery<DumpQuery>,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(bad_query)?;
    let store = shared.stores.get(&name)?;
    let (id, version) = store.version(query.version)?;
    let here = version.local_partitions();
    let partitions = match query.partition {
        None => 0..version.manifest().partitions,
        Some(partition) if here.contains(partition) => partition..partition + 1,
        Some(partition) => {
            let message =
                format!("this node does not have partition {partition} of version {id} of {name}");
            return Err(Failure(Error::NotOnThisNode(message)));
        }
    };
    if version.manifest().partitions as usize != here.len() && shared.membership.is_none() {
        let (here, all) = (here.len(), version.manifest().partitions);
        let message = format!(
            "this server has {here} of the {all} partitions of this version and is not in a cluster whose nodes have the others"
        );
        return Err(Failure(Error::NotOnThisNode(message)));
    }
    let admission = match query.partition {
        None => shared.http_read_limiter.admit().await?,
        Some(_) => shared.http_read_limiter.admit_part().await?,
    };
    let dump = Dump {
        store: store.name.clone(),
        id,
        version,
        partitions,
        current: None,
        _admission: admission,
    };
    // A part is produced when the previous one has been sent, so nothing is buffered for a client that does not read.
    let parts = futures::stream::try_unfold(dump, move |dump| {
        let shared = shared.clone();
        async move {
            let made = dump.next(&shared).await;
            made.map_err(|error| {
                tracing::error!(version = id.0, %error, "a dump ended early");
                std::io::Error::other(error.to_string())
            })
        }
    });
    let headers = [
        (header::CONTENT_TYPE, JSON_LINES.to_owned()),
        (
            header::HeaderName::from_static("x-larder-version"),
            id.to_string(),
        ),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

/// The state of a dump between two parts.
struct Dump {
    store: StoreName,
    id: VersionId,
    version: Arc<Version>,
    /// Partitions that have not been started.
    partitions: std::ops::Range<u32>,
    /// The partition in progress.
    current: Option<Partition>,
    _admission: Admission,
}

enum Partition {
    Here(Box<Walk<Arc<Version>>>),
    Remote(Box<RemotePartition>),
}

impl Dump {
    /// Returns the next lines, and the remaining dump.
    async fn next(mut self, shared: &Arc<Shared>) -> Result<Option<(Bytes, Dump)>, Error> {
        loop {
            let current = match self.current.take() {
                Some(current) => current,
                None => match self.partitions.next() {
                    None => return Ok(None),
                    Some(partition) => self.open_partition(partition),
                },
            };
            let (lines, left) = match current {
                Partition::Here(mut walk) => {
                    let (version, id) = (self.version.clone(), self.id);
                    let store = shared.stores.get(self.store.as_str()).ok();
                    let work = move |_: &oneshot::Sender<_>| {
                        let made = encode_lines(&mut walk);
                        // The client has already received parts, so the reason is recorded for later queries.
                        if let (Err(error), Some(store)) = (&made, store) {
                            store.note_damage(id, &version, error);
                        }
                        made.map(|it| (it, walk))
                    };
                    let ((lines, is_over), walk) = shared.http_read_limiter.run(work).await??;
                    (lines, (!is_over).then_some(Partition::Here(walk)))
                }
                Partition::Remote(mut remote) => match remote.next(shared).await? {
                    None => (Bytes::new(), None),
                    Some(lines) => (lines, Some(Partition::Remote(remote))),
                },
            };
            self.current = left;
            if !lines.is_empty() {
                return Ok(Some((lines, self)));
            }
        }
    }

    fn open_partition(&self, partition: u32) -> Partition {
        if self.version.local_partitions().contains(partition) {
            let at = partition as usize;
            let walk = Walk::of_partitions(self.version.clone(), at..at + 1);
            return Partition::Here(Box::new(walk));
        }
        let (first, last) = slots_of(partition, self.version.manifest().partitions);
        let path = format!(
            "/v1/stores/{}/dump?version={}&partition={partition}",
            self.store, self.id
        );
        Partition::Remote(Box::new(RemotePartition {
            store: self.store.clone(),
            slots: (first, last),
            what: format!(
                "partition {partition} of version {} of store {}",
                self.id, self.store
            ),
            path,
            peers: Peers::default(),
            done: 0,
            stream: None,
        }))
    }
}

/// Returns the next lines, and whether they are the last.
fn encode_lines(walk: &mut Walk<Arc<Version>>) -> Result<(Bytes, bool), larder_batch::Error> {
    let mut lines = Vec::with_capacity(CHUNK_BYTES * 2);
    while lines.len() < CHUNK_BYTES {
        let Some(record) = walk.next() else {
            return Ok((lines.into(), true));
        };
        let (key, value) = record?;
        let record = Record::from_bytes(&key, &value);
        serde_json::to_writer(&mut lines, &record).expect("a record is always JSON");
        lines.push(b'\n');
    }
    Ok((lines.into(), false))
}

/// A partition on other nodes.
struct RemotePartition {
    store: StoreName,
    slots: (u16, u16),
    what: String,
    path: String,
    /// Nodes that were tried unsuccessfully.
    peers: Peers,
    /// Bytes passed on so far.
    done: u64,
    /// The node that supplies the bytes, the stream, and the number of its bytes to skip because another node already supplied
    /// them.
    stream: Option<(NodeId, ByteStream, u64)>,
}

impl RemotePartition {
    async fn next(&mut self, shared: &Shared) -> Result<Option<Bytes>, Error> {
        loop {
            let Some((node, stream, skip)) = &mut self.stream else {
                let slots = self.slots.0..=self.slots.1;
                let (node, root) = self.peers.next(shared, &self.store, slots, &self.what)?;
                let url = format!("{root}{}", self.path);
                let place = crate::fetch::cluster::locate_peer(shared, &url)?;
                match await_while_up(shared, node, place.stream(0)).await {
                    Ok(stream) => self.stream = Some((node, stream, self.done)),
                    Err(why) => self.peers.record_failure(why),
                }
                continue;
            };
            let next = stream.next();
            let next_bytes = async { next.await.transpose() };
            match await_while_up(shared, *node, next_bytes).await {
                Ok(None) if *skip == 0 => return Ok(None),
                Ok(None) => self
                    .peers
                    .record_failure("it sent fewer lines than the previous node".to_owned()),
                Ok(Some(mut bytes)) => {
                    let known = (*skip).min(bytes.len() as u64);
                    *skip -= known;
                    let new = bytes.split_off(known as usize);
                    self.done += new.len() as u64;
                    if new.is_empty() {
                        continue;
                    }
                    return Ok(Some(new));
                }
                Err(why) => self.peers.record_failure(why),
            }
            self.stream = None;
        }
    }
}
