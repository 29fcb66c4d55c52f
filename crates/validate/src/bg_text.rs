//! Parses the text logs of the released BG (2013 to 2018) line by line, so that old results can be validated again.
//!
//! ```text
//!   READ,<kind>,<session>,<thread>,<id>,<start>,<end>,<value>,<action>
//!   UPDATE,<kind>,<session>,<thread>,<id>,<start>,<end>,<count of the thread's updates>,<I|D>,<action>
//! ```
//!
//! `kind` is ACCEPTFRND (friends), PENDFRND (requests) or POSTCOMMENT (comments); an update adds one (I) or subtracts
//! one (D). Times are Java's `nanoTime`, which may be negative; they are mapped to the range of [`Span`] in the same
//! order.
//!
//! Reads of the graph (GRPSHORTEST, GRPCOMMON, GRPFOFFRNDS) are not validated. BG compares them with the graph as
//! loaded.

use std::fmt;

use crate::Span;
use crate::record::{Outcome, Record, RecordKind};
use crate::trace::Initial;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Friends,
    Requests,
    Comments,
}

impl Kind {
    /// Returns the kind with this name in the logs.
    pub fn from_name(name: &str) -> Option<Kind> {
        match name {
            "ACCEPTFRND" => Some(Kind::Friends),
            "PENDFRND" => Some(Kind::Requests),
            "POSTCOMMENT" => Some(Kind::Comments),
            _ => None,
        }
    }

    /// Returns the name in the logs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Friends => "ACCEPTFRND",
            Kind::Requests => "PENDFRND",
            Kind::Comments => "POSTCOMMENT",
        }
    }

    /// Returns the kind of an item that [`Kind::item`] created.
    pub fn from_item(item: u64) -> Option<Kind> {
        match item >> 56 {
            1 => Some(Kind::Friends),
            2 => Some(Kind::Requests),
            3 => Some(Kind::Comments),
            _ => None,
        }
    }

    /// Returns the trace item for this kind's count at `id`.
    pub fn item(self, id: u32) -> u64 {
        (self as u64 + 1) << 56 | u64::from(id)
    }
}

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Call(Record),
    /// A read that the released client logged without a value (`null`). It cannot be validated; count it.
    NoValue,
    /// A read of the graph.
    Graph,
}

/// A line that BG never writes. The log must not be validated without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The index of the invalid field, from 0.
    pub field: usize,
    pub line: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "field {} of `{}` is invalid", self.field, self.line)
    }
}

impl std::error::Error for BadLine {}

/// Parses one line, with or without its line end.
///
/// # Errors
///
/// [`BadLine`], also if the line is truncated.
pub fn parse(line: &str) -> Result<Line, BadLine> {
    let line = line.trim_end();
    let fields: Vec<&str> = line.split(',').collect();
    let bad = |field| BadLine {
        field,
        line: line.chars().take(200).collect(),
    };
    let field = |index: usize| {
        fields
            .get(index)
            .map(|field| field.trim())
            .ok_or_else(|| bad(index))
    };
    let is_read = match field(0)? {
        "READ" => true,
        "UPDATE" => false,
        _ => return Err(bad(0)),
    };
    let kind = match field(1)? {
        "GRPSHORTEST" | "GRPCOMMON" | "GRPFOFFRNDS" if is_read => return Ok(Line::Graph),
        name => Kind::from_name(name).ok_or_else(|| bad(1))?,
    };
    let session = field(2)?.parse().map_err(|_| bad(2))?;
    let id = field(4)?.parse().map_err(|_| bad(4))?;
    let instant = |index| {
        let nanos: i64 = field(index)?.parse().map_err(|_| bad(index))?;
        Ok(nanos.cast_unsigned() ^ 1 << 63)
    };
    let span = Span::new(instant(5)?, instant(6)?).ok_or_else(|| bad(6))?;
    // The last field, whatever its text: if it is missing, the line was truncated.
    field(if is_read { 8 } else { 9 })?;
    let what = match (is_read, field(if is_read { 7 } else { 8 })?) {
        (true, "null") => return Ok(Line::NoValue),
        (true, value) => RecordKind::ReadCount(value.parse().map_err(|_| bad(7))?),
        (false, "I") => RecordKind::AddCount(1),
        (false, "D") => RecordKind::AddCount(-1),
        (false, _) => return Err(bad(8)),
    };
    Ok(Line::Call(Record {
        item: kind.item(id),
        span,
        session,
        action: 0,
        outcome: Outcome::Done,
        what,
    }))
}

/// The initial counts of each kind; the same for all ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitialData {
    pub friends: i32,
    pub requests: i32,
    pub comments: i32,
}

impl Initial for InitialData {
    fn count(&self, item: u64) -> i32 {
        match item >> 56 {
            1 => self.friends,
            2 => self.requests,
            _ => self.comments,
        }
    }

    fn set(&self, _: u64) -> Vec<u64> {
        Vec::new()
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}
