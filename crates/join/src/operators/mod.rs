//! The operators, which make output rows from combined source rows. A row of [`OPERATORS`] and one file define an
//! operator completely: its syntax, its state, how a combination of rows is applied, and how its output is formatted.
//!
//! | kind | operators | output rows |
//! |---|---|---|
//! | [`OperatorKind::Check`] | `check` | none: a row must exist |
//! | [`OperatorKind::Copied`] | `copy` | the source's values, shared; if several source rows produce one row, as `InGroup` |
//! | [`OperatorKind::InRow`] | `count sum avg` | hold a state of fixed length, which is formatted when it is read |
//! | [`OperatorKind::InGroup`] | `min max distinct top` | show a state that is stored separately for each group |
//!
//! Read this file and `output`, which applies combinations and stores the rows; then `totals`, `copy`, `extremes`,
//! `top` and `distinct`, one family each, and `ranked`, the best few rows of a group. `docs/design/extending-joins.md`
//! explains how to add an operator.

pub(crate) mod copy;
pub(crate) mod distinct;
#[cfg(test)]
mod example;
pub(crate) mod extremes;
pub(crate) mod output;
pub(crate) mod ranked;
pub(crate) mod top;
pub(crate) mod totals;

use std::fmt::Debug;

use crate::base::pattern::{Binding, Pattern, SlotId};
use crate::base::rows::Value;

/// All operators, in the order of the documentation.
pub static OPERATORS: &[OperatorRow] = &[
    copy::CHECK,
    copy::COPY,
    totals::COUNT,
    totals::SUM,
    totals::AVG,
    extremes::MIN,
    extremes::MAX,
    distinct::DISTINCT,
    top::TOP,
    #[cfg(test)]
    example::SPREAD,
];

/// The definition of an operator.
#[derive(Debug)]
pub struct OperatorRow {
    /// Its name in definitions.
    pub name: &'static str,
    pub argument: Argument,
    pub kind: OperatorKind,
    /// True if `else` may define the value of an absent row.
    pub may_have_else: bool,
}

/// The argument between the operator and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    None,
    /// `10`, `10 asc`, `10 desc`: the number of rows per group, which the output ranks in a slot `<rank>`, and their
    /// order.
    CountAndOrder,
}

#[derive(Debug, Clone, Copy)]
pub enum OperatorKind {
    Check,
    /// The function creates the state that combines several source rows.
    Copied(NewGroup),
    InRow(&'static dyn RowState),
    InGroup(NewGroup),
}

/// Creates the state of an empty group.
pub type NewGroup = fn(Operator) -> Box<dyn GroupState>;

/// Maximum length of a row's state, in bytes.
pub const STATE_BYTES: usize = 32;

/// A state stored in the output row.
pub trait RowState: Debug + Sync {
    /// Writes the state after a combination was added (`new`), changed (both) or removed (`old`), and returns its
    /// length. The length is constant, or 0 if no source rows are left. `before` is `None` if there is no row.
    fn update_state(
        &self,
        before: Option<&[u8]>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        after: &mut [u8; STATE_BYTES],
    ) -> usize;

    /// Returns whether the state is independent of the values.
    fn ignores_values(&self) -> bool {
        false
    }

    /// Formats a state as the visible value.
    ///
    /// # Errors
    /// The number of invalid values, because of which the state has no visible value.
    fn format(&self, state: &[u8], out: &mut Vec<u8>) -> Result<(), u64>;

    /// Returns whether every state has a visible value.
    fn always_formats(&self) -> bool {
        false
    }
}

/// The state of one group of source rows, stored separately from the output rows.
pub trait GroupState: Debug {
    /// Applies a combination that was added (`new`), changed (both) or removed (`old`).
    fn apply(
        &mut self,
        shape: &Shape,
        combination: Combination<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    );

    /// Returns whether the state has lost the rows to show, so that all source rows must be applied to a new state.
    fn is_drained(&self) -> bool {
        false
    }

    /// Returns whether no source rows are left.
    fn is_empty(&self) -> bool;

    /// Returns the output rows in key order. `group` is the prefix of their keys, or the key.
    fn rows(&self, shape: &Shape, group: &[u8]) -> Vec<(Box<[u8]>, Value)>;

    /// Memory of the state, including itself. Called before and after each application.
    fn memory_bytes(&self) -> usize;
}

/// One combination of source rows.
#[derive(Clone, Copy)]
pub struct Combination<'a> {
    /// The output key or, if the output has ranks, its prefix that names the group.
    pub key: &'a [u8],
    pub source_key: &'a [u8],
    pub binding: &'a Binding,
    pub fill: u32,
}

/// An operator with its argument.
#[derive(Debug, Clone, Copy)]
pub struct Operator {
    row: &'static OperatorRow,
    /// For operators with [`Argument::CountAndOrder`].
    count: usize,
    descending: bool,
}

/// The parts of a join's definition that operators need.
#[derive(Debug, Clone)]
pub struct Shape {
    pub operator: Operator,
    pub output: Pattern,
    /// True if each output row comes from one combination of source rows: the output names every slot.
    pub one_to_one: bool,
    /// The slot in which the output ranks its rows.
    pub rank: Option<Rank>,
}

