//! A search that goes on in steps.

use std::ops::Bound;
use std::sync::Arc;

use super::plan::Profile;
use super::{Objects, SpaceIndex};
use crate::error::{Refusal, Result};
use crate::object::Object;
use crate::query::matches;
use crate::search::content::{content, encode_content};
use crate::search::partial::rank;
use crate::search::request::Content;
use crate::search::{Partial, Search};

/// It borrows nothing: between two steps the index may change.
#[derive(Debug)]
pub struct SearchRun {
    search: Arc<Search>,
    partial: Partial,
    bytes_max: usize,
    /// The last key that was looked at.
    after: Option<Vec<u8>>,
    refusal: Option<Refusal>,
    profile: Profile,
}

impl SearchRun {
    pub(super) fn new(index: &SpaceIndex, search: Arc<Search>, bytes_max: usize) -> SearchRun {
        SearchRun {
            partial: Partial::new(search.keep()),
            bytes_max,
            after: None,
            refusal: None,
            profile: Profile::new(index.plan(&search.predicate, &search.order)),
            search,
        }
    }

    /// Looks at so many objects at most, one at least. Whether the run is done.
    ///
    /// The index is that which the run was made with. Rows hold what is returned of an object, with the fields that have not expired.
    pub fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        candidates_max: usize,
    ) -> bool {
        if self.refusal.is_some() {
            return true;
        }
        let (search, definition) = (self.search.clone(), index.definition());
        self.profile.steps += 1;
        let from = match &self.after {
            Some(key) => Bound::Excluded(key.clone()),
            None => Bound::Unbounded,
        };
        let mut last = None;
        for (key, row) in index
            .rows
            .range((from, Bound::Unbounded))
            .take(candidates_max.max(1))
        {
            self.profile.candidates += 1;
            last = Some(key);
            let is_asked_for = search
                .options
                .keys
                .as_ref()
                .is_none_or(|keys| keys.contains(key));
            if !is_asked_for || !matches(&search.predicate, row) {
                continue;
            }
            self.profile.found += 1;
            let rank = rank(&search.order, definition, row, key);
            if search.content == Content::Nothing || !self.partial.would_keep(&rank) {
                self.partial.offer(rank, key, Vec::new);
                continue;
            }
            let mut found = None;
            objects.object(key, &mut |bytes| found = Object::decode(bytes).ok());
            self.profile.objects_read += 1;
            if let Some(mut object) = found {
                if let Object::Hash(hash) = &mut object {
                    hash.expire(now_ms);
                }
                self.partial.offer(rank, key, || {
                    encode_content(&content(&search, definition, &object))
                });
            }
            if self.partial.bytes() > self.bytes_max {
                self.refusal = Some(Refusal::new(format!(
                    "rows take more than {} bytes: ask for fewer with LIMIT, for less of them with RETURN or NOCONTENT, or read them with FT.AGGREGATE WITHCURSOR",
                    self.bytes_max
                )));
                return true;
            }
        }
        self.after = last.cloned();
        self.after.is_none()
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What was found. The content of its entries is as [`crate::search::content::decode_content`] reads it; empty with NOCONTENT.
    ///
    /// # Errors
    /// The rows took more than they may.
    pub fn finish(self) -> Result<Partial> {
        match self.refusal {
            None => Ok(self.partial),
            Some(refusal) => Err(refusal),
        }
    }
}
