//! `copy`: the source's value; of several that make one row, that of the last source key. And `check`, which has no value.
//!
//! Where each source row makes a row of its own, the rows are put and removed as they are ([`Shape::copies_rows`](super::Shape)).

use super::ranked::{Best, Better};
use super::{Argument, Kind, OperatorRow};

pub const CHECK: OperatorRow = OperatorRow {
    name: "check",
    argument: Argument::None,
    kind: Kind::Check,
    may_have_else: false,
};

pub const COPY: OperatorRow = OperatorRow {
    name: "copy",
    argument: Argument::None,
    kind: Kind::Copied(|_| Box::new(Best::new(Better::Last))),
    may_have_else: false,
};
