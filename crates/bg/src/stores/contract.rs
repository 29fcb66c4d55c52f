//! The interface of a data store: one trait to open it, and one to act on it.
//!
//! A run has a few *workers*, each a thread with its own runtime. A worker connects once ([`Store::connect`]), and acts
//! for many of the report's emulated threads concurrently. Their calls overlap on one [`Client`], which may use one
//! connection or many. A client is used only from its own thread, where `tokio::task::spawn_local` works, so it may
//! spawn local tasks.
//!
//! Results are verified while they are decoded. A client passes each element to the result ([`People::push`] and
//! similar), which compares the bytes with the population's contents, and keeps only the identity. Nothing is copied
//! for verification.
//!
//! Invariants that a client must maintain:
//!
//! 1. A call returns `Ok` only if the data store confirmed that it did what was requested.
//! 2. A write that may have happened is never [`Failure::Refused`]. If the outcome is uncertain, it is
//!    [`Failure::Unknown`].
//! 3. A call that is dropped before its end (a timeout) leaves the client usable for other calls, or makes them fail.
//!    It never makes them return the result of another call.
//! 4. An operation that could happen twice is never retried.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::model::content::{self, Contents, Owner};
use crate::model::population::Population;
pub use crate::model::state::Post;

/// The pending result of a call.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 'a>>;

/// A data store with its name and address. Shared by all workers.
pub trait Store: Send + Sync {
    /// Returns the name for `--store`.
    fn name(&self) -> &'static str;

    /// Returns the layout of the stored data, if a setting determines it. A run must use the layout of the load.
    fn layout(&self) -> String {
        self.name().to_owned()
    }

    /// Creates an empty schema. Deletes existing data, including the notes.
    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()>;

    /// Returns a note, a short text stored with the population. `None` if there is none, or no schema. See the module
    /// `notes`.
    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>>;

    /// Stores a note, replacing one with the same name.
    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()>;

    /// Stores a note unless one with this name exists. If several callers do so concurrently, exactly one succeeds.
    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()>;

    /// Returns whether the loaded data is lost with this process, so that a run must load first.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Returns whether the results are meaningless, so that they are not validated.
    fn skips_validation(&self) -> bool {
        false
    }

    /// Returns whether the results are wrong on purpose, so that checks before a trial do not apply.
    fn is_faulty(&self) -> bool {
        false
    }

    /// Returns the names of the server's processes, if they run on this machine. Their processor time does not count as
    /// foreign load.
    fn processes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the number of faults that the store injected, by class.
    fn injected(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns a client for one worker.
    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>>;
}

/// One worker's access to a data store: the report's actions, and loading.
pub trait Client {
    /// Loads these members with their profiles, images, confirmed friends, received invitations, created resources and
    /// the comments on those. Loading a range again has the same result. All ranges together are the complete
    /// population.
    fn load(&self, members: Range<u32>) -> Reply<'_, ()>;

    /// Completes a load after all members, once: indexes, statistics, constraints.
    fn finish_load(&self) -> Reply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Returns the owner's attributes, counts, and image if the population has images. If the requester is the owner,
    /// also the number of pending invitations.
    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile>;

    /// Returns the confirmed friends of a member, each with profile and thumbnail.
    fn list_friends(&self, requester: u32, owner: u32) -> Reply<'_, People>;

    /// Returns the members with pending invitations, each with profile and thumbnail.
    fn view_friend_requests(&self, member: u32) -> Reply<'_, People>;

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()>;

    /// Removes the invitation and makes both members friends, atomically.
    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()>;

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()>;

    /// Ends the friendship on both sides, atomically.
    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()>;

    /// Returns the `top` resources with the highest numbers on the owner's wall, highest first.
    fn view_top_resources(&self, requester: u32, owner: u32, top: u32) -> Reply<'_, Resources>;

    /// Returns all comments on a resource.
    fn view_comments(&self, requester: u32, resource: u64) -> Reply<'_, Comments>;

    /// Adds a comment with this number, which is unique for the resource.
    fn post_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()>;

    fn delete_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()>;

    /// Adds a post of a member for its friends. The posts of each member are numbered from 1. Their times order the
    /// posts of all members.
    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()>;

    /// Returns the `top` newest posts of a member's confirmed friends, newest first.
    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed>;
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The data store rejected the call, and nothing changed.
    Refused(String),
    /// There was no reply in time, or the connection was lost. A write may have happened, or may still happen.
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

/// The result of [`Client::view_profile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub friends: u64,
    /// Only for the member's own profile.
    pub invitations: Option<u64>,
    pub resources: u64,
    /// The number of attributes and images that are not the owner's.
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
        let right = contents.matches(Owner::Profile(owner), population.profile_size(), attributes)
            && is_image(&contents, Owner::Image(owner), population.image_size, image);
        self.wrong += u32::from(!right);
    }
}

/// The result of [`Client::list_friends`] and [`Client::view_friend_requests`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct People {
    /// In the order of arrival, possibly with duplicates.
    pub members: Vec<u32>,
    /// The number of members with a wrong profile or thumbnail.
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
        let right = contents.matches(Owner::Profile(member), population.profile_size(), profile)
            && is_image(&contents, Owner::Thumbnail(member), size, thumbnail);
        self.wrong += u32::from(!right);
        self.members.push(member);
    }
}

/// The result of [`Client::view_top_resources`].
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
                .matches(Owner::Resource(resource), content::RESOURCE_SIZE, body);
        self.wrong += u32::from(!right);
        self.resources.push(resource);
    }
}

/// The result of [`Client::view_comments`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comments {
    pub comments: Vec<u64>,
    pub wrong: u32,
}

impl Comments {
    pub fn push(&mut self, population: &Population, resource: u64, comment: u64, text: &[u8]) {
        let right = population.contents().matches(
            Owner::Comment(resource, comment),
            population.comment_size,
            text,
        );
        self.wrong += u32::from(!right);
        self.comments.push(comment);
    }
}

/// The result of [`Client::view_feed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    pub posts: Vec<Post>,
    pub wrong: u32,
}

impl Feed {
    pub fn push(&mut self, population: &Population, post: Post, text: &[u8]) {
        let right = population.contents().matches(
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
        (Some(size), Some(found)) => contents.matches(owner, size, found),
        _ => false,
    }
}
