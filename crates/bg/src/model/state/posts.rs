//! The feed posts of each member, and the expected content of a view of friends' feeds.
//!
//! A member is held while it posts and while it views, so its friends are known exactly. A view must satisfy:
//!
//! 1. The posts are ordered newest first, without duplicates, and at most as many as requested.
//! 2. Each post is genuine, with its time, and by a friend (or by a member whose friendship is uncertain, or by a
//!    member of another client).
//! 3. The last post of each friend that was acknowledged before the view began is shown, unless newer posts fill the
//!    view.
//!
//! The check is one-sided: a view that it rejects is wrong for every order of the writes. It does not check older posts
//! of a friend, or that all posts belong to one instant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::Relations;
use super::relations::Relation;

/// A post to a feed. `time` is unique, and orders the posts of all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    pub author: u32,
    pub number: u64,
    pub time: u64,
}

/// The posts of all members.
pub struct Posts {
    time: AtomicU64,
    members: Box<[Mutex<Author>]>,
}

#[derive(Default)]
struct Author {
    /// The time of each post, at the index of its number minus 1.
    times: Vec<u64>,
    /// The number of the last acknowledged post.
    acknowledged: Option<u64>,
}

/// The posts that a view starting now must show and may show.
pub struct FeedExpectation {
    required: Vec<Post>,
    /// Friends and uncertain friends, ascending.
    authors: Vec<u32>,
}

impl Posts {
    pub fn new(members: u32) -> Posts {
        Posts {
            time: AtomicU64::new(1),
            members: (0..members).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns the next post of a member, which must be held.
    pub fn next_post(&self, author: u32) -> Post {
        let time = self.time.fetch_add(1, Ordering::Relaxed);
        let mut posts = self.lock(author);
        posts.times.push(time);
        Post {
            author,
            number: posts.times.len() as u64,
            time,
        }
    }

    pub fn acknowledge(&self, post: Post) {
        self.lock(post.author).acknowledged = Some(post.number);
    }

    /// Returns the expectations for a view. Must be called before the view begins.
    pub fn expectation(&self, relations: &Relations) -> FeedExpectation {
        let friends = relations.members_with(Relation::Friend);
        let last = |author: &u32| {
            let posts = self.lock(*author);
            let number = posts.acknowledged?;
            Some(Post {
                author: *author,
                number,
                time: posts.times[number as usize - 1],
            })
        };
        let mut authors: Vec<u32> = friends.iter().copied().chain(relations.retired()).collect();
        authors.sort_unstable();
        FeedExpectation {
            required: friends.iter().filter_map(last).collect(),
            authors,
        }
    }

    /// Returns whether a view may show these posts. `owns` returns whether a member's friendships and posts are known
    /// here.
    pub fn explains(
        &self,
        expected: &FeedExpectation,
        shown: &[Post],
        top: u32,
        owns: impl Fn(u32) -> bool,
    ) -> bool {
        let sorted = shown.is_sorted_by(|newer, older| newer.time > older.time);
        let real = |post: &Post| {
            if !owns(post.author) {
                return true;
            }
            let place = (post.number as usize).checked_sub(1);
            let known = (post.author as usize) < self.members.len()
                && place.and_then(|place| self.lock(post.author).times.get(place).copied())
                    == Some(post.time);
            known && expected.authors.binary_search(&post.author).is_ok()
        };
        let full = shown.len() >= top as usize;
        let oldest = shown.last().map_or(0, |post| post.time);
        let missed = |post: &&Post| (!full || post.time > oldest) && !shown.contains(post);
        shown.len() <= top as usize
            && sorted
            && shown.iter().all(real)
            && !expected
                .required
                .iter()
                .filter(|post| owns(post.author))
                .any(|post| missed(&post))
    }

    fn lock(&self, member: u32) -> MutexGuard<'_, Author> {
        self.members[member as usize]
            .lock()
            .expect("no panic while locked")
    }
}
