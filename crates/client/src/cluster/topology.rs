//! The client's knowledge of which nodes have which slots: the reply to `CLUSTER SLOTS`, updated by redirections.
//!
//! A topology is replaced as a unit; a call uses the same topology until it ends.
//!
//! Invariants:
//! 1. Every slot has a list of nodes, owner first, possibly empty. A list has no duplicates.
//! 2. A node that is missing in a new reply is removed from the topology.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use larder_protocol::resp::client::Reply;
use larder_types::{SLOTS, row_slot, slot_of};

/// The client's knowledge of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// `host:port` of each node, and its zone if the server reports it.
    pub nodes: Vec<NodeEntry>,
    /// Lists of indexes into `nodes`, each with the owner first.
    lists: Vec<Arc<[u16]>>,
    /// The list of each slot.
    by_slot: Box<[u16]>,
    /// Increases with each change of the cluster map; 0 if it is not reported.
    pub epoch: u64,
    /// The names of all stores, if the server is larder: keys with other names are rows of tables.
    pub stores: Option<HashSet<Vec<u8>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    pub address: String,
    pub zone: Option<String>,
}

impl Topology {
    /// Returns a topology with one node that has all slots.
    pub fn single_node(address: &str) -> Topology {
        let mut topology = Topology::empty();
        topology.set(0, SLOTS - 1, &[NodeEntry::at(address)]);
        topology
    }

    /// Returns a topology without nodes.
    pub fn empty() -> Topology {
        Topology {
            nodes: Vec::new(),
            lists: vec![Arc::from([])],
            by_slot: vec![0; usize::from(SLOTS)].into(),
            epoch: 0,
            stores: None,
        }
    }

    /// Parses the reply of node `queried` to `CLUSTER SLOTS`.
    ///
    /// # Errors
    /// The reason why the reply is invalid.
    pub fn from_reply(reply: &Reply, queried: &str) -> Result<Topology, String> {
        let mut topology = Topology::empty();
        for entry in array(reply).ok_or("CLUSTER SLOTS: no array")? {
            let entry = array(entry).ok_or("CLUSTER SLOTS: an entry is no array")?;
            let (Some(from), Some(to)) =
                (entry.first().and_then(slot), entry.get(1).and_then(slot))
            else {
                return Err("CLUSTER SLOTS: an entry has no slots".to_owned());
            };
            if from > to {
                return Err(format!("CLUSTER SLOTS: slots {from} to {to}"));
            }
            let nodes = entry[2..].iter().map(|node| parse_node(node, queried));
            let nodes: Result<Vec<NodeEntry>, String> = nodes.collect();
            topology.set(from, to, &nodes?);
        }
        Ok(topology)
    }

    fn set(&mut self, from: u16, to: u16, entries: &[NodeEntry]) {
        let mut list: Vec<u16> = Vec::with_capacity(entries.len());
        for node in entries {
            let place = self.index_of(node);
            if !list.contains(&place) {
                list.push(place);
            }
        }
        let list: Arc<[u16]> = list.into();
        let known = self.lists.iter().position(|known| *known == list);
        let number = known.unwrap_or_else(|| {
            self.lists.push(list);
            self.lists.len() - 1
        });
        self.by_slot[usize::from(from)..=usize::from(to)].fill(number as u16);
    }

    fn index_of(&mut self, node: &NodeEntry) -> u16 {
        let known = self.nodes.iter().position(|it| it.address == node.address);
        let place = known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        place as u16
    }

    /// Applies a `MOVED` reply: `address` owns the slot. Nodes that had copies may still have them.
    pub fn set_owner(&mut self, slot: u16, address: &str) {
        let mut list = vec![NodeEntry::at(address)];
        list.extend(self.holders(slot).map(NodeEntry::at));
        self.set(slot, slot, &list);
    }

