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
use larder_cluster::controller::{Ask, Progress};
use larder_cluster::map::{Epoch, Map, Store};
use larder_protocol::errors::{Code, ROWS};
use larder_protocol::http::{NodePull, NodePullState};
use larder_types::{StoreName, VersionId, WhichVersion};

use super::wanted::GATES;
use crate::Shared;
use crate::error::Error;
use crate::fetch::download::{Download, Root, Runtime};
use crate::fetch::pull::may_be_pulled;
use crate::fetch::{Pull, Stop};
use crate::membership::Membership;
use crate::stores::{Swapped, gates};

const TELL_EVERY: Duration = Duration::from_millis(100);
/// Maximum time to wait for nodes to report that they applied the map that makes a version live. A node that does not report is
/// suspended or disconnected.
const TAKEN_MAX: Duration = Duration::from_secs(5);
/// Maximum time to wait for the result of an immediate operation.
const ANSWERED_MAX: Duration = Duration::from_secs(20);

/// Requests the push, and waits until it has ended.
///
/// # Errors
/// The errors of a pull, with the name of the node that failed.
pub fn run(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    tracing::info!(pull = pull.id, store = %pull.store, source = pull.source, "push asked for");
    let result = pushed(shared, pull);
    match &result {
        Ok(()) => tracing::info!(pull = pull.id, store = %pull.store, "push done"),
        Err(error) => tracing::warn!(pull = pull.id, store = %pull.store, %error, "push ended"),
    }
    result
}

