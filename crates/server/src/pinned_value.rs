//! Pinned values: a store's value that keeps its version open while it waits to be sent.
//!
//! Large values are sent from the mapped file to the socket without a copy, and a reply may wait long after its request, and
//! after a swap. The value therefore contains the `Arc` of its version.
//!
//! A value in the mapping was intact when it was found. If its file is truncated before it is sent, [`PinnedValue::is_intact`]
//! returns false. The sender checks this after each write, and before the bytes that end the reply.
//!
//! One checksum covers a complete value, so all of it is read and checked, whatever part is requested. A value in memory needs no
//! further memory. A value that had to be read from disk is owned: a part of it is copied and the rest freed, so that only the
//! requested part waits to be sent.

use std::ops::{Deref, Range};
use std::sync::Arc;

use larder_batch::{Error, Value, Version};

use crate::catalog::LiveStore;

/// A part of a value, and the owner of its bytes.
pub struct PinnedValue {
    bytes: PinnedBytes,
    range: Range<usize>,
}

enum PinnedBytes {
    Value {
        /// Invariant: borrows from `live.version` or from nothing. Declared first, so dropped first.
        value: Value<'static>,
        live: Arc<LiveStore>,
    },
    Part(Box<[u8]>),
}

impl PinnedValue {
    /// Looks up a value with `find` and pins it completely.
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

    /// Pins a value that a lookup in `live.version` returned.
    ///
    /// # Safety
    /// `value` must borrow from `live.version`, or be owned.
    pub unsafe fn hold(live: &Arc<LiveStore>, value: Value<'_>) -> PinnedValue {
        // SAFETY: only the lifetime changes. The version lies behind an `Arc`, so it does not move,
        // and is kept by `live` for as long as `value` exists; versions are never modified.
        let value = unsafe { std::mem::transmute::<Value<'_>, Value<'static>>(value) };
        PinnedValue {
            range: 0..value.len(),
            bytes: PinnedBytes::Value {
                value,
                live: live.clone(),
            },
        }
    }

    /// Narrows it to a part of its current range. Out of bounds means empty.
    pub fn slice(mut self, range: Range<usize>) -> PinnedValue {
        let end = self.range.start + range.end.min(self.range.len());
        let start = (self.range.start + range.start).min(end);
        self.range = start..end;
        let owned = matches!(&self.bytes, PinnedBytes::Value { value, .. } if !value.is_borrowed());
        if owned && self.len() < self.all_bytes().len() {
            let bytes: Box<[u8]> = Box::from(&*self);
            return PinnedValue {
                range: 0..bytes.len(),
                bytes: PinnedBytes::Part(bytes),
            };
        }
        self
    }

    /// The bytes of memory that only this value holds.
    pub fn memory_bytes(&self) -> usize {
        if self.is_borrowed() {
            0
        } else {
            self.all_bytes().len()
        }
    }

    /// Returns whether the bytes are in the version's mapping.
    pub fn is_borrowed(&self) -> bool {
        matches!(&self.bytes, PinnedBytes::Value { value, .. } if value.is_borrowed())
    }

    /// Returns whether the bytes read so far are those that the lookup checked. Once false, it stays false.
    pub fn is_intact(&self) -> bool {
        match &self.bytes {
            PinnedBytes::Value { value, live } => !value.is_borrowed() || live.version.is_intact(),
            PinnedBytes::Part(_) => true,
        }
    }

    fn all_bytes(&self) -> &[u8] {
        match &self.bytes {
            PinnedBytes::Value { value, .. } => value,
            PinnedBytes::Part(part) => part,
        }
    }
}

/// Freeing this much memory takes longer than a serving thread should spend.
const BACKGROUND_DROP_BYTES: usize = 4 << 20;

impl Drop for PinnedValue {
    fn drop(&mut self) {
        let PinnedBytes::Value { value, .. } = &self.bytes else {
            return;
        };
        if value.is_borrowed() || value.len() < BACKGROUND_DROP_BYTES {
            return;
        }
        let bytes = std::mem::replace(&mut self.bytes, PinnedBytes::Part(Box::default()));
        // Without a thread, the closure and the bytes are dropped here.
        let _ = std::thread::Builder::new()
            .name("larder-free".to_owned())
            .spawn(move || drop(bytes));
    }
}

impl Deref for PinnedValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all_bytes()[self.range.clone()]
    }
}

impl AsRef<[u8]> for PinnedValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
