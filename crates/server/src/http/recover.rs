//! `/v1/cluster/kept` and `/v1/cluster/recover`: rebuild a map that etcd has lost from the state that the nodes have stored.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use larder_cluster::map::{ChangeId, DiskId, Incarnation, Map, NodeId, Term};
use larder_cluster::rebuild::{RecoveryPlan, StoredCopy, StoredState, plan};
use larder_cluster::replication::Position;
use larder_cluster::replication::recovery::Identity;
use larder_protocol::http::{
    ClusterKept, ClusterKeptCopies, ClusterRecover, ClusterRecovery, ClusterRecoveryMember,
    ClusterWaiting,
};

use super::Server;
use super::cluster::membership;
use super::json_result::{Failure, JsonResult, decode};
use crate::clock::unix_ms;
use crate::cluster::node;
use crate::error::Error;

/// Returns the state that this node has stored.
pub async fn kept_copies(State(shared): Server) -> JsonResult<ClusterKept> {
    let membership = membership(&shared)?;
    let health = membership.health().ok_or_else(single_node_error)?;
    let folder = node::identity(&shared.config.server.data)?;
    let copies = (shared.tables)
        .run_on_all(None, |tables| async move { tables.copy_states() })
        .await?;
    Ok(Json(ClusterKept {
        node: health.name.to_string(),
        folder: folder.map(|it| (it.disk.0, it.incarnation.0)),
        map: health.state.copy.as_ref().map(|map| map.to_text()),
        copies: merge_runs(copies.into_iter().flatten()),
    }))
}

pub async fn recover(State(shared): Server, body: Bytes) -> JsonResult<ClusterRecovery> {
    let node = membership(&shared)?.node().ok_or_else(single_node_error)?;
    let ClusterRecover {
        kept,
        backup,
        write,
    } = decode(&body)?;
    let found = node.read_map().await.map_err(Error::Conflict)?;
    let own = &shared.config.cluster.name;
    let read = |text: &str| {
        let map = Map::from_text(text).map_err(|why| Error::BadRequest(why.to_string()))?;
        if map.cluster() == own {
            Ok(map)
        } else {
            Err(Error::BadRequest(format!(
                "the map belongs to cluster {}, and this node to cluster {own}",
                map.cluster()
            )))
        }
    };
    let backup = backup.as_deref().map(read).transpose()?;
    let kept: Result<Vec<StoredState>, Error> = (kept.iter())
        .map(|it| {
            Ok(StoredState {
                node: it.node.parse().map_err(Error::BadRequest)?,
                identity: it.folder.map(|(disk, incarnation)| Identity {
                    disk: DiskId(disk),
                    incarnation: Incarnation(incarnation),
                }),
                map: it.map.as_deref().map(read).transpose()?,
                copies: it.copies.iter().flat_map(expand_run).collect(),
            })
        })
        .collect();
    let kept = kept?;
    let found_map = found.as_ref().map(|it| &*it.map);
    let marks = node.read_marks().await.map_err(Error::Conflict)?;
    let plan = plan(&kept, backup.as_ref(), found_map, &marks).map_err(Error::Conflict)?;
    let id = ChangeId(format!("recover-{}", plan.epoch));
    let map = plan.map(&id, unix_ms());
    let map = map.map_err(|why| Error::Conflict(why.to_string()))?;
    if write {
        let written = node.write_recovered(&map, found.as_ref()).await;
        written.map_err(Error::Conflict)?;
        tracing::warn!(epoch = %map.epoch(), from = %plan.base.epoch(), "the cluster's map is recovered");
    }
    let mut recovery = to_response(&plan, &kept);
    recovery.found_epoch = found_map.map(|it| it.epoch().0);
    recovery.is_written = write;
    Ok(Json(recovery))
}

fn single_node_error() -> Failure {
    let why = "this cluster is one node (cluster.mode = \"one\"): its map is in its data folder, and cannot be lost without its rows";
    Failure(Error::BadRequest(why.to_owned()))
}

fn merge_runs(copies: impl Iterator<Item = StoredCopy>) -> Vec<ClusterKeptCopies> {
    let mut runs: Vec<ClusterKeptCopies> = Vec::new();
    for copy in copies {
        let run = ClusterKeptCopies {
            from: copy.slot,
            to: copy.slot,
            term: copy.term.0,
            last: (copy.last.term.0, copy.last.number),
            is_whole: copy.is_complete,
        };
        match runs.last_mut() {
            Some(before)
                if before.to + 1 == run.from
                    && (before.term, before.last, before.is_whole)
                        == (run.term, run.last, run.is_whole) =>
            {
                before.to = run.to;
            }
            _ => runs.push(run),
        }
    }
    runs
}

fn expand_run(run: &ClusterKeptCopies) -> impl Iterator<Item = StoredCopy> {
    let (term, number) = run.last;
    let copy = StoredCopy {
        slot: 0,
        term: Term(run.term),
        last: Position {
            term: Term(term),
            number,
        },
        is_complete: run.is_whole,
    };
    (run.from..=run.to).map(move |slot| StoredCopy { slot, ..copy })
}

fn to_response(plan: &RecoveryPlan, kept: &[StoredState]) -> ClusterRecovery {
    let base = &plan.base;
    let owned = plan.owned();
    let members = base.members().iter().map(|member| {
        let name = member.name();
        let own = kept.iter().find(|it| it.node == *name);
        ClusterRecoveryMember {
            name: name.to_string(),
            http: member.registration.http.clone(),
            state: match plan.answered.get(name) {
                None => "absent",
                Some(true) => "answered",
                Some(false) => "other disk",
            }
            .to_owned(),
            epoch: own.and_then(|it| Some(it.map.as_ref()?.epoch().0)),
            slots_owned: owned.get(&member.id).copied().unwrap_or(0),
        }
    });
    let names = |nodes: &[NodeId]| nodes.iter().map(|it| base.name_of(*it)).collect();
    let waiting = plan.waiting.iter().map(|(nodes, slots)| ClusterWaiting {
        slots: *slots,
        nodes: names(nodes),
    });
    let stores = base.stores().iter();
    ClusterRecovery {
        source: plan.source.as_ref().map(|it| it.to_string()),
        source_epoch: base.epoch().0,
        found_epoch: None,
        epoch: plan.epoch.0,
        members: members.collect(),
        waiting: waiting.collect(),
        slots_unconfirmed: plan.unconfirmed,
        missed_epoch: plan.missing_epoch.map(|it| it.0),
        joins: base.joins().keys().cloned().collect(),
        spaces: base.spaces().keys().cloned().collect(),
        stores: stores
            .map(|(name, store)| (name.to_string(), store.live.as_ref().map(|it| it.version.0)))
            .collect(),
        is_written: false,
    }
}
