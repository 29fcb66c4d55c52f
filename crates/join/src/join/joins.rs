//! The joins of an engine, indexed by number.
//!
//! 1. [`Engine::with_join`] takes a join out of its place while it modifies it; nothing else does. Joins form no cycle,
//!    so no lookup needs the join meanwhile. Lookups that do not know this find no join.
//! 2. A dropped join stays in its place until its state is freed. No table lists it as a maker or a reader.
//! 3. Numbers are not reused.

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::join::{Join, JoinId};

#[derive(Default)]
pub struct Joins {
    slots: Vec<JoinSlot>,
    /// Dropped joins whose state has not been freed.
    dropped: VecDeque<JoinId>,
}

enum JoinSlot {
    Present(Box<Join>),
    /// `with_join` has taken the join out.
    CheckedOut,
    /// The join was dropped, and its state freed.
    Freed,
}

impl JoinSlot {
    #[inline]
    fn join(&self) -> Option<&Join> {
        match self {
            JoinSlot::Present(join) => Some(join),
            JoinSlot::CheckedOut | JoinSlot::Freed => None,
        }
    }
}

impl Joins {
    #[inline]
    pub fn get(&self, id: JoinId) -> Option<&Join> {
        self.slots[id as usize].join()
    }

    #[inline]
    pub fn get_mut(&mut self, id: JoinId) -> Option<&mut Join> {
        match &mut self.slots[id as usize] {
            JoinSlot::Present(join) => Some(join),
            JoinSlot::CheckedOut | JoinSlot::Freed => None,
        }
    }

    /// Returns whether a join is temporarily out of its place.
    pub fn is_checked_out(&self, id: JoinId) -> bool {
        matches!(self.slots[id as usize], JoinSlot::CheckedOut)
    }

    /// Iterates over all joins in their places, including dropped ones.
    pub fn all(&self) -> impl Iterator<Item = &Join> {
        self.slots.iter().filter_map(JoinSlot::join)
    }

    /// Iterates over the joins that have not been dropped, oldest first.
    pub fn live(&self) -> impl Iterator<Item = &Join> {
        self.all().filter(|join| !self.dropped.contains(&join.id))
    }

    pub fn find_by_name(&self, name: &str) -> Option<&Join> {
        self.live().find(|join| join.name == name)
    }

    /// The number of the next join.
    pub fn next_id(&self) -> JoinId {
        self.slots.len() as JoinId
    }

    pub fn add(&mut self, join: Join) {
        debug_assert_eq!(join.id, self.next_id(), "join ids are consecutive");
        self.slots.push(JoinSlot::Present(Box::new(join)));
    }

    /// Marks a join as dropped.
    pub fn drop_join(&mut self, id: JoinId) {
        self.dropped.push_back(id);
    }

    pub fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// The first dropped join whose state has not been freed.
    pub fn first_dropped(&self) -> Option<JoinId> {
        self.dropped.front().copied()
    }

    /// Removes the first dropped join, whose state has been freed.
    pub fn remove_first_dropped(&mut self) -> Option<Box<Join>> {
        let id = self.dropped.pop_front()?;
        match std::mem::replace(&mut self.slots[id as usize], JoinSlot::Freed) {
            JoinSlot::Present(join) => Some(join),
            JoinSlot::CheckedOut | JoinSlot::Freed => None,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.all().map(Join::memory_bytes).sum()
    }
}

impl Engine {
    /// Runs `run` on a join, which is out of its place meanwhile. Returns `None` if it is out already, or gone.
    #[inline]
    pub(crate) fn with_join<T>(
        &mut self,
        id: JoinId,
        run: impl FnOnce(&mut Engine, &mut Join) -> T,
    ) -> Option<T> {
        let place = &mut self.joins.slots[id as usize];
        place.join()?;
        let JoinSlot::Present(mut join) = std::mem::replace(place, JoinSlot::CheckedOut) else {
            return None;
        };
        let done = run(self, &mut join);
        self.joins.slots[id as usize] = JoinSlot::Present(join);
        Some(done)
    }
}
