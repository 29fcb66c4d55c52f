//! Executes the requests of this node as the owner of slots. A silent replica is removed from the in-sync set by a change of this
//! node. A complete replica is reported, because the controller knows the further conditions for adding it. Slots are handed over
//! to their intended owners.
//!
//! A change compares the map's revision and this node's registration. It is therefore made only by the owner according to that
//! very map, with a valid lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_cluster::controller::Synced;
use larder_cluster::coordination::{Coordination, Error, Outcome, Revision, Writer};
use larder_cluster::map::{Change, ChangeId, Map, NodeName};
use larder_cluster::replication::{Ask, Wanted};
use tokio::sync::watch;
use tokio::time::timeout;

use super::known::{Known, KnownMap, MAP};
use super::reports::Reports;
use super::write::settle;
use crate::cluster::slot_asks::{SlotAsks, change_of, synced_of};

/// Maximum time to wait for the newer state after a conflict.
const PAUSE: Duration = Duration::from_millis(500);

pub struct SlotWriter<'a> {
    pub service: &'a dyn Coordination,
    pub writer: Writer,
    pub name: &'a NodeName,
    /// This node's registration key, and the revision that created it.
    pub registration: (String, Revision),
    pub asks: Arc<SlotAsks>,
    pub reports: Arc<Reports>,
}

impl SlotWriter<'_> {
    /// Executes owners' requests during one incarnation; returns when it has ended.
    pub async fn run(mut self, mut news: watch::Receiver<Known>) {
        // By slot and node; repeated while the map does not show the result.
        let mut into: BTreeMap<(u16, larder_cluster::map::NodeId), Ask> = BTreeMap::new();
        // Hand-overs under a map that has not been received here yet.
        let mut early: Vec<Ask> = Vec::new();
        let mut changes = 0_u64;
        loop {
            let mut asks = tokio::select! {
                asks = self.asks.take() => asks,
                changed = news.changed() => match changed {
                    Ok(()) => Vec::new(),
                    Err(_) => return,
                },
            };
            for ask in &asks {
                if let Wanted::Into(place, _) = ask.what {
                    into.insert((ask.slot, place.node), *ask);
                }
            }
            let known = news.borrow_and_update().map.clone();
            let Some(map) = known else { continue };
            self.report(&map.map, &mut into);
            asks.append(&mut early);
            let is_early = |ask: &Ask| match ask.what {
                Wanted::Move(_, epoch) => epoch > map.map.epoch(),
                _ => false,
            };
            early.extend(asks.iter().copied().filter(is_early));
            if !asks.is_empty()
                && let Err(error) = self.change(map, &asks, &mut changes, &mut news).await
            {
                tracing::warn!(%error, "what the owner of slots wants is not written to etcd");
                if matches!(error, Error::LeaseEnded(_)) {
                    return;
                }
            }
        }
    }

    fn report(&self, map: &Map, into: &mut BTreeMap<(u16, larder_cluster::map::NodeId), Ask>) {
        let Some(me) = map.member_named(self.name) else {
            return;
        };
        let synced: Vec<Synced> = synced_of(map, me.id, into);
        self.reports.change(|report| report.synced = synced);
    }

    /// # Errors
    /// The service rejects the change.
    async fn change(
        &mut self,
        mut known: KnownMap,
        asks: &[Ask],
        changes: &mut u64,
        news: &mut watch::Receiver<Known>,
    ) -> Result<(), Error> {
        loop {
            let map = &known.map;
            let Some(me) = map.member_named(self.name) else {
                return Ok(());
            };
            let Some(change) = change_of(map, me.id, asks) else {
                return Ok(());
            };
            *changes += 1;
            let (key, created) = &self.registration;
            let id = ChangeId(format!("{}-{created}-{changes}", self.name));
            let next = match map.apply(&change, &id) {
                Ok(next) => next,
                Err(refused) => {
                    tracing::error!(%refused, "an owner wants what the map does not allow");
                    return Ok(());
                }
            };
            let write = (self.writer.change())
                .while_since(key, *created)
                .unless_changed(MAP, known.revision)
                .put(MAP, next.to_text());
            match settle(self.service, &write).await? {
                Outcome::Done(revision) => {
                    let what = match change {
                        Change::SyncChanged { .. } => {
                            "replicas that are silent are not in sync any more"
                        }
                        Change::OwnersMoved { .. } => {
                            "this node has given slots to those that are to own them"
                        }
                        _ => "fillings are given up",
                    };
                    tracing::info!(epoch = %next.epoch(), what, "this node has changed the cluster's map");
                    known = KnownMap {
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
                    let is_later = |it: &Known| {
                        let map = it.map.as_ref();
                        map.is_some_and(|map| map.revision > known.revision)
                    };
                    let _ = timeout(PAUSE, news.wait_for(is_later)).await;
                    match news.borrow_and_update().map.clone() {
                        Some(later) => known = later,
                        None => return Ok(()),
                    }
                }
            }
        }
    }
}
