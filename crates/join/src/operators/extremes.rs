//! `min` and `max`: the least or greatest value of a group. Numbers compare by value and precede text; text compares by
//! bytes.

use super::ranked::{Best, RankOrder};
use super::{Argument, OperatorKind, OperatorRow};

pub const MIN: OperatorRow = OperatorRow {
    name: "min",
    argument: Argument::None,
    kind: OperatorKind::InGroup(|_| Box::new(Best::new(RankOrder::Least))),
    may_have_else: true,
};

pub const MAX: OperatorRow = OperatorRow {
    name: "max",
    argument: Argument::None,
    kind: OperatorKind::InGroup(|_| Box::new(Best::new(RankOrder::Greatest))),
    may_have_else: true,
};
