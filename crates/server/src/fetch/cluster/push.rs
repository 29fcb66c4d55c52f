//! Operator requests to one node that all nodes execute: a push, a rollback, a removal.
//!
//! The node that receives the request first reads the manifest and checks the conditions that it alone decides: the number of
//! records. Most problems of a version are thus found before any node pulls it. Canary keys are checked by each node that has
//! their partition. From then on, the controller continues the push, even if the client disconnects.
//!
//! A push is done when the map has it as live and every node that is up has reported that it applied that map.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use larder_batch::Manifest;
use larder_cluster::controller::{ControllerRequest, Progress};
use larder_cluster::map::{Epoch, Map, Store};
use larder_protocol::errors::{Code, ROWS};
use larder_protocol::http::{NodePull, NodePullState};
use larder_types::{StoreName, VersionId, VersionSelector};

use super::wanted_versions::GATES;
use crate::Shared;
use crate::error::Error;
use crate::fetch::download::{Download, Root, Runtime};
use crate::fetch::pull::check_pullable;
use crate::fetch::{Pull, Stop};
use crate::membership::Membership;
use crate::stores::{SwapOutcome, gates};

const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time to wait for nodes to report that they applied the map that makes a version live. A node that does not report is
/// suspended or disconnected.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for the result of an immediate operation.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Requests the push, and waits until it has ended.
///
/// # Errors
/// The errors of a pull, with the name of the node that failed.
pub fn run(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    tracing::info!(pull = pull.id, store = %pull.store, source = pull.source, "push requested");
    let result = push_and_wait(shared, pull);
    match &result {
        Ok(()) => tracing::info!(pull = pull.id, store = %pull.store, "push done"),
        Err(error) => tracing::warn!(pull = pull.id, store = %pull.store, %error, "push ended"),
    }
    result
}

fn push_and_wait(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    let membership = membership(shared)?;
    if !pull.request.activate {
        return Err(Error::BadRequest(
            "in a cluster a version goes live on all nodes when all have it, and cannot be kept without going live; push it when it should go live".to_owned(),
        ));
    }
    let (manifest, request) = prepare(shared, pull)?;
    let runtime = Runtime::new()?;
    let answer = runtime.block_on(async {
        let mut pending = pin!(membership.submit(request));
        let mut tick = tokio::time::interval(REPORT_INTERVAL);
        let mut is_aborting = false;
        loop {
            tokio::select! {
                answer = &mut pending => break Ok(answer),
                _ = tick.tick() => update_status(membership, pull),
                () = pull.cancelled(), if !is_aborting => {
                    if pull.stopped() == Some(Stop::Shutdown) {
                        break Err(Error::Cancelled);
                    }
                    is_aborting = true;
                    let store = pull.store.clone();
                    send_request(membership, ControllerRequest::AbortPush { store }).await?;
                }
            }
        }
    })?;
    update_status(membership, pull);
    if let Err(words) = answer {
        return Err(match pull.stopped() {
            Some(_) if words.contains(ABORTED) => Error::Cancelled,
            _ => to_error(words),
        });
    }
    let has_it = |map: &Map| {
        let live = map
            .stores()
            .get(&pull.store)
            .and_then(|store| store.live.as_ref());
        live.filter(|live| live.digest == manifest.digest)
            .map(|live| live.version.0)
    };
    runtime.block_on(wait_until_applied(membership, |map| has_it(map).is_some()));
    if let Some(version) = has_it(&membership.view().map) {
        pull.version.store(version, Relaxed);
    }
    Ok(())
}

/// The reason that the map records for an aborted push.
const ABORTED: &str = "it was aborted";

/// Returns the manifest and the request to the controller.
fn prepare(shared: &Arc<Shared>, pull: &Pull) -> Result<(Manifest, ControllerRequest), Error> {
    let roots = [Root::for_all_slots(
        shared.pulls.locate(&pull.request.source)?,
    )];
    let download = Download {
        shared,
        pull,
        roots: &roots,
    };
    let manifest =
        download.fetch_manifest(&|manifest| check_pullable(shared, manifest, &pull.store))?;
    let gates = gates::merge_with_config(shared, &pull.store, pull.request.gates.clone());
    let live = shared.stores.get(pull.store.as_str()).ok();
    let live = live.and_then(|store| store.live());
    let live = live.as_ref().map(|(id, version)| (*id, version.manifest()));
    gates::check_manifest(&gates, &manifest, live)?;
    let gates = serde_json::to_string(&gates).expect("plain structs become JSON");
    let request = ControllerRequest::Push {
        store: pull.store.clone(),
        source: pull.request.source.clone(),
        digest: manifest.digest.clone(),
        allow_missing_replicas: pull.request.allow_missing_replicas,
        options: [(GATES.to_owned(), gates)].into(),
    };
    Ok((manifest, request))
}

