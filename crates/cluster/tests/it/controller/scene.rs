//! A settled cluster, for tests that change one thing.

use std::collections::BTreeMap;

use larder_cluster::controller::{Ask, Decision, Report, Synced, World, decide};
use larder_cluster::map::{AskId, ChangeId, Map, NodeName, Registration, Settings};

use crate::maps::{given_away, three};

pub struct Scene {
    pub map: Map,
    pub now_ms: u64,
    pub registered: BTreeMap<NodeName, Registration>,
    pub reports: BTreeMap<NodeName, Report>,
    pub asks: Vec<(AskId, Ask)>,
}

pub fn name(number: u32) -> NodeName {
    format!("node-000{number}").parse().expect("a name")
}

impl Scene {
    /// Three settled nodes. Each slot has one replica.
    pub fn new() -> Scene {
        let map = three();
        let registered = map
            .members()
            .iter()
            .map(|it| (it.name().clone(), it.registration.clone()));
        let mut scene = Scene {
            registered: registered.collect(),
            now_ms: 1_000_000,
            reports: BTreeMap::new(),
            asks: Vec::new(),
            map,
        };
        scene.settle();
        scene
    }

    /// A cluster without nodes, which waits for `start_nodes` of them.
    pub fn empty(start_nodes: u32) -> Scene {
        let settings = Settings {
            replicas: 2,
            start_nodes,
            fill_slots_at_once: 2_048,
            ..Settings::default()
        };
        Scene {
            map: Map::new("test", settings),
            now_ms: 1_000_000,
            registered: BTreeMap::new(),
            reports: BTreeMap::new(),
            asks: Vec::new(),
        }
    }

    pub fn register(&mut self, registration: Registration) {
        self.registered
            .insert(registration.name.clone(), registration);
    }

    pub fn decide(&self) -> Decision {
        decide(&World {
            map: &self.map,
            now_ms: self.now_ms,
            registered: &self.registered,
            reports: &self.reports,
            asks: &self.asks,
        })
    }

    /// Makes one change, or returns an answer.
    pub fn step(&mut self) -> Option<(String, Result<String, String>)> {
        match self.decide() {
            Decision::Change { change, .. } => {
                self.map = self
                    .map
                    .apply(&change, &ChangeId::default())
                    .expect("it fits");
            }
            Decision::Answer { ask, answer } => {
                self.asks.retain(|(id, _)| *id != ask);
                return Some((ask.0, answer));
            }
            Decision::Nothing { .. } => {}
        }
        None
    }

    /// Runs until there is nothing to do. Returns the answers given meanwhile. Fills stay in progress.
    pub fn rest(&mut self) -> Vec<(String, Result<String, String>)> {
        let mut answers = Vec::new();
        for _ in 0..500 {
            if matches!(self.decide(), Decision::Nothing { .. }) {
                let Some(change) = given_away(&self.map, |_| true) else {
                    return answers;
                };
                self.map = self
                    .map
                    .apply(&change, &ChangeId::default())
                    .expect("it fits");
                continue;
            }
            answers.extend(self.step());
        }
        panic!("it does not come to rest: {:?}", self.decide());
    }

    /// Like `rest`, but completes all fills.
    pub fn settle(&mut self) {
        for _ in 0..500 {
            self.rest();
            let is_filling = self.tell_that_all_are_filled();
            if !is_filling {
                return;
            }
        }
        panic!("it is never filled");
    }

    /// Lets the owners report all fills as complete. Returns whether there were any.
    pub fn tell_that_all_are_filled(&mut self) -> bool {
        let mut is_filling = false;
        for run in self.map.slots().runs() {
            for filling in &run.placed.filling {
                let owner = self
                    .map
                    .member(run.placed.owner.expect("it has one"))
                    .expect("a member");
                let report = self.reports.entry(owner.name().clone()).or_default();
                report.incarnation = owner.registration.incarnation;
                report.synced.push(Synced {
                    slots: run.slots,
                    term: run.placed.term,
                    node: filling.node,
                    began: filling.began,
                });
                is_filling = true;
            }
        }
        is_filling
    }
}
