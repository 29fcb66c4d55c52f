//! Another data store, with faults put into its answers at known rates: what validation is validated by.
//!
//! `--store faulty:memory --set stale=0.01` answers every hundredth read that it can as if the last write had not been. Each fault is counted
//! when it is put in, and only put in where no order of the writes explains the answer, so that validation must find exactly as many:
//!
//! | setting | the answer | injected only if |
//! |---|---|---|
//! | stale | a count or list without the last write | that write has ended, none runs during the read |
//! | lost | a list that lacks an element | no write of the list runs during the read |
//! | phantom | a list with somebody who is no member | |
//! | duplicate | a list with an element twice | |
//! | fractured | a list with the later of two writes, not the earlier | both run during the read, one behind the other, and the list never was so |
//! | lost-write | "done", of a write that is not | |
//! | error | refused, and nothing is done | |
//! | unknown | done, but nobody is told | |
//! | stall | comes `stall-for` later (100ms) | |
//!
//! `delay=2ms` keeps every call under way for about so long, before and behind the call itself, so that calls overlap.
//!
//! Of `lost-write` both are counted: the writes, and under `lost-write reads` the reads that show it. A list read after a lost write was
//! acknowledged lacks it (or still has it) and is counted, each time. A count is wrong by it where no other write runs during the read, and is counted;
//! elsewhere it is put right, since what runs might explain it. Nobody writes the same pair or comment again, so what was lost is missing at
//! the end: of as many lists as had a lost write. Feeds are not counted: a mix with lost writes should have none.
//!
//! Counts are exact with any number of workers. A write that might explain a fault, because one is stamped before the other's stamp can be known
//! (`steps`), is refused, and counted as `barred`.

mod answers;
mod steps;
mod track;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_types::Random;
use tokio::time::sleep;

use super::{Opened, Options};
use crate::model::duration::duration;
use crate::model::item::Kind;
use crate::model::population::Population;
use crate::model::state::{Change, Relation};
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};
use steps::{Order, Steps};
use track::{Ended, Subject, Tracks};

/// Classes of faults, each a setting that gives its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Fault {
    Stale,
    Lost,
    Phantom,
    Duplicate,
    Fractured,
    LostWrite,
    Error,
    Unknown,
    Stall,
    /// A read that shows a lost write.
    LostWriteRead,
    /// A write that did not get in.
    Barred,
}

const NAMES: [&str; 11] = [
    "stale",
    "lost",
    "phantom",
    "duplicate",
    "fractured",
    "lost-write",
    "error",
    "unknown",
    "stall",
    "lost-write reads",
    "barred",
];

/// Those that have a rate.
const SETTINGS: usize = Fault::Stall as usize + 1;

struct Faulty {
    inner: Box<dyn Store>,
    shared: Arc<Shared>,
}

struct Shared {
    rates: [f64; SETTINGS],
    stall: Duration,
    delay: Duration,
    injected: [AtomicU64; NAMES.len()],
    order: Arc<Order>,
    tracks: Tracks,
}

/// Wraps the data store of this name; settings that are none of these are its own.
pub fn open(inner: &str, options: &Options) -> Opened {
    let mut shared = Shared {
        rates: [0.0; SETTINGS],
        stall: Duration::from_millis(100),
        delay: Duration::ZERO,
        injected: Default::default(),
        order: Arc::default(),
        tracks: Tracks::default(),
    };
    let mut rest = Options {
        settings: Vec::new(),
        ..options.clone()
    };
    for (name, value) in &options.settings {
        let fail = |why: String| format!("--set {name}={value}: {why}");
        let known = NAMES[..SETTINGS].iter().position(|known| known == name);
        match (known, name.as_str()) {
            (Some(fault), _) => {
                let rate = value.parse().ok().filter(|it| (0.0..=1.0).contains(it));
                let rate = rate.ok_or_else(|| fail("a rate is 0 to 1".to_owned()))?;
                shared.rates[fault] = rate;
            }
            (None, "stall-for") => shared.stall = duration(value).map_err(fail)?,
            (None, "delay") => shared.delay = duration(value).map_err(fail)?,
            (None, _) => rest.settings.push((name.clone(), value.clone())),
        }
    }
    Ok(Box::new(Faulty {
        inner: super::open(inner, &rest)?,
        shared: Arc::new(shared),
    }))
}

impl Store for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn is_hollow(&self) -> bool {
        self.inner.is_hollow()
    }

    fn is_faulty(&self) -> bool {
        true
    }

    fn injected(&self) -> Vec<(&'static str, u64)> {
        let counts = self.shared.injected.iter();
        NAMES
            .into_iter()
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    fn layout(&self) -> String {
        self.inner.layout()
    }

    fn processes(&self) -> &'static [&'static str] {
        self.inner.processes()
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        self.inner.create(population)
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        self.inner.note(name)
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        self.inner.put_note(name, text)
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        self.inner.put_note_if_absent(name, text)
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async move {
            let client = self.inner.connect(population.clone()).await?;
            Ok(Rc::new(Wrapped {
                client,
                shared: self.shared.clone(),
                steps: Steps::new(self.shared.order.clone()),
                due: Default::default(),
                random: RefCell::new(Random::stream(population.seed, 0xfa17)),
                nobody: population.members,
            }) as Rc<dyn Client>)
        })
    }
}

struct Wrapped {
    client: Rc<dyn Client>,
    shared: Arc<Shared>,
    steps: Steps,
    /// How much of a fault of each class is due.
    due: [Cell<f64>; SETTINGS],
    random: RefCell<Random>,
    /// The lowest number that is no member's.
    nobody: u32,
}

