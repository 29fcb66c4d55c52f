//! Headers of replies whose rows are encoded before their number is known.
//!
//! 1. The number is guessed, and space for its header is reserved. If the guess is wrong, the header is overwritten;
//!    the rows move only if the header's length differs.
//! 2. A guessed header is never sent: a reply that is aborted is removed together with its header.
//!
//! Rows are thus copied only once, from their table to the send buffer.

use std::cell::Cell;

use larder_protocol::resp::{Encoder, Proto};

use super::range::{Form, encode_header};

/// Number of tables for which the last row count is kept.
const TABLES: usize = 64;

/// The row counts of the last replies, by table. Tables may share an entry, because the count is only a guess.
#[derive(Debug)]
pub(in crate::resp) struct RowCounts([Cell<u64>; TABLES]);

impl Default for RowCounts {
    fn default() -> RowCounts {
        RowCounts([const { Cell::new(0) }; TABLES])
    }
}

impl RowCounts {
    fn entry(&self, key: &[u8]) -> &Cell<u64> {
        let name = key.iter().take_while(|byte| !matches!(byte, b'|' | b':'));
        let hash = name.fold(0_usize, |sum, &byte| sum * 31 + usize::from(byte));
        &self.0[hash % TABLES]
    }

    /// Returns the last row count for the table of a key.
    pub fn last(&self, key: &[u8]) -> u64 {
        self.entry(key).get()
    }

    pub fn record(&self, key: &[u8], rows: u64) {
        self.entry(key).set(rows);
    }
}

/// A guessed header in an output.
pub(super) struct GuessedHeader {
    start: usize,
    end: usize,
    rows: u64,
}

impl GuessedHeader {
    pub fn guess(out: &mut Vec<u8>, proto: Proto, form: Form, rows: u64) -> GuessedHeader {
        let start = out.len();
        encode_header(&mut Encoder { out, proto }, form, rows);
        let end = out.len();
        GuessedHeader { start, end, rows }
    }

    /// Replaces the guess with the actual number of rows.
    pub fn correct(self, out: &mut Vec<u8>, proto: Proto, form: Form, rows: u64) {
        if rows == self.rows {
            return;
        }
        let mut corrected = Vec::new();
        let mut encoder = Encoder {
            out: &mut corrected,
            proto,
        };
        encode_header(&mut encoder, form, rows);
        out.splice(self.start..self.end, corrected);
    }

    /// Removes the header and the rows after it from `out`, and returns the rows.
    pub fn remove(self, out: &mut Vec<u8>) -> Vec<u8> {
        let rows = out.split_off(self.end);
        out.truncate(self.start);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_guess_does_not_change_the_reply() {
        let counts = [0, 1, 4, 5, 9, 10, 49, 50, 1000];
        for proto in [Proto::Resp2, Proto::Resp3] {
            for (guess, rows) in counts.iter().flat_map(|a| counts.map(|b| (*a, b))) {
                let mut out = b"+OK\r\n".to_vec();
                let guessed = GuessedHeader::guess(&mut out, proto, Form::Rows, guess);
                out.extend_from_slice(b"rows");
                guessed.correct(&mut out, proto, Form::Rows, rows);
                let mut expected = b"+OK\r\n".to_vec();
                let mut encoder = Encoder {
                    out: &mut expected,
                    proto,
                };
                encode_header(&mut encoder, Form::Rows, rows);
                expected.extend_from_slice(b"rows");
                assert_eq!(
                    out, expected,
                    "{guess} rows were guessed, {rows} were encoded"
                );
            }
        }
    }

    #[test]
    fn the_guess_is_the_last_row_count_of_the_table() {
        let counts = RowCounts::default();
        counts.record(b"wall|1|", 5);
        counts.record(b"friends|1|", 100);
        assert_eq!(counts.last(b"wall|2|"), 5);
        assert_eq!(counts.last(b"friends|2|"), 100);
        assert_eq!(counts.last(b"else|"), 0);
    }
}
