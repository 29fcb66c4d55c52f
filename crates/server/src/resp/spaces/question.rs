//! What is asked of a space: a search or an aggregation. Each core that takes part begins it on its own objects, or on the copies that it holds, and
//! their parts are put together.

use larder_protocol::resp::Proto;
use larder_space::index::{AggregateRun, Objects, Profile, SearchRun, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;

use super::aside::Patience;
use crate::clients::Limits;
use crate::tables::Refusal;

/// What goes on in steps.
pub(super) trait Steps: Send + 'static {
    /// Whether it is done.
    fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool;

    fn profile(&self) -> &Profile;

    /// What it keeps in memory, about.
    fn bytes(&self) -> usize;
}

/// How a client gets an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replying {
    pub proto: Proto,
    pub limits: Limits,
}

/// A search or an aggregation.
pub(super) trait Question: Clone + Send + Sync + 'static {
    type Run: Steps;
    /// What one core found, or several together.
    type Found: Send + 'static;

    fn predicate(&self) -> &Predicate;

    /// After which time it is given up.
    fn timeout_ms(&self) -> Option<u64>;

    /// Whether it also waits for objects that were there before the space was declared, or altered.
    fn is_of_all(&self) -> bool {
        false
    }

    /// # Errors
    /// It looks at all objects of the space; what would help.
    fn ensure_no_full_scan(&self, definition: &Definition) -> Result<(), Refusal>;

    fn begin(&self, index: &SpaceIndex) -> Self::Run;

    /// Why a run ended early.
    fn refusal(&self, run: &Self::Run) -> Option<Refusal>;

    /// # Errors
    /// What was found is more than may be kept; or an expression could not be evaluated.
    fn finish(&self, run: Self::Run) -> Result<Self::Found, Refusal>;

    /// # Errors
    /// As [`Question::finish`].
    fn merge(&self, parts: Vec<Self::Found>) -> Result<Self::Found, Refusal>;

    /// As [`Question::merge`], of what was found among copies in regions: an object may be in two parts, if a write has moved it meanwhile.
    ///
    /// # Errors
    /// As [`Question::finish`].
    fn merge_copies(&self, parts: Vec<Self::Found>) -> Result<Self::Found, Refusal>;

    fn encode(&self, found: &Self::Found) -> Vec<u8>;

    /// # Errors
    /// [`Question::encode`] does not write such bytes.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Found, Refusal>;

    /// What `found` takes in memory, about: working on it takes as long as that is large.
    fn bytes(&self, found: &Self::Found) -> usize;

    /// The reply to a client.
    ///
    /// # Errors
    /// It is longer than a reply may be, or takes longer than it may.
    fn reply(
        &self,
        replying: Replying,
        patience: &Patience,
        found: Self::Found,
    ) -> Result<Vec<u8>, Refusal>;
}

impl Steps for SearchRun {
    fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool {
        SearchRun::step(self, index, objects, now_ms, effort)
    }

    fn profile(&self) -> &Profile {
        SearchRun::profile(self)
    }

    fn bytes(&self) -> usize {
        SearchRun::bytes(self)
    }
}

impl Steps for AggregateRun {
    fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool {
        AggregateRun::step(self, index, objects, now_ms, effort)
    }

    fn profile(&self) -> &Profile {
        AggregateRun::profile(self)
    }

    fn bytes(&self) -> usize {
        AggregateRun::bytes(self)
    }
}
