//! Simulates spaces over several cores, each of which owns some objects and holds regions of each subspace. Clients
//! write, read and search while an operator changes the subspaces. Whatever the order of events, some order of all
//! calls explains each object that the clients see.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use larder_protocol::resp::client::Reply;
use larder_sim::{Random, for_each_seed};
use larder_validate::Span;
use larder_validate::objects::{Call, Event, SearchMode, judge};

use super::finder::{Finder, Request, SUBSPACES, declaration};
use super::link::Link;
use super::world::{Clock, CoreWorld, Cores};

const OBJECTS: u32 = 8;
const CLIENTS: u16 = 4;

/// The calls of all clients.
#[derive(Clone, Default)]
struct EventHistory {
    events: Rc<RefCell<Vec<Event>>>,
    /// Unfinished requests, by client, with the events that represent them if they never finish.
    in_flight: Rc<RefCell<BTreeMap<u16, Vec<Event>>>>,
}

impl EventHistory {
    fn take(&self) -> Vec<Event> {
        let left = self.in_flight.take().into_values().flatten();
        self.events.take().into_iter().chain(left).collect()
    }
}

/// The connection ended because a core left.
struct ConnectionLost;

struct SpaceClient {
    cores: Cores,
    clock: Clock,
    history: EventHistory,
    finder: Finder,
    session: u16,
    link: Option<Link>,
}

impl SpaceClient {
    fn new(world: &CoreWorld, history: &EventHistory, seed: u64, session: u16) -> SpaceClient {
        SpaceClient {
            cores: world.cores.clone(),
            clock: world.clock.clone(),
            history: history.clone(),
            finder: Finder::new(session, OBJECTS, seed).without_time(),
            session,
            link: None,
        }
    }

    async fn request(&mut self, words: &[String]) -> Result<Reply, ConnectionLost> {
        if self.link.is_none() {
            let core = usize::from(self.session) % self.cores.count();
            self.link = Some(Link::new(self.cores.connect(core).ok_or(ConnectionLost)?));
        }
        let link = self.link.as_mut().ok_or(ConnectionLost)?;
        let bytes = link.request(words).await.map_err(|_| ConnectionLost)?;
        let reply = Reply::first(&bytes)
            .expect("a reply")
            .expect("a complete reply")
            .0;
        Ok(reply)
    }

    async fn call(&mut self, request: &Request) -> Result<(), ConnectionLost> {
        let started = self.clock.next();
        let open = self.finder.clone().record_lost(request, started);
        self.history
            .in_flight
            .borrow_mut()
            .insert(self.session, open);
        let reply = self.request(&request.words).await?;
        if let Reply::Error(error) = &reply {
            assert!(self.cores.has_any_left(), "{request:?}: {error:?}");
            return Err(ConnectionLost);
        }
        let span = Span::new(started, self.clock.next()).expect("the clock never goes back");
        let events = self.finder.record_reply(request, span, &reply);
        self.history.in_flight.borrow_mut().remove(&self.session);
        self.history.events.borrow_mut().extend(events);
        Ok(())
    }

    async fn act(mut self, calls: u32) {
        for _ in 0..calls {
            let request = self.finder.next();
            if self.call(&request).await.is_err() {
                return;
            }
        }
    }

    async fn read_end_state(mut self) {
        for request in Finder::final_reads(OBJECTS) {
            assert!(self.call(&request).await.is_ok(), "no core has left");
        }
    }

    /// Changes the space's subspaces repeatedly, and aborts some of the changes. `switched` counts the completed ones.
    async fn change_subspaces(mut self, mut random: Random, changes: u32, switched: Rc<Cell<u32>>) {
        for _ in 0..changes {
            let clause = match random.below(5) {
                0 => "SUBSPACES 0",
                at => SUBSPACES[at as usize - 1],
            };
            if self.alter(clause).await.is_none() {
                return;
            }
            for _ in 0..random.below(40) {
                if random.below(30) == 0 && self.alter("SUBSPACES CANCEL").await.is_some() {
                    break;
                }
                match self.alter("SUBSPACES SWITCH").await {
                    Some(true) => {
                        switched.set(switched.get() + 1);
                        break;
                    }
                    Some(false) => {}
                    None => return,
                }
            }
        }
    }