impl Wrapped {
    /// Whether the next fault of a class is due; each call that could have it brings it nearer by the rate.
    fn is_due(&self, fault: Fault) -> bool {
        let due = &self.due[fault as usize];
        let rate = self.shared.rates[fault as usize];
        // A fault that could not be put in for long does not lead to many at once.
        due.set((due.get() + rate).min(2.0));
        rate > 0.0 && due.get() >= 1.0 - 1e-9
    }

    fn inject(&self, fault: Fault) {
        let due = &self.due[fault as usize];
        due.set(due.get() - 1.0);
        self.count(fault);
    }

    fn count(&self, fault: Fault) {
        self.shared.injected[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    async fn delay(&self) {
        if self.shared.delay > Duration::ZERO {
            let part = self.random.borrow_mut().unit();
            sleep(self.shared.delay.mul_f64(part)).await;
        }
    }

    /// What comes before every call.
    async fn enter(&self) -> Result<(), Failure> {
        if self.is_due(Fault::Stall) {
            self.inject(Fault::Stall);
            sleep(self.shared.stall).await;
        }
        self.delay().await;
        if self.is_due(Fault::Error) {
            self.inject(Fault::Error);
            return Err(Failure::Refused("an injected error".to_owned()));
        }
        Ok(())
    }

    async fn write(
        &self,
        (subject, changes): (Subject, Vec<Change>),
        call: impl AsyncFnOnce(&dyn Client) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (tracks, entry) = (&self.shared.tracks, self.steps.enter());
        if !tracks.begin(&changes, subject, &entry) {
            self.count(Fault::Barred);
            let why = "it might explain an injected fault";
            return Err(Failure::Refused(why.to_owned()));
        }
        let result = match self.enter().await {
            Ok(()) if !changes.is_empty() && self.is_due(Fault::LostWrite) => Ok(Ended::Lost),
            Ok(()) => call(&*self.client).await.map(|()| Ended::Done),
            Err(why) => Err(why),
        };
        self.delay().await;
        let result = match result {
            Ok(Ended::Done) if self.is_due(Fault::Unknown) => {
                self.inject(Fault::Unknown);
                Err(Failure::Unknown("an injected silence".to_owned()))
            }
            result => result,
        };
        let ended = match &result {
            Ok(ended) => *ended,
            Err(Failure::Refused(_)) => Ended::NotDone,
            Err(Failure::Unknown(_)) => Ended::InDoubt,
        };
        if ended == Ended::Lost {
            self.inject(Fault::LostWrite);
        }
        tracks.end(&changes, subject, entry, &self.steps, ended);
        result.map(|_| ())
    }
}

/// What a change of a pair changes in both members' lists.
fn both(one: u32, other: u32, before: Relation, after: Relation) -> (Subject, Vec<Change>) {
    let mine = Change::of(one, other, before, after);
    let theirs = Change::of(other, one, before.mirrored(), after.mirrored());
    let pair = (one.min(other).into(), one.max(other).into());
    (pair, mine.chain(theirs).collect())
}

fn comment(resource: u64, comment: u64, put: bool) -> (Subject, Vec<Change>) {
    let item = Kind::Comments.of(resource);
    let change = Change {
        item,
        element: comment,
        put,
        certain: true,
    };
    ((item, comment), vec![change])
}

impl Client for Wrapped {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        self.client.load(members)
    }

    fn finish_load(&self) -> Reply<'_, ()> {
        self.client.finish_load()
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        Box::pin(self.profile(requester, owner))
    }

    fn list_friends(&self, requester: u32, owner: u32) -> Reply<'_, People> {
        Box::pin(self.list(
            Kind::Friends.of(owner.into()),
            async move |client| client.list_friends(requester, owner).await,
            |people: &mut People| &mut people.members,
        ))
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        Box::pin(self.list(
            Kind::Invitations.of(member.into()),
            async move |client| client.view_friend_requests(member).await,
            |people: &mut People| &mut people.members,
        ))
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            both(inviter, invitee, Relation::None, Relation::Invited),
            async move |client| client.invite_friend(inviter, invitee).await,
        ))
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            both(invitee, inviter, Relation::Inviter, Relation::Friend),
            async move |client| client.accept_friend_request(invitee, inviter).await,
        ))
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            both(invitee, inviter, Relation::Inviter, Relation::None),
            async move |client| client.reject_friend_request(invitee, inviter).await,
        ))
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            both(member, friend, Relation::Friend, Relation::None),
            async move |client| client.thaw_friendship(member, friend).await,
        ))
    }

    fn view_top_resources(&self, requester: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        Box::pin(async move {
            self.enter().await?;
            self.client.view_top_resources(requester, owner, top).await
        })
    }

    fn view_comments(&self, requester: u32, resource: u64) -> Reply<'_, Comments> {
        Box::pin(self.list(
            Kind::Comments.of(resource),
            async move |client| client.view_comments(requester, resource).await,
            |found: &mut Comments| &mut found.comments,
        ))
    }

    fn post_comment(&self, member: u32, resource: u64, number: u64) -> Reply<'_, ()> {
        Box::pin(
            self.write(comment(resource, number, true), async move |client| {
                client.post_comment(member, resource, number).await
            }),
        )
    }

    fn delete_comment(&self, member: u32, resource: u64, number: u64) -> Reply<'_, ()> {
        Box::pin(
            self.write(comment(resource, number, false), async move |client| {
                client.delete_comment(member, resource, number).await
            }),
        )
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        Box::pin(self.write(((0, 0), Vec::new()), async move |client| {
            client.post_to_feed(member, post).await
        }))
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        Box::pin(async move {
            self.enter().await?;
            self.client.view_feed(member, top).await
        })
    }
}
