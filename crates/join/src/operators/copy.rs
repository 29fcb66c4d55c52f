//! `copy`: the source's value; if several source rows produce one output row, that of the last source key. And `check`,
//! which has no value.
//!
//! If each source row produces its own output row, the rows are put and removed unchanged
//! ([`Shape::copies_rows`](super::Shape)).

use super::ranked::{Best, RankOrder};
use super::{Argument, OperatorKind, OperatorRow};

pub const CHECK: OperatorRow = OperatorRow {
    name: "check",
    argument: Argument::None,
    kind: OperatorKind::Check,
    may_have_else: false,
};

pub const COPY: OperatorRow = OperatorRow {
    name: "copy",
    argument: Argument::None,
    kind: OperatorKind::Copied(|_| Box::new(Best::new(RankOrder::Last))),
    may_have_else: false,
};
