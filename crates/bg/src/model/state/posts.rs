//! What each member posted to its feed, and what a view of friends' feeds may show.
//!
//! A member is held while it posts and while it looks, so its friends are known for certain then. What is asked of a view:
//!
//! 1. Newest first, none twice, no more than were asked for.
//! 2. Each post was posted, at that time, by a friend (or by somebody of whom it is in doubt, or another client's).
//! 3. The last post of each friend that was acknowledged before the view began is shown, unless posts that are all newer fill the view.
//!
//! The check is one-sided: an answer that it refuses is wrong whatever the order of the writes; it does not ask for older posts of one friend, nor
//! for all posts at one instant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::Relations;
use super::relations::Relation;

/// A post to a feed; `time` orders posts of all members and is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    pub author: u32,
    pub number: u64,
    pub time: u64,
}

/// Of all members.
pub struct Posts {
    time: AtomicU64,
    members: Box<[Mutex<Author>]>,
}

#[derive(Default)]
struct Author {
    /// Of each post, by its number less 1.
    times: Vec<u64>,
    /// The number of the last one acknowledged.
    acknowledged: Option<u64>,
}

/// What a view that begins now must and may show.
pub struct Expected {
    must: Vec<Post>,
    /// Ascending: friends, those in doubt.
    authors: Vec<u32>,
}

impl Posts {
    pub fn new(members: u32) -> Posts {
        Posts {
            time: AtomicU64::new(1),
            members: (0..members).map(|_| Mutex::default()).collect(),
        }
    }

    /// A post that is about to be; the member must be held.
    pub fn next(&self, author: u32) -> Post {
        let time = self.time.fetch_add(1, Ordering::Relaxed);
        let mut posts = self.lock(author);
        posts.times.push(time);
        Post {
            author,
            number: posts.times.len() as u64,
            time,
        }
    }

    pub fn acknowledged(&self, post: Post) {
        self.lock(post.author).acknowledged = Some(post.number);
    }

    /// To be asked before the view begins.
    pub fn expected(&self, relations: &Relations) -> Expected {
        let friends = relations.with(Relation::Friend);
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
        Expected {
            must: friends.iter().filter_map(last).collect(),
            authors,
        }
    }

    /// Whether a view may show this. `owns` says whose friendships and posts are known here.
    pub fn explains(
        &self,
        expected: &Expected,
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
                .must
                .iter()
                .filter(|post| owns(post.author))
                .any(|post| missed(&post))
    }

    fn lock(&self, member: u32) -> MutexGuard<'_, Author> {
        self.members[member as usize]
            .lock()
            .expect("nobody panics within")
    }
}
