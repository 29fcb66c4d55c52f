//! Maps a row's sequence number to its file and position, for messages.

use std::collections::BTreeMap;

use crate::csv::CHUNK_BITS;
use crate::error::At;

/// The positions of all rows of a finished run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowPositions(pub(crate) Vec<FilePositions>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FilePositions {
    pub name: String,
    /// Lines before the first chunk.
    pub lines_skipped: u64,
    /// Lines per chunk of text; empty if the file is not read in chunks.
    pub lines: BTreeMap<u64, u64>,
}

impl RowPositions {
    /// Returns the file of a row, and its line or its row number from 1; `None` for a number that no row has.
    pub fn locate(&self, seq: u64) -> Option<(&str, At)> {
        let file = self.0.get(usize::try_from(seq >> 44).ok()?)?;
        let inside = seq & ((1 << 44) - 1);
        if file.lines.is_empty() {
            return Some((&file.name, At::Row(inside + 1)));
        }
        let (chunk, line) = (inside >> CHUNK_BITS, inside & ((1 << CHUNK_BITS) - 1));
        let before = file
            .lines
            .range(..chunk)
            .map(|(_, lines)| lines)
            .sum::<u64>();
        Some((&file.name, At::Line(file.lines_skipped + before + line + 1)))
    }

    /// Adds the positions of a later run, whose rows [`seq_after`] renumbers by the number of files.
    pub fn append(&mut self, more: RowPositions) {
        self.0.extend(more.0);
    }
}

/// Returns the number of a row of a run that follows another with this number of files.
pub fn seq_after(files: u64, seq: u64) -> u64 {
    files.saturating_mul(1 << 44).saturating_add(seq)
}
