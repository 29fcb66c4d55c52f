//! The shared state of a client: the topology, the nodes, recent latencies, the counters.
//!
//! One caller at a time refreshes the topology when it is due; the others continue with the current one. The first
//! topology is waited for.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_protocol::resp::client::{Reply, request};
use larder_types::Random;

use super::attempt::exchange;
use super::drive::Call;
use super::health::NodeState;
use super::latency::{HedgeBudget, LatencyWindow};
use super::node::{Node, locked};
use super::topology::{Topology, epoch_of, stores_of};
use super::{ClusterCounts, ClusterOptions};
use crate::error::Error;

/// Minimum interval between refreshes of the topology.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum number of nodes to query for a topology that is not older than the known one.
const ANSWERS_MAX: usize = 3;

pub(crate) struct ClusterView {
    pub options: ClusterOptions,
    seeds: Vec<String>,
    map: Mutex<ViewState>,
    /// Held by the caller that refreshes the topology.
    refresh_lock: Mutex<()>,
    recent: [Mutex<LatencyWindow>; 2],
    pub budget: Mutex<HedgeBudget>,
    pub counters: Counters,
    began: Instant,
    random: Mutex<Random>,
    turn: AtomicUsize,
}

struct ViewState {
    topology: Arc<Topology>,
    nodes: Arc<BTreeMap<String, Arc<Node>>>,
    refreshed_at: Option<Instant>,
    is_stale: bool,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub requests: AtomicU64,
    pub retries: AtomicU64,
    pub hedges: AtomicU64,
    pub hedges_won: AtomicU64,
    pub redirections: AtomicU64,
    pub topologies: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ClusterView {
    pub fn new(seeds: Vec<String>, options: ClusterOptions) -> ClusterView {
        ClusterView {
            seeds,
            map: Mutex::new(ViewState {
                topology: Arc::new(Topology::empty()),
                nodes: Arc::default(),
                refreshed_at: None,
                is_stale: false,
            }),
            refresh_lock: Mutex::default(),
            recent: Default::default(),
            budget: Mutex::new(HedgeBudget::new(options.hedge_percent)),
            counters: Counters::default(),
            began: Instant::now(),
            random: Mutex::new(Random::new(RandomState::new().hash_one(0))),
            turn: AtomicUsize::new(0),
            options,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub fn random(&self) -> u64 {
        locked(&self.random).word()
    }

    pub fn recent(&self, is_point: bool) -> &Mutex<LatencyWindow> {
        &self.recent[usize::from(is_point)]
    }

    pub fn counts(&self) -> ClusterCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClusterCounts {
            requests: of(&self.counters.requests),
            retries: of(&self.counters.retries),
            hedges: of(&self.counters.hedges),
            hedges_won: of(&self.counters.hedges_won),
            redirections: of(&self.counters.redirections),
            topologies: of(&self.counters.topologies),
        }
    }

    /// Returns the topology, and refreshes it if that is due.
    ///
    /// # Errors
    /// If there is none yet, and no node returns one.
    pub fn topology(&self) -> Result<Arc<Topology>, Error> {
        let (refreshed_at, is_stale) = {
            let map = locked(&self.map);
            (map.refreshed_at, map.is_stale)
        };
        let age = refreshed_at.map(|refreshed_at| refreshed_at.elapsed());
        let is_due = match age {
            None => true,
            Some(age) => {
                age >= self.options.refresh_after || (is_stale && age >= REFRESH_INTERVAL_MIN)
            }
        };
        if is_due {
            let refreshed = self.refresh(refreshed_at.is_none());
            // If the refresh fails, the known topology remains usable.
            if refreshed_at.is_none() {
                refreshed?;
            }
        }
        Ok(locked(&self.map).topology.clone())
    }

    /// Records evidence that the topology is outdated.
    pub fn mark_stale(&self) {
        locked(&self.map).is_stale = true;
    }

    /// Refreshes the topology now. If another caller is already refreshing it, returns immediately, unless `wait` is
    /// set.
    ///
    /// # Errors
    /// If no node returns one.
    pub fn refresh(&self, wait: bool) -> Result<(), Error> {
        let _learning = match self.refresh_lock.try_lock() {
            Ok(refresh_lock) => refresh_lock,
            Err(_) if !wait => return Ok(()),
            Err(_) => {
                let refresh_lock = locked(&self.refresh_lock);
                if locked(&self.map).refreshed_at.is_some() {
                    return Ok(());
                }
                refresh_lock
            }
        };
        let (current, nodes) = {
            let map = locked(&self.map);
            (map.topology.clone(), map.nodes.clone())
        };
        let (mut newest, mut failure): (Option<Topology>, _) = (None, None);
        let (began, mut answers) = (Instant::now(), 0);
        for node in self.refresh_candidates(&nodes) {
            if answers == ANSWERS_MAX || began.elapsed() >= self.options.timeout {
                break;
            }
            match self.fetch_topology(&node) {
                Err(error) => failure = Some(error),
                Ok(topology) => {
                    answers += 1;
                    // A partitioned node returns an outdated topology.
                    let is_old = topology.epoch < current.epoch;
                    if newest.as_ref().is_none_or(|it| it.epoch < topology.epoch) {
                        newest = Some(topology);
                    }
                    if !is_old {
                        break;
                    }
                }
            }
        }
        match newest {
            Some(topology) => {
                self.apply(topology);
                Ok(())
            }
            None => {
                let mut map = locked(&self.map);
                // Prevents an immediate retry.
                map.refreshed_at = map.refreshed_at.map(|_| Instant::now());
                Err(failure.unwrap_or_else(|| Error::BadAddress {
                    address: self.seeds.join(", "),
                    detail: "no node was named".to_owned(),
                }))
            }
        }
    }

    /// Returns the known nodes, starting with a random one and with failed ones last, followed by the nodes that the
    /// caller configured.
    fn refresh_candidates<'a>(
        &'a self,
        nodes: &'a BTreeMap<String, Arc<Node>>,
    ) -> impl Iterator<Item = Arc<Node>> + 'a {
        let now_ms = self.now_ms();
        let mut all: Vec<Arc<Node>> = nodes.values().cloned().collect();
        if !all.is_empty() {
            let first = self.random() as usize % all.len();
            all.rotate_left(first);
        }
        all.sort_by_key(|node| matches!(node.state(now_ms), NodeState::Excluded(_)));
        let seeds = self.seeds.iter().filter(|seed| !nodes.contains_key(*seed));
        let seeds = seeds.map(|seed| Arc::new(Node::new(seed, None)));
        all.into_iter().chain(seeds)
    }

