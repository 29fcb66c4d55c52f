//! The work that the current operation may still do, and the treatment of work that exceeds it.
//!
//! | mode | work that exceeds the budget |
//! |---|---|
//! | `Resumable` | remains; a later read or step continues it |
//! | `Bounded` | aborts the computation; the caller uses another method |
//! | `Atomic` | is done anyway: the operation cannot be split and is small |
//!
//! The unit is one source row, one updater entry, or one node.
//!
//! 1. Inside `Bounded` and `Atomic`, nested computations set no bounds of their own: they count towards the outer
//!    budget.

use crate::engine::Engine;

/// Cost of locating the rows of a range and creating a node, in rows.
pub const NODE_ROWS: usize = 8;

/// Budget of a computation that cannot be split, as a multiple of a read's budget.
const BOUNDED_READS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum BudgetMode {
    #[default]
    Resumable,
    Bounded,
    Atomic,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Budget {
    left: usize,
    mode: BudgetMode,
    /// Total work so far, under all budgets.
    visited: u64,
}

/// The work that one operation may do before the rest is deferred to [`Engine::step`]. `None`: unlimited.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepLimits {
    /// Outputs that a write updates, and the work of one step of any kind.
    pub step_rows: Option<usize>,
    /// Source rows of a read. At least one; with zero, a read would not discover which rows it lacks.
    pub read_rows: Option<usize>,
}

impl Budget {
    /// A budget of `rows`, or an unlimited one.
    pub fn limited_to(rows: Option<usize>) -> Budget {
        Budget {
            left: rows.unwrap_or(usize::MAX),
            mode: BudgetMode::Resumable,
            visited: 0,
        }
    }

    pub fn unlimited() -> Budget {
        Budget::limited_to(None)
    }

    pub fn atomic() -> Budget {
        Budget {
            left: usize::MAX,
            mode: BudgetMode::Atomic,
            visited: 0,
        }
    }

    /// A budget for a computation that is either done in one step or, if that is too much work, by another method.
    fn bounded(pace: StepLimits) -> Budget {
        match pace.read_rows {
            Some(rows) => Budget {
                left: rows.saturating_mul(BOUNDED_READS),
                mode: BudgetMode::Bounded,
                visited: 0,
            },
            None => Budget::unlimited(),
        }
    }

    /// The same mode without a limit, for work that must be completed. Work nested in it sets its own bounds.
    pub fn without_limit(self) -> Budget {
        Budget {
            left: usize::MAX,
            mode: self.mode,
            visited: 0,
        }
    }

    #[inline]
    pub fn left(self) -> usize {
        self.left
    }

    #[inline]
    pub fn is_spent(self) -> bool {
        self.left == 0
    }

    /// Returns whether exceeding work may remain for a later step.
    pub fn is_resumable(self) -> bool {
        self.mode == BudgetMode::Resumable
    }

    #[inline]
    pub fn spend(&mut self, visited: usize) {
        self.left = self.left.saturating_sub(visited);
        self.visited += visited as u64;
    }

    /// Spends the rest of the budget, so that everything that checks it stops too.
    pub fn exhaust(&mut self) {
        self.left = 0;
    }
}

impl Engine {
    /// Source rows, updater entries and nodes visited so far. The difference of two values is the work done between
    /// them.
    #[inline]
    pub fn visited(&self) -> u64 {
        self.budget.visited
    }

    /// Replaces the budget, and keeps the count of work done.
    #[inline]
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        (self.budget.left, self.budget.mode) = (budget.left, budget.mode);
    }

    /// Runs `run` with a separate budget, then restores the current one.
    pub(crate) fn with_budget<T>(&mut self, budget: Budget, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.budget;
        self.set_budget(budget);
        let done = run(self);
        self.set_budget(before);
        done
    }

    /// Runs a computation that cannot be split, with a bounded budget. If the budget is exceeded, the result is
    /// incomplete.
    pub(crate) fn within_bounds<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        if !self.budget.is_resumable() {
            return run(self);
        }
        self.with_budget(Budget::bounded(self.step_limits), run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_bounds_keep_the_outer_bounds() {
        let mut engine = Engine::new();
        engine.step_limits.read_rows = Some(10);
        engine.set_budget(Budget::limited_to(Some(3)));
        engine.within_bounds(|engine| {
            assert_eq!(
                (engine.budget.left(), engine.budget.is_resumable()),
                (80, false)
            );
            engine.budget.spend(70);
            engine.within_bounds(|engine| engine.budget.spend(20));
            assert!(
                engine.budget.is_spent(),
                "a nested computation shares the outer budget"
            );
        });
        assert_eq!(
            (engine.budget.left(), engine.budget.is_resumable()),
            (3, true)
        );
        engine.with_budget(Budget::atomic(), |engine| {
            engine.within_bounds(|engine| engine.budget.spend(1_000_000));
            assert!(!engine.budget.is_spent() && !engine.budget.is_resumable());
        });
        assert!(engine.budget.is_resumable());
        assert_eq!(engine.visited(), 70 + 20 + 1_000_000);
    }
}
