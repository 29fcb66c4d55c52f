//! The question to a space: a search or an aggregation. Each participating core executes it on its own objects, or on
//! the copies that it holds, and the results are merged.

use larder_protocol::resp::Proto;
use larder_space::index::{Consumer, Objects, Profile, Run, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;

use super::offload::SearchDeadline;
use crate::clients::Limits;
use crate::tables::Refusal;

/// A computation that runs in steps.
pub(super) trait SteppedRun: Send + 'static {
    /// Performs one step. Returns whether the computation is complete.
    fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool;

    fn profile(&self) -> &Profile;

    /// Returns the approximate memory held.
    fn bytes(&self) -> usize;
}

/// The format and limits of a reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyFormat {
    pub proto: Proto,
    pub limits: Limits,
}

/// A search or an aggregation.
pub(super) trait SpaceQuery: Clone + Send + Sync + 'static {
    type Run: SteppedRun;
    /// The result of one core, or the merged result of several.
    type Output: Send + 'static;

    fn predicate(&self) -> &Predicate;

    /// Returns the time limit in milliseconds, if the request specifies one.
    fn timeout_ms(&self) -> Option<u64>;

    /// Returns whether to wait for objects that existed before the space was declared or altered.
    fn waits_for_all(&self) -> bool {
        false
    }

    /// # Errors
    /// The question needs a full scan of the space. The message suggests an alternative.
    fn ensure_no_full_scan(&self, definition: &Definition) -> Result<(), Refusal>;

    fn begin(&self, index: &SpaceIndex) -> Self::Run;

    /// Returns the error for which a run ended early, if any.
    fn refusal(&self, run: &Self::Run) -> Option<Refusal>;

    /// # Errors
    /// The result exceeds the memory limit, or an expression could not be evaluated.
    fn finish(&self, run: Self::Run) -> Result<Self::Output, Refusal>;

    /// # Errors
    /// As [`SpaceQuery::finish`].
    fn merge(&self, parts: Vec<Self::Output>) -> Result<Self::Output, Refusal>;

    /// As [`SpaceQuery::merge`], for results from copies in regions. An object may be in two parts if a concurrent write
    /// has moved it.
    ///
    /// # Errors
    /// As [`SpaceQuery::finish`].
    fn merge_copies(&self, parts: Vec<Self::Output>) -> Result<Self::Output, Refusal>;

    fn encode(&self, found: &Self::Output) -> Vec<u8>;

    /// # Errors
    /// The bytes were not written by [`SpaceQuery::encode`].
    fn decode(&self, bytes: &[u8]) -> Result<Self::Output, Refusal>;

    /// Returns the approximate memory of `found`, to which the cost of processing it is proportional.
    fn bytes(&self, found: &Self::Output) -> usize;

    /// Returns the reply to a client.
    ///
    /// # Errors
    /// The reply would be too long, or the time limit is exceeded.
    fn reply(
        &self,
        reply_format: ReplyFormat,
        deadline: &SearchDeadline,
        found: Self::Output,
    ) -> Result<Vec<u8>, Refusal>;
}

impl<C> SteppedRun for Run<C>
where
    C: Consumer<Request: Send + Sync> + Send + 'static,
{
    fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool {
        Run::step(self, index, objects, now_ms, effort)
    }

    fn profile(&self) -> &Profile {
        Run::profile(self)
    }

    fn bytes(&self) -> usize {
        Run::bytes(self)
    }
}
