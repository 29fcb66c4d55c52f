//! `/v1/cluster`: the status of the cluster, plans for changes of its nodes, and operator requests to its controller.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use larder_cluster::controller::{ControllerRequest, Progress, Report};
use larder_cluster::map::{
    Acknowledge, Departure, Map, Member, MemberState, NodeId, NodeName, Placement, Push, Roles,
    Settings, SlotRange,
};
use larder_cluster::placement::{Balance, Goal, PlacementNode, Plan, SlotSizes};
use larder_protocol::errors::Code;
use larder_protocol::http::{
    ClusterAnswer, ClusterClock, ClusterFlow, ClusterMember, ClusterMoves, ClusterPlan,
    ClusterPull, ClusterPush, ClusterPushEnd, ClusterRequest, ClusterSettings,
    ClusterSettingsChange, ClusterShare, ClusterSlots, ClusterStatus, ClusterStore,
};
use larder_types::{SLOTS, StoreName};

use super::Server;
use super::json_result::{Failure, JsonResult, decode};
use crate::Shared;
use crate::cluster::View;
use crate::error::Error;
use crate::membership::{ClockSkew, Membership, shown_id};

/// Maximum time to wait for the controller's answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn membership(shared: &Shared) -> Result<&Membership, Failure> {
    let alone = "this server is not in a cluster (cluster.mode = \"off\")";
    let membership = shared.membership.as_ref();
    membership.ok_or_else(|| Failure(Error::BadRequest(alone.to_owned())))
}

pub async fn status(State(shared): Server) -> JsonResult<ClusterStatus> {
    let membership = membership(&shared)?;
    let (view, health) = (membership.view(), membership.health());
    let map = &view.map;
    let none = BTreeMap::new();
    let reports = health.as_ref().map_or(&none, |it| &*it.state.reports);
    let leader = health.as_ref().and_then(|it| it.state.leader.as_ref());
    let served = view.lookup.served_ranges().iter();
    let bytes = slot_bytes(&shared, &view);
    // This node's own report already contains it.
    let missing = health.as_ref().and_then(|it| it.readiness_error(&view));
    let unreached = health.as_ref().map(|it| {
        let mut reasons = it.describe_unreached(&view);
        reasons.retain(|it| Some(it) != missing.as_ref());
        reasons
    });
    let alone = || view.own().map(|own| own.name().to_string());
    Ok(Json(ClusterStatus {
        name: map.cluster().to_owned(),
        mode: shared.config.cluster.mode.word().to_owned(),
        epoch: map.epoch().0,
        node: shared.config.cluster.node.clone(),
        controller: match &health {
            Some(_) => leader.map(|leader| leader.name.clone()),
            None => alone(),
        },
        settings: settings(map.settings()),
        members: members(&view),
        slots_served: served.map(|it| it.slots.count()).sum(),
        slots: slots(map),
        moves: moves(map, &plan_in_progress(map, &bytes)),
        pushes: pushes(map, reports),
        stores: stores(map),
        blocked: health
            .as_ref()
            .map_or_else(Vec::new, |it| it.state.blocked.to_vec()),
        missing,
        trouble: health.as_ref().and_then(|it| it.etcd_warning(&view)),
        unreached: unreached.unwrap_or_default(),
        unable: health
            .as_ref()
            .map_or_else(Vec::new, |it| it.describe_unable(&view)),
        clocks: clocks(membership),
    }))
}

pub async fn submit(State(shared): Server, body: Bytes) -> JsonResult<ClusterAnswer> {
    let membership = membership(&shared)?;
    let named = |node: String| node.parse::<NodeName>().map_err(Error::BadRequest);
    let request = match decode::<ClusterRequest>(&body)? {
        ClusterRequest::Join { node } => ControllerRequest::Join { node: named(node)? },
        ClusterRequest::Drain { node } => ControllerRequest::Drain { node: named(node)? },
        ClusterRequest::Keep { node } => ControllerRequest::Keep { node: named(node)? },
        ClusterRequest::Remove { node, lose_rows } => ControllerRequest::Remove {
            node: named(node)?,
            lose_rows,
        },
        ClusterRequest::AbortPush { store } => {
            let parsed = store.parse::<StoreName>();
            let store = parsed.map_err(|why| Error::BadRequest(why.to_string()))?;
            ControllerRequest::AbortPush { store }
        }
        ClusterRequest::Set { settings } => {
            let view = membership.view();
            let settings =
                merge_settings(view.map.settings(), settings).map_err(Error::BadRequest)?;
            ControllerRequest::Set { settings }
        }
    };
    let reply = tokio::time::timeout(REPLY_TIMEOUT, membership.submit(request)).await;
    let to_timeout = |_| {
        let why = match membership
            .health()
            .and_then(|it| it.readiness_error(&membership.view()))
        {
            Some(missing) => missing,
            None => "check the cluster's status".to_owned(),
        };
        let message = format!(
            "the controller has not answered for {} s and may still execute the request: {why}",
            REPLY_TIMEOUT.as_secs()
        );
        Failure(Error::Tables(Code::ClusterDown, message))
    };
    let answer = reply.map_err(to_timeout)?.map_err(Error::Conflict)?;
    Ok(Json(ClusterAnswer { answer }))
}

