//! The clients' knowledge of the members: acting members, relations and comments.
//!
//! The state starts as the population, and follows the completed writes. An emulated thread holds a member while it
//! acts for it, and holds both members of a relation that it changes. Only the holder accesses the state of a member. A
//! thread never waits for a member: if a member is held, it draws another one.
//!
//! ```text
//!   free ──hold──► held ──write done──► relation set ─┐
//!    ▲                │ write rejected                │
//!    └────release─────┴───────────────────────────────┘   unknown outcome: the pair is retired and never used again
//! ```
//!
//! Invariants:
//!
//! 1. At most one thread holds a member.
//! 2. The states of two members agree on their relation, whenever neither is held.
//! 3. A pair whose last write has an unknown outcome is never written again. Both outcomes remain possible, and
//!    validation accounts for it.
//! 4. [`State::changes`] returns all differences from the population, so a trace can begin in the middle of a run.

mod comments;
mod posts;
mod relations;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use comments::Comments;
pub use posts::{FeedExpectation, Post, Posts};
pub use relations::{Change, Relation, Relations};

use crate::model::population::Population;
use crate::model::population::walls::Walls;

/// The state of all members. Shared by all workers.
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
    /// `None` while the relations are those of the population.
    relations: Mutex<Option<Box<Relations>>>,
}

/// A held member. Dropping it releases the member.
pub struct MemberGuard<'a> {
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

    /// Returns `None` if another thread holds the member.
    pub fn try_lock(&self, member: u32) -> Option<MemberGuard<'_>> {
        let held = &self.members[member as usize].held;
        if held.load(Ordering::Relaxed) || held.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(MemberGuard {
            state: self,
            member,
        })
    }

    /// Returns the comments of all resources.
    pub fn comments(&self) -> &Comments {
        &self.comments
    }

    /// Returns the feed posts of all members.
    pub fn posts(&self) -> &Posts {
        &self.posts
    }

    /// Returns the walls, which never change.
    pub fn walls(&self) -> &Walls {
        &self.walls
    }

    /// Passes to `visit` all certain and possible differences from the population. No thread may act meanwhile.
    pub fn visit_changes(&self, visit: &mut dyn FnMut(Change)) {
        for (member, known) in (0..).zip(&self.members) {
            let relations = known.relations.lock().expect("no holder panics");
            if let Some(relations) = &*relations {
                relations.visit_changes(&self.population, member, visit);
            }
        }
        self.comments.visit_changes(visit);
    }
}

impl<'a> MemberGuard<'a> {
    pub fn member(&self) -> u32 {
        self.member
    }

    /// Returns the relations of the held member. The guard must not be kept across an await.
    pub fn relations(&self) -> RelationsGuard<'a> {
        let mut known = self.state.members[self.member as usize]
            .relations
            .lock()
            .expect("no holder panics");
        known.get_or_insert_with(|| {
            Box::new(Relations::initial(&self.state.population, self.member))
        });
        RelationsGuard(known)
    }

    /// Returns whether there is a pending invitation, or a friend to thaw. Does not allocate a state of its own for a
    /// member in its initial state.
    pub fn has(&self, relation: Relation) -> bool {
        let known = self.state.members[self.member as usize]
            .relations
            .lock()
            .expect("no holder panics");
        match (&*known, relation) {
            (Some(relations), _) => !relations.members_with(relation).is_empty(),
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

impl Drop for MemberGuard<'_> {
    fn drop(&mut self) {
        self.state.members[self.member as usize]
            .held
            .store(false, Ordering::Release);
    }
}

/// The relations of a held member.
pub struct RelationsGuard<'a>(MutexGuard<'a, Option<Box<Relations>>>);

impl std::ops::Deref for RelationsGuard<'_> {
    type Target = Relations;

    fn deref(&self) -> &Relations {
        self.0
            .as_ref()
            .expect("initialized by MemberGuard::relations")
    }
}

impl std::ops::DerefMut for RelationsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Relations {
        self.0
            .as_mut()
            .expect("initialized by MemberGuard::relations")
    }
}