    /// Returns the addresses of the nodes that have a slot, owner first.
    pub fn holders(&self, slot: u16) -> impl Iterator<Item = &str> + Clone {
        let list = &self.lists[usize::from(self.by_slot[usize::from(slot)])];
        let node = |&at: &u16| self.nodes[usize::from(at)].address.as_str();
        list.iter().map(node)
    }

    /// Returns the number of slots that each node owns.
    pub fn owned(&self) -> BTreeMap<&str, u32> {
        let mut owned = BTreeMap::new();
        for slot in 0..SLOTS {
            if let Some(owner) = self.holders(slot).next() {
                *owned.entry(owner).or_default() += 1;
            }
        }
        owned
    }

    /// Returns the slot of a key. larder's tables use the leading column; everything else follows Redis Cluster's
    /// rule.
    pub fn slot(&self, key: &[u8]) -> u16 {
        match self.store_of(key) {
            Some(None) => row_slot(key),
            _ => slot_of(key),
        }
    }

    /// Returns `None` if the server is not larder; otherwise the store of a key, if it belongs to one.
    pub fn store_of<'a>(&self, key: &'a [u8]) -> Option<Option<&'a [u8]>> {
        let stores = self.stores.as_ref()?;
        let end = key.iter().position(|byte| matches!(byte, b':' | b'|'));
        let name = &key[..end.unwrap_or(0)];
        Some(stores.contains(name).then_some(name))
    }
}

impl NodeEntry {
    fn at(address: &str) -> NodeEntry {
        NodeEntry {
            address: address.to_owned(),
            zone: None,
        }
    }
}

/// Parses `[host, port, id, more]`. Without a host it is that of the queried node.
fn parse_node(node: &Reply, queried: &str) -> Result<NodeEntry, String> {
    let wrong = || "CLUSTER SLOTS: a node has no host and port".to_owned();
    let fields = array(node).ok_or_else(wrong)?;
    let port = match fields.get(1) {
        Some(Reply::Integer(port)) => u16::try_from(*port).map_err(|_| wrong())?,
        _ => return Err(wrong()),
    };
    let host = match fields.first() {
        Some(Reply::Bulk(host)) => String::from_utf8_lossy(host).into_owned(),
        Some(Reply::Simple(host)) => host.clone(),
        Some(Reply::Null) => String::new(),
        _ => return Err(wrong()),
    };
    Ok(NodeEntry {
        address: address(&host, port, queried),
        zone: fields.get(3).and_then(zone),
    })
}

