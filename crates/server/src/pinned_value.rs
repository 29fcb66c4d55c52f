//! Pinned values: a value of a store that keeps its version open while it waits to be sent.
//!
//! Large values go from the mapped file to the socket without a copy, and a reply may wait long after the
//! request that asked for it, and after a swap. So the value carries the `Arc` of its version.
//!
//! A value that lies in the map was sound when it was found. If its file is cut before it is sent, [`PinnedValue::is_intact`]
//! says so: who sends it asks after each write, and before the bytes that end the reply.
//!
//! One checksum covers a whole value, so all of it is read and checked whatever part is asked for.
//! Of a value in memory that costs no memory. One that had to be read from disk is owned: a part of
//! it is copied out and the rest let go, so that what waits to be sent is no more than what was asked.

use std::ops::{Deref, Range};
use std::sync::Arc;

use larder_batch::{Error, Value, Version};

use crate::catalog::LiveStore;

/// Part of a value, and what keeps its bytes alive.
pub struct PinnedValue {
    bytes: Bytes,
    range: Range<usize>,
}

enum Bytes {
    Value {
        /// Invariant: borrows from `live.version` or from nothing. Declared first, so dropped first.
        value: Value<'static>,
        live: Arc<LiveStore>,
    },
    Part(Box<[u8]>),
}

impl PinnedValue {
    /// Looks up a value with `find` and holds it whole.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn find(
        live: &Arc<LiveStore>,
        find: impl for<'a> FnOnce(&'a Version) -> Result<Option<Value<'a>>, Error>,
    ) -> Result<Option<PinnedValue>, Error> {
        // SAFETY: `find` is generic in its argument's lifetime, so what it returns borrows from the
        // version of `live` and nothing else.
        Ok(find(&live.version)?.map(|value| unsafe { PinnedValue::hold(live, value) }))
    }

    /// Holds a value that a lookup in `live.version` returned.
    ///
    /// # Safety
    /// `value` must borrow from `live.version`, or be owned.
    pub unsafe fn hold(live: &Arc<LiveStore>, value: Value<'_>) -> PinnedValue {
        // SAFETY: only the lifetime changes. The version lies behind an `Arc`, so it does not move,
        // and is kept by `live` for as long as `value` exists; versions are never modified.
        let value = unsafe { std::mem::transmute::<Value<'_>, Value<'static>>(value) };
        PinnedValue {
            range: 0..value.len(),
            bytes: Bytes::Value {
                value,
                live: live.clone(),
            },
        }
    }

    /// Narrows it to a part of what it shows now. Out of bounds means empty.
    pub fn slice(mut self, range: Range<usize>) -> PinnedValue {
        let end = self.range.start + range.end.min(self.range.len());
        let start = (self.range.start + range.start).min(end);
        self.range = start..end;
        let owned = matches!(&self.bytes, Bytes::Value { value, .. } if !value.is_borrowed());
        if owned && self.len() < self.whole().len() {
            let bytes: Box<[u8]> = Box::from(&*self);
            return PinnedValue {
                range: 0..bytes.len(),
                bytes: Bytes::Part(bytes),
            };
        }
        self
    }

    /// Bytes of memory that it alone keeps.
    pub fn memory_bytes(&self) -> usize {
        match self.is_borrowed() {
            true => 0,
            false => self.whole().len(),
        }
    }

    /// Whether the bytes lie in the version's map.
    pub fn is_borrowed(&self) -> bool {
        matches!(&self.bytes, Bytes::Value { value, .. } if value.is_borrowed())
    }

    /// Whether what was looked at until now is what the lookup checked. Once false, never true again.
    pub fn is_intact(&self) -> bool {
        match &self.bytes {
            Bytes::Value { value, live } => !value.is_borrowed() || live.version.is_whole(),
            Bytes::Part(_) => true,
        }
    }

    fn whole(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Value { value, .. } => value,
            Bytes::Part(part) => part,
        }
    }
}

/// Giving so much memory back to the system takes longer than a serving thread should.
const DROPPED_APART_BYTES: usize = 4 << 20;

impl Drop for PinnedValue {
    fn drop(&mut self) {
        let Bytes::Value { value, .. } = &self.bytes else {
            return;
        };
        if value.is_borrowed() || value.len() < DROPPED_APART_BYTES {
            return;
        }
        let bytes = std::mem::replace(&mut self.bytes, Bytes::Part(Box::default()));
        // Without a thread the closure is dropped here, and the bytes with it.
        let _ = std::thread::Builder::new()
            .name("larder-free".to_owned())
            .spawn(move || drop(bytes));
    }
}

impl Deref for PinnedValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole()[self.range.clone()]
    }
}

impl AsRef<[u8]> for PinnedValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
