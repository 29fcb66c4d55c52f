//! Limits the bytes of objects that a step reads. After a step that read too many, the run examines fewer objects in
//! the next one.
//!
//! The index does not know the sizes of objects. The first step of a run may therefore exceed [`STEP_BYTES`], by an
//! amount that depends on the sizes.

use crate::index::finder::{SINGLE_ROW_EFFORT, StepBudget};

/// The approximate limit of bytes that a step reads. A core decodes them in a few milliseconds.
pub(super) const STEP_BYTES: usize = 4 << 20;
/// The maximum divisor of a step's effort: a step of 256 objects is reduced to one.
const PART_MAX: usize = 256;

/// The bytes read by the steps of a run.
#[derive(Debug)]
pub struct StepBytes {
    /// The effort of a step is divided by this.
    divisor: usize,
    read: usize,
}

impl StepBytes {
    pub fn new() -> StepBytes {
        StepBytes {
            divisor: 1,
            read: 0,
        }
    }

    /// Starts a step, and returns its share of `effort`. `row_work` is the work for each matching row.
    pub fn begin(&mut self, effort: usize, row_work: usize) -> StepBudget {
        if self.read > STEP_BYTES {
            let more = self.divisor.saturating_mul(self.read.div_ceil(STEP_BYTES));
            self.divisor = more.min(PART_MAX);
        } else if self.read < STEP_BYTES / 4 {
            self.divisor = (self.divisor / 2).max(1);
        }
        self.read = 0;
        let effort = effort / self.divisor;
        let left = StepBudget::new(effort / row_work);
        match self.divisor {
            1 => left,
            _ => left.in_batches_of(effort / SINGLE_ROW_EFFORT),
        }
    }

    /// Counts a read object.
    pub fn add_read(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
    }

    /// Returns whether the step has reached its limit.
    pub fn is_exhausted(&self) -> bool {
        self.read >= STEP_BYTES
    }
}
