//! The simulated etcd behind the trait. Its time advances only while a caller waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use larder_cluster::coordination::model::{Faults, Model, Output, Ticket};
use larder_cluster::coordination::{
    Coordination, Error, Keys, Request, Response, Revision, WatchItem,
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
    items: BTreeMap<Ticket, Vec<Option<WatchItem>>>,
}

impl Simulated {
    pub fn new(seed: u64, members: usize, faults: Faults) -> Simulated {
        Simulated(Arc::new(Mutex::new(State {
            model: Model::new(seed, members, faults),
            members,
            random: Random::new(!seed),
            replies: BTreeMap::new(),
            items: BTreeMap::new(),
        })))
    }

    pub fn compact_before(&self, revision: Revision) {
        let mut state = self.state();
        let now = state.model.committed_state(&Keys::with_prefix("")).revision;
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
                Output::WatchItem(ticket, watched) => self.handle(ticket, Some(watched)),
                Output::WatchBroken(ticket) => self.handle(ticket, None),
            }
        }
        true
    }

    fn handle(&mut self, ticket: Ticket, what: Option<WatchItem>) {
        self.items.entry(ticket).or_default().push(what);
    }

    fn member(&mut self) -> usize {
        self.random.index(self.members)
    }
}

impl Coordination for Simulated {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
        let mut state = self.state();
        let member = state.member();
        let ticket = state.model.send_request(member, request);
        let reply = loop {
            if let Some(reply) = state.replies.remove(&ticket) {
                break reply;
            }
            assert!(state.step(), "every request is answered");
        };
        Box::pin(std::future::ready(reply))
    }

    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, WatchItem> {
        let mut state = self.state();
        let member = state.member();
        let ticket = state.model.watch(member, keys.clone(), after);
        let own = self.clone();
        Box::pin(stream::unfold(own, move |own| async move {
            loop {
                {
                    let mut state = own.state();
                    let items = state.items.entry(ticket).or_default();
                    if !items.is_empty() {
                        let next = items.remove(0)?;
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