    /// Returns whether the change succeeded; `None` if a core has left.
    async fn alter(&mut self, clause: &str) -> Option<bool> {
        let line = format!("FT.ALTER things {clause}");
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match self.request(&words).await {
            Ok(Reply::Simple(_)) => Some(true),
            Ok(Reply::Error(error)) => {
                let text = format!("{error:?}");
                let expected = [
                    "TRYAGAIN",
                    "already",
                    "no subspaces of things are being filled",
                ];
                let is_expected = expected.iter().any(|it| text.contains(it));
                assert!(is_expected || self.cores.has_any_left(), "{line}: {text}");
                (!self.cores.has_any_left()).then_some(false)
            }
            Ok(other) => panic!("{line}: {other:?}"),
            Err(ConnectionLost) => None,
        }
    }
}

fn prepare_world(seed: u64, cores: usize, subspaces: &str) -> CoreWorld {
    let delay_max = [0, 5, 40][seed as usize % 3];
    let mut world = CoreWorld::new(seed, cores, delay_max);
    let history = EventHistory::default();
    let mut client = SpaceClient::new(&world, &history, seed, 20);
    let words = declaration(subspaces);
    world.start_client(async move {
        let reply = client.request(&words).await;
        assert!(matches!(reply, Ok(Reply::Simple(_))), "{words:?}");
    });
    world.run();
    world.check_all_ended();
    world
}

fn read_end_state(world: &mut CoreWorld, history: &EventHistory) {
    let client = SpaceClient::new(world, history, 0, 21);
    world.start_client(client.read_end_state());
    world.run();
    world.check_all_ended();
}

#[track_caller]
fn check_explained(events: &[Event], searches: SearchMode) -> usize {
    let judged = judge(events, searches);
    assert!(
        judged.refused.is_empty(),
        "{}",
        judged.describe_rejected(events, 1).join("\n")
    );
    assert_eq!(judged.undecided(), 0);
    let found = |event: &&Event| matches!(event.call, Call::Found(..));
    events.iter().filter(found).count()
}

fn start_clients(world: &mut CoreWorld, history: &EventHistory, seed: u64, calls: u32) {
    for session in 0..CLIENTS {
        let client = SpaceClient::new(world, history, seed, session);
        world.start_client(client.act(calls));
    }
}

#[test]
fn without_subspaces_a_search_reads_each_object_at_one_instant() {
    let found = Cell::new(0);
    for_each_seed(60, 6_000, |seed| {
        let mut world = prepare_world(seed, 2 + seed as usize % 3, "");
        let history = EventHistory::default();
        start_clients(&mut world, &history, seed, 25);
        world.run();
        world.check_all_ended();
        read_end_state(&mut world, &history);
        found.set(found.get() + check_explained(&history.take(), SearchMode::Atomic));
    });
    assert!(found.get() > 500);
}

#[test]
fn searches_are_explained_while_subspaces_change() {
    let (found, switched) = (Cell::new(0), Rc::new(Cell::new(0)));
    for_each_seed(120, 12_000, |seed| {
        let subspaces = SUBSPACES[seed as usize % SUBSPACES.len()];
        let mut world = prepare_world(seed, 2 + seed as usize % 3, subspaces);
        let history = EventHistory::default();
        start_clients(&mut world, &history, seed, 30);
        let operator = SpaceClient::new(&world, &history, seed, 19);
        let random = Random::stream(seed, 7);
        world.start_client(operator.change_subspaces(random, 3, switched.clone()));
        world.run();
        world.check_all_ended();
        read_end_state(&mut world, &history);
        found.set(found.get() + check_explained(&history.take(), SearchMode::InRegions));
    });
    assert!(
        found.get() > 1_000 && switched.get() > 50,
        "{found:?} {switched:?}"
    );
}
