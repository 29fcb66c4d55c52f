//! A value that keeps its version open while it waits to be sent.
//!
//! Large values go from the map to the socket without a copy, and a reply may wait long after the
//! request that asked for it, and after a swap. So the value carries the `Arc` of its version.

use std::ops::{Deref, Range};
use std::sync::Arc;

use larder_batch::{Error, Value, Version};

use crate::catalog::LiveStore;

/// Part of a value, and what keeps its bytes alive.
pub(super) struct HeldValue {
    /// Invariant: borrows from `_live.version` or from nothing. Declared first, so dropped first.
    value: Value<'static>,
    range: Range<usize>,
    _live: Arc<LiveStore>,
}

impl HeldValue {
    /// Looks up a value with `find` and holds it whole.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn find(
        live: &Arc<LiveStore>,
        find: impl for<'a> FnOnce(&'a Version) -> Result<Option<Value<'a>>, Error>,
    ) -> Result<Option<HeldValue>, Error> {
        // SAFETY: `find` is generic in its argument's lifetime, so what it returns borrows from the
        // version of `live` and nothing else.
        Ok(find(&live.version)?.map(|value| unsafe { HeldValue::hold(live, value) }))
    }

    /// Holds a value that a lookup in `live.version` returned.
    ///
    /// # Safety
    /// `value` must borrow from `live.version`, or be owned.
    pub unsafe fn hold(live: &Arc<LiveStore>, value: Value<'_>) -> HeldValue {
        // SAFETY: only the lifetime changes. The version lies behind an `Arc`, so it does not move,
        // and is kept by `_live` for as long as `value` exists; versions are never modified.
        let value = unsafe { std::mem::transmute::<Value<'_>, Value<'static>>(value) };
        HeldValue {
            range: 0..value.len(),
            value,
            _live: live.clone(),
        }
    }

    /// Narrows it to a part of what it shows now. Out of bounds means empty.
    pub fn slice(mut self, range: Range<usize>) -> HeldValue {
        let end = self.range.start + range.end.min(self.range.len());
        let start = (self.range.start + range.start).min(end);
        self.range = start..end;
        self
    }
}

impl Deref for HeldValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.value[self.range.clone()]
    }
}
