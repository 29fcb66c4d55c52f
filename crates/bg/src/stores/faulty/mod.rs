//! Wraps another data store, and injects faults into its results at known rates, to test the validation.
//!
//! `--store faulty:memory --set stale=0.01` answers every hundredth eligible read as if the last write had not
//! happened. Each injected fault is counted. A fault is injected only if no order of the writes explains the result, so
//! validation must find exactly the same number.
//!
//! | setting | result | condition |
//! |---|---|---|
//! | stale | a count or list without the last write | that write has ended, and none is in progress during the read |
//! | lost | a list that lacks an element | no write of the list is in progress during the read |
//! | phantom | a list with a member who does not exist | |
//! | duplicate | a list with an element twice | |
//! | fractured | a list with the later of two writes, but not the earlier | both are in progress during the read, one after the other, and the list never had this state |
//! | lost-write | an acknowledgement of a write that is not executed | |
//! | error | a rejection, without an effect | |
//! | unknown | no reply, although the write is executed | |
//! | stall | delayed by `stall-for` (100ms) | |
//!
//! `delay=2ms` extends every call by about this time, before and after the call itself, so that calls overlap.
//!
//! For `lost-write`, both the writes and, under `lost-write reads`, the reads that reveal them are counted. A list read
//! after a lost write was acknowledged lacks the element (or still has it), and is counted each time. A count is wrong,
//! and counted, only if no other write is in progress during the read; otherwise it is corrected, since the other write
//! might explain it. The same pair or comment is never written again, so a lost write is missing at the end, in every
//! list that it affects. Feeds are not counted: a mix with lost writes should contain no feeds.
//!
//! Counts are exact with any number of workers. A write that might explain a fault, because its timestamp may precede
//! the other's (`steps`), is rejected, and counted as `barred`.

mod results;
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

use super::{OpenResult, Options};
use crate::model::duration::parse_duration;
use crate::model::item::Kind;
use crate::model::population::Population;
use crate::model::state::{Change, Relation};
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};
use steps::{StepCounter, Steps};
use track::{Subject, Tracks, WriteOutcome};

/// A class of faults, each with a setting for its rate.
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
    /// A read that reveals a lost write.
    LostWriteRead,
    /// A write that was not admitted.
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

/// The number of classes that have a rate.
const SETTINGS: usize = Fault::Stall as usize + 1;

struct Faulty {
    inner: Box<dyn Store>,
    shared: Arc<FaultState>,
}

struct FaultState {
    rates: [f64; SETTINGS],
    stall: Duration,
    delay: Duration,
    injected: [AtomicU64; NAMES.len()],
    order: Arc<StepCounter>,
    tracks: Tracks,
}

/// Wraps the data store with this name. Settings other than these belong to that store.
pub fn open(inner: &str, options: &Options) -> OpenResult {
    let mut shared = FaultState {
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
                let rate = rate.ok_or_else(|| fail("must be a rate from 0 to 1".to_owned()))?;
                shared.rates[fault] = rate;
            }
            (None, "stall-for") => shared.stall = parse_duration(value).map_err(fail)?,
            (None, "delay") => shared.delay = parse_duration(value).map_err(fail)?,
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

    fn skips_validation(&self) -> bool {
        self.inner.skips_validation()
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
            Ok(Rc::new(FaultyClient {
                client,
                shared: self.shared.clone(),
                steps: Steps::new(self.shared.order.clone()),
                due: Default::default(),
                random: RefCell::new(Random::stream(population.seed, 0xfa17)),
                first_non_member: population.members,
            }) as Rc<dyn Client>)
        })
    }
}

struct FaultyClient {
    client: Rc<dyn Client>,
    shared: Arc<FaultState>,
    steps: Steps,
    /// The accumulated rate of each class; a fault is due at 1.
    due: [Cell<f64>; SETTINGS],
    random: RefCell<Random>,
    /// The lowest number that is not a member.
    first_non_member: u32,
}

