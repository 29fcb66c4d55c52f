//! A settled cluster, for tests that change one thing.

use std::collections::BTreeMap;

use larder_cluster::controller::{
    ControllerRequest, Decision, Inputs, Report, SyncedReplica, decide,
};
use larder_cluster::map::{ChangeId, Map, NodeName, Registration, RequestId, Settings};

use crate::maps::{hand_over_change, three};

pub struct Scene {
    pub map: Map,
    pub now_ms: u64,
    pub registered: BTreeMap<NodeName, Registration>,
    pub reports: BTreeMap<NodeName, Report>,
    pub requests: Vec<(RequestId, ControllerRequest)>,
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
            requests: Vec::new(),
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
            requests: Vec::new(),
        }
    }

    pub fn register(&mut self, registration: Registration) {
        self.registered
            .insert(registration.name.clone(), registration);
    }

    pub fn decide(&self) -> Decision {
        decide(&Inputs {
            map: &self.map,
            now_ms: self.now_ms,
            registered: &self.registered,
            reports: &self.reports,
            requests: &self.requests,
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
            Decision::Answer { request, answer } => {
                self.requests.retain(|(id, _)| *id != request);
                return Some((request.0, answer));
            }
            Decision::Wait { .. } => {}
        }
        None
    }

    /// Runs until there is nothing to do. Returns the answers given meanwhile. Fills stay in progress.
    pub fn run_until_idle(&mut self) -> Vec<(String, Result<String, String>)> {
        let mut answers = Vec::new();
        for _ in 0..500 {
            if matches!(self.decide(), Decision::Wait { .. }) {
                let Some(change) = hand_over_change(&self.map, |_| true) else {
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
        panic!("the controller does not become idle: {:?}", self.decide());
    }

    /// Like `run_until_idle`, but completes all fills.
    pub fn settle(&mut self) {
        for _ in 0..500 {
            self.run_until_idle();
            let is_filling = self.report_fills_complete();
            if !is_filling {
                return;
            }
        }
        panic!("the fills never complete");
    }

    /// Lets the owners report all fills as complete. Returns whether there were any.
    pub fn report_fills_complete(&mut self) -> bool {
        let mut is_filling = false;
        for run in self.map.slots().runs() {
            for filling in &run.placement.filling {
                let owner = self
                    .map
                    .member(run.placement.owner.expect("it has one"))
                    .expect("a member");
                let report = self.reports.entry(owner.name().clone()).or_default();
                report.incarnation = owner.registration.incarnation;
                report.synced.push(SyncedReplica {
                    slots: run.slots,
                    term: run.placement.term,
                    node: filling.node,
                    began: filling.began,
                });
                is_filling = true;
            }
        }
        is_filling
    }
}
