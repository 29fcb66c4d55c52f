//! From a row's sequence number back to its file and its place there, for messages.

use std::collections::BTreeMap;

use crate::csv::CHUNK_BITS;
use crate::error::At;

/// The places of all rows of a run that is over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places(pub(crate) Vec<FilePlaces>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FilePlaces {
    pub name: String,
    /// Lines per chunk of text, and records per chunk of CSV; none where a file is read as one.
    pub lines: BTreeMap<u64, u64>,
    pub records: BTreeMap<u64, u64>,
}

impl Places {
    /// The file that a row came from, and its line, or its row counted from 1; `None` for a number that no row has.
    pub fn of(&self, seq: u64) -> Option<(&str, At)> {
        let file = self.0.get(usize::try_from(seq >> 44).ok()?)?;
        let inside = seq & ((1 << 44) - 1);
        let (chunk, row) = (inside >> CHUNK_BITS, inside & ((1 << CHUNK_BITS) - 1));
        let before =
            |counts: &BTreeMap<u64, u64>| counts.range(..chunk).map(|(_, n)| n).sum::<u64>();
        let at = if !file.records.is_empty() {
            At::Row(before(&file.records) + row + 1)
        } else if !file.lines.is_empty() {
            At::Line(before(&file.lines) + row + 1)
        } else {
            At::Row(inside + 1)
        };
        Some((&file.name, at))
    }
}
