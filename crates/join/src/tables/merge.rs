//! Merges the rows of several joins of one table, and rows computed for a read, in key order with one row per key.
//!
//! Each stream is sorted; the next row is the one with the least key. There are few streams: one per join of the table,
//! and one for each join that had to compute rows.

use crate::base::key_range::Flow;
use crate::base::read_snapshot::SnapshotCursor;
use crate::base::row_buffer::RowBuffer;
use crate::base::rows::{Cursor, Value};
use crate::join::JoinId;

/// The rows of one join, in the direction of the read.
pub struct Stream<'v> {
    /// The join, or the part of a long read.
    pub maker: JoinId,
    rows: StreamRows<'v>,
}

enum StreamRows<'v> {
    Stored(Box<Cursor<'v>>),
    Snapshot(Box<SnapshotCursor<'v>>),
    Buffered {
        rows: &'v RowBuffer,
        /// Number of rows already read.
        read: usize,
        reverse: bool,
    },
}

impl<'v> Stream<'v> {
    pub fn stored(maker: JoinId, mut cursor: Cursor<'v>) -> Self {
        cursor.next();
        let rows = StreamRows::Stored(Box::new(cursor));
        Stream { maker, rows }
    }

    pub fn snapshot(maker: JoinId, cursor: SnapshotCursor<'v>) -> Self {
        let rows = StreamRows::Snapshot(Box::new(cursor));
        Stream { maker, rows }
    }

    /// A stream over gathered rows, after the first `read` of them.
    pub fn buffered(maker: JoinId, rows: &'v RowBuffer, read: usize, reverse: bool) -> Self {
        let rows = StreamRows::Buffered {
            rows,
            read,
            reverse,
        };
        Stream { maker, rows }
    }

    fn current(&self) -> Option<(&[u8], &[u8])> {
        match &self.rows {
            StreamRows::Stored(cursor) => cursor.current(),
            StreamRows::Snapshot(cursor) => cursor.current(),
            StreamRows::Buffered {
                rows,
                read,
                reverse,
            } => {
                let left = rows.len().checked_sub(*read + 1)?;
                Some(rows.row(if *reverse { left } else { *read }))
            }
        }
    }

    fn is_at(&self, key: &[u8]) -> bool {
        self.current().is_some_and(|(at, _)| at == key)
    }

    fn advance(&mut self) {
        match &mut self.rows {
            StreamRows::Stored(cursor) => {
                cursor.next();
            }
            StreamRows::Snapshot(cursor) => cursor.advance(),
            StreamRows::Buffered { read, .. } => *read += 1,
        }
    }

    /// Returns the current row's value, as a shareable value.
    pub fn value(&self) -> Value {
        match &self.rows {
            StreamRows::Stored(cursor) => cursor.value(),
            StreamRows::Snapshot(_) | StreamRows::Buffered { .. } => {
                Value::new(self.current().expect("a row is current").1)
            }
        }
    }
}

/// A callback that receives a row's key and value, and the stream that has the row.
pub type EachMerged<'a> = dyn FnMut(&[u8], &[u8], &Stream<'_>) -> Flow + 'a;

/// Passes the rows of all streams to `each`. If several streams have a key, only the first stream's row is passed.
///
/// Reading stays on the stream with the least key for as long as it precedes all others.
pub fn merge(streams: &mut [Stream<'_>], reverse: bool, each: &mut EachMerged<'_>) -> Flow {
    let is_before = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
    loop {
        let mut best: Option<(usize, &[u8])> = None;
        for (at, stream) in streams.iter().enumerate() {
            if let Some((key, _)) = stream.current()
                && best.is_none_or(|(_, best)| is_before(key, best))
            {
                best = Some((at, key));
            }
        }
        let Some((at, _)) = best else {
            return Flow::Continue(());
        };
        let (before, rest) = streams.split_at_mut(at);
        let (read, after) = rest.split_first_mut().expect("the best is one of them");
        let others = before.iter().chain(&*after);
        let next = others
            .filter_map(Stream::current)
            .map(|(key, _)| key)
            .reduce(|a, b| if is_before(b, a) { b } else { a });
        while let Some((key, value)) = read.current()
            && next.is_none_or(|next| is_before(key, next))
        {
            each(key, value, read)?;
            read.advance();
        }
        // If an earlier stream has the same key, its row wins.
        if let Some((key, value)) = read.current()
            && next == Some(key)
            && !before.iter().any(|other| other.is_at(key))
        {
            each(key, value, read)?;
            for other in after {
                if other.is_at(key) {
                    other.advance();
                }
            }
            read.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_merged_in_order_and_the_first_stream_wins_ties() {
        let rows = |keys: &[&str]| {
            let mut gathered = RowBuffer::default();
            keys.iter()
                .for_each(|key| gathered.push(key.as_bytes(), b"v"));
            gathered.sort();
            gathered
        };
        let all = [
            rows(&["a", "b", "f", "g"]),
            rows(&["b", "c", "f"]),
            rows(&[]),
            rows(&["c", "d", "f", "z"]),
        ];
        let merged = |reverse: bool| {
            let mut streams: Vec<Stream<'_>> = all
                .iter()
                .zip(0..)
                .map(|(rows, maker)| Stream::buffered(maker, rows, 0, reverse))
                .collect();
            let mut seen = Vec::new();
            let _ = merge(&mut streams, reverse, &mut |key, _, stream| {
                seen.push(format!("{}{}", String::from_utf8_lossy(key), stream.maker));
                Flow::Continue(())
            });
            seen.join(" ")
        };
        assert_eq!(merged(false), "a0 b0 c1 d3 f0 g0 z3");
        assert_eq!(merged(true), "z3 g0 f0 d3 c1 b0 a0");
    }
}
