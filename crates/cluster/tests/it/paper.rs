//! A calculation for a thousand nodes and 100 TB: the cost of the map, its changes, a push and membership at that size.
//! `LARDER_PAPER=1` prints the tables of `bench/runs/<date>-<host>/cluster-paper.md`; build with `--release`, like a server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use larder_cluster::controller::{
    ControllerRequest, Decision, Inputs, Progress, Report, SyncedReplica, VersionProgress, decide,
};
use larder_cluster::map::{
    ChangeId, Lookup, Map, NodeId, NodeName, Registration, RequestId, Settings, SlotRange,
};
use larder_cluster::placement::{
    Balance, CurrentPlacement, PlacementNode, current_placement, place,
};

use crate::maps::{hand_over_change, registration};

const ZONES: u32 = 5;
const REPLICAS: u8 = 3;
/// etcd's limit on the size of a request.
const REQUEST_BYTES_MAX: usize = 1536 * 1024;

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

/// The median of five runs.
fn median<T>(mut work: impl FnMut() -> T) -> Duration {
    let mut times: Vec<Duration> = (0..5).map(|_| timed(&mut work).1).collect();
    times.sort_unstable();
    times[2]
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// A cluster whose nodes complete their work immediately.
struct Paper {
    map: Map,
    registered: BTreeMap<NodeName, Registration>,
    reports: BTreeMap<NodeName, Report>,
    requests: Vec<(RequestId, ControllerRequest)>,
    now_ms: u64,
    /// The number of filled slots, and the total time in `decide` and `apply`.
    filled: u32,
    decided: Duration,
    longest: Duration,
    applied: Duration,
    text_bytes_max: usize,
}

impl Paper {
    fn new(count: u32) -> Paper {
        let settings = Settings {
            replicas: REPLICAS,
            start_nodes: count,
            fill_slots_at_once: 2_048,
            ..Settings::default()
        };
        let all = (1..=count).map(Paper::node);
        Paper {
            map: Map::new("large", settings),
            registered: all.map(|it| (it.name.clone(), it)).collect(),
            reports: BTreeMap::new(),
            requests: Vec::new(),
            now_ms: 1_000,
            filled: 0,
            decided: Duration::ZERO,
            longest: Duration::ZERO,
            applied: Duration::ZERO,
            text_bytes_max: 0,
        }
    }

    fn node(number: u32) -> Registration {
        registration(number, &format!("zone-{}", number % ZONES), 1)
    }

    fn decide(&self) -> Decision {
        decide(&Inputs {
            map: &self.map,
            now_ms: self.now_ms,
            registered: &self.registered,
            reports: &self.reports,
            requests: &self.requests,
        })
    }

    /// Runs until there is nothing to do. Returns the number of changes.
    fn settle(&mut self) -> u32 {
        let mut changes = 0;
        loop {
            self.fill();
            let (decision, took) = timed(|| self.decide());
            self.decided += took;
            self.longest = self.longest.max(took);
            match decision {
                Decision::Change { change, .. } => {
                    let (next, took) = timed(|| self.map.apply(&change, &ChangeId::default()));
                    self.applied += took;
                    self.map = next.expect("it fits");
                    changes += 1;
                    if changes % 16 == 1 {
                        let bytes = self.map.to_text().len();
                        self.text_bytes_max = self.text_bytes_max.max(bytes);
                    }
                }
                Decision::Answer { request, .. } => self.requests.retain(|(id, _)| *id != request),
                Decision::Wait { .. } => {
                    let Some(change) = hand_over_change(&self.map, |_| true) else {
                        return changes;
                    };
                    let next = self.map.apply(&change, &ChangeId::default());
                    self.map = next.expect("it fits");
                    changes += 1;
                }
            }
        }
    }

    /// Completes all fills.
    fn fill(&mut self) {
        for report in self.reports.values_mut() {
            report.synced.clear();
            report.epoch = self.map.epoch();
        }
        for run in self.map.slots().runs() {
            for filling in &run.placement.filling {
                let owner = run.placement.owner.and_then(|owner| self.map.member(owner));
                let owner = owner.expect("it has one");
                let report = self.reports.entry(owner.name().clone()).or_default();
                report.incarnation = owner.registration.incarnation;
                report.epoch = self.map.epoch();
                report.synced.push(SyncedReplica {
                    slots: run.slots,
                    term: run.placement.term,
                    node: filling.node,
                    began: filling.began,
                });
                self.filled += run.slots.count();
            }
        }
    }

    /// Every node reports progress with a version; `ready` of them report that it is ready.
    fn report(&mut self, ready: usize) {
        let store = "store".parse().expect("a name");
        let Some(push) = self.map.stores().get(&store).and_then(|it| it.push.clone()) else {
            return;
        };
        for (at, member) in self.map.members().iter().enumerate() {
            let report = self.reports.entry(member.name().clone()).or_default();
            report.incarnation = member.registration.incarnation;
            report.epoch = self.map.epoch();
            let progress = if at < ready {
                Progress::Ready {
                    digest: push.version.digest.clone(),
                }
            } else {
                Progress::Pulling {
                    bytes: 1 << 30,
                    of_bytes: 300 << 30,
                }
            };
            report.versions = vec![VersionProgress {
                store: store.clone(),
                version: push.version.version,
                progress,
            }];
        }
    }
}

/// The approximate size of the reply to `CLUSTER SLOTS`.
fn slots_bytes(map: &Map) -> (usize, usize) {
    let lookup = Lookup::new(map);
    let nodes: usize = lookup
        .served_ranges()
        .iter()
        .map(|it| 1 + it.replicas.len())
        .sum();
    let entries = lookup.served_ranges().len();
    // Two numbers per entry; host, port and an id of 40 digits per node.
    (entries, entries * 24 + nodes * 85)
}

fn assignment(count: u32) -> Vec<String> {
    let nodes: Vec<PlacementNode> = (1..=count)
        .map(|number| {
            let it = Paper::node(number);
            PlacementNode {
                id: NodeId(number),
                name: it.name,
                zone: it.zone,
                weight: it.weight,
            }
        })
        .collect();
    let nothing = [CurrentPlacement {
        slots: SlotRange::ALL,
        goal: Vec::new(),
        present: Vec::new(),
    }];
    let goals = place(&nothing, &nodes, REPLICAS, 5);
    let from_nothing = median(|| place(&nothing, &nodes, REPLICAS, 5));
    let balance = Balance::of(
        goals.iter().map(|(slots, goal)| (*slots, &goal[..])),
        &nodes,
        REPLICAS,
    );
    let old: Vec<CurrentPlacement> = goals
        .iter()
        .map(|(slots, goal)| CurrentPlacement {
            slots: *slots,
            goal: goal.clone(),
            present: Vec::new(),
        })
        .collect();
    let without = &nodes[..nodes.len() - 1];
    let one_dies = median(|| place(&old, without, REPLICAS, 5));
    // Nodes that share a slot with the first node: if one of them dies with it, copies are lost.
    let first = nodes[0].id;
    let shared = goals.iter().filter(|(_, goal)| goal.contains(&first));
    let neighbours: BTreeSet<NodeId> = shared.flat_map(|(_, goal)| goal.clone()).collect();
    vec![
        ms(from_nothing),
        ms(one_dies),
        format!("{:.2}, {:.2}", balance.owned_worst, balance.held_worst),
        format!("{}", neighbours.len() - 1),
    ]
}

fn row(name: &str, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    println!("| {name} | {} |", cells.join(" | "));
}

fn columns(counts: &[u32], rows: &[&str], of: impl Fn(u32) -> Vec<String>) {
    let cells: Vec<Vec<String>> = counts.iter().map(|&count| of(count)).collect();
    for (at, name) in rows.iter().enumerate() {
        row(name, cells.iter().map(|cells| cells[at].clone()));
    }
}

fn lifecycle(count: u32) -> Vec<String> {
    let mut paper = Paper::new(count);
    let start = paper.settle();
    let (decided, applied) = (paper.decided, paper.applied);
    let map = paper.map.clone();
    let text = map.to_text();
    let (entries, bytes) = slots_bytes(&map);
    let quiet = median(|| paper.decide());
    let nodes: Vec<PlacementNode> = map.members().iter().map(PlacementNode::of).collect();
    let again = median(|| place(&current_placement(&map, &nodes), &nodes, REPLICAS, 5));

    let newcomer = Paper::node(count + 1);
    paper
        .registered
        .insert(newcomer.name.clone(), newcomer.clone());
    let phase = |paper: &mut Paper| {
        (paper.filled, paper.decided, paper.longest) = (0, Duration::ZERO, Duration::ZERO);
        paper.now_ms += 1_000;
        let changes = paper.settle();
        let copies = f64::from(paper.filled) / 16_384.0 / f64::from(REPLICAS);
        format!(
            "{changes}; {:.2} % of all copies; {} (longest {})",
            copies * 100.0,
            ms(paper.decided),
            ms(paper.longest)
        )
    };
    let join = phase(&mut paper);
    paper.registered.remove(&newcomer.name);
    let death = phase(&mut paper);
    paper.now_ms += paper.map.settings().replace_after_ms;
    let replaced = phase(&mut paper);
    let zone: Vec<NodeName> = paper
        .registered
        .values()
        .filter(|it| it.zone == "zone-1")
        .map(|it| it.name.clone())
        .collect();
    for name in zone {
        paper.registered.remove(&name);
    }
    let zone_dies = phase(&mut paper);
    paper.now_ms += paper.map.settings().replace_after_ms;
    let zone_replaced = phase(&mut paper);
    let max = paper.text_bytes_max.max(text.len());
    vec![
        format!("{start}; {} + {}", ms(decided), ms(applied)),
        format!(
            "{} kB, {} runs",
            text.len() / 1_000,
            map.slots().runs().len()
        ),
        ms(median(|| map.to_text())),
        ms(median(|| Map::from_text(&text).expect("a map"))),
        ms(median(|| Lookup::new(&map))),
        ms(quiet),
        ms(again),
        format!("{entries}, {} kB", bytes / 1_000),
        join,
        death,
        replaced,
        zone_dies,
        zone_replaced,
        format!(
            "{} kB ({} % of a request)",
            max / 1_000,
            max * 100 / REQUEST_BYTES_MAX
        ),
        format!(
            "{:.1} MB",
            text.len() as f64 * 4.0 / 3.0 * f64::from(count) / 1e6
        ),
    ]
}

fn push(count: u32) -> Vec<String> {
    let mut paper = Paper::new(count);
    paper.settle();
    let request = ControllerRequest::Push {
        store: "store".parse().expect("a name"),
        source: "s3://bucket/store".into(),
        digest: "0123456789abcdef".into(),
        allow_missing_replicas: 0,
        options: BTreeMap::new(),
    };
    paper.requests.push((RequestId("push-1".into()), request));
    paper.settle();
    paper.report(count as usize / 2);
    let pulling = median(|| paper.decide());
    let report = paper.reports.values().next().expect("there is one");
    let report_bytes = serde_json::to_string(report).expect("plain").len();
    paper.report(count as usize);
    let done = median(|| paper.decide());
    let changes = paper.settle();
    let live = paper
        .map
        .stores()
        .values()
        .filter(|it| it.live.is_some())
        .count();
    assert_eq!((live, paper.requests.len()), (1, 0));
    // Each node reports at the start, about four times in between, and when it is ready. Every report is sent to every node.
    let messages = 6.0 * f64::from(count) * f64::from(count);
    vec![
        ms(pulling),
        ms(done),
        format!("{changes}"),
        format!("{report_bytes} B"),
        format!(
            "{:.0}, {:.1} MB",
            messages,
            messages * (report_bytes as f64 + 300.0) / 1e6
        ),
    ]
}

/// Computes the time until all nodes have their partitions: `stored` bytes of data, each partition on three nodes.
struct Links {
    nodes: usize,
    stored: f64,
    /// The bandwidth in bytes per second of the source, in total, and of a node in each direction.
    source: f64,
    node: f64,
    /// Concurrent pulls per node.
    at_once: usize,
    peers: bool,
}

impl Links {
    /// Returns the seconds, and the fraction of all bytes that came from the source. Bandwidth is shared evenly, step by step.
    fn seconds(&self) -> (f64, f64) {
        let nodes: Vec<PlacementNode> = (1..=self.nodes as u32)
            .map(|number| {
                let it = Paper::node(number);
                PlacementNode {
                    id: NodeId(number),
                    name: it.name,
                    zone: it.zone,
                    weight: 1,
                }
            })
            .collect();
        let nothing = [CurrentPlacement {
            slots: SlotRange::ALL,
            goal: Vec::new(),
            present: Vec::new(),
        }];
        let mut wanted: Vec<Vec<u16>> = vec![Vec::new(); self.nodes];
        let mut holders: Vec<Vec<usize>> = vec![Vec::new(); 16_384];
        let mut random = larder_types::Random::new(1);
        for (slots, goal) in place(&nothing, &nodes, REPLICAS, 5) {
            for node in goal {
                wanted[node.0 as usize - 1].extend(slots.from..=slots.to);
            }
        }
        wanted.iter_mut().for_each(|it| random.shuffle(it));
        let size = self.stored / 16_384.0;
        // (slot, sending node or `None` for the source, remaining bytes)
        let mut pulls: Vec<Vec<(u16, Option<usize>, f64)>> = vec![Vec::new(); self.nodes];
        let mut from_source = vec![false; 16_384];
        let (mut seconds, mut source_bytes) = (0.0, 0.0);
        let step = (self.stored * 3.0 / (self.nodes as f64) / self.node / 400.0).max(0.01);
        loop {
            let mut giving = vec![0_usize; self.nodes];
            let mut at_source = 0;
            for node in 0..self.nodes {
                while pulls[node].len() < self.at_once {
                    // A slot that a peer has; otherwise one that no node is pulling yet.
                    let found = wanted[node].iter().position(|slot| {
                        let slot = usize::from(*slot);
                        !self.peers || !holders[slot].is_empty() || !from_source[slot]
                    });
                    let Some(at) = found else {
                        break;
                    };
                    let slot = wanted[node].swap_remove(at);
                    let have = &holders[usize::from(slot)];
                    let peer = if self.peers && !have.is_empty() {
                        Some(have[random.index(have.len())])
                    } else {
                        None
                    };
                    from_source[usize::from(slot)] |= peer.is_none();
                    pulls[node].push((slot, peer, size));
                }
                for (_, from, _) in &pulls[node] {
                    match from {
                        Some(peer) => giving[*peer] += 1,
                        None => at_source += 1,
                    }
                }
            }
            if pulls.iter().all(Vec::is_empty) {
                return (seconds, source_bytes / (self.stored * 3.0));
            }
            for (node, own) in pulls.iter_mut().enumerate() {
                let taking = self.node / own.len().max(1) as f64;
                for (slot, from, left) in own.iter_mut() {
                    let given = match from {
                        Some(peer) => self.node / giving[*peer] as f64,
                        None => self.source / at_source as f64,
                    };
                    let bytes = taking.min(given) * step;
                    *left -= bytes;
                    if from.is_none() {
                        source_bytes += bytes;
                    }
                    if *left <= 0.0 {
                        holders[usize::from(*slot)].push(node);
                    }
                }
                own.retain(|(_, _, left)| *left > 0.0);
            }
            seconds += step;
        }
    }
}

#[test]
fn a_cluster_of_a_thousand_nodes_and_100_tb() {
    if !larder_testing::is_enabled("LARDER_PAPER", "it measures") {
        return;
    }
    let counts = [10, 100, 1_000];
    println!("| nodes | 10 | 100 | 1,000 |\n|---|---|---|---|");
    columns(
        &counts,
        &[
            "placement from nothing",
            "placement when one dies",
            "most loaded over its share: owned, held",
            "nodes that one shares slots with",
        ],
        assignment,
    );
    columns(
        &counts,
        &[
            "first start: changes; all of `decide` + `apply`",
            "the map: text, runs of slots",
            "map to text",
            "map from text",
            "`Lookup::new`",
            "`decide`, nothing to do",
            "`place`, nothing to do",
            "`CLUSTER SLOTS`: entries, bytes",
            "a node joins: changes; filled; all of `decide`",
            "it dies",
            "it is replaced",
            "a zone of five dies",
            "it is replaced ",
            "the largest map on the way",
            "bytes from etcd for one change, as base64 to all nodes",
        ],
        lifecycle,
    );
    columns(
        &counts,
        &[
            "`decide`, half of the nodes pull",
            "`decide`, all are ready",
            "changes of a push",
            "a report",
            "reports of a push that etcd tells: events, bytes",
        ],
        push,
    );
    println!(
        "\n| 100 TB, each partition on three nodes | source gives | all from the source | with peers | of it from the source |\n|---|---|---|---|---|"
    );
    for (nodes, gigabits) in [
        (100, 100.0),
        (1_000, 10.0),
        (1_000, 100.0),
        (1_000, 1_000.0),
    ] {
        let links = |peers| Links {
            nodes,
            stored: 100e12,
            source: gigabits * 1e9 / 8.0,
            node: 10e9 / 8.0,
            at_once: 4,
            peers,
        };
        let (alone, _) = links(false).seconds();
        let (together, part) = links(true).seconds();
        row(
            &format!("{nodes} nodes of 10 Gbit/s"),
            [
                format!("{gigabits:.0} Gbit/s"),
                format!("{:.1} h", alone / 3_600.0),
                format!("{:.1} h", together / 3_600.0),
                format!("{:.0} %", part * 100.0),
            ],
        );
    }
}
