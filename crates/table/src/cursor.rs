//! Range reads: rows of a half-open range in key order, or against it.

use std::collections::btree_map;

use crate::value::Value;

/// Reads rows one after the other, without an allocation per row. What `next` returns is valid until it is called
/// again.
pub struct Cursor<'t> {
    pub(crate) rows: Option<btree_map::Range<'t, Box<[u8]>, Value>>,
    pub(crate) reverse: bool,
    pub(crate) at: Option<&'t Value>,
}

impl Cursor<'_> {
    /// The next row, if any is left.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let rows = self.rows.as_mut()?;
        let (key, value) = if self.reverse {
            rows.next_back()?
        } else {
            rows.next()?
        };
        self.at = Some(value);
        Some((key, value))
    }

    /// The value of the row that `next` returned last: a handle if the row holds one, else a copy.
    ///
    /// # Panics
    ///
    /// If `next` has not returned a row, or has come to the end.
    pub fn value(&self) -> Value {
        self.at.expect("a row was read").clone()
    }
}
