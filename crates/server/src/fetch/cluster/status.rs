//! The status of stores according to the map, for operators. It is equal on all nodes, except for details that only a node with
//! the version knows.

use larder_cluster::map::{self, Store};
use larder_protocol::http::{PullState, PullStatus, StoreStatus, VersionStatus};
use larder_types::{StoreName, VersionId};

use super::push::node_progress;
use crate::Shared;
use crate::cluster::View;
use crate::error::Error;
use crate::membership::Membership;

/// All stores of the map, sorted by name.
pub fn list(shared: &Shared, membership: &Membership) -> Vec<StoreStatus> {
    let view = membership.view();
    let stores = view.map.stores().iter();
    stores
        .map(|(name, store)| status(shared, membership, &view, name, store))
        .collect()
}

/// # Errors
/// [`Error::NoSuchStore`].
pub fn find_status(
    shared: &Shared,
    membership: &Membership,
    name: &str,
) -> Result<StoreStatus, Error> {
    let view = membership.view();
    let known = name.parse::<StoreName>().ok();
    let known = known.and_then(|name| Some((view.map.stores().get(&name)?.clone(), name)));
    let (store, name) = known.ok_or_else(|| Error::NoSuchStore(name.chars().take(80).collect()))?;
    Ok(status(shared, membership, &view, &name, &store))
}

fn status(
    shared: &Shared,
    membership: &Membership,
    view: &View,
    name: &StoreName,
    store: &Store,
) -> StoreStatus {
    let here = shared.stores.get(name.as_str());
    let here = here.and_then(|here| here.status(None));
    let here = here.map_or_else(|_| Vec::new(), |here| here.versions);
    let live = store.live.as_ref().map(|live| live.version);
    let of_map = store.live.iter().chain(&store.kept);
    let mut versions: Vec<VersionStatus> = of_map
        .map(|version| {
            let mut known = here.iter().filter(|it| it.version == version.version.0);
            let known = known.find(|it| it.digest == version.digest).cloned();
            let mut status = known.unwrap_or_else(|| remote_status(version));
            status.live = live == Some(version.version);
            status
        })
        .collect();
    versions.sort_by_key(|it| std::cmp::Reverse(it.version));
    let push_status = store.push.as_ref().map(|push| {
        let version = push.version.version;
        let local_pull = shared
            .pulls
            .running(name)
            .filter(|it| it.version == version.0);
        local_pull.unwrap_or_else(|| push_status(membership, view, name, version, &push.version))
    });
    StoreStatus {
        name: name.clone(),
        live: live.map(|id| id.0),
        previous: store.kept.first().map(|it| it.version.0),
        versions,
        pull: push_status,
    }
}

/// The status of a version that is not present on this node.
fn remote_status(version: &map::Version) -> VersionStatus {
    VersionStatus {
        version: version.version.0,
        live: false,
        record_count: 0,
        size_bytes: 0,
        key_bytes: 0,
        value_bytes: 0,
        partitions: 0,
        layers: 0,
        compression: String::new(),
        source: Some(redact_source(&version.source)),
        pulled_from: Some(redact_source(&version.source)),
        pulled_at: None,
        resident_bytes: None,
        digest: version.digest.clone(),
        unchecked: false,
        damaged: None,
        built: None,
    }
}

/// Returns a source without its credentials.
fn redact_source(source: &str) -> String {
    larder_remote::Location::parse(source).map_or_else(|_| String::new(), |it| it.to_string())
}

/// The status of a push that another node received.
fn push_status(
    membership: &Membership,
    view: &View,
    name: &StoreName,
    version: VersionId,
    map_version: &map::Version,
) -> PullStatus {
    let nodes = node_progress(membership, &view.map, name, version);
    PullStatus {
        id: format!("{name}-{version}"),
        store: name.clone(),
        version: version.0,
        source: redact_source(&map_version.source),
        state: PullState::Fetching,
        bytes_done: nodes.iter().map(|it| it.bytes_done).sum(),
        bytes_total: nodes.iter().map(|it| it.bytes_total).sum(),
        bytes_per_second: 0,
        bytes_linked: 0,
        error: None,
        started_at: 0,
        ended_at: None,
        nodes,
    }
}
