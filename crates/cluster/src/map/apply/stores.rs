//! Changes of stores: pushes, live versions and rollbacks.

use std::collections::BTreeMap;

use larder_types::{StoreName, VersionId};

use super::ensure;
use crate::map::stores::ENDED_MAX;
use crate::map::{AskId, Change, Ended, Map, NodeId, Push, Store, Version};

pub(super) fn push_begun(map: &mut Map, change: &Change) -> Result<(), String> {
    let Change::PushBegun {
        store: name,
        ask,
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
            "version {} of store {name} is being pushed, from {}; wait until that has ended, or give it up: larder cluster abort-push {name}",
            push.version.version, push.version.source
        ));
    }
    ensure(!store.ended.iter().any(|it| it.ask == *ask), || {
        format!("the push {ask} of store {name} has ended already")
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

pub(super) fn push_progressed(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    progress: u64,
    at_ms: u64,
) -> Result<(), String> {
    let store = store(&mut map.stores, name)?;
    let push = store
        .push
        .as_mut()
        .filter(|it| it.version.version == version);
    let push =
        push.ok_or_else(|| format!("version {version} of store {name} is not being pushed"))?;
    ensure(push.progress != progress, || "there is no progress".into())?;
    (push.progress, push.progress_ms) = (progress, at_ms);
    Ok(())
}

pub(super) fn push_failed(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    why: &str,
) -> Result<(), String> {
    let store = store(&mut map.stores, name)?;
    let push = push_of(store, name, version)?;
    end(store, push.ask, version, Some(why.to_owned()));
    Ok(())
}

pub(super) fn version_live(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    lacking: &[NodeId],
) -> Result<(), String> {
    members(map, lacking)?;
    let kept_max = usize::from(map.settings.versions_kept);
    let store = store(&mut map.stores, name)?;
    let push = push_of(store, name, version)?;
    let before = store.live.replace(push.version);
    if let Some(before) = before {
        store.kept.insert(0, before);
    }
    store.kept.truncate(kept_max);
    store.lacking = sorted(lacking);
    end(store, push.ask, version, None);
    Ok(())
}

pub(super) fn rolled_back(
    map: &mut Map,
    name: &StoreName,
    ask: &AskId,
    to: VersionId,
    lacking: &[NodeId],
) -> Result<(), String> {
    members(map, lacking)?;
    let store = store(&mut map.stores, name)?;
    let at = store.kept.iter().position(|it| it.version == to);
    let Some(at) = at else {
        let kept: Vec<String> = store.kept.iter().map(|it| it.version.to_string()).collect();
        return Err(format!(
            "version {to} of store {name} is not kept; these are: [{}]",
            kept.join(", ")
        ));
    };
    let target = store.kept.remove(at);
    if let Some(before) = store.live.replace(target) {
        store.kept.insert(0, before);
    }
    store.lacking = sorted(lacking);
    end(store, ask.clone(), to, None);
    Ok(())
}

pub(super) fn caught_up(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
    nodes: &[NodeId],
) -> Result<(), String> {
    let store = store(&mut map.stores, name)?;
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

pub(super) fn version_removed(
    map: &mut Map,
    name: &StoreName,
    version: VersionId,
) -> Result<(), String> {
    let store = store(&mut map.stores, name)?;
    let before = store.kept.len();
    store.kept.retain(|it| it.version != version);
    ensure(store.kept.len() < before, || {
        format!("version {version} of store {name} is not kept; the live one cannot be removed")
    })
}

pub(super) fn store_removed(map: &mut Map, name: &StoreName) -> Result<(), String> {
    let store = store(&mut map.stores, name)?;
    ensure(store.push.is_none(), || {
        format!(
            "a version of store {name} is being pushed; wait until that has ended, or give it up: larder cluster abort-push {name}"
        )
    })?;
    map.stores.remove(name);
    Ok(())
}

fn store<'a>(
    stores: &'a mut BTreeMap<StoreName, Store>,
    name: &StoreName,
) -> Result<&'a mut Store, String> {
    stores
        .get_mut(name)
        .ok_or_else(|| format!("there is no store {name}"))
}

fn push_of(store: &mut Store, name: &StoreName, version: VersionId) -> Result<Push, String> {
    let is_it = store
        .push
        .as_ref()
        .is_some_and(|it| it.version.version == version);
    ensure(is_it, || {
        format!("version {version} of store {name} is not being pushed")
    })?;
    Ok(store.push.take().expect("it was looked at above"))
}

fn end(store: &mut Store, ask: AskId, version: VersionId, failed: Option<String>) {
    store.ended.push(Ended {
        ask,
        version,
        failed,
    });
    let surplus = store.ended.len().saturating_sub(ENDED_MAX);
    store.ended.drain(..surplus);
}

fn members(map: &Map, nodes: &[NodeId]) -> Result<(), String> {
    let stranger = nodes.iter().find(|&&node| map.member(node).is_none());
    ensure(stranger.is_none(), || {
        format!("node number {stranger:?} is not a member")
    })
}

fn sorted(nodes: &[NodeId]) -> Vec<NodeId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
