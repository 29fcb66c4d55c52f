//! `min` and `max`: the least or greatest value of a group. Numbers compare by value and precede text; text compares by
//! bytes.

use super::ranked::{Best, Better};
use super::{Argument, Kind, OperatorRow};

pub const MIN: OperatorRow = OperatorRow {
    name: "min",
    argument: Argument::None,
    kind: Kind::InGroup(|_| Box::new(Best::new(Better::Least))),
    may_have_else: true,
};

pub const MAX: OperatorRow = OperatorRow {
    name: "max",
    argument: Argument::None,
    kind: Kind::InGroup(|_| Box::new(Best::new(Better::Greatest))),
    may_have_else: true,
};