    fn fetch_topology(&self, node: &Arc<Node>) -> Result<Topology, Error> {
        let mut bytes = Vec::new();
        request(&mut bytes, &["CLUSTER", "SLOTS"]);
        request(&mut bytes, &["CLUSTER", "INFO"]);
        request(&mut bytes, &["STORE.LIST"]);
        let replies = exchange(self, node, &bytes, 3)?;
        let [slots, info, stores] = &replies[..] else {
            unreachable!("as many replies as requests")
        };
        let protocol = |detail: String| Error::Protocol {
            address: node.address.clone(),
            detail,
        };
        let mut topology = match slots {
            // A server without a cluster has all slots.
            Reply::Error(error) if error.message.contains("cluster support disabled") => {
                Topology::single_node(&node.address)
            }
            Reply::Error(error) => return Err(crate::resp_client::refused(error.clone())),
            slots => Topology::from_reply(slots, &node.address).map_err(protocol)?,
        };
        if topology.nodes.is_empty() {
            return Err(protocol("CLUSTER SLOTS: no node has any slot".to_owned()));
        }
        topology.epoch = epoch_of(info);
        topology.stores = stores_of(stores);
        Ok(topology)
    }

    fn apply(&self, topology: Topology) {
        count(&self.counters.topologies);
        let mut map = locked(&self.map);
        let nodes = topology.nodes.iter().map(|entry| {
            let existing = map.nodes.get(&entry.address);
            let zone = self
                .options
                .zones
                .get(&entry.address)
                .or(entry.zone.as_ref());
            let node = match existing {
                Some(node) if node.zone.as_ref() == zone => node.clone(),
                _ => Arc::new(Node::new(&entry.address, zone.cloned())),
            };
            (entry.address.clone(), node)
        });
        map.nodes = Arc::new(nodes.collect());
        map.topology = Arc::new(topology);
        map.refreshed_at = Some(Instant::now());
        map.is_stale = false;
    }

    /// Records the slot's location from a `MOVED` reply.
    pub fn record_move(&self, slot: u16, address: &str) {
        let mut map = locked(&self.map);
        map.is_stale = true;
        if slot < larder_types::SLOTS && map.topology.holders(slot).next() != Some(address) {
            let mut topology = Topology::clone(&map.topology);
            topology.set_owner(slot, address);
            map.topology = Arc::new(topology);
        }
    }

    /// Returns a node by its address, including nodes that are known only from redirections.
    pub fn node(&self, address: &str) -> Arc<Node> {
        let mut map = locked(&self.map);
        if let Some(node) = map.nodes.get(address) {
            return node.clone();
        }
        let zone = self.options.zones.get(address).cloned();
        let node = Arc::new(Node::new(address, zone));
        let mut nodes = BTreeMap::clone(&map.nodes);
        nodes.insert(address.to_owned(), node.clone());
        map.nodes = Arc::new(nodes);
        node
    }

    pub fn nodes(&self) -> Arc<BTreeMap<String, Arc<Node>>> {
        locked(&self.map).nodes.clone()
    }

    /// Returns the address of the preferred node for a key, if all are healthy.
    pub fn preferred(&self, topology: &Topology, slot: u16, of_stores: bool) -> Option<String> {
        let mut holders = topology.holders(slot);
        let owner = holders.clone().next();
        let near = holders.find(|address| of_stores && self.is_near(&self.node(address)));
        near.or(owner).map(str::to_owned)
    }

    fn is_near(&self, node: &Node) -> bool {
        self.options.zone.is_some() && node.zone == self.options.zone
    }

    /// Returns the candidate nodes for a call, best first: those that have the slot, then the others, which forward
    /// it. Failed ones come last.
    pub fn candidates(&self, call: &Call) -> Vec<Arc<Node>> {
        let (topology, nodes) = {
            let map = locked(&self.map);
            (map.topology.clone(), map.nodes.clone())
        };
        let mut holders: Vec<Arc<Node>> = Vec::new();
        for &slot in &call.slots {
            let slot_holders = topology
                .holders(slot)
                .filter_map(|address| nodes.get(address));
            for node in slot_holders {
                if !holders.iter().any(|it| it.address == node.address) {
                    holders.push(node.clone());
                }
            }
        }
        if call.of_stores {
            holders.sort_by_key(|node| !self.is_near(node));
        }
        let is_other = |node: &&Arc<Node>| !holders.iter().any(|it| it.address == node.address);
        let mut others: Vec<Arc<Node>> = nodes.values().filter(is_other).cloned().collect();
        if !others.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % others.len();
            others.rotate_left(turn);
        }
        others.sort_by_key(|node| !self.is_near(node));
        let now_ms = self.now_ms();
        holders.append(&mut others);
        holders.sort_by_key(|node| matches!(node.state(now_ms), NodeState::Excluded(_)));
        holders
    }
}
