//! An operator who pushes, rolls back, drains and removes, and reads the store all the time.

use larder_cluster::controller::ControllerRequest;
use larder_cluster::coordination::{
    Error, Freshness, Keys, Outcome, Request, Response, Revision, Writer,
};
use larder_cluster::map::NodeName;
use larder_sim::{Input, NodeId as At, Output, Outputs, Random};
use larder_types::VersionId;

use super::{FAULTS_US, SERVICE, SLOTS, Setup, store_name};
use crate::replication::wire::Wire;

const PATIENCE_US: u64 = 800_000;

/// A completed read.
pub struct VersionRead {
    pub ended_us: u64,
    pub versions: Vec<VersionId>,
}

pub struct Operator {
    setup: Setup,
    random: Random,
    numbers: u64,
    look: Option<(u64, u64)>,
    pub looked: Vec<VersionRead>,
    requests: u64,
    /// The current request, until it is answered.
    request: Option<(String, ControllerRequest)>,
    is_written: bool,
    call: Option<(u64, u64)>,
    next_wish_us: u64,
    /// The node whose removal or drain it has requested and not reversed.
    leaving: Option<NodeName>,
    removed: bool,
    /// The requests with their answers.
    pub answers: Vec<(ControllerRequest, String)>,
}

impl Operator {
    pub fn new(setup: &Setup, seed: u64) -> Operator {
        Operator {
            setup: setup.clone(),
            random: Random::stream(seed, 31),
            numbers: 0,
            look: None,
            looked: Vec::new(),
            requests: 0,
            request: None,
            is_written: false,
            call: None,
            next_wish_us: 2_000_000,
            leaving: None,
            removed: false,
            answers: Vec::new(),
        }
    }

    pub fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        match input {
            Input::Tick => {
                self.read_versions(now_us, out);
                self.send_request(now_us, out);
                out.push(Output::Wake(now_us + self.random.between(10_000, 60_000)));
            }
            Input::Message(_, Wire::VersionsRead(number, versions))
                if self.look.is_some_and(|(of, _)| of == number) =>
            {
                self.look = None;
                self.looked.extend(versions.map(|versions| VersionRead {
                    ended_us: now_us,
                    versions,
                }));
            }
            Input::Message(_, Wire::Answer(number, reply))
                if self.call.is_some_and(|(of, _)| of == number) =>
            {
                self.call = None;
                self.handle_reply(now_us, *reply);
            }
            _ => {}
        }
    }

    fn read_versions(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        if self
            .look
            .is_some_and(|(_, sent)| now_us < sent + PATIENCE_US)
        {
            return;
        }
        self.numbers += 1;
        self.look = Some((self.numbers, now_us));
        let to = At(1 + self.random.index(self.setup.nodes));
        out.push(Output::Send(to, Wire::ReadVersions(self.numbers)));
    }

    fn send_request(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        if self.request.is_none() && now_us >= self.next_wish_us && now_us < FAULTS_US {
            self.requests += 1;
            let request = self.draw();
            self.request = Some((format!("{:04}", self.requests), request));
            self.is_written = false;
        }
        let Some((id, request)) = &self.request else {
            return;
        };
        if self
            .call
            .is_some_and(|(_, sent)| now_us < sent + PATIENCE_US)
        {
            return;
        }
        self.numbers += 1;
        self.call = Some((self.numbers, now_us));
        let request = if self.is_written {
            Request::Read {
                keys: Keys::one(format!("answers/{id}")),
                freshness: Freshness::Latest,
            }
        } else {
            let key = format!("asks/{id}");
            let value = serde_json::to_vec(request).expect("plain");
            // The same change each time, until it is known to be made.
            let change = Writer::new(format!("request-{id}"), 1).change();
            Request::Change(
                change
                    .if_unchanged(key.clone(), Revision(0))
                    .put(key, value),
            )
        };
        out.push(Output::Send(SERVICE, Wire::Call(self.numbers, request)));
    }

    fn handle_reply(&mut self, now_us: u64, reply: Result<Response, Error>) {
        match reply {
            Ok(Response::Changed(Outcome::Done(_))) => self.is_written = true,
            Ok(Response::Read(read)) => {
                if let (Some(entry), Some((_, request))) = (read.entries.first(), &self.request) {
                    let text = String::from_utf8_lossy(&entry.value).into_owned();
                    self.answers.push((request.clone(), text));
                    self.request = None;
                    self.next_wish_us = now_us + self.random.between(10_000, 2_000_000);
                }
            }
            Ok(other) => panic!("a request is written once: {other:?}"),
            Err(_) => {}
        }
    }

    fn draw(&mut self) -> ControllerRequest {
        let store = store_name();
        match self.random.below(10) {
            0 | 1 => ControllerRequest::RollBack { store, to: None },
            2 | 3 if self.setup.moves => {
                if let Some(node) = self.leaving.take_if(|_| !self.removed) {
                    return ControllerRequest::Keep { node };
                }
                let number = 1 + self.random.index(self.setup.nodes - 1);
                let node: NodeName = format!("n{number}").parse().expect("a name");
                if self.removed {
                    return ControllerRequest::Join { node };
                }
                self.leaving = Some(node.clone());
                if self.random.one_in(3) {
                    self.removed = true;
                    let lose_rows = false;
                    ControllerRequest::Remove { node, lose_rows }
                } else {
                    ControllerRequest::Drain { node }
                }
            }
            _ => ControllerRequest::Push {
                store,
                source: "s3://bucket".to_owned(),
                digest: format!("digest-{}", self.requests),
                allow_missing_replicas: self.random.below(2) as u32,
                options: std::collections::BTreeMap::new(),
            },
        }
    }

    /// Checks that every read used one version, which was live before the read ended. `live` contains the times from which each
    /// was live.
    pub fn check(&self, live: &[(u64, Option<VersionId>)]) {
        for VersionRead { ended_us, versions } in &self.looked {
            assert_eq!(versions.len(), SLOTS.len());
            let one = versions[0];
            assert!(
                versions.iter().all(|version| *version == one),
                "a read at {ended_us} us is of several versions: {versions:?}"
            );
            let mut before = live.iter().take_while(|(from, _)| from <= ended_us);
            assert!(
                before.any(|(_, version)| *version == Some(one)),
                "a read at {ended_us} us is of version {one}, which was not live by then"
            );
        }
        assert!(
            self.request.is_none(),
            "a request was never answered: {:?}",
            self.request
        );
    }
}
