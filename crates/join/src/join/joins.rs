//! The joins of an engine, each in its place.
//!
//! 1. A join is out of its place while something is done to it, by [`Engine::with_join`] and by nothing else. Joins form no cycle,
//!    so nobody looks for it then; who does not know that finds no join.
//! 2. A join that was dropped stays in its place until all that it made is forgotten, and is seen by nobody else: no table has it
//!    as a maker or a reader.
//! 3. Numbers are not used again.

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::join::{Join, JoinId};

#[derive(Default)]
pub struct Joins {
    places: Vec<Place>,
    /// Those that were dropped and have yet to be forgotten.
    dropped: VecDeque<JoinId>,
}

enum Place {
    There(Box<Join>),
    /// Something is done to it.
    Out,
    /// It was dropped, and all that it made is forgotten.
    Gone,
}

impl Place {
    #[inline]
    fn join(&self) -> Option<&Join> {
        match self {
            Place::There(join) => Some(join),
            Place::Out | Place::Gone => None,
        }
    }
}

impl Joins {
    #[inline]
    pub fn get(&self, id: JoinId) -> Option<&Join> {
        self.places[id as usize].join()
    }

    #[inline]
    pub fn get_mut(&mut self, id: JoinId) -> Option<&mut Join> {
        match &mut self.places[id as usize] {
            Place::There(join) => Some(join),
            Place::Out | Place::Gone => None,
        }
    }

    /// Whether a join is out of its place, and will be back.
    pub fn is_out(&self, id: JoinId) -> bool {
        matches!(self.places[id as usize], Place::Out)
    }

    /// All that are in their places, also those that were dropped.
    pub fn all(&self) -> impl Iterator<Item = &Join> {
        self.places.iter().filter_map(Place::join)
    }

    /// Those that have not been dropped, oldest first.
    pub fn live(&self) -> impl Iterator<Item = &Join> {
        self.all().filter(|join| !self.dropped.contains(&join.id))
    }

    pub fn named(&self, name: &str) -> Option<&Join> {
        self.live().find(|join| join.name == name)
    }

    /// The number of the next join that is added.
    pub fn next_id(&self) -> JoinId {
        self.places.len() as JoinId
    }

    pub fn add(&mut self, join: Join) {
        debug_assert_eq!(join.id, self.next_id(), "a join knows its place");
        self.places.push(Place::There(Box::new(join)));
    }

    /// A join is seen by nobody any more.
    pub fn drop_join(&mut self, id: JoinId) {
        self.dropped.push_back(id);
    }

    pub fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// The first of those that have yet to be forgotten.
    pub fn first_dropped(&self) -> Option<JoinId> {
        self.dropped.front().copied()
    }

    /// The first of those that were dropped is forgotten.
    pub fn remove_first_dropped(&mut self) -> Option<Box<Join>> {
        let id = self.dropped.pop_front()?;
        match std::mem::replace(&mut self.places[id as usize], Place::Gone) {
            Place::There(join) => Some(join),
            Place::Out | Place::Gone => None,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.all().map(Join::memory_bytes).sum()
    }
}

impl Engine {
    /// Does something to a join, which is out of its place meanwhile. Nothing if it is out already, or gone.
    #[inline]
    pub(crate) fn with_join<T>(
        &mut self,
        id: JoinId,
        run: impl FnOnce(&mut Engine, &mut Join) -> T,
    ) -> Option<T> {
        let place = &mut self.joins.places[id as usize];
        place.join()?;
        let Place::There(mut join) = std::mem::replace(place, Place::Out) else {
            return None;
        };
        let done = run(self, &mut join);
        self.joins.places[id as usize] = Place::There(join);
        Some(done)
    }
}