fn membership(shared: &Shared) -> Result<&Membership, Error> {
    let no_cluster = || Error::BadRequest("this server is not in a cluster".to_owned());
    shared.membership.as_ref().ok_or_else(no_cluster)
}

/// Updates the progress of each node.
fn update_status(membership: &Membership, pull: &Pull) {
    let view = membership.view();
    let store = view.map.stores().get(&pull.store);
    let Some(push) = store.and_then(|store| store.push.as_ref()) else {
        return;
    };
    if push.version.source != pull.request.source {
        return;
    }
    pull.version.store(push.version.version.0, Relaxed);
    let node_progress = node_progress(membership, &view.map, &pull.store, push.version.version);
    pull.set_nodes(node_progress);
}

/// Returns the progress of each slot holder with a version.
pub fn node_progress(
    membership: &Membership,
    map: &Map,
    store: &StoreName,
    version: VersionId,
) -> Vec<NodePull> {
    let health = membership.health();
    let holds = |node| {
        map.slots()
            .runs()
            .iter()
            .any(|run| run.placement.is_holder(node))
    };
    let members = map.members().iter().filter(|member| holds(member.id));
    let one = |member: &larder_cluster::map::Member| {
        let health = health.as_ref()?;
        let report = health.state.reports.get(member.name())?;
        let is_current = report.incarnation == member.registration.incarnation;
        report
            .progress(store, version)
            .filter(|_| is_current)
            .cloned()
    };
    members
        .map(|member| {
            let (state, bytes_done, bytes_total, error) = match one(member) {
                _ if !map.is_up(member.id) => (NodePullState::Away, 0, 0, None),
                None => (NodePullState::Waiting, 0, 0, None),
                Some(Progress::Pulling { bytes, of_bytes }) => {
                    (NodePullState::Pulling, bytes, of_bytes, None)
                }
                Some(Progress::Ready { .. }) => (NodePullState::Ready, 0, 0, None),
                Some(Progress::Failed { why }) => (NodePullState::Failed, 0, 0, Some(why)),
            };
            NodePull {
                node: member.name().to_string(),
                state,
                bytes_done,
                bytes_total,
                error,
            }
        })
        .collect()
}