/// Returns `host:port`. Without a host, or if the server does not know its own name, the host is that of `queried`.
pub(crate) fn address(host: &str, port: u16, queried: &str) -> String {
    let host = match host {
        "" | "?" => queried.rsplit_once(':').map_or(queried, |(host, _)| host),
        host => host,
    };
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Parses a node's metadata: names and values, as an array or a map.
fn zone(metadata: &Reply) -> Option<String> {
    let pairs: Vec<(&Reply, &Reply)> = match metadata {
        Reply::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        Reply::Array(items) => items.chunks_exact(2).map(|it| (&it[0], &it[1])).collect(),
        _ => return None,
    };
    let (_, zone) = pairs
        .into_iter()
        .find(|(name, _)| **name == Reply::Bulk(b"availability-zone".to_vec()))?;
    match zone {
        Reply::Bulk(zone) => Some(String::from_utf8_lossy(zone).into_owned()),
        _ => None,
    }
}

fn array(reply: &Reply) -> Option<&[Reply]> {
    match reply {
        Reply::Array(items) => Some(items),
        _ => None,
    }
}

fn slot(reply: &Reply) -> Option<u16> {
    match reply {
        Reply::Integer(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    }
}

/// Returns the number after `cluster_current_epoch:` in the reply to `CLUSTER INFO`.
pub(crate) fn epoch_of(info: &Reply) -> u64 {
    let text = match info {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => String::from_utf8_lossy(text),
        _ => return 0,
    };
    let mut lines = text.lines();
    let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    epoch.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

/// Parses the reply to `STORE.LIST`; `None` if the server is not larder.
pub(crate) fn stores_of(list: &Reply) -> Option<HashSet<Vec<u8>>> {
    let name = |item: &Reply| match item {
        Reply::Bulk(name) => Some(name.clone()),
        Reply::Simple(name) => Some(name.clone().into_bytes()),
        _ => None,
    };
    array(list)?.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    fn node(host: Reply, port: i64, metadata: Reply) -> Reply {
        Reply::Array(vec![host, Reply::Integer(port), bulk("id"), metadata])
    }

    #[test]
    fn slots_are_decoded_in_both_versions_and_unknown_hosts_are_the_queried_one() {
        let none = || Reply::Array(Vec::new());
        let zone = Reply::Map(vec![(bulk("availability-zone"), bulk("east"))]);
        let reply = Reply::Array(vec![
            Reply::Array(vec![
                Reply::Integer(0),
                Reply::Integer(99),
                node(bulk("a"), 1, zone),
                node(bulk(""), 2, none()),
            ]),
            Reply::Array(vec![
                Reply::Integer(100),
                Reply::Integer(100),
                node(Reply::Null, 2, none()),
                node(bulk("?"), 2, none()),
                node(bulk("fe80::1"), 3, none()),
            ]),
        ]);
        let topology = Topology::from_reply(&reply, "asked:9").unwrap();
        let holders = |slot| topology.holders(slot).collect::<Vec<_>>();
        assert_eq!(holders(99), ["a:1", "asked:2"]);
        assert_eq!(holders(100), ["asked:2", "[fe80::1]:3"]);
        assert!(holders(101).is_empty());
        assert_eq!(topology.nodes[0].zone.as_deref(), Some("east"));
        assert_eq!(
            topology.owned().into_iter().collect::<Vec<_>>(),
            [("a:1", 100), ("asked:2", 1)]
        );
        assert_eq!(epoch_of(&bulk("x:1\r\ncluster_current_epoch:17\r\n")), 17);
    }

    #[test]
    fn malformed_replies_are_errors() {
        let entry = |from, to, node| {
            Reply::Array(vec![Reply::Array(vec![
                Reply::Integer(from),
                Reply::Integer(to),
                node,
            ])])
        };
        let port = |port| node(bulk("a"), port, Reply::Null);
        for wrong in [
            Reply::Null,
            entry(5, 4, port(1)),
            entry(0, 16_384, port(1)),
            entry(-1, 4, port(1)),
            entry(0, 4, port(70_000)),
            entry(0, 4, Reply::Integer(3)),
        ] {
            assert!(Topology::from_reply(&wrong, "a:1").is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_a_moved_slot_has_another_owner() {
        let mut topology = Topology::single_node("a:1");
        topology.set_owner(7, "b:2");
        topology.set_owner(7, "b:2");
        assert_eq!(topology.holders(7).collect::<Vec<_>>(), ["b:2", "a:1"]);
        assert_eq!(topology.holders(8).collect::<Vec<_>>(), ["a:1"]);
    }

    #[test]
    fn rows_are_routed_by_leading_column_and_records_by_complete_key() {
        let mut topology = Topology::single_node("a:1");
        assert_eq!(
            topology.slot(b"post|bob|1"),
            slot_of(b"post|bob|1"),
            "Redis's rule"
        );
        topology.stores = stores_of(&Reply::Array(vec![bulk("pymk")]));
        assert_eq!(topology.slot(b"post|bob|1"), slot_of(b"bob"));
        assert_eq!(topology.slot(b"post:bob:1"), slot_of(b"bob"));
        assert_eq!(topology.slot(b"pymk:bob:1"), slot_of(b"pymk:bob:1"));
        assert_eq!(topology.slot(b"pymk:{bob}:1"), slot_of(b"bob"));
        assert_eq!(topology.slot(b"plain"), slot_of(b"plain"));
    }
}
