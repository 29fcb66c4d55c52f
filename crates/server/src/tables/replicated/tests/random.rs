//! Random writes, reads, partitions, crashes and restarts, with the real controller. Acknowledged writes are present at
//! the end, and an answered read never shows a state that is older, or that is lost later.

use std::collections::BTreeMap;

use larder_cluster::controller::{Decision, Inputs as Seen, Report, decide};
use larder_cluster::map::NodeName;

use super::{TestCluster, poll, registration};
use crate::tables::Gate;
use crate::tables::model_disk::Random;

/// Keys of several slots.
const KEYS: [&str; 5] = ["t|a|1", "t|a|2", "t|b|1", "u|c|1", "u|{a}x|1"];

/// A write or read without a reply.
struct OpenWrite {
    node: u32,
    /// The node's incarnation.
    life: u64,
    key: usize,
    gate: Gate,
    /// For a write, its number. For a read, the number of the write that it shows, and in `least` the first that it may
    /// show.
    number: u64,
    least: Option<u64>,
}

struct RandomRun {
    world: TestCluster,
    random: Random,
    now_ms: u64,
    /// By key, the last write that a client knows of: reads must not show an older one.
    acknowledged: [u64; KEYS.len()],
    open: Vec<OpenWrite>,
    writes: u64,
    answered: u64,
}

impl RandomRun {
    fn new(seed: u64) -> RandomRun {
        RandomRun {
            world: TestCluster::new(3, 2),
            random: Random::new(seed),
            now_ms: 0,
            acknowledged: [0; KEYS.len()],
            open: Vec::new(),
            writes: 0,
            answered: 0,
        }
    }

    fn is_running(&self, node: u32) -> bool {
        self.world.nodes[&node].running.is_some()
    }

    /// Applies the controller's decisions.
    fn control(&mut self) {
        self.now_ms += 1_000;
        for _ in 0..20 {
            let mut registered = BTreeMap::new();
            let reports: BTreeMap<NodeName, Report> = BTreeMap::new();
            for node in (1..=3).filter(|node| self.is_running(*node)) {
                let it = registration(node, self.world.nodes[&node].incarnation);
                registered.insert(it.name.clone(), it);
            }
            let seen = Seen {
                map: &self.world.map,
                now_ms: self.now_ms,
                registered: &registered,
                reports: &reports,
                requests: &[],
            };
            match decide(&seen) {
                Decision::Change { change, .. } => self.world.change(change),
                _ => break,
            }
        }
        for node in 1..=3 {
            self.world.grant(node);
        }
        for node in 1..=3 {
            // Some nodes learn of the change later.
            if self.is_running(node) && !self.random.one_in(4) {
                self.world.apply_map(node);
            }
        }
    }

    fn owner(&self, key: usize) -> Option<u32> {
        let slot = larder_join::row_slot(KEYS[key].as_bytes());
        let owner = self.world.map.slots().of(slot).placement.owner?;
        Some(owner.0)
    }

    fn execute(&mut self) {
        let key = self.random.below(KEYS.len());
        // The request may also go to a node that is no longer the owner.
        let node = if self.random.one_in(4) {
            1 + self.random.below(3) as u32
        } else {
            self.owner(key).unwrap_or(1)
        };
        if !self.is_running(node) {
            return;
        }
        let life = self.world.nodes[&node].incarnation;
        if self.random.one_in(3) {
            let least = self.acknowledged[key];
            if let Ok((value, gate)) = self.world.get(node, KEYS[key]) {
                let number = value.map_or(0, |value| value.parse().unwrap());
                self.open.push(OpenWrite {
                    node,
                    life,
                    key,
                    gate,
                    number,
                    least: Some(least),
                });
            }
            return;
        }
        self.writes += 1;
        let number = self.writes;
        if let Ok(gate) = self
            .world
            .write(node, &["SET", KEYS[key], &number.to_string()])
        {
            self.open.push(OpenWrite {
                node,
                life,
                key,
                gate,
                number,
                least: None,
            });
        }
    }

    /// Sends the replies that can be sent.
    fn answer(&mut self) {
        for mut open in std::mem::take(&mut self.open) {
            let is_same_life = self.world.nodes[&open.node].incarnation == open.life;
            if !self.is_running(open.node) || !is_same_life {
                continue;
            }
            match poll(self.world.tables(open.node), &mut open.gate) {
                std::task::Poll::Pending => self.open.push(open),
                std::task::Poll::Ready(Err(_)) => {}
                std::task::Poll::Ready(Ok(())) => {
                    self.answered += 1;
                    if let Some(least) = open.least {
                        let (key, number) = (KEYS[open.key], open.number);
                        assert!(
                            number >= least,
                            "{key} shows {number}, and {least} was acknowledged"
                        );
                    }
                    let acknowledged = &mut self.acknowledged[open.key];
                    *acknowledged = (*acknowledged).max(open.number);
                }
            }
        }
    }

    fn step(&mut self) {
        let node = 1 + self.random.below(3) as u32;
        match self.random.below(24) {
            0 => self.world.cut(node),
            1 if self.is_running(node) => {
                self.world.cut(node);
                self.world.connect(node);
            }
            2 if self.is_running(node) => self.world.kill(node),
            3 | 4 if !self.is_running(node) => {
                self.world.nodes.get_mut(&node).unwrap().incarnation += 1;
                self.world.start(node);
                self.world.connect(node);
            }
            5 | 6 => self.control(),
            7 => self.world.tick(),
            8..=12 => {
                for _ in 0..self.random.below(4) {
                    self.world.deliver_if(&|_, _| true);
                }
            }
            13 => self.world.run(),
            _ => self.execute(),
        }
        self.answer();
    }

    /// Restarts all nodes, and waits for all replies.
    fn end(&mut self) {
        for node in 1..=3 {
            if !self.is_running(node) {
                self.world.nodes.get_mut(&node).unwrap().incarnation += 1;
                self.world.start(node);
            }
            self.world.cut(node);
            self.world.connect(node);
        }
        let started = std::time::Instant::now();
        loop {
            self.control();
            (1..=3).for_each(|node| self.world.apply_map(node));
            self.world.tick();
            self.world.run();
            self.answer();
            let slots = KEYS.map(|key| larder_join::row_slot(key.as_bytes()));
            let placed = slots.map(|slot| &self.world.map.slots().of(slot).placement);
            let is_whole = placed.iter().all(|it| it.holders().count() == 2);
            if is_whole && self.open.is_empty() {
                break;
            }
            assert!(started.elapsed().as_secs() < 60, "{placed:?}");
        }
        for (key, name) in KEYS.iter().enumerate() {
            let owner = self.owner(key).expect("the key has an owner");
            let (value, _) = self.world.get(owner, name).expect("it is answered");
            let number: u64 = value.map_or(0, |value| value.parse().unwrap());
            let acknowledged = self.acknowledged[key];
            assert!(
                number >= acknowledged,
                "{name} is {number} in the end, and {acknowledged} was acknowledged"
            );
        }
    }
}

#[test]
fn acknowledged_writes_survive_random_failures() {
    let mut answered = 0;
    for seed in 1..=4 {
        let mut run = RandomRun::new(seed);
        run.world.run();
        for _ in 0..150 {
            run.step();
        }
        run.end();
        answered += run.answered;
    }
    assert!(answered > 100, "{answered} were answered");
}
