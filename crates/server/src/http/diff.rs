//! Compares two versions of a store. In a cluster, each node compares the keys for which it has the partitions of both versions,
//! and the results are added up.

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use larder_batch::Version;
use larder_batch::diff::Change;
use larder_batch::manifest::{partition_of, slots_of};
use larder_cluster::map::NodeId;
use larder_protocol::http::{ChangeKind, DiffChange, DiffResult};
use larder_types::{SLOTS, SlotSet, StoreName, VersionId, VersionSelector};
use serde::Deserialize;

use super::Server;
use super::json_result::Failure;
use super::reads::{ANSWER_BYTES_MAX, MaybeQuery, bad_query, json};
use super::remote_reads::{Peers, await_while_up};
use crate::Shared;
use crate::error::Error;
use crate::fetch::cluster::locate_peer;

const CHANGES_DEFAULT: usize = 100;
const CHANGES_MAX: usize = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffQuery {
    from: Option<VersionSelector>,
    to: Option<VersionSelector>,
    limit: Option<usize>,
    /// Compares only keys of these slots on this node: the form of a request from another node.
    slots: Option<String>,
}

/// The parameters of a comparison.
struct Comparison {
    store: StoreName,
    from: (VersionId, Arc<Version>),
    to: (VersionId, Arc<Version>),
    limit: usize,
}

/// Compares two versions; by default, the previously live version with the live one.
pub async fn diff(
    State(shared): Server,
    Path(name): Path<String>,
    query: MaybeQuery<DiffQuery>,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(bad_query)?;
    let store = shared.stores.get(&name)?;
    let comparison = Comparison {
        store: store.name.clone(),
        from: store.version(Some(query.from.unwrap_or(VersionSelector::Previous)))?,
        to: store.version(query.to)?,
        limit: query.limit.unwrap_or(CHANGES_DEFAULT).min(CHANGES_MAX),
    };
    let here = comparison.slots_here();
    if let Some(slots) = &query.slots {
        let slots = slots.parse::<SlotSet>();
        let bad = |_| Error::BadRequest("slots is not a set of slots".to_owned());
        let slots = slots.map_err(bad)?;
        if slots.iter().any(|slot| !here.contains(slot)) {
            let message =
                format!("this node does not have all slots of {name} that the request compares");
            return Err(Failure(Error::NotOnThisNode(message)));
        }
        let admission = shared.http_read_limiter.admit_part().await?;
        return Ok(json(
            admission,
            &comparison.compare_slots(&shared, slots).await?,
        ));
    }
    let admission = shared.http_read_limiter.admit().await?;
    let missing: SlotSet = (0..SLOTS).filter(|slot| !here.contains(*slot)).collect();
    let (own, others) = tokio::join!(
        async {
            if here.is_empty() {
                Ok(comparison.empty_result())
            } else {
                comparison.compare_slots(&shared, here).await
            }
        },
        comparison.compare_on_peers(&shared, missing)
    );
    let mut all = own?;
    others?
        .into_iter()
        .for_each(|part| comparison.add(&mut all, part));
    Ok(json(admission, &all))
}

impl Comparison {
    /// The slots for which this node has the partitions of both versions.
    fn slots_here(&self) -> SlotSet {
        let [from, to] = [&self.from.1, &self.to.1].map(|version| {
            let count = version.manifest().partitions;
            let here = version.local_partitions();
            move |slot: u16| here.contains(partition_of(slot, count))
        });
        (0..SLOTS).filter(|slot| from(*slot) && to(*slot)).collect()
    }

    /// All slots of a slot's partition, in the version with the smaller partitions.
    fn partition_of(&self, slot: u16) -> RangeInclusive<u16> {
        let counts = [&self.from, &self.to].map(|(_, version)| version.manifest().partitions);
        let count = counts[0].max(counts[1]);
        let (first, last) = slots_of(partition_of(slot, count), count);
        first..=last
    }