/// The parameters of a plan; lists are comma-separated.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanQuery {
    /// `NAME[:ZONE[:WEIGHT]]`.
    #[serde(default)]
    add: String,
    #[serde(default)]
    remove: String,
    replicas: Option<u8>,
}

pub async fn plan(
    State(shared): Server,
    query: Result<Query<PlanQuery>, QueryRejection>,
) -> JsonResult<ClusterPlan> {
    let Query(changes) = query.map_err(|why| Error::BadRequest(why.body_text()))?;
    let view = membership(&shared)?.view();
    let bytes = slot_bytes(&shared, &view);
    // Planning may take a second with a thousand nodes.
    let planned =
        tokio::task::spawn_blocking(move || plan_changes(&view.map, &changes, &bytes)).await;
    let planned =
        planned.map_err(|error| Error::Io(format!("planning failed: {error}; see the log")))?;
    Ok(Json(planned.map_err(Error::BadRequest)?))
}

fn plan_changes(map: &Map, changes: &PlanQuery, bytes: &[u64]) -> Result<ClusterPlan, String> {
    let names = |list: &str| -> Vec<String> {
        let names = list.split(',').map(str::trim).filter(|it| !it.is_empty());
        names.map(str::to_owned).collect()
    };
    let base = map.members().iter().filter(|member| member.may_hold());
    let mut nodes: Vec<PlacementNode> = base.map(PlacementNode::of).collect();
    for name in names(&changes.remove) {
        let parsed = name.parse::<NodeName>()?;
        map.member_named(&parsed)
            .ok_or_else(|| format!("remove: there is no node {name}"))?;
        nodes.retain(|node| node.name != parsed);
    }
    let mut names_of: BTreeMap<NodeId, String> = BTreeMap::new();
    for (added, one) in (0..).zip(names(&changes.add)) {
        let mut parts = one.split(':');
        let name = parts.next().unwrap_or_default().parse::<NodeName>()?;
        if nodes.iter().any(|node| node.name == name) {
            return Err(format!("add: {name} is a node already"));
        }
        let zone = parts.next().unwrap_or_default().to_owned();
        let weight = parts.next().map_or(Ok(1), str::parse);
        let weight = weight
            .ok()
            .filter(|weight| *weight > 0 && parts.next().is_none());
        let weight = weight.ok_or_else(|| format!("add: {one:?} is not NAME[:ZONE[:WEIGHT]]"))?;
        // Ids that no member has.
        let id = NodeId(u32::MAX - added);
        names_of.insert(id, name.to_string());
        nodes.push(PlacementNode {
            id,
            name,
            zone,
            weight,
        });
    }
    let settings = map.settings();
    let replicas = changes.replicas.unwrap_or(settings.replicas);
    if !(1..=16).contains(&replicas) {
        return Err(format!("replicas is {replicas}; it must be from 1 to 16"));
    }
    let weights = SlotSizes { rows: &[], bytes };
    let plan = Plan::of(
        map,
        &nodes,
        replicas,
        settings.spare_percent,
        settings.fill_slots_at_once,
        weights,
    );
    let placed = plan
        .goals
        .iter()
        .map(|(slots, goal)| (*slots, goal.as_slice()));
    let balance = Balance::of(placed, &nodes, replicas);
    let name_of = |id: NodeId| {
        names_of
            .get(&id)
            .cloned()
            .unwrap_or_else(|| map.name_of(id))
    };
    Ok(ClusterPlan {
        replicas,
        rounds: plan.totals.waves,
        moves: moves_named(&plan, &name_of),
        nodes: balance
            .nodes
            .iter()
            .map(|it| ClusterShare {
                node: it.name.to_string(),
                zone: it.zone.clone(),
                slots_owned: it.owned,
                slots_held: it.held,
            })
            .collect(),
    })
}

