//! The simulated etcd behind the trait. Its time advances only while a caller waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use larder_cluster::coordination::model::{Faults, Model, Output, Ticket};
use larder_cluster::coordination::{
    Coordination, Error, Keys, Request, Response, Revision, Watched,
};
use larder_types::Random;

#[derive(Clone)]
pub struct Simulated(Arc<Mutex<State>>);

struct State {
    model: Model,
    members: usize,
    random: Random,
    replies: BTreeMap<Ticket, Result<Response, Error>>,
    /// `None` means that the watch was interrupted.
    heard: BTreeMap<Ticket, Vec<Option<Watched>>>,
}

impl Simulated {
    pub fn new(seed: u64, members: usize, faults: Faults) -> Simulated {
        Simulated(Arc::new(Mutex::new(State {
            model: Model::new(seed, members, faults),
            members,
            random: Random::new(!seed),
            replies: BTreeMap::new(),
            heard: BTreeMap::new(),
        })))
    }

    pub fn compact_before(&self, revision: Revision) {
        let mut state = self.state();
        let now = state.model.truth(&Keys::below("")).revision;
        state.model.compact(now.0 - revision.0);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panicked")
    }
}

impl State {
    /// Executes the next event; `false` if there is none.
    fn step(&mut self) -> bool {
        let Some(next_ms) = self.model.next_ms() else {
            return false;
        };
        for output in self.model.advance(next_ms) {
            match output {
                Output::Reply(ticket, reply) => drop(self.replies.insert(ticket, reply)),
                Output::Watched(ticket, watched) => self.hear(ticket, Some(watched)),
                Output::Cut(ticket) => self.hear(ticket, None),
            }
        }
        true
    }

    fn hear(&mut self, ticket: Ticket, what: Option<Watched>) {
        self.heard.entry(ticket).or_default().push(what);
    }

    fn member(&mut self) -> usize {
        self.random.index(self.members)
    }
}

impl Coordination for Simulated {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
        let mut state = self.state();
        let member = state.member();
        let ticket = state.model.ask(member, request);
        let reply = loop {
            if let Some(reply) = state.replies.remove(&ticket) {
                break reply;
            }
            assert!(state.step(), "every request is answered");
        };
        Box::pin(std::future::ready(reply))
    }

    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, Watched> {
        let mut state = self.state();
        let member = state.member();
        let ticket = state.model.watch(member, keys.clone(), after);
        let own = self.clone();
        Box::pin(stream::unfold(own, move |own| async move {
            loop {
                {
                    let mut state = own.state();
                    let heard = state.heard.entry(ticket).or_default();
                    if !heard.is_empty() {
                        let next = heard.remove(0)?;
                        drop(state);
                        return Some((next, own));
                    }
                    let is_over = !state.model.is_watched(ticket);
                    if is_over {
                        return None;
                    }
                    state.step();
                }
                tokio::task::yield_now().await;
            }
        }))
    }
}
