//! Changes of stores: pushes, live versions and rollbacks.

use std::collections::BTreeMap;

use larder_types::{StoreName, VersionId};

use super::ensure;
use crate::map::stores::PUSH_RESULTS_MAX;
use crate::map::{Change, Map, NodeId, Push, PushResult, RequestId, Store, Version};

pub(super) fn begin_push(map: &mut Map, change: &Change) -> Result<(), String> {
    let Change::PushBegun {
        store: name,
        request: ask,
        source,
        digest,
        allow_missing_replicas,
        options,
        at_ms,
    } = change
    else {
        unreachable!("the caller matched it");
    };
    let store = map.stores.entry(name.clone()).or_default();
    if let Some(push) = &store.push {
        return Err(format!(
            "version {} of store {name} is being pushed, from {}; wait until the push ends, or abort it: larder cluster abort-push {name}",
            push.version.version, push.version.source
        ));
    }
    ensure(!store.ended.iter().any(|it| it.ask == *ask), || {
        format!("the push {ask} of store {name} has already ended")
    })?;
    store.push = Some(Push {
        ask: ask.clone(),
        version: Version {
            version: store.next,
            source: source.clone(),
            digest: digest.clone(),
        },
        allow_missing_replicas: *allow_missing_replicas,
        progress: 0,
        progress_ms: *at_ms,
        options: options.clone(),
    });
    store.next = VersionId(store.next.0 + 1);
    Ok(())
}

pub(super) fn record_push_progress(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    progress: u64,
    at_ms: u64,
) -> Result<(), String> {
    let store = store_mut(&mut map.stores, name)?;
    let push = store
        .push
        .as_mut()
        .filter(|it| it.version.version == version);
    let push =
        push.ok_or_else(|| format!("version {version} of store {name} is not being pushed"))?;
    ensure(push.progress != progress, || {
        "the change reports no progress".into()
    })?;
    (push.progress, push.progress_ms) = (progress, at_ms);
    Ok(())
}

pub(super) fn fail_push(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    why: &str,
) -> Result<(), String> {
    let store = store_mut(&mut map.stores, name)?;
    let push = take_push(store, name, version)?;
    record_push_result(store, push.ask, version, Some(why.to_owned()));
    Ok(())
}

pub(super) fn make_version_live(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    lacking: &[NodeId],
) -> Result<(), String> {
    check_members(map, lacking)?;
    let kept_max = usize::from(map.settings.versions_kept);
    let store = store_mut(&mut map.stores, name)?;
    let push = take_push(store, name, version)?;
    let before = store.live.replace(push.version);
    if let Some(before) = before {
        store.kept.insert(0, before);
    }
    store.kept.truncate(kept_max);
    store.lacking = sort_and_dedup(lacking);
    record_push_result(store, push.ask, version, None);
    Ok(())
}

pub(super) fn roll_back(
    map: &mut Map,
    name: &StoreName,
    ask: &RequestId,
    to: VersionId,
    lacking: &[NodeId],
) -> Result<(), String> {
    check_members(map, lacking)?;
    let store = store_mut(&mut map.stores, name)?;
    let at = store.kept.iter().position(|it| it.version == to);
    let Some(at) = at else {
        let kept: Vec<String> = store.kept.iter().map(|it| it.version.to_string()).collect();
        return Err(format!(
            "store {name} does not keep version {to}; it keeps [{}]",
            kept.join(", ")
        ));
    };
    let target = store.kept.remove(at);
    if let Some(before) = store.live.replace(target) {
        store.kept.insert(0, before);
    }
    store.lacking = sort_and_dedup(lacking);
    record_push_result(store, ask.clone(), to, None);
    Ok(())
}

pub(super) fn record_caught_up(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    nodes: &[NodeId],
) -> Result<(), String> {
    let store = store_mut(&mut map.stores, name)?;
    ensure(
        store.live.as_ref().is_some_and(|it| it.version == version),
        || format!("version {version} of store {name} is not live"),
    )?;
    let lacked = !nodes.is_empty() && nodes.iter().all(|node| store.lacking.contains(node));
    ensure(lacked, || {
        format!("{nodes:?} do not all lack version {version} of store {name}")
    })?;
    store.lacking.retain(|it| !nodes.contains(it));
    Ok(())
}

pub(super) fn remove_version(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
) -> Result<(), String> {
    let store = store_mut(&mut map.stores, name)?;
    let before = store.kept.len();
    store.kept.retain(|it| it.version != version);
    ensure(store.kept.len() < before, || {
        format!("version {version} of store {name} is not kept; the live one cannot be removed")
    })
}

pub(super) fn remove_store(map: &mut Map, name: &StoreName) -> Result<(), String> {
    let store = store_mut(&mut map.stores, name)?;
    ensure(store.push.is_none(), || {
        format!(
            "a version of store {name} is being pushed; wait until the push ends, or abort it: larder cluster abort-push {name}"
        )
    })?;
    map.stores.remove(name);
    Ok(())
}

fn store_mut<'a>(
    stores: &'a mut BTreeMap<StoreName, Store>,
    name: &StoreName,
) -> Result<&'a mut Store, String> {
    stores
        .get_mut(name)
        .ok_or_else(|| format!("there is no store {name}"))
}

fn take_push(store: &mut Store, name: &StoreName, version: VersionId) -> Result<Push, String> {
    let is_pushed = store
        .push
        .as_ref()
        .is_some_and(|it| it.version.version == version);
    ensure(is_pushed, || {
        format!("version {version} of store {name} is not being pushed")
    })?;
    Ok(store.push.take().expect("checked above"))
}

fn record_push_result(
    store: &mut Store,
    ask: RequestId,
    version: VersionId,
    failed: Option<String>,
) {
    store.ended.push(PushResult {
        ask,
        version,
        failed,
    });
    let surplus = store.ended.len().saturating_sub(PUSH_RESULTS_MAX);
    store.ended.drain(..surplus);
}

fn check_members(map: &Map, nodes: &[NodeId]) -> Result<(), String> {
    let unknown = nodes.iter().find(|&&node| map.member(node).is_none());
    ensure(unknown.is_none(), || {
        format!("node number {unknown:?} is not a member")
    })
}

fn sort_and_dedup(nodes: &[NodeId]) -> Vec<NodeId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
