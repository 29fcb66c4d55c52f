//! An aggregation that goes on in steps.

use std::ops::Bound;
use std::sync::Arc;

use super::plan::Profile;
use super::{Objects, SpaceIndex};
use crate::aggregate::{Aggregation, Limits, Partial};
use crate::error::{Refusal, Result};
use crate::object::Object;
use crate::query::matches;

/// It borrows nothing: between two steps the index may change.
#[derive(Debug)]
pub struct AggregateRun {
    aggregation: Arc<Aggregation>,
    partial: Partial,
    /// The last key that was looked at, or that a cursor goes on behind.
    after: Option<Vec<u8>>,
    refusal: Option<Refusal>,
    profile: Profile,
}

impl AggregateRun {
    pub(super) fn new(
        index: &SpaceIndex,
        aggregation: Arc<Aggregation>,
        limits: Limits,
        after: Option<&[u8]>,
    ) -> AggregateRun {
        AggregateRun {
            partial: Partial::new(&aggregation, limits),
            after: after.map(<[u8]>::to_vec),
            refusal: None,
            profile: Profile::new(index.plan(&aggregation.predicate, &[])),
            aggregation,
        }
    }

    /// Looks at so many objects at most, one at least. Whether the run is done.
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
        let (aggregation, definition) = (self.aggregation.clone(), index.definition());
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
            let is_asked_for = aggregation
                .options
                .keys
                .as_ref()
                .is_none_or(|keys| keys.contains(key));
            if !is_asked_for || !matches(&aggregation.predicate, row) {
                continue;
            }
            self.profile.found += 1;
            let mut found = None;
            objects.object(key, &mut |bytes| found = Object::decode(bytes).ok());
            self.profile.objects_read += 1;
            let Some(mut object) = found else { continue };
            if let Object::Hash(hash) = &mut object {
                hash.expire(now_ms);
            }
            if let Err(refusal) = self.partial.add(&aggregation, definition, key, &object) {
                self.refusal = Some(refusal);
                return true;
            }
        }
        self.after = last.cloned();
        self.after.is_none()
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// # Errors
    /// An expression could not be evaluated, or more is kept than the limits allow.
    pub fn finish(self) -> Result<Partial> {
        match self.refusal {
            None => Ok(self.partial),
            Some(refusal) => Err(refusal),
        }
    }
}