/// The approximate bytes of each slot: for stores according to their manifests, for tables the average of this node's slots.
fn slot_bytes(shared: &Shared, view: &View) -> Vec<u64> {
    let mut bytes = vec![0; usize::from(SLOTS)];
    for live in shared.catalog.load().iter() {
        for segment in live.version.manifest().entries() {
            let (from, to) = segment.slots;
            let slots = SlotRange::new(from, to);
            for slot in slots.slots() {
                bytes[usize::from(slot)] += segment.size_bytes / u64::from(slots.count());
            }
        }
    }
    let owned = view
        .lookup
        .slots_of(view.me)
        .map_or(&[][..], |held| &held.owned);
    let owned: u32 = owned.iter().map(|slots| slots.count()).sum();
    let rows = shared.tables.stats().memory_bytes / u64::from(owned.max(1));
    bytes.iter_mut().for_each(|bytes| *bytes += rows);
    bytes
}

/// The plan from the current to the target placement. It excludes moves to nodes that are down, because these may return.
fn plan_in_progress(map: &Map, bytes: &[u64]) -> Plan {
    let runs = map.slots().runs().iter();
    let goals: Vec<Goal> = runs
        .filter_map(|run| Some((run.slots, current_goal(map, &run.placement)?)))
        .collect();
    let weights = SlotSizes { rows: &[], bytes };
    Plan::to(map, goals, map.settings().fill_slots_at_once, weights)
}

/// The target placement while no node that is down returns; `None` if no node that is up owns the slots.
fn current_goal(map: &Map, placed: &Placement) -> Option<Vec<NodeId>> {
    let is_down = |node: &NodeId| {
        map.member(*node)
            .is_none_or(|member| member.state == MemberState::Down)
    };
    let owner = placed.owner.filter(|owner| !is_down(owner))?;
    let mut goal = placed.goal();
    if goal.iter().any(is_down) {
        goal.retain(|node| !is_down(node) && *node != owner);
        goal.insert(0, owner);
    }
    Some(goal)
}

fn moves(map: &Map, plan: &Plan) -> ClusterMoves {
    moves_named(plan, &|id| map.name_of(id))
}

fn moves_named(plan: &Plan, name_of: &dyn Fn(NodeId) -> String) -> ClusterMoves {
    let flow = |(id, flow): (&NodeId, &larder_cluster::placement::NodeTraffic)| ClusterFlow {
        node: name_of(*id),
        slots_in: flow.slots_in,
        slots_out: flow.slots_out,
        bytes_in: flow.bytes_in,
        bytes_out: flow.bytes_out,
    };
    ClusterMoves {
        copied_slots: plan.totals.filled_slots,
        copied_bytes: plan.totals.filled_bytes,
        owner_slots: plan.totals.owned_slots,
        nodes: plan.nodes.iter().map(flow).collect(),
    }
}

fn clocks(membership: &Membership) -> Vec<ClusterClock> {
    let clocks = membership.clocks().into_iter();
    let clock = |(node, skew): (NodeName, ClockSkew)| ClusterClock {
        node: node.to_string(),
        ahead_ms: skew.ahead_ms,
        within_ms: skew.within_ms,
    };
    clocks.map(clock).collect()
}

fn members(view: &View) -> Vec<ClusterMember> {
    let map = &view.map;
    let base: Vec<PlacementNode> = (map.members().iter())
        .filter(|member| member.may_hold())
        .map(PlacementNode::of)
        .collect();
    let balance = Balance::of(std::iter::empty(), &base, 1);
    let shares: BTreeMap<NodeId, f64> = (balance.nodes.iter())
        .map(|it| (it.id, it.owned_share))
        .collect();
    let member = |member: &Member| {
        let held = view.lookup.slots_of(member.id).cloned().unwrap_or_default();
        let count = |slots: &[SlotRange]| slots.iter().map(|it| it.count()).sum();
        let it = &member.registration;
        ClusterMember {
            name: it.name.to_string(),
            id: shown_id(member),
            zone: it.zone.clone(),
            weight: it.weight,
            roles: match it.roles {
                Roles::Base => "base",
                Roles::Compute => "compute",
                Roles::Both => "both",
            }
            .to_owned(),
            state: member.display_state().to_owned(),
            is_removed: member.leaving == Some(Departure::Remove),
            since: member.since_ms / 1000,
            resp: it.resp.clone(),
            http: it.http.clone(),
            peer: it.peer.clone(),
            cores: it.cores,
            slots_owned: count(&held.owned),
            slots_in_sync: count(&held.in_sync),
            slots_filling: count(&held.filling),
            slots_share: shares.get(&member.id).copied().unwrap_or(0.0),
        }
    };
    map.members().iter().map(member).collect()
}

fn slots(map: &Map) -> Vec<ClusterSlots> {
    let names = |nodes: &[NodeId]| nodes.iter().map(|node| map.name_of(*node)).collect();
    let goal = |placed: &Placement| {
        if placed.is_settled() {
            Vec::new()
        } else {
            names(&placed.goal())
        }
    };
    let runs = map.slots().runs().iter();
    runs.map(|run| ClusterSlots {
        from: run.slots.from,
        to: run.slots.to,
        owner: run.placement.owner.map(|owner| map.name_of(owner)),
        in_sync: names(&run.placement.in_sync),
        filling: (run.placement.filling.iter())
            .map(|it| map.name_of(it.node))
            .collect(),
        goal: goal(&run.placement),
    })
    .collect()
}