#[derive(Debug, Clone, Copy)]
pub struct Rank {
    pub slot: SlotId,
    pub width: usize,
    /// Number of output elements before it. They form the group.
    pub element: usize,
}

impl Operator {
    pub fn new(row: &'static OperatorRow) -> Operator {
        Operator {
            row,
            count: 1,
            descending: true,
        }
    }

    pub fn with_count(row: &'static OperatorRow, count: usize, descending: bool) -> Operator {
        Operator {
            row,
            count,
            descending,
        }
    }

    pub fn name(self) -> &'static str {
        self.row.name
    }

    pub fn is_check(self) -> bool {
        matches!(self.row.kind, OperatorKind::Check)
    }

    pub fn is_copy(self) -> bool {
        matches!(self.row.kind, OperatorKind::Copied(_))
    }

    /// Returns whether the output ranks its rows.
    pub fn has_ranks(self) -> bool {
        self.row.argument == Argument::CountAndOrder
    }

    /// Maximum number of output rows per group.
    pub fn count(self) -> usize {
        self.count
    }

    pub fn descending(self) -> bool {
        self.descending
    }

    pub fn may_have_else(self) -> bool {
        self.row.may_have_else
    }

    fn new_group(self) -> Option<Box<dyn GroupState>> {
        match self.row.kind {
            OperatorKind::Copied(new) | OperatorKind::InGroup(new) => Some(new(self)),
            OperatorKind::Check | OperatorKind::InRow(_) => None,
        }
    }
}

impl Shape {
    /// Returns whether the output rows are the source's values, shared, one for one.
    #[inline]
    pub fn copies_rows(&self) -> bool {
        self.one_to_one && self.operator.is_copy()
    }

    /// Returns the state that output rows hold, if they hold one.
    #[inline]
    pub fn row_state(&self) -> Option<&'static dyn RowState> {
        match self.operator.row.kind {
            OperatorKind::InRow(state) => Some(state),
            _ => None,
        }
    }
}

/// Looks up an operator by its name.
pub fn find(word: &str) -> Option<&'static OperatorRow> {
    OPERATORS.iter().find(|row| row.name == word)
}

/// Lists the names of operators, with `last` before the last one: `min, max or top`.
pub fn names(which: impl Fn(&OperatorRow) -> bool, last: &str) -> String {
    let names: Vec<&str> = OPERATORS
        .iter()
        .filter(|row| which(row))
        .map(|row| row.name)
        .collect();
    match names.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{}{last}{end}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Limits};

    #[test]
    fn operator_names_are_unique() {
        for row in OPERATORS {
            let found = find(row.name).expect("it is in the table");
            assert!(std::ptr::eq(found, row), "{}", row.name);
        }
    }

    /// Returns the contents of a page's code fences.
    fn fences(page: &str) -> Vec<&str> {
        let fenced = page.split("```").skip(1).step_by(2);
        fenced
            .map(|fence| fence.strip_prefix("rust\n").expect("Rust"))
            .collect()
    }

    #[test]
    fn the_guide_to_extending_joins_matches_the_code() {
        let page = include_str!("../../../../docs/design/extending-joins.md");
        let [file, row, claim] = fences(page)[..] else {
            panic!("three fences");
        };
        assert_eq!(file, include_str!("example.rs"));
        assert!(include_str!("mod.rs").contains(row));
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        assert!(plain(include_str!("../memory/clock.rs")).contains(&plain(claim)));
    }

    #[test]
    fn the_example_operator_is_maintained_and_feeds_other_joins() {
        let mut engine = Engine::new();
        engine
            .create("spread", "far|<who> = spread at|<who>|<time> else none", 0)
            .expect("a known operator");
        engine
            .create("all", "farthest|all = max far|<who>", 0)
            .expect("a valid join");
        let shown = |engine: &mut Engine| {
            let mut rows = Vec::new();
            for (lo, hi) in [("far|", "far}"), ("farthest|", "farthest}")] {
                let mut each = |_: &[u8], value: &[u8]| {
                    rows.push(String::from_utf8_lossy(value).into_owned());
                    std::ops::ControlFlow::Continue(())
                };
                let limits = Limits::default();
                let read = engine.range(lo.as_bytes(), hi.as_bytes(), limits, 0, &mut each);
                assert!(read.is_ok_and(|read| read.done().is_some()));
            }
            rows.join(" ")
        };
        for (key, value) in [("at|ann|1", "3"), ("at|ann|2", "10.5"), ("at|bob|1", "-1")] {
            engine
                .put(key.as_bytes(), value.as_bytes(), 0)
                .expect("put");
        }
        assert_eq!(shown(&mut engine), "7.5 0 7.5");
        engine.put(b"at|bob|2", b"99", 0).expect("put");
        assert_eq!(shown(&mut engine), "7.5 100 100");
        engine.remove(b"at|ann|2", 0).expect("removed");
        engine.put(b"at|bob|1", b"text", 0).expect("put");
        assert_eq!(shown(&mut engine), "0 0 0");
        engine.remove(b"at|bob|2", 0).expect("removed");
        assert_eq!(shown(&mut engine), "0 0");
        assert_eq!(engine.else_value(b"far|bob"), Some(&b"none"[..]));
    }
}