    fn empty_result(&self) -> DiffResult {
        DiffResult {
            from: Some(self.from.0.0),
            to: Some(self.to.0.0),
            added: 0,
            removed: 0,
            changed: 0,
            unchanged: 0,
            changes: Vec::new(),
        }
    }

    fn add(&self, all: &mut DiffResult, part: DiffResult) {
        all.added += part.added;
        all.removed += part.removed;
        all.changed += part.changed;
        all.unchanged += part.unchanged;
        let room = self.limit.saturating_sub(all.changes.len());
        all.changes.extend(part.changes.into_iter().take(room));
    }

    /// Compares the part that is on this node.
    async fn compare_slots(&self, shared: &Shared, slots: SlotSet) -> Result<DiffResult, Error> {
        let (old, new) = (self.from.1.clone(), self.to.1.clone());
        let limit = self.limit;
        let compared = shared.http_read_limiter.run(move |cancelled| {
            let mut changes = Vec::new();
            let mut bytes = 0;
            let summary = larder_batch::diff::diff_slots(&slots, &old, &new, &mut |change| {
                if changes.len() < limit && bytes < ANSWER_BYTES_MAX {
                    let (kind, key) = match change {
                        Change::Added(key) => (ChangeKind::Added, key),
                        Change::Removed(key) => (ChangeKind::Removed, key),
                        Change::Changed(key) => (ChangeKind::Changed, key),
                    };
                    bytes += key.len() as u64;
                    changes.push(DiffChange::new(kind, key));
                }
                !cancelled.is_closed()
            })?;
            Ok::<_, larder_batch::Error>((summary, changes))
        });
        let (summary, changes) = compared.await??;
        Ok(DiffResult {
            added: summary.added,
            removed: summary.removed,
            changed: summary.changed,
            unchanged: summary.unchanged,
            changes,
            ..self.empty_result()
        })
    }

    /// Compares the parts on other nodes concurrently: each slot is assigned to one node. If a node fails, its slots are assigned
    /// to others.
    async fn compare_on_peers(
        &self,
        shared: &Shared,
        mut missing: SlotSet,
    ) -> Result<Vec<DiffResult>, Error> {
        let mut peers = Peers::default();
        let mut parts = Vec::new();
        while !missing.is_empty() {
            let mut by_node: Vec<(NodeId, String, SlotSet)> = Vec::new();
            for slot in missing.iter() {
                let what = format!("slot {slot} of store {}", self.store);
                let find = |slots| peers.find(shared, &self.store, slots, &what);
                // Partitions are stored completely, so a node that has another slot of the partition may be used too.
                let (node, root) = find(slot..=slot).or_else(|_| find(self.partition_of(slot)))?;
                match by_node.iter_mut().find(|(known, ..)| *known == node) {
                    Some((.., slots)) => slots.insert(slot),
                    None => by_node.push((node, root, SlotSet::from_iter([slot]))),
                }
            }
            let requests = by_node.into_iter().map(|(node, root, slots)| async move {
                (
                    node,
                    self.request_from(shared, node, &root, &slots).await,
                    slots,
                )
            });
            missing = SlotSet::none();
            for (node, answer, slots) in futures::future::join_all(requests).await {
                match answer {
                    Ok(part) => parts.push(part),
                    Err(why) => {
                        peers.avoid(node, why);
                        slots.iter().for_each(|slot| missing.insert(slot));
                    }
                }
            }
        }
        Ok(parts)
    }

    async fn request_from(
        &self,
        shared: &Shared,
        node: NodeId,
        root: &str,
        slots: &SlotSet,
    ) -> Result<DiffResult, String> {
        let (store, from, to) = (&self.store, self.from.0, self.to.0);
        let url = format!(
            "{root}/v1/stores/{store}/diff?from={from}&to={to}&limit={}&slots={slots}",
            self.limit
        );
        let place = locate_peer(shared, &url).map_err(|error| error.to_string())?;
        let answer = await_while_up(shared, node, place.get_all(u64::MAX)).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| format!("its reply is not a comparison: {error}"))
    }
}
