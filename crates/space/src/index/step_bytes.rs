//! The bytes of objects that a step reads: after a step that has read too many, a run looks at fewer objects in the next.
//!
//! The index does not know how long an object is. So the first step of a run may read more than [`STEP_BYTES`], by as much as its
//! objects are long.

use super::finder::{APART, Left};

/// What a step reads of objects, about: it takes a core some milliseconds to decode as many bytes.
pub(super) const STEP_BYTES: usize = 4 << 20;
/// The least part of a step's effort that is left: of a step over 256 objects, one.
const PART_MAX: usize = 256;

/// What a run's steps have read.
#[derive(Debug)]
pub(super) struct StepBytes {
    /// A step has the effort divided by this.
    part: usize,
    read: usize,
}

impl StepBytes {
    pub fn new() -> StepBytes {
        StepBytes { part: 1, read: 0 }
    }

    /// Begins a step, and returns what it may take of `effort`; `row_work` is the work for a row that is found.
    pub fn begin(&mut self, effort: usize, row_work: usize) -> Left {
        if self.read > STEP_BYTES {
            let more = self.part.saturating_mul(self.read.div_ceil(STEP_BYTES));
            self.part = more.min(PART_MAX);
        } else if self.read < STEP_BYTES / 4 {
            self.part = (self.part / 2).max(1);
        }
        self.read = 0;
        let effort = effort / self.part;
        let left = Left::new(effort / row_work);
        match self.part {
            1 => left,
            _ => left.in_batches_of(effort / APART),
        }
    }

    /// Counts an object that was read.
    pub fn note(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
    }

    /// Whether the step has read as much as it should.
    pub fn is_used_up(&self) -> bool {
        self.read >= STEP_BYTES
    }
}
