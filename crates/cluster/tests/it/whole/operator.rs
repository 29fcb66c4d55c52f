//! An operator who pushes, rolls back, drains and removes, and reads the store all the time.

use larder_cluster::controller::Ask as Wish;
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
pub struct Looked {
    pub ended_us: u64,
    pub versions: Vec<VersionId>,
}

pub struct Operator {
    setup: Setup,
    random: Random,
    numbers: u64,
    look: Option<(u64, u64)>,
    pub looked: Vec<Looked>,
    wishes: u64,
    /// The current request, until it is answered.
    wish: Option<(String, Wish)>,
    is_written: bool,
    call: Option<(u64, u64)>,
    next_wish_us: u64,
    /// The node whose removal or drain it has requested and not reversed.
    leaving: Option<NodeName>,
    removed: bool,
    /// The requests with their answers.
    pub answers: Vec<(Wish, String)>,
}

impl Operator {
    pub fn new(setup: &Setup, seed: u64) -> Operator {
        Operator {
            setup: setup.clone(),
            random: Random::stream(seed, 31),
            numbers: 0,
            look: None,
            looked: Vec::new(),
            wishes: 0,
            wish: None,
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
                self.look(now_us, out);
                self.ask(now_us, out);
                out.push(Output::Wake(now_us + self.random.between(10_000, 60_000)));
            }
            Input::Message(_, Wire::Looked(number, versions))
                if self.look.is_some_and(|(of, _)| of == number) =>
            {
                self.look = None;
                self.looked.extend(versions.map(|versions| Looked {
                    ended_us: now_us,
                    versions,
                }));
            }
            Input::Message(_, Wire::Answer(number, reply))
                if self.call.is_some_and(|(of, _)| of == number) =>
            {
                self.call = None;
                self.answered(now_us, *reply);
            }
            _ => {}
        }
    }

    fn look(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        if self
            .look
            .is_some_and(|(_, sent)| now_us < sent + PATIENCE_US)
        {
            return;
        }
        self.numbers += 1;
        self.look = Some((self.numbers, now_us));
        let to = At(1 + self.random.index(self.setup.nodes));
        out.push(Output::Send(to, Wire::Look(self.numbers)));
    }

    fn ask(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        if self.wish.is_none() && now_us >= self.next_wish_us && now_us < FAULTS_US {
            self.wishes += 1;
            let wish = self.draw();
            self.wish = Some((format!("{:04}", self.wishes), wish));
            self.is_written = false;
        }
        let Some((id, wish)) = &self.wish else {
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
            let value = serde_json::to_vec(wish).expect("plain");
            // The same change each time, until it is known to be made.
            let change = Writer::new(format!("wish-{id}"), 1).change();
            Request::Change(
                change
                    .unless_changed(key.clone(), Revision(0))
                    .put(key, value),
            )
        };
        out.push(Output::Send(SERVICE, Wire::Call(self.numbers, request)));
    }

    fn answered(&mut self, now_us: u64, reply: Result<Response, Error>) {
        match reply {
            Ok(Response::Changed(Outcome::Done(_))) => self.is_written = true,
            Ok(Response::Read(read)) => {
                if let (Some(entry), Some((_, wish))) = (read.entries.first(), &self.wish) {
                    let text = String::from_utf8_lossy(&entry.value).into_owned();
                    self.answers.push((wish.clone(), text));
                    self.wish = None;
                    self.next_wish_us = now_us + self.random.between(10_000, 2_000_000);
                }
            }
            Ok(other) => panic!("a wish is written once: {other:?}"),
            Err(_) => {}
        }
    }

    fn draw(&mut self) -> Wish {
        let store = store_name();
        match self.random.below(10) {
            0 | 1 => Wish::RollBack { store, to: None },
            2 | 3 if self.setup.moves => {
                if let Some(node) = self.leaving.take_if(|_| !self.removed) {
                    return Wish::Keep { node };
                }
                let number = 1 + self.random.index(self.setup.nodes - 1);
                let node: NodeName = format!("n{number}").parse().expect("a name");
                if self.removed {
                    return Wish::Join { node };
                }
                self.leaving = Some(node.clone());
                if self.random.one_in(3) {
                    self.removed = true;
                    let lose_rows = false;
                    Wish::Remove { node, lose_rows }
                } else {
                    Wish::Drain { node }
                }
            }
            _ => Wish::Push {
                store,
                source: "s3://bucket".to_owned(),
                digest: format!("digest-{}", self.wishes),
                allow_missing_replicas: self.random.below(2) as u32,
                options: std::collections::BTreeMap::new(),
            },
        }
    }

    /// Checks that every read used one version, which was live before the read ended. `live` contains the times from which each
    /// was live.
    pub fn check(&self, live: &[(u64, Option<VersionId>)]) {
        for Looked { ended_us, versions } in &self.looked {
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
            self.wish.is_none(),
            "a wish was never answered: {:?}",
            self.wish
        );
    }
}
