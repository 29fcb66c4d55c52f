//! Fault plans, drawn from the seed before a run starts, so that they can be printed and shortened.
//!
//! Each kind of fault is randomly enabled or disabled for a complete run: a run with one kind of fault explores its
//! consequences further than one with all kinds (like FoundationDB's "buggify").

use std::fmt;

use crate::node::NodeId;
use crate::random::Random;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The process dies between two steps, and restarts after `down_us`.
    Kill { node: NodeId, down_us: u64 },
    /// The process dies within its next step with outputs: only a prefix of them takes effect.
    KillWithin { node: NodeId, down_us: u64 },
    /// The machine loses its power, and unsynced data.
    PowerLoss { node: NodeId, down_us: u64 },
    /// All of these nodes lose their power simultaneously.
    Blackout { nodes: Vec<NodeId>, down_us: u64 },
    /// The process is suspended; messages to it are queued in its sockets.
    Pause { node: NodeId, for_us: u64 },
    /// Nothing passes from one node to another; the other direction works.
    Cut {
        from: NodeId,
        to: NodeId,
        for_us: u64,
    },
    /// Nothing passes between these nodes and all others.
    Isolate { nodes: Vec<NodeId>, for_us: u64 },
    /// All connections of these nodes stop one after another, and resume in another order.
    SwizzleClog { nodes: Vec<NodeId>, step_us: u64 },
    /// A connection breaks: messages in flight are lost.
    Break { a: NodeId, b: NodeId },
    /// One sync of a disk takes this long.
    SlowDisk { node: NodeId, for_us: u64 },
}

/// The nodes that a plan may affect, and the intensity of its faults.
#[derive(Debug, Clone)]
pub struct Scene {
    /// Processes that may die and be suspended.
    pub mortal: Vec<NodeId>,
    /// Nodes whose links may fail.
    pub linked: Vec<NodeId>,
    /// The mean interval between faults.
    pub every_us: u64,
    /// Maximum duration of a fault.
    pub lasts_us_max: u64,
    /// True if machines may lose their power.
    pub power: bool,
}

/// Faults with their times, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan(pub Vec<(u64, Fault)>);

const KINDS: usize = 10;

impl Plan {
    /// Draws faults from `from_us` to `to_us`.
    pub fn draw(random: &mut Random, scene: &Scene, from_us: u64, to_us: u64) -> Plan {
        let mut kinds: Vec<usize> = (0..KINDS).filter(|_| random.one_in(2)).collect();
        if kinds.is_empty() {
            kinds.push(random.index(KINDS));
        }
        // Some runs have few faults, some many.
        let every = scene.every_us * random.between(1, 4);
        let mut plan = Vec::new();
        let mut at = from_us;
        loop {
            at += random.between(1, every * 2);
            if at >= to_us {
                return Plan(plan);
            }
            let kind = kinds[random.index(kinds.len())];
            // Many short faults, few long ones.
            let longest = random.between(1, scene.lasts_us_max);
            let lasts = random.between(1, longest);
            plan.push((at, draw(random, scene, kind, lasts)));
        }
    }
}

fn draw(random: &mut Random, scene: &Scene, kind: usize, lasts: u64) -> Fault {
    let mortal = |random: &mut Random| scene.mortal[random.index(scene.mortal.len())];
    let linked = |random: &mut Random| scene.linked[random.index(scene.linked.len())];
    let pair = |random: &mut Random| {
        let first = random.index(scene.linked.len());
        let other = (first + 1 + random.index(scene.linked.len() - 1)) % scene.linked.len();
        (scene.linked[first], scene.linked[other])
    };
    match kind {
        0 => Fault::Kill {
            node: mortal(random),
            down_us: lasts,
        },
        1 => Fault::KillWithin {
            node: mortal(random),
            down_us: lasts,
        },
        2 if scene.power => Fault::PowerLoss {
            node: mortal(random),
            down_us: lasts,
        },
        3 if scene.power => {
            let nodes = some_of(random, &scene.mortal, scene.mortal.len());
            Fault::Blackout {
                nodes,
                down_us: lasts,
            }
        }
        4 => Fault::Pause {
            node: mortal(random),
            for_us: lasts,
        },
        5 => {
            let (from, to) = pair(random);
            Fault::Cut {
                from,
                to,
                for_us: lasts,
            }
        }
        6 => {
            let nodes = some_of(random, &scene.linked, scene.linked.len() - 1);
            Fault::Isolate {
                nodes,
                for_us: lasts,
            }
        }
        7 => {
            let nodes = some_of(random, &scene.linked, scene.linked.len());
            Fault::SwizzleClog {
                step_us: lasts / (2 * nodes.len() as u64) + 1,
                nodes,
            }
        }
        8 => Fault::SlowDisk {
            node: linked(random),
            for_us: lasts,
        },
        _ => {
            let (a, b) = pair(random);
            Fault::Break { a, b }
        }
    }
}

/// Returns one to `most` of these nodes, in random order.
fn some_of(random: &mut Random, of: &[NodeId], most: usize) -> Vec<NodeId> {
    let mut nodes = of.to_vec();
    random.shuffle(&mut nodes);
    nodes.truncate(random.between(1, most.max(1) as u64) as usize);
    nodes
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in &self.0 {
            writeln!(out, "  {:>10.3} ms  {fault:?}", *at as f64 / 1e3)?;
        }
        Ok(())
    }
}