fn pushed(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    let membership = membership(shared)?;
    if !pull.request.activate {
        return Err(Error::BadRequest(
            "in a cluster a version goes live on all nodes when all have it, and cannot be kept beside the live one; push it when it is to be live".to_owned(),
        ));
    }
    let (manifest, ask) = prepared(shared, pull)?;
    let runtime = Runtime::new()?;
    let answer = runtime.block_on(async {
        let mut asked = pin!(membership.ask(ask));
        let mut tick = tokio::time::interval(TELL_EVERY);
        let mut is_aborting = false;
        loop {
            tokio::select! {
                answer = &mut asked => break Ok(answer),
                _ = tick.tick() => tell(membership, pull),
                () = pull.cancelled(), if !is_aborting => {
                    if pull.stopped() == Some(Stop::Shutdown) {
                        break Err(Error::Cancelled);
                    }
                    is_aborting = true;
                    let store = pull.store.clone();
                    asked_for(membership, Ask::AbortPush { store }).await?;
                }
            }
        }
    })?;
    tell(membership, pull);
    if let Err(words) = answer {
        return Err(match pull.stopped() {
            Some(_) if words.contains(ABORTED) => Error::Cancelled,
            _ => failure(words),
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
    runtime.block_on(taken(membership, |map| has_it(map).is_some()));
    if let Some(version) = has_it(&membership.view().map) {
        pull.version.store(version, Relaxed);
    }
    Ok(())
}

/// The reason that the map records for an aborted push.
const ABORTED: &str = "it was aborted";

/// Returns the manifest and the request to the controller.
fn prepared(shared: &Arc<Shared>, pull: &Pull) -> Result<(Manifest, Ask), Error> {
    let roots = [Root::of_all(shared.pulls.locate(&pull.request.source)?)];
    let download = Download {
        shared,
        pull,
        roots: &roots,
    };
    let manifest = download.manifest(&|manifest| may_be_pulled(shared, manifest, &pull.store))?;
    let gates = gates::configured(shared, &pull.store, pull.request.gates.clone());
    let live = shared.stores.get(pull.store.as_str()).ok();
    let live = live.and_then(|store| store.live());
    let live = live.as_ref().map(|(id, version)| (*id, version.manifest()));
    gates::check_manifest(&gates, &manifest, live)?;
    let gates = serde_json::to_string(&gates).expect("plain structs become JSON");
    let ask = Ask::Push {
        store: pull.store.clone(),
        source: pull.request.source.clone(),
        digest: manifest.digest.clone(),
        allow_missing_replicas: pull.request.allow_missing_replicas,
        options: [(GATES.to_owned(), gates)].into(),
    };
    Ok((manifest, ask))
}

fn membership(shared: &Shared) -> Result<&Membership, Error> {
    let no_cluster = || Error::BadRequest("this server is of no cluster".to_owned());
    shared.membership.as_ref().ok_or_else(no_cluster)
}

/// Updates the progress of each node.
fn tell(membership: &Membership, pull: &Pull) {
    let view = membership.view();
    let store = view.map.stores().get(&pull.store);
    let Some(push) = store.and_then(|store| store.push.as_ref()) else {
        return;
    };
    if push.version.source != pull.request.source {
        return;
    }
    pull.version.store(push.version.version.0, Relaxed);
    let nodes = nodes(membership, &view.map, &pull.store, push.version.version);
    pull.tell_nodes(nodes);
}

/// Returns the progress of each slot holder with a version.
pub fn nodes(
    membership: &Membership,
    map: &Map,
    store: &StoreName,
    version: VersionId,
) -> Vec<NodePull> {
    let standing = membership.standing();
    let holds = |node| {
        map.slots()
            .runs()
            .iter()
            .any(|run| run.placed.is_holder(node))
    };
    let members = map.members().iter().filter(|member| holds(member.id));
    let one = |member: &larder_cluster::map::Member| {
        let standing = standing.as_ref()?;
        let report = standing.known.reports.get(member.name())?;
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
async fn taken(membership: &Membership, is_it: impl Fn(&Map) -> bool) {
    let began = Instant::now();
    let mut epoch: Option<Epoch> = None;
    while began.elapsed() < TAKEN_MAX {
        let view = membership.view();
        if epoch.is_none() && is_it(&view.map) {
            epoch = Some(view.map.epoch());
        }
        let standing = membership.standing();
        let have_taken = |epoch| {
            let mut members = view.map.members().iter().filter(|it| view.map.is_up(it.id));
            members.all(|member| {
                let reports = standing.as_ref().map(|it| &it.known.reports);
                let report = reports.and_then(|reports| reports.get(member.name()));
                report.is_some_and(|report| report.epoch >= epoch)
            })
        };
        if epoch.is_some_and(have_taken) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends a request that the controller executes or rejects immediately.
async fn asked_for(membership: &Membership, ask: Ask) -> Result<String, Error> {
    match tokio::time::timeout(ANSWERED_MAX, membership.ask(ask)).await {
        Ok(Ok(words)) => Ok(words),
        Ok(Err(words)) => Err(failure(words)),
        Err(_) => Err(Error::Io(
            "the cluster's controller did not answer in time: it is unknown whether that was done, or will be; look at larder cluster status".to_owned(),
        )),
    }
}

/// Converts a failure of another node, or a rejection by the controller, from its message. The message of a node's failure
/// contains the error code.
fn failure(words: String) -> Error {
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

fn of_map(map: &Map, name: &StoreName) -> Result<Store, Error> {
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
    to: WhichVersion,
) -> Result<Swapped, Error> {
    let membership = membership(shared)?;
    let store = of_map(&membership.view().map, name)?;
    let live = store.live.as_ref().map(|live| live.version);
    let previous = |store: &Store| store.kept.first().map(|it| it.version);
    let to = match to {
        WhichVersion::Number(to) => Some(to),
        WhichVersion::Previous => previous(&store),
        WhichVersion::Live => live,
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
        asked_for(membership, Ask::RollBack { store, to }).await?;
    }
    let is_live = |map: &Map| {
        let store = map.stores().get(name);
        store.is_some_and(|it| it.live.as_ref().is_some_and(|live| live.version == to))
    };
    taken(membership, is_live).await;
    Ok(Swapped {
        live: to,
        previous: previous(&of_map(&membership.view().map, name)?),
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
    which: WhichVersion,
) -> Result<VersionId, Error> {
    let membership = membership(shared)?;
    let known = of_map(&membership.view().map, name)?;
    let live = known.live.as_ref().map(|live| live.version);
    let version = match which {
        WhichVersion::Number(version) => Some(version),
        WhichVersion::Previous => known.kept.first().map(|it| it.version),
        WhichVersion::Live => live,
    };
    let version =
        version.ok_or_else(|| Error::Refused(format!("store {name} has no earlier version")))?;
    if live == Some(version) {
        return Err(Error::Conflict(format!(
            "version {version} of store {name} is live; roll back or swap to another one first"
        )));
    }
    if !known.kept.iter().any(|it| it.version == version) {
        return Err(no_such_version(name, version, &known));
    }
    let store = name.clone();
    asked_for(membership, Ask::RemoveVersion { store, version }).await?;
    taken(membership, |map| {
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
    let known = of_map(&membership.view().map, name)?;
    if let Some(push) = &known.push {
        return Err(Error::Conflict(format!(
            "version {} of store {name} is being pushed; wait until that has ended, or give it up: larder cluster abort-push {name}",
            push.version.version
        )));
    }
    let store = name.clone();
    asked_for(membership, Ask::RemoveStore { store }).await?;
    taken(membership, |map| !map.stores().contains_key(name)).await;
    Ok(())
}
