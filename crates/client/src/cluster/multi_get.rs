//! `MGET` over several nodes: one part per node, executed concurrently.
//!
//! If a node no longer has all keys of a part, the part is retried with one part per slot. If several parts have keys
//! of the same store, each requests the store's version before and after its `MGET`, over the same connection:
//!
//! ```text
//!   STORE.VERSION pymk    MGET pymk:1 pymk:7 tline|ann|3    STORE.VERSION pymk
//! ```

use std::collections::BTreeMap;

use larder_protocol::resp::client::{Reply, argument, request, request_head};

use super::drive::{Call, CallOutcome, drive};
use super::topology::Topology;
use super::view::ClusterView;
use super::{KeyResult, value};
use crate::error::Error;

/// Maximum number of attempts if versions differ: nodes swap at slightly different times.
const TRIES: usize = 8;

type Values = Vec<KeyResult>;

pub(super) fn mget(view: &ClusterView, keys: &[&[u8]]) -> Result<Values, Error> {
    let mut store = Vec::new();
    for _ in 0..TRIES {
        let topology = view.topology()?;
        match mget_once(view, &topology, keys) {
            Ok(values) => return Ok(values),
            Err(of) => store = of,
        }
        view.mark_stale();
    }
    Err(Error::SeveralVersions {
        store: String::from_utf8_lossy(&store).into_owned(),
    })
}

/// Some of the keys, and the stores whose versions are requested.
struct KeyGroup<'a> {
    /// Indexes among all keys.
    at: Vec<usize>,
    /// The stores whose versions are requested.
    stores: Vec<&'a [u8]>,
}

/// Returns the values, or a store from which different versions were read.
fn mget_once(view: &ClusterView, topology: &Topology, keys: &[&[u8]]) -> Result<Values, Vec<u8>> {
    let mut values: Values = keys.iter().map(|_| Ok(None)).collect();
    let mut versions: BTreeMap<&[u8], Reply> = BTreeMap::new();
    let mut parts = by_node(view, topology, keys);
    let mut shared_stores = find_shared_stores(topology, keys, &parts);
    while !parts.is_empty() {
        for part in &mut parts {
            let mut stores = shared_stores.clone();
            stores.retain(|store| {
                part.at
                    .iter()
                    .any(|&at| store_of(topology, keys[at]) == Some(*store))
            });
            part.stores = stores;
        }
        let calls: Vec<Call> = parts
            .iter()
            .map(|part| call(topology, keys, part))
            .collect();
        let mut split = Vec::new();
        for (part, done) in parts.into_iter().zip(drive(view, &calls)) {
            match done {
                Err(error) => part
                    .at
                    .iter()
                    .for_each(|&at| values[at] = Err(error.clone())),
                Ok(CallOutcome::Split) => split.extend(by_slot(topology, keys, &part.at)),
                Ok(CallOutcome::Replies(mut replies)) => {
                    let after = replies.split_off(part.stores.len() + 1);
                    let main = replies.pop().unwrap_or(Reply::Null);
                    for ((store, before), after) in part.stores.iter().zip(replies).zip(after) {
                        let first = versions.entry(store).or_insert_with(|| before.clone());
                        if before != after || *first != before {
                            return Err(store.to_vec());
                        }
                    }
                    store_values(&mut values, &part.at, main);
                }
            }
        }
        // A store that was in only one part has no version reply yet.
        shared_stores.extend(find_shared_stores(topology, keys, &split));
        shared_stores.sort_unstable();
        shared_stores.dedup();
        parts = split;
    }
    Ok(values)
}

fn store_of<'a>(topology: &Topology, key: &'a [u8]) -> Option<&'a [u8]> {
    topology.store_of(key).flatten()
}

/// Divides the keys into one part per node, by the preferred node of each key.
fn by_node<'a>(view: &ClusterView, topology: &Topology, keys: &[&'a [u8]]) -> Vec<KeyGroup<'a>> {
    let has_zone = view.options.zone.is_some();
    let mut nodes: BTreeMap<(Option<String>, bool), Vec<usize>> = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        let is_near = has_zone && store_of(topology, key).is_some();
        let node = view.preferred(topology, topology.slot(key), is_near);
        nodes.entry((node, is_near)).or_default().push(at);
    }
    nodes.into_values().map(key_group).collect()
}

fn by_slot<'a>(topology: &Topology, keys: &[&'a [u8]], all: &[usize]) -> Vec<KeyGroup<'a>> {
    let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for &at in all {
        slots.entry(topology.slot(keys[at])).or_default().push(at);
    }
    slots.into_values().map(key_group).collect()
}

fn key_group<'a>(at: Vec<usize>) -> KeyGroup<'a> {
    KeyGroup {
        at,
        stores: Vec::new(),
    }
}

/// Returns the stores whose keys are in several parts. A single node ensures that its part has one version.
fn find_shared_stores<'a>(
    topology: &Topology,
    keys: &[&'a [u8]],
    parts: &[KeyGroup<'a>],
) -> Vec<&'a [u8]> {
    let mut of_parts: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for (number, part) in parts.iter().enumerate() {
        for store in part
            .at
            .iter()
            .filter_map(|&at| store_of(topology, keys[at]))
        {
            let numbers = of_parts.entry(store).or_default();
            if numbers.last() != Some(&number) {
                numbers.push(number);
            }
        }
    }
    let several = of_parts.into_iter().filter(|(_, of)| of.len() > 1);
    several.map(|(store, _)| store).collect()
}

fn call(topology: &Topology, keys: &[&[u8]], part: &KeyGroup<'_>) -> Call {
    let mut bytes = Vec::new();
    let version = |bytes: &mut Vec<u8>| {
        for store in &part.stores {
            request(bytes, &[&b"STORE.VERSION"[..], store]);
        }
    };
    version(&mut bytes);
    request_head(&mut bytes, 1 + part.at.len());
    argument(&mut bytes, b"MGET");
    for &at in &part.at {
        argument(&mut bytes, keys[at]);
    }
    version(&mut bytes);
    let slots = part.at.iter().map(|&at| topology.slot(keys[at]));
    let mut slots: Vec<u16> = slots.collect();
    slots.sort_unstable();
    slots.dedup();
    Call {
        slots,
        request: bytes,
        replies: 1 + 2 * part.stores.len(),
        main: part.stores.len(),
        is_read: true,
        of_stores: part
            .at
            .iter()
            .all(|&at| store_of(topology, keys[at]).is_some()),
        is_point: part.at.len() == 1,
    }
}

fn store_values(values: &mut Values, at: &[usize], reply: Reply) {
    match reply {
        Reply::Array(items) if items.len() == at.len() => {
            for (&at, item) in at.iter().zip(items) {
                values[at] = value(item);
            }
        }
        Reply::Error(error) => {
            for &at in at {
                values[at] = Err(crate::resp_client::refused(error.clone()));
            }
        }
        other => {
            for &at in at {
                values[at] = value(other.clone()).and(Err(Error::Protocol {
                    address: "the cluster".to_owned(),
                    detail: "MGET: not as many values as keys".to_owned(),
                }));
            }
        }
    }
}
