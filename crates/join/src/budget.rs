//! Budget: how much the operation that is under way may still visit, and what becomes of what it may not.
//!
//! | mode | what does not fit |
//! |---|---|
//! | `Resumable` | stays with what is computed; a later read or step goes on with it |
//! | `Bounded` | ends what is being computed, which is then done in another way |
//! | `Atomic` | is visited all the same: it cannot be left half done, and is never too much |
//!
//! What is counted are source rows, entries of updater lists, and nodes.
//!
//! 1. Inside `Bounded` and `Atomic` no other bounds are set: what is computed for something is a part of it.

use crate::engine::Engine;

/// What it costs to look for the rows of a range and to leave a node, in rows.
pub const NODE_ROWS: usize = 8;

/// What a computation in one go may visit, in reads' budgets.
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
    /// All that was visited so far, with whatever budget.
    visited: u64,
}

/// What one operation may visit before the rest waits for [`Engine::step`]; `None`: any number.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    /// Outputs that a write reaches, and what a step of anything visits.
    pub step_rows: Option<usize>,
    /// Source rows of a read; at least one, or a read would never learn what it lacks.
    pub read_rows: Option<usize>,
}

impl Budget {
    /// Of so many, or of any number.
    pub fn of(rows: Option<usize>) -> Budget {
        Budget {
            left: rows.unwrap_or(usize::MAX),
            mode: BudgetMode::Resumable,
            visited: 0,
        }
    }

    pub fn unlimited() -> Budget {
        Budget::of(None)
    }

    pub fn atomic() -> Budget {
        Budget {
            left: usize::MAX,
            mode: BudgetMode::Atomic,
            visited: 0,
        }
    }

    /// For something that is computed in one go or, if that is too much, in another way.
    fn bounded(pace: Pace) -> Budget {
        match pace.read_rows {
            Some(rows) => Budget {
                left: rows.saturating_mul(BOUNDED_READS),
                mode: BudgetMode::Bounded,
                visited: 0,
            },
            None => Budget::unlimited(),
        }
    }

    /// For something that is computed however much it is; what is computed for it has bounds of its own.
    pub fn lifted(self) -> Budget {
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

    /// Whether what does not fit may stay with what is computed.
    pub fn is_resumable(self) -> bool {
        self.mode == BudgetMode::Resumable
    }

    #[inline]
    pub fn spend(&mut self, visited: usize) {
        self.left = self.left.saturating_sub(visited);
        self.visited += visited as u64;
    }

    /// What reads this cannot go on either.
    pub fn exhaust(&mut self) {
        self.left = 0;
    }
}

impl Engine {
    /// Source rows, entries and nodes that were visited so far. The difference of two is what was done between them.
    #[inline]
    pub fn visited(&self) -> u64 {
        self.budget.visited
    }

    /// Goes on with another budget.
    #[inline]
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        (self.budget.left, self.budget.mode) = (budget.left, budget.mode);
    }

    /// Does something with a budget of its own.
    pub(crate) fn with_budget<T>(&mut self, budget: Budget, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.budget;
        self.set_budget(budget);
        let done = run(self);
        self.set_budget(before);
        done
    }

    /// Computes something that cannot be left half done, unless it is too much: then less than all was done.
    pub(crate) fn within_bounds<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        if !self.budget.is_resumable() {
            return run(self);
        }
        self.with_budget(Budget::bounded(self.pace), run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_inside_bounds_are_the_outer_ones() {
        let mut engine = Engine::new();
        engine.pace.read_rows = Some(10);
        engine.set_budget(Budget::of(Some(3)));
        engine.within_bounds(|engine| {
            assert_eq!(
                (engine.budget.left(), engine.budget.is_resumable()),
                (80, false)
            );
            engine.budget.spend(70);
            engine.within_bounds(|engine| engine.budget.spend(20));
            assert!(
                engine.budget.is_spent(),
                "what is computed for it is a part of it"
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
