//! A search or an aggregation that runs in steps.
//!
//! The finder yields the matching rows, and a [`Consumer`] makes the result of them: the rows of a search, or the rows
//! or groups of an aggregation.
//!
//! 1. A run borrows nothing, so the index may change between two steps.
//! 2. A step examines at least one object. It ends when its effort is spent, or after the batch in which it has read
//!    [`step_bytes::STEP_BYTES`].

mod aggregate;
mod search;
mod step_bytes;

use std::sync::Arc;

pub use aggregate::AggregateConsumer;
pub use search::SearchConsumer;
pub(super) use search::finder_query;

use self::step_bytes::StepBytes;
use super::finder::{Event, Finder, FinderQuery};
use super::plan::Profile;
use super::{Objects, SpaceIndex};
use crate::error::{Refusal, Result};

pub type SearchRun = Run<SearchConsumer>;
pub type AggregateRun = Run<AggregateConsumer>;

/// The part of a run that turns matching rows into a result.
pub trait Consumer {
    type Request;
    type Output;

    /// Returns the request to the finder. It is the same in every step.
    fn query<'r>(&self, request: &'r Self::Request) -> FinderQuery<'r>;

    /// Returns the work for each matching row, where 1 is the work of finding it.
    fn row_work(request: &Self::Request) -> usize;

    /// Returns the number of matches so far. A walk ends when there are enough.
    fn matches(&self) -> usize;

    /// Discards all matches.
    fn restart(&mut self, request: &Self::Request);

    /// Removes the matching rows from `batch`, and adds them to the result. During a walk it adds them immediately,
    /// because the walk continues depending on [`Consumer::matches`]; otherwise it may defer them to
    /// [`Consumer::end_step`].
    ///
    /// # Errors
    /// An expression cannot be evaluated, or the result exceeds its limits.
    fn consume(
        &mut self,
        request: &Self::Request,
        reader: &mut Reader<'_>,
        batch: &mut Vec<u32>,
        is_walking: bool,
    ) -> Result<()>;

    /// Adds the deferred rows to the result. `total` is the number of all matches, if the run is complete and the
    /// finder has counted them.
    ///
    /// # Errors
    /// As [`Consumer::consume`].
    fn end_step(
        &mut self,
        request: &Self::Request,
        reader: &mut Reader<'_>,
        total: Option<u64>,
    ) -> Result<()>;

    /// Returns the approximate memory use, in bytes.
    fn bytes(&self) -> usize;

    fn into_output(self) -> Self::Output;
}

/// The state that one step reads: the index and the stored objects.
pub struct Reader<'s> {
    index: &'s SpaceIndex,
    objects: &'s dyn Objects,
    now_ms: u64,
    step_bytes: &'s mut StepBytes,
    objects_read: u64,
}

impl Reader<'_> {
    /// Calls [`Objects::object`], and counts the bytes.
    fn object(&mut self, row: u32, key: &[u8], read: &mut dyn FnMut(&[u8])) {
        self.objects_read += 1;
        self.objects.object(row, key, &mut |bytes| {
            self.step_bytes.add_read(bytes.len());
            read(bytes);
        });
    }

    /// Calls [`Objects::objects`], and counts the bytes.
    fn objects(&mut self, rows: &[(u32, &[u8])], read: &mut dyn FnMut(usize, Option<&[u8]>)) {
        self.objects_read += rows.len() as u64;
        self.objects.objects(rows, &mut |at, bytes| {
            self.step_bytes.add_read(bytes.map_or(0, <[u8]>::len));
            read(at, bytes);
        });
    }
}

/// A running search or aggregation.
#[derive(Debug)]
pub struct Run<C: Consumer> {
    request: Arc<C::Request>,
    consumer: C,
    finder: Finder,
    step_bytes: StepBytes,
    refusal: Option<Refusal>,
    profile: Profile,
    batch: Vec<u32>,
}

impl<C: Consumer> Run<C> {
    /// Starts a run. With `after`, it is restricted to keys after this one.
    fn start(
        index: &SpaceIndex,
        request: Arc<C::Request>,
        consumer: C,
        after: Option<&[u8]>,
    ) -> Run<C> {
        let query = consumer.query(&request);
        let finder = Finder::new(index, &query, after.map(<[u8]>::to_vec));
        let mut profile = Profile::new(finder.plan(index, &query));
        profile.record_effort(finder.planning_effort());
        Run {
            request,
            consumer,
            finder,
            step_bytes: StepBytes::new(),
            refusal: None,
            profile,
            batch: Vec::new(),
        }
    }

    /// Examines objects within this [effort](super::effort): at least one, and fewer if objects are long. Returns
    /// whether the run is complete.
    ///
    /// `index` must be the index with which the run was created. The result does not contain expired fields.
    pub fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool {
        // The work for each matching row is part of a step too.
        let row_work = C::row_work(&self.request);
        let mut left = self.step_bytes.begin(effort, row_work);
        let mut reader = Reader {
            index,
            objects,
            now_ms,
            step_bytes: &mut self.step_bytes,
            objects_read: 0,
        };
        let (request, consumer, finder) = (&*self.request, &mut self.consumer, &mut self.finder);
        let query = consumer.query(request);
        let batch = &mut self.batch;
        let found = loop {
            match finder.next(index, &query, consumer.matches(), &mut left, batch) {
                Event::Found => {
                    let is_walking = finder.is_walking();
                    if let Err(refusal) = consumer.consume(request, &mut reader, batch, is_walking)
                    {
                        break Err(refusal);
                    }
                }
                Event::Restarted => consumer.restart(request),
                Event::Paused => break Ok(false),
                Event::Done => break Ok(true),
            }
            if reader.step_bytes.is_exhausted() {
                break Ok(false);
            }
        };
        let result = found.and_then(|is_done| {
            let total = finder.total().filter(|_| is_done);
            consumer.end_step(request, &mut reader, total)?;
            Ok(is_done)
        });
        self.profile.steps += 1;
        self.profile.objects_read += reader.objects_read;
        self.profile.record_work(finder.work);
        self.profile.record_effort(left.spent() * row_work);
        result.unwrap_or_else(|refusal| {
            self.refusal = Some(refusal);
            true
        })
    }

    /// Returns the approximate memory use, in bytes.
    pub fn bytes(&self) -> usize {
        self.consumer.bytes()
    }

    /// Returns the error that ended the run early.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the result.
    ///
    /// # Errors
    /// An expression could not be evaluated, or the result exceeded its limits.
    pub fn finish(self) -> Result<C::Output> {
        match self.refusal {
            None => Ok(self.consumer.into_output()),
            Some(refusal) => Err(refusal),
        }
    }
}
