//! Executes the requests of this node as the owner of slots. A silent replica is removed from the in-sync set by a change of this
//! node. A complete replica is reported, because the controller knows the further conditions for adding it. Slots are handed over
//! to their intended owners.
//!
//! A change compares the map's revision and this node's registration. It is therefore made only by the owner according to that
//! very map, with a valid lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_cluster::controller::SyncedReplica;
use larder_cluster::coordination::{Coordination, Error, Outcome, Revision, Writer};
use larder_cluster::map::{Change, ChangeId, Map, NodeName};
use larder_cluster::replication::{MapRequest, SlotMapChange};
use tokio::sync::watch;
use tokio::time::timeout;

use super::coordination_state::{CoordinationState, MAP, RevisionedMap};
use super::reports::Reports;
use super::write::settle;
use crate::cluster::slot_requests::{SlotRequests, collect_synced, plan_change};

/// Maximum time to wait for the newer state after a conflict.
const PAUSE: Duration = Duration::from_millis(500);

pub struct SlotWriter<'a> {
    pub service: &'a dyn Coordination,
    pub writer: Writer,
    pub name: &'a NodeName,
    /// This node's registration key, and the revision that created it.
    pub registration: (String, Revision),
    pub requests: Arc<SlotRequests>,
    pub reports: Arc<Reports>,
}

impl SlotWriter<'_> {
    /// Executes owners' requests during one incarnation; returns when it has ended.
    pub async fn run(mut self, mut updates: watch::Receiver<CoordinationState>) {
        // By slot and node; repeated while the map does not show the result.
        let mut into: BTreeMap<(u16, larder_cluster::map::NodeId), MapRequest> = BTreeMap::new();
        // Hand-overs under a map that has not been received here yet.
        let mut early: Vec<MapRequest> = Vec::new();
        let mut changes = 0_u64;
        loop {
            let mut requests = tokio::select! {
                requests = self.requests.next_batch() => requests,
                changed = updates.changed() => match changed {
                    Ok(()) => Vec::new(),
                    Err(_) => return,
                },
            };
            for request in &requests {
                if let SlotMapChange::AddReplica(place, _) = request.change {
                    into.insert((request.slot, place.node), *request);
                }
            }
            let current = updates.borrow_and_update().map.clone();
            let Some(map) = current else { continue };
            self.report_synced(&map.map, &mut into);
            requests.append(&mut early);
            let is_early = |request: &MapRequest| match request.change {
                SlotMapChange::MoveOwnership(_, epoch) => epoch > map.map.epoch(),
                _ => false,
            };
            early.extend(requests.iter().copied().filter(is_early));
            if !requests.is_empty()
                && let Err(error) = self
                    .apply_requests(map, &requests, &mut changes, &mut updates)
                    .await
            {
                tracing::warn!(%error, "a map change of a slots' owner cannot be written to etcd");
                if matches!(error, Error::LeaseEnded(_)) {
                    return;
                }
            }
        }
    }

    fn report_synced(
        &self,
        map: &Map,
        into: &mut BTreeMap<(u16, larder_cluster::map::NodeId), MapRequest>,
    ) {
        let Some(me) = map.member_named(self.name) else {
            return;
        };
        let synced: Vec<SyncedReplica> = collect_synced(map, me.id, into);
        self.reports.change(|report| report.synced = synced);
    }

    /// # Errors
    /// The service rejects the change.
    async fn apply_requests(
        &mut self,
        mut current: RevisionedMap,
        requests: &[MapRequest],
        changes: &mut u64,
        updates: &mut watch::Receiver<CoordinationState>,
    ) -> Result<(), Error> {
        loop {
            let map = &current.map;
            let Some(me) = map.member_named(self.name) else {
                return Ok(());
            };
            let Some(change) = plan_change(map, me.id, requests) else {
                return Ok(());
            };
            *changes += 1;
            let (key, created) = &self.registration;
            let id = ChangeId(format!("{}-{created}-{changes}", self.name));
            let next = match map.apply(&change, &id) {
                Ok(next) => next,
                Err(refused) => {
                    tracing::error!(%refused, "the map rejects a change of a slots' owner");
                    return Ok(());
                }
            };
            let write = (self.writer.change())
                .if_created_at(key, *created)
                .if_unchanged(MAP, current.revision)
                .put(MAP, next.to_text());
            match settle(self.service, &write).await? {
                Outcome::Done(revision) => {
                    let what = match change {
                        Change::SyncChanged { .. } => {
                            "silent replicas are removed from the in-sync set"
                        }
                        Change::OwnersMoved { .. } => {
                            "slots are handed over to their intended owners"
                        }
                        _ => "fills of replicas are aborted",
                    };
                    tracing::info!(epoch = %next.epoch(), what, "this node has changed the cluster's map");
                    current = RevisionedMap {
                        map: Arc::new(next),
                        revision,
                    };
                }
                Outcome::Conflict(now) => {
                    let is_ours = now.first().and_then(Option::as_ref);
                    if is_ours.is_none_or(|it| it.created != *created) {
                        // The registration belongs to another incarnation.
                        return Ok(());
                    }
                    let is_later = |it: &CoordinationState| {
                        let map = it.map.as_ref();
                        map.is_some_and(|map| map.revision > current.revision)
                    };
                    let _ = timeout(PAUSE, updates.wait_for(is_later)).await;
                    match updates.borrow_and_update().map.clone() {
                        Some(later) => current = later,
                        None => return Ok(()),
                    }
                }
            }
        }
    }
}
