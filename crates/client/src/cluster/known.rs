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

use super::attempt::ask;
use super::drive::Call;
use super::health::State;
use super::latency::{Budget, Recent};
use super::node::{Node, locked};
use super::topology::{Topology, epoch_of, stores_of};
use super::{ClusterCounts, ClusterOptions};
use crate::error::Error;

/// Minimum interval between refreshes of the topology.
const APART: Duration = Duration::from_millis(100);
/// Maximum number of nodes to query for a topology that is not older than the known one.
const ASKED: usize = 3;

pub(crate) struct Known {
    pub options: ClusterOptions,
    seeds: Vec<String>,
    map: Mutex<Map>,
    /// Held by the caller that refreshes the topology.
    learning: Mutex<()>,
    recent: [Mutex<Recent>; 2],
    pub budget: Mutex<Budget>,
    pub counters: Counters,
    began: Instant,
    random: Mutex<Random>,
    turn: AtomicUsize,
}

struct Map {
    topology: Arc<Topology>,
    nodes: Arc<BTreeMap<String, Arc<Node>>>,
    learned: Option<Instant>,
    is_doubted: bool,
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

impl Known {
    pub fn new(seeds: Vec<String>, options: ClusterOptions) -> Known {
        Known {
            seeds,
            map: Mutex::new(Map {
                topology: Arc::new(Topology::none()),
                nodes: Arc::default(),
                learned: None,
                is_doubted: false,
            }),
            learning: Mutex::default(),
            recent: Default::default(),
            budget: Mutex::new(Budget::new(options.hedge_percent)),
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

    pub fn recent(&self, is_point: bool) -> &Mutex<Recent> {
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
        let (learned, is_doubted) = {
            let map = locked(&self.map);
            (map.learned, map.is_doubted)
        };
        let age = learned.map(|learned| learned.elapsed());
        let is_due = match age {
            None => true,
            Some(age) => age >= self.options.refresh_after || (is_doubted && age >= APART),
        };
        if is_due {
            let told = self.learn(learned.is_none());
            // If the refresh fails, the known topology remains usable.
            if learned.is_none() {
                told?;
            }
        }
        Ok(locked(&self.map).topology.clone())
    }

    /// Records evidence that the topology is outdated.
    pub fn doubt(&self) {
        locked(&self.map).is_doubted = true;
    }

    /// Refreshes the topology now. If another caller is already refreshing it, returns immediately, unless `wait` is
    /// set.
    ///
    /// # Errors
    /// If no node returns one.
    pub fn learn(&self, wait: bool) -> Result<(), Error> {
        let _learning = match self.learning.try_lock() {
            Ok(learning) => learning,
            Err(_) if !wait => return Ok(()),
            Err(_) => {
                let learning = locked(&self.learning);
                if locked(&self.map).learned.is_some() {
                    return Ok(());
                }
                learning
            }
        };
        let (known, nodes) = {
            let map = locked(&self.map);
            (map.topology.clone(), map.nodes.clone())
        };
        let (mut newest, mut failure): (Option<Topology>, _) = (None, None);
        let (began, mut told) = (Instant::now(), 0);
        for node in self.to_ask(&nodes) {
            if told == ASKED || began.elapsed() >= self.options.timeout {
                break;
            }
            match self.ask_topology(&node) {
                Err(error) => failure = Some(error),
                Ok(topology) => {
                    told += 1;
                    // A partitioned node returns an outdated topology.
                    let is_old = topology.epoch < known.epoch;
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
                self.take(topology);
                Ok(())
            }
            None => {
                let mut map = locked(&self.map);
                // Prevents an immediate retry.
                map.learned = map.learned.map(|_| Instant::now());
                Err(failure.unwrap_or_else(|| Error::BadAddress {
                    address: self.seeds.join(", "),
                    detail: "no node was named".to_owned(),
                }))
            }
        }
    }

    /// Returns the known nodes, starting with a random one and with failed ones last, followed by the nodes that the
    /// caller configured.
    fn to_ask<'a>(
        &'a self,
        nodes: &'a BTreeMap<String, Arc<Node>>,
    ) -> impl Iterator<Item = Arc<Node>> + 'a {
        let now_ms = self.now_ms();
        let mut all: Vec<Arc<Node>> = nodes.values().cloned().collect();
        if !all.is_empty() {
            let first = self.random() as usize % all.len();
            all.rotate_left(first);
        }
        all.sort_by_key(|node| matches!(node.state(now_ms), State::Out(_)));
        let seeds = self.seeds.iter().filter(|seed| !nodes.contains_key(*seed));
        let seeds = seeds.map(|seed| Arc::new(Node::new(seed, None)));
        all.into_iter().chain(seeds)
    }

    fn ask_topology(&self, node: &Arc<Node>) -> Result<Topology, Error> {
        let mut bytes = Vec::new();
        request(&mut bytes, &["CLUSTER", "SLOTS"]);
        request(&mut bytes, &["CLUSTER", "INFO"]);
        request(&mut bytes, &["STORE.LIST"]);
        let replies = ask(self, node, &bytes, 3)?;
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
                Topology::one(&node.address)
            }
            Reply::Error(error) => return Err(crate::resp_client::refused(error.clone())),
            slots => Topology::of_reply(slots, &node.address).map_err(protocol)?,
        };
        if topology.nodes.is_empty() {
            return Err(protocol("CLUSTER SLOTS: nobody has any slot".to_owned()));
        }
        topology.epoch = epoch_of(info);
        topology.stores = stores_of(stores);
        Ok(topology)
    }

    fn take(&self, topology: Topology) {
        count(&self.counters.topologies);
        let mut map = locked(&self.map);
        let nodes = topology.nodes.iter().map(|told| {
            let known = map.nodes.get(&told.address);
            let zone = self.options.zones.get(&told.address).or(told.zone.as_ref());
            let node = match known {
                Some(node) if node.zone.as_ref() == zone => node.clone(),
                _ => Arc::new(Node::new(&told.address, zone.cloned())),
            };
            (told.address.clone(), node)
        });
        map.nodes = Arc::new(nodes.collect());
        map.topology = Arc::new(topology);
        map.learned = Some(Instant::now());
        map.is_doubted = false;
    }

    /// Records the slot's location from a `MOVED` reply.
    pub fn moved(&self, slot: u16, address: &str) {
        let mut map = locked(&self.map);
        map.is_doubted = true;
        if slot < larder_types::SLOTS && map.topology.having(slot).next() != Some(address) {
            let mut topology = Topology::clone(&map.topology);
            topology.moved(slot, address);
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
        let mut having = topology.having(slot);
        let owner = having.clone().next();
        let near = having.find(|address| of_stores && self.is_near(&self.node(address)));
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
        let mut having: Vec<Arc<Node>> = Vec::new();
        for &slot in &call.slots {
            let known = topology
                .having(slot)
                .filter_map(|address| nodes.get(address));
            for node in known {
                if !having.iter().any(|it| it.address == node.address) {
                    having.push(node.clone());
                }
            }
        }
        if call.of_stores {
            having.sort_by_key(|node| !self.is_near(node));
        }
        let is_other = |node: &&Arc<Node>| !having.iter().any(|it| it.address == node.address);
        let mut others: Vec<Arc<Node>> = nodes.values().filter(is_other).cloned().collect();
        if !others.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % others.len();
            others.rotate_left(turn);
        }
        others.sort_by_key(|node| !self.is_near(node));
        let now_ms = self.now_ms();
        having.append(&mut others);
        having.sort_by_key(|node| matches!(node.state(now_ms), State::Out(_)));
        having
    }
}