impl FaultyClient {
    /// Returns whether the next fault of a class is due. Each eligible call adds the rate.
    fn is_due(&self, fault: Fault) -> bool {
        let due = &self.due[fault as usize];
        let rate = self.shared.rates[fault as usize];
        // A fault that could not be injected for a long time must not cause a burst.
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

    /// Applies the faults that precede every call.
    async fn enter(&self) -> Result<(), Failure> {
        if self.is_due(Fault::Stall) {
            self.inject(Fault::Stall);
            sleep(self.shared.stall).await;
        }
        self.delay().await;
        if self.is_due(Fault::Error) {
            self.inject(Fault::Error);
            return Err(Failure::Refused("injected: error".to_owned()));
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
            let why = "injected: the write could explain a fault";
            return Err(Failure::Refused(why.to_owned()));
        }
        let result = match self.enter().await {
            Ok(()) if !changes.is_empty() && self.is_due(Fault::LostWrite) => {
                Ok(WriteOutcome::Lost)
            }
            Ok(()) => call(&*self.client).await.map(|()| WriteOutcome::Executed),
            Err(why) => Err(why),
        };
        self.delay().await;
        let result = match result {
            Ok(WriteOutcome::Executed) if self.is_due(Fault::Unknown) => {
                self.inject(Fault::Unknown);
                Err(Failure::Unknown("injected: no reply".to_owned()))
            }
            result => result,
        };
        let ended = match &result {
            Ok(ended) => *ended,
            Err(Failure::Refused(_)) => WriteOutcome::NotDone,
            Err(Failure::Unknown(_)) => WriteOutcome::Uncertain,
        };
        if ended == WriteOutcome::Lost {
            self.inject(Fault::LostWrite);
        }
        tracks.end(&changes, subject, entry, &self.steps, ended);
        result.map(|_| ())
    }
}

/// Returns the changes of a pair's relation in both members' lists.
fn relation_changes(
    one: u32,
    other: u32,
    before: Relation,
    after: Relation,
) -> (Subject, Vec<Change>) {
    let mine = Change::for_relation(one, other, before, after);
    let theirs = Change::for_relation(other, one, before.mirrored(), after.mirrored());
    let pair = (one.min(other).into(), one.max(other).into());
    (pair, mine.chain(theirs).collect())
}

fn comment_change(resource: u64, comment: u64, put: bool) -> (Subject, Vec<Change>) {
    let item = Kind::Comments.item(resource);
    let change = Change {
        item,
        element: comment,
        put,
        certain: true,
    };
    ((item, comment), vec![change])
}

impl Client for FaultyClient {
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
            Kind::Friends.item(owner.into()),
            async move |client| client.list_friends(requester, owner).await,
            |people: &mut People| &mut people.members,
        ))
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        Box::pin(self.list(
            Kind::Invitations.item(member.into()),
            async move |client| client.view_friend_requests(member).await,
            |people: &mut People| &mut people.members,
        ))
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            relation_changes(inviter, invitee, Relation::None, Relation::Invited),
            async move |client| client.invite_friend(inviter, invitee).await,
        ))
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            relation_changes(invitee, inviter, Relation::Inviter, Relation::Friend),
            async move |client| client.accept_friend_request(invitee, inviter).await,
        ))
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            relation_changes(invitee, inviter, Relation::Inviter, Relation::None),
            async move |client| client.reject_friend_request(invitee, inviter).await,
        ))
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        Box::pin(self.write(
            relation_changes(member, friend, Relation::Friend, Relation::None),
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
            Kind::Comments.item(resource),
            async move |client| client.view_comments(requester, resource).await,
            |found: &mut Comments| &mut found.comments,
        ))
    }

    fn post_comment(&self, member: u32, resource: u64, number: u64) -> Reply<'_, ()> {
        Box::pin(self.write(
            comment_change(resource, number, true),
            async move |client| client.post_comment(member, resource, number).await,
        ))
    }

    fn delete_comment(&self, member: u32, resource: u64, number: u64) -> Reply<'_, ()> {
        Box::pin(self.write(
            comment_change(resource, number, false),
            async move |client| client.delete_comment(member, resource, number).await,
        ))
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
