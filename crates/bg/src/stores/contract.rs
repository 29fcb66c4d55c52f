//! What a data store must do to be rated: one trait to open it, one to act on it.
//!
//! A run has a few *workers*, each a thread with its own runtime. A worker connects once ([`Store::connect`]) and acts for many emulated threads of the
//! report at once: their calls overlap on one [`Client`], which may send them over one connection or over many. A client is used from
//! its own thread only, where `tokio::task::spawn_local` works: a client may have tasks of its own there.
//!
//! What a call returns is checked as it is decoded: a client hands each element to the answer ([`People::push`] and its like), which
//! compares the bytes with the population's contents and keeps only the identity. So nothing is copied to be judged.
//!
//! Invariants that a client keeps:
//!
//! 1. A call returns `Ok` only when the data store said that it did what was asked.
//! 2. A write that may have happened is never [`Failure::Refused`]. In doubt it is [`Failure::Unknown`].
//! 3. A call that is dropped before its end (a timeout) leaves the client usable for other calls, or makes them fail; it never makes them
//!    return another call's answer.
//! 4. Nothing is retried that could happen twice.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::model::content::{self, Contents, Owner};
use crate::model::population::Population;
pub use crate::model::state::Post;

/// What a call will return.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 'a>>;

/// A data store under its name and address, shared by all workers.
pub trait Store: Send + Sync {
    /// As `--store` names it.
    fn name(&self) -> &'static str;

    /// How what is stored is laid out, where a setting decides that: who reads it must have loaded it so.
    fn layout(&self) -> String {
        self.name().to_owned()
    }

    /// Makes the schema anew, empty; what was there is gone, notes and all.
    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()>;

    /// A short text kept beside the population, by its name; None where there is none, or no schema (`notes` says what for).
    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>>;

    /// Puts a note in place of the one of its name.
    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()>;

    /// Puts a note, unless there is one of its name, which stays; of several who put it at once, one does.
    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()>;

    /// Whether what was loaded is gone with this process, so that a run must load first.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Whether its answers mean anything; if not they are not judged.
    fn is_hollow(&self) -> bool {
        false
    }

    /// Whether it answers wrongly on purpose: then nothing is concluded from its answers before a trial.
    fn is_faulty(&self) -> bool {
        false
    }

    /// What the processes of its server are called where they run on this machine: their processor time is not somebody else's.
    fn processes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Faults that it put into its answers on purpose, by class.
    fn injected(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// A worker's client.
    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>>;
}

/// One worker's way to a data store: the report's actions, and loading.
pub trait Client {
    /// Puts these members with their profiles, images, confirmed friends, invitations received, resources created and the comments on
    /// those. Loading a range again leaves the same rows. All ranges together are the whole population.
    fn load(&self, members: Range<u32>) -> Reply<'_, ()>;

    /// What comes after all members are loaded, once: indexes, statistics, constraints.
    fn finish_load(&self) -> Reply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The owner's attributes, counts, and image where the population has images. A member who looks at their own profile also learns how many
    /// invitations wait.
    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile>;

    /// The confirmed friends of a member, each with profile and thumbnail.
    fn list_friends(&self, requester: u32, owner: u32) -> Reply<'_, People>;

    /// The members whose invitations wait, each with profile and thumbnail.
    fn view_friend_requests(&self, member: u32) -> Reply<'_, People>;

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()>;

    /// The invitation goes, both are friends: as one.
    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()>;

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()>;

    /// Both are friends no more: as one.
    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()>;

    /// The `top` resources with the highest numbers on the owner's wall, highest first.
    fn view_top_resources(&self, requester: u32, owner: u32, top: u32) -> Reply<'_, Resources>;

    /// All comments on a resource.
    fn view_comments(&self, requester: u32, resource: u64) -> Reply<'_, Comments>;

    /// Adds a comment with this number, which nobody else gives a comment on this resource.
    fn post_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()>;

    fn delete_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()>;

    /// Adds a post of a member for its friends to see. Posts are numbered from 1 by each member, and stamped with a time that orders posts of all.
    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()>;

    /// The `top` newest posts of the confirmed friends of a member, newest first.
    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed>;
}

/// Why a call did not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The data store said no, and nothing changed.
    Refused(String),
    /// Nobody answered in time, or the connection was lost: a write may happen yet, or have happened.
    Unknown(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(why) => write!(out, "refused: {why}"),
            Failure::Unknown(why) => write!(out, "no answer: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Answer to [`Client::view_profile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub friends: u64,
    /// Of one's own profile only.
    pub invitations: Option<u64>,
    pub resources: u64,
    /// Attributes or image that are not the owner's.
    pub wrong: u32,
}

impl Profile {
    pub fn check(
        &mut self,
        population: &Population,
        owner: u32,
        attributes: &[u8],
        image: Option<&[u8]>,
    ) {
        let contents = population.contents();
        let right = contents.is(Owner::Profile(owner), population.profile_size(), attributes)
            && is_image(&contents, Owner::Image(owner), population.image_size, image);
        self.wrong += u32::from(!right);
    }
}

/// Answer to [`Client::list_friends`] and [`Client::view_friend_requests`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct People {
    /// In the order in which they came; one may come twice.
    pub members: Vec<u32>,
    /// Those whose profile or thumbnail was not theirs.
    pub wrong: u32,
}

impl People {
    pub fn push(
        &mut self,
        population: &Population,
        member: u32,
        profile: &[u8],
        thumbnail: Option<&[u8]>,
    ) {
        let contents = population.contents();
        let size = population.image_size.map(|_| content::THUMBNAIL_SIZE);
        let right = contents.is(Owner::Profile(member), population.profile_size(), profile)
            && is_image(&contents, Owner::Thumbnail(member), size, thumbnail);
        self.wrong += u32::from(!right);
        self.members.push(member);
    }
}

/// Answer to [`Client::view_top_resources`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub resources: Vec<u64>,
    pub wrong: u32,
}

impl Resources {
    pub fn push(&mut self, population: &Population, resource: u64, body: &[u8]) {
        let right =
            population
                .contents()
                .is(Owner::Resource(resource), content::RESOURCE_SIZE, body);
        self.wrong += u32::from(!right);
        self.resources.push(resource);
    }
}

/// Answer to [`Client::view_comments`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comments {
    pub comments: Vec<u64>,
    pub wrong: u32,
}

impl Comments {
    pub fn push(&mut self, population: &Population, resource: u64, comment: u64, text: &[u8]) {
        let right = population.contents().is(
            Owner::Comment(resource, comment),
            population.comment_size,
            text,
        );
        self.wrong += u32::from(!right);
        self.comments.push(comment);
    }
}

/// Answer to [`Client::view_feed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    pub posts: Vec<Post>,
    pub wrong: u32,
}

impl Feed {
    pub fn push(&mut self, population: &Population, post: Post, text: &[u8]) {
        let right = population.contents().is(
            Owner::Post(post.author, post.number),
            content::POST_SIZE,
            text,
        );
        self.wrong += u32::from(!right);
        self.posts.push(post);
    }
}

fn is_image(contents: &Contents, owner: Owner, size: Option<usize>, found: Option<&[u8]>) -> bool {
    match (size, found) {
        (None, None) => true,
        (Some(size), Some(found)) => contents.is(owner, size, found),
        _ => false,
    }
}
