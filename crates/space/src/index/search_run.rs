//! A search that runs in steps.

use std::sync::Arc;

use larder_types::wire::{Malformed, put_count};

use super::finder::{Event, Finder, FinderQuery};
use super::plan::Profile;
use super::single_step::should_select;
use super::step_bytes::StepBytes;
use super::{Objects, SpaceIndex};
use crate::error::{Refusal, Result};
use crate::search::content::put_content;
use crate::search::request::Content;
use crate::search::{Partial, Search};

/// The number of objects that are read before the size of the result is compared with the limit.
const READ_BATCH: usize = 64;

/// A running search. It borrows nothing, so the index may change between two steps.
#[derive(Debug)]
pub struct SearchRun {
    search: Arc<Search>,
    finder: Finder,
    partial: Partial,
    /// The number of rows offered to the partial result.
    offered: usize,
    bytes_max: usize,
    step_bytes: StepBytes,
    refusal: Option<Refusal>,
    profile: Profile,
    batch: Vec<u32>,
}

pub(super) fn finder_query(search: &Search) -> FinderQuery<'_> {
    FinderQuery {
        order: &search.order,
        is_counted: !search.options.skips_total,
        keys: search.options.keys.as_ref(),
        ..FinderQuery::new(&search.predicate, search.keep())
    }
}

impl SearchRun {
    pub(super) fn new(index: &SpaceIndex, search: Arc<Search>, bytes_max: usize) -> SearchRun {
        let query = finder_query(&search);
        let finder = Finder::new(index, &query, None);
        let mut profile = Profile::new(finder.plan(index, &query));
        profile.record_effort(finder.planning_effort());
        SearchRun {
            profile,
            finder,
            partial: Partial::new(search.keep()),
            offered: 0,
            bytes_max,
            step_bytes: StepBytes::new(),
            refusal: None,
            batch: Vec::new(),
            search,
        }
    }

    /// Examines objects within this [effort](super::effort): at least one, and fewer if objects are long. Returns
    /// whether the run is complete.
    ///
    /// `index` must be the index with which the run was created. The rows of the result contain the returned content of
    /// objects, without expired fields.
    pub fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool {
        let search = self.search.clone();
        let query = finder_query(&search);
        // The work for each matching row is part of a step too.
        let row_work = search.row_work();
        let mut left = self.step_bytes.begin(effort, row_work);
        self.profile.steps += 1;
        // The first matches of this step. Objects are read after it is known which of them are returned.
        let mut rows = Vec::new();
        let mut batch = std::mem::take(&mut self.batch);
        let is_done = loop {
            let event = self
                .finder
                .next(index, &query, self.offered, &mut left, &mut batch);
            self.profile.record_work(self.finder.work);
            match event {
                Event::Found => {
                    self.offered += batch.len();
                    rows.append(&mut batch);
                    if self.finder.is_walking() {
                        // The walk ends when the requested number of objects has been read.
                        self.keep_first(index, &mut rows);
                        self.offer_rows(index, objects, now_ms, &rows);
                        rows.clear();
                        if self.step_bytes.is_exhausted() {
                            break false;
                        }
                    } else if should_select(search.keep(), &rows) {
                        self.keep_first(index, &mut rows);
                    }
                }
                Event::Restarted => {
                    self.partial = Partial::new(search.keep());
                    self.offered = 0;
                    rows.clear();
                }
                Event::Paused => break false,
                Event::Done => break true,
            }
        };
        self.batch = batch;
        self.keep_first(index, &mut rows);
        for some in rows.chunks(READ_BATCH) {
            if self.refusal.is_none() {
                self.offer_rows(index, objects, now_ms, some);
            }
        }
        self.profile.record_effort(left.spent() * row_work);
        if let Some(total) = self.finder.total().filter(|_| is_done) {
            self.partial.total = self.partial.total.max(total);
        }
        is_done || self.refusal.is_some()
    }

    /// Keeps the first rows. The others are only counted.
    fn keep_first(&mut self, index: &SpaceIndex, rows: &mut Vec<u32>) {
        let found = rows.len();
        index.keep_first(&self.search.order, self.search.keep(), rows);
        self.partial.total += (found - rows.len()) as u64;
    }

    /// Offers the rows to the partial result.
    fn offer_rows(&mut self, index: &SpaceIndex, objects: &dyn Objects, now_ms: u64, rows: &[u32]) {
        let search = &self.search;
        // The concatenated ranks of the rows to read, and the range of each.
        let (mut ranks, mut read) = (Vec::new(), Vec::with_capacity(rows.len()));
        let mut kept: Vec<(u32, &[u8])> = Vec::with_capacity(rows.len());
        for row in rows.iter().copied() {
            let (key, begin) = (index.rows.key(row), ranks.len());
            index.put_rank(&search.order, row, &mut ranks);
            let rank = &ranks[begin..];
            if search.content == Content::Nothing || !self.partial.would_keep(rank) {
                self.partial.offer(rank, key, |_| ());
                ranks.truncate(begin);
            } else {
                read.push(begin..ranks.len());
                kept.push((row, key));
            }
        }
        self.profile.objects_read += kept.len() as u64;
        let step_bytes = &mut self.step_bytes;
        objects.objects(&kept, &mut |at, bytes| {
            step_bytes.add_read(bytes.map_or(0, <[u8]>::len));
            let put = |out: &mut Vec<u8>| {
                let bytes = bytes.ok_or(Malformed("the object is gone"))?;
                put_content(search, index.definition(), bytes, now_ms, out, put_count)
            };
            let rank = &ranks[read[at].clone()];
            if self.partial.try_offer(rank, kept[at].1, put).is_err() {
                self.offered -= 1;
            }
        });
        if self.partial.bytes() > self.bytes_max {
            self.refusal = Some(Refusal::new(format!(
                "rows take more than {} bytes: request fewer with LIMIT, less content with RETURN or NOCONTENT, or read them with FT.AGGREGATE WITHCURSOR",
                self.bytes_max
            )));
        }
    }

    /// Returns the approximate memory use, in bytes.
    pub fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    /// Returns the error that ended the run early.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the result. The content of its entries is in the form of [`crate::search::content::decode_content`]; it
    /// is empty with NOCONTENT.
    ///
    /// # Errors
    /// The rows exceeded the memory limit.
    pub fn finish(self) -> Result<Partial> {
        match self.refusal {
            None => Ok(self.partial),
            Some(refusal) => Err(refusal),
        }
    }
}