/// Waits until this node has a map that satisfies `is_it`, and all nodes that are up have reported that they applied it or a
/// later one; or until a timeout.
async fn wait_until_applied(membership: &Membership, is_it: impl Fn(&Map) -> bool) {
    let began = Instant::now();
    let mut epoch: Option<Epoch> = None;
    while began.elapsed() < APPLY_TIMEOUT {
        let view = membership.view();
        if epoch.is_none() && is_it(&view.map) {
            epoch = Some(view.map.epoch());
        }
        let health = membership.health();
        let have_applied = |epoch| {
            let mut members = view.map.members().iter().filter(|it| view.map.is_up(it.id));
            members.all(|member| {
                let reports = health.as_ref().map(|it| &it.state.reports);
                let report = reports.and_then(|reports| reports.get(member.name()));
                report.is_some_and(|report| report.epoch >= epoch)
            })
        };
        if epoch.is_some_and(have_applied) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends a request that the controller executes or rejects immediately.
async fn send_request(
    membership: &Membership,
    request: ControllerRequest,
) -> Result<String, Error> {
    match tokio::time::timeout(REPLY_TIMEOUT, membership.submit(request)).await {
        Ok(Ok(words)) => Ok(words),
        Ok(Err(words)) => Err(to_error(words)),
        Err(_) => Err(Error::Io(
            "the cluster's controller did not answer in time: the request may have been executed, or may be later; check larder cluster status".to_owned(),
        )),
    }
}

/// Converts a failure of another node, or a rejection by the controller, from its message. The message of a node's failure
/// contains the error code.
fn to_error(words: String) -> Error {
    let code = ROWS.iter().find_map(|row| {
        let at = words.find(&format!(" {}: ", row.name))?;
        Some((row.code, at, row.name.len()))
    });
    let Some((code, at, length)) = code else {
        return if words.contains("is being pushed") {
            Error::Conflict(words)
        } else {
            Error::Refused(words)
        };
    };
    let words = format!("{} {}", &words[..at], &words[at + length + 3..]);
    match code {
        Code::DiskFull => Error::DiskFull(words),
        Code::Corrupted => Error::Corrupted(words),
        Code::Forbidden => Error::Forbidden(words),
        Code::Refused => Error::Refused(words),
        Code::Source => Error::Source {
            message: words,
            retry: false,
        },
        _ => Error::Io(words),
    }
}

fn find_store(map: &Map, name: &StoreName) -> Result<Store, Error> {
    let no_store = || Error::NoSuchStore(name.to_string());
    map.stores().get(name).cloned().ok_or_else(no_store)
}

/// Makes a kept version live on all nodes.
///
/// # Errors
/// The reason why it is not.
pub async fn roll_back(
    shared: &Shared,
    name: &StoreName,
    to: VersionSelector,
) -> Result<SwapOutcome, Error> {
    let membership = membership(shared)?;
    let store = find_store(&membership.view().map, name)?;
    let live = store.live.as_ref().map(|live| live.version);
    let previous = |store: &Store| store.kept.first().map(|it| it.version);
    let to = match to {
        VersionSelector::Number(to) => Some(to),
        VersionSelector::Previous => previous(&store),
        VersionSelector::Live => live,
    };
    let to = to.ok_or_else(|| {
        Error::Refused(format!("store {name} has no earlier version to return to"))
    })?;
    let began = Instant::now();
    if live != Some(to) {
        if !store.kept.iter().any(|it| it.version == to) {
            return Err(no_such_version(name, to, &store));
        }
        shared.stores.check_signature_here(name, to)?;
        let (store, to) = (name.clone(), Some(to));
        send_request(membership, ControllerRequest::RollBack { store, to }).await?;
    }
    let is_live = |map: &Map| {
        let store = map.stores().get(name);
        store.is_some_and(|it| it.live.as_ref().is_some_and(|live| live.version == to))
    };
    wait_until_applied(membership, is_live).await;
    Ok(SwapOutcome {
        live: to,
        previous: previous(&find_store(&membership.view().map, name)?),
        took: began.elapsed(),
    })
}

fn no_such_version(name: &StoreName, version: VersionId, store: &Store) -> Error {
    let mut kept: Vec<VersionId> = store
        .live
        .iter()
        .chain(&store.kept)
        .map(|it| it.version)
        .collect();
    kept.sort_unstable();
    Error::NoSuchVersion {
        store: name.clone(),
        version: version.0,
        kept,
    }
}

/// Removes a kept version from all nodes, and returns its number.
///
/// # Errors
/// The reason why it is not removed.
pub async fn remove_version(
    shared: &Shared,
    name: &StoreName,
    which: VersionSelector,
) -> Result<VersionId, Error> {
    let membership = membership(shared)?;
    let store = find_store(&membership.view().map, name)?;
    let live = store.live.as_ref().map(|live| live.version);
    let version = match which {
        VersionSelector::Number(version) => Some(version),
        VersionSelector::Previous => store.kept.first().map(|it| it.version),
        VersionSelector::Live => live,
    };
    let version =
        version.ok_or_else(|| Error::Refused(format!("store {name} has no earlier version")))?;
    if live == Some(version) {
        return Err(Error::Conflict(format!(
            "version {version} of store {name} is live; roll back or swap to another one first"
        )));
    }
    if !store.kept.iter().any(|it| it.version == version) {
        return Err(no_such_version(name, version, &store));
    }
    let store = name.clone();
    send_request(
        membership,
        ControllerRequest::RemoveVersion { store, version },
    )
    .await?;
    wait_until_applied(membership, |map| {
        let store = map.stores().get(name);
        store.is_none_or(|store| store.version(version).is_none())
    })
    .await;
    Ok(version)
}

/// Removes a store from all nodes.
///
/// # Errors
/// The reason why it is not removed.
pub async fn remove_store(shared: &Shared, name: &StoreName) -> Result<(), Error> {
    let membership = membership(shared)?;
    let store = find_store(&membership.view().map, name)?;
    if let Some(push) = &store.push {
        return Err(Error::Conflict(format!(
            "version {} of store {name} is being pushed; wait until the push ends, or abort it: larder cluster abort-push {name}",
            push.version.version
        )));
    }
    let store = name.clone();
    send_request(membership, ControllerRequest::RemoveStore { store }).await?;
    wait_until_applied(membership, |map| !map.stores().contains_key(name)).await;
    Ok(())
}