/// For each push, every node that holds slots, because a push waits for these.
fn pushes(map: &Map, reports: &BTreeMap<NodeName, Report>) -> Vec<ClusterPush> {
    let holds = |member: &&Member| {
        let mut runs = map.slots().runs().iter();
        member.state != MemberState::Down && runs.any(|run| run.placement.includes(member.id))
    };
    let holders: Vec<&Member> = map.members().iter().filter(holds).collect();
    let pull = |member: &Member, store: &StoreName, push: &Push| {
        let report = reports.get(member.name());
        let report = report.filter(|it| it.incarnation == member.registration.incarnation);
        let mut pull = ClusterPull {
            node: member.name().to_string(),
            state: "waiting".to_owned(),
            ..ClusterPull::default()
        };
        match report.and_then(|it| it.progress(store, push.version.version)) {
            None => {}
            Some(Progress::Pulling { bytes, of_bytes }) => {
                pull.state = "pulling".to_owned();
                (pull.bytes, pull.of_bytes) = (*bytes, *of_bytes);
            }
            Some(Progress::Ready { .. }) => pull.state = "ready".to_owned(),
            Some(Progress::Failed { why }) => {
                pull.state = "failed".to_owned();
                pull.why = Some(why.clone());
            }
        }
        pull
    };
    let pushes = map.stores().iter().filter_map(|(name, store)| {
        let push = store.push.as_ref()?;
        Some(ClusterPush {
            store: name.to_string(),
            version: push.version.version.0,
            source: push.version.source.clone(),
            allow_missing_replicas: push.allow_missing_replicas,
            nodes: holders.iter().map(|it| pull(it, name, push)).collect(),
        })
    });
    pushes.collect()
}

fn stores(map: &Map) -> Vec<ClusterStore> {
    let stores = map.stores().iter().map(|(name, store)| ClusterStore {
        name: name.to_string(),
        live: store.live.as_ref().map(|it| it.version.0),
        kept: store.kept.iter().map(|it| it.version.0).collect(),
        lacking: store.lacking.iter().map(|it| map.name_of(*it)).collect(),
        ended: (store.ended.iter())
            .map(|it| ClusterPushEnd {
                version: it.version.0,
                failed: it.failed.clone(),
            })
            .collect(),
    });
    stores.collect()
}

fn settings(it: &Settings) -> ClusterSettings {
    ClusterSettings {
        replicas: it.replicas,
        min_copies: it.min_copies,
        acknowledge: match it.acknowledge {
            Acknowledge::Owner => "owner",
            Acknowledge::Replicas => "replicas",
        }
        .to_owned(),
        lease_ms: it.lease_ms,
        replace_after_ms: it.replace_after_ms,
        start_nodes: it.start_nodes,
        admit_new_nodes: it.admit_new_nodes,
        spare_percent: it.spare_percent,
        fill_slots_at_once: it.fill_slots_at_once,
        versions_kept: it.versions_kept,
        push_silence_ms: it.push_silence_ms,
    }
}

fn merge_settings(now: &Settings, requested: ClusterSettingsChange) -> Result<Settings, String> {
    let acknowledge = match requested.acknowledge.as_deref() {
        None => now.acknowledge,
        Some("owner") => Acknowledge::Owner,
        Some("replicas") => Acknowledge::Replicas,
        Some(other) => {
            return Err(format!(
                "acknowledge is {other:?}; it must be owner or replicas"
            ));
        }
    };
    let settings = Settings {
        replicas: requested.replicas.unwrap_or(now.replicas),
        min_copies: requested.min_copies.unwrap_or(now.min_copies),
        acknowledge,
        lease_ms: requested.lease_ms.unwrap_or(now.lease_ms),
        replace_after_ms: requested.replace_after_ms.unwrap_or(now.replace_after_ms),
        start_nodes: requested.start_nodes.unwrap_or(now.start_nodes),
        admit_new_nodes: requested.admit_new_nodes.unwrap_or(now.admit_new_nodes),
        spare_percent: requested.spare_percent.unwrap_or(now.spare_percent),
        fill_slots_at_once: requested
            .fill_slots_at_once
            .unwrap_or(now.fill_slots_at_once),
        versions_kept: requested.versions_kept.unwrap_or(now.versions_kept),
        push_silence_ms: requested.push_silence_ms.unwrap_or(now.push_silence_ms),
    };
    match settings.out_of_bounds() {
        Some(wrong) => Err(wrong),
        None => Ok(settings),
    }
}
