//! What the clients know of the members: who acts, who is related to whom, which comments there are.
//!
//! It starts as the population and follows the writes that were done. An emulated thread holds a member for as long as it acts as it,
//! and both members of a relation that it changes; what is known of a member is only touched by who holds it. Nobody waits for a
//! member: who cannot have one takes another.
//!
//! ```text
//!   free ──hold──► held ──write done──► relation set ─┐
//!    ▲                │ write refused                 │
//!    └────release─────┴───────────────────────────────┘   unknown outcome: the pair is retired, nobody touches it again
//! ```
//!
//! Invariants:
//!
//! 1. A member is held by at most one at a time.
//! 2. What two members know of their relation mirrors each other, whenever neither is held.
//! 3. A pair whose last write has an unknown outcome is never written again: it may be so or so for ever, and validation knows.
//! 4. [`State::changes`] tells all that differs from the population, so that a trace can begin in the middle.

mod comments;
mod posts;
mod relations;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use comments::Comments;
pub use posts::{Expected, Post, Posts};
pub use relations::{Change, Relation, Relations};

use crate::model::population::Population;
use crate::model::population::walls::Walls;

/// Shared by all workers.
pub struct State {
    population: Arc<Population>,
    members: Box<[Member]>,
    comments: Comments,
    posts: Posts,
    walls: Walls,
}

#[derive(Default)]
struct Member {
    held: AtomicBool,
    /// None as long as it is as the population has it.
    relations: Mutex<Option<Box<Relations>>>,
}

/// A member held; dropping it lets the member go.
pub struct Hold<'a> {
    state: &'a State,
    member: u32,
}

impl State {
    pub fn new(population: Arc<Population>) -> State {
        State {
            members: (0..population.members).map(|_| Member::default()).collect(),
            comments: Comments::new(&population),
            posts: Posts::new(population.members),
            walls: Walls::new(&population),
            population,
        }
    }

    pub fn population(&self) -> &Arc<Population> {
        &self.population
    }

    /// None if somebody else holds the member.
    pub fn hold(&self, member: u32) -> Option<Hold<'_>> {
        let held = &self.members[member as usize].held;
        if held.load(Ordering::Relaxed) || held.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Hold {
            state: self,
            member,
        })
    }

    /// What is known of comments, of every resource.
    pub fn comments(&self) -> &Comments {
        &self.comments
    }

    /// What was posted to feeds, by every member.
    pub fn posts(&self) -> &Posts {
        &self.posts
    }

    /// What stands on walls: resources do not come or go.
    pub fn walls(&self) -> &Walls {
        &self.walls
    }

    /// Gives to `tell` what is not as the population has it, and what may not be. Nobody may act meanwhile.
    pub fn changes(&self, tell: &mut dyn FnMut(Change)) {
        for (member, known) in (0..).zip(&self.members) {
            let relations = known.relations.lock().expect("no holder panics");
            if let Some(relations) = &*relations {
                relations.changes(&self.population, member, tell);
            }
        }
        self.comments.changes(tell);
    }
}

impl<'a> Hold<'a> {
    pub fn member(&self) -> u32 {
        self.member
    }

    /// Whom the held member is related to; not to be kept across an await.
    pub fn relations(&self) -> Known<'a> {
        let mut known = self.state.members[self.member as usize]
            .relations
            .lock()
            .expect("no holder panics");
        known.get_or_insert_with(|| {
            Box::new(Relations::at_start(&self.state.population, self.member))
        });
        Known(known)
    }

    /// Whether anybody's invitation waits, or a friend could be thawed: without making what the population says a state of its own.
    pub fn has(&self, relation: Relation) -> bool {
        let known = self.state.members[self.member as usize]
            .relations
            .lock()
            .expect("no holder panics");
        match (&*known, relation) {
            (Some(relations), _) => !relations.with(relation).is_empty(),
            (None, Relation::Friend) => self.state.population.friend_count(self.member) > 0,
            (None, Relation::Inviter) => self
                .state
                .population
                .inviters_of(self.member)
                .next()
                .is_some(),
            (None, Relation::Invited) => self
                .state
                .population
                .invited_by(self.member)
                .next()
                .is_some(),
            (None, Relation::None) => true,
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.state.members[self.member as usize]
            .held
            .store(false, Ordering::Release);
    }
}

/// The relations of a member that is held.
pub struct Known<'a>(MutexGuard<'a, Option<Box<Relations>>>);

impl std::ops::Deref for Known<'_> {
    type Target = Relations;

    fn deref(&self) -> &Relations {
        self.0.as_ref().expect("made when it was first asked for")
    }
}

impl std::ops::DerefMut for Known<'_> {
    fn deref_mut(&mut self) -> &mut Relations {
        self.0.as_mut().expect("made when it was first asked for")
    }
}
