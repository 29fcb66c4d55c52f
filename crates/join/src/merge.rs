//! Merge: the rows of several joins of one table, and those computed for a read, in key order and one per key.
//!
//! Each stream is in order by itself; the one with the least key is read next. There are few: one for each join of the
//! table, and one more for what a join had to compute.

use crate::gathered::Gathered;
use crate::join::JoinId;
use crate::keyrange::Flow;
use crate::rows::{Cursor, Value};

/// Rows of one join, in the order of the read.
pub struct Stream<'v> {
    pub maker: JoinId,
    rows: Rows<'v>,
}

enum Rows<'v> {
    Stored(Box<Cursor<'v>>),
    Gathered {
        rows: &'v Gathered,
        /// How many were read.
        read: usize,
        reverse: bool,
    },
}

impl<'v> Stream<'v> {
    pub fn stored(maker: JoinId, mut cursor: Cursor<'v>) -> Self {
        cursor.next();
        let rows = Rows::Stored(Box::new(cursor));
        Stream { maker, rows }
    }

    pub fn gathered(maker: JoinId, rows: &'v Gathered, reverse: bool) -> Self {
        let rows = Rows::Gathered {
            rows,
            read: 0,
            reverse,
        };
        Stream { maker, rows }
    }

    fn current(&self) -> Option<(&[u8], &[u8])> {
        match &self.rows {
            Rows::Stored(cursor) => cursor.current(),
            Rows::Gathered {
                rows,
                read,
                reverse,
            } => {
                let left = rows.len().checked_sub(*read + 1)?;
                Some(rows.row(if *reverse { left } else { *read }))
            }
        }
    }

    fn advance(&mut self) {
        match &mut self.rows {
            Rows::Stored(cursor) => {
                cursor.next();
            }
            Rows::Gathered { read, .. } => *read += 1,
        }
    }

    /// The value of the current row, to keep.
    pub fn value(&self) -> Value {
        match &self.rows {
            Rows::Stored(cursor) => cursor.value(),
            Rows::Gathered { .. } => Value::new(self.current().expect("a row is current").1),
        }
    }
}

/// Takes a row's key and value, and the stream that has it.
pub type EachMerged<'a> = dyn FnMut(&[u8], &[u8], &Stream<'_>) -> Flow + 'a;

/// Hands out the rows of all streams; of rows with one key that of the first stream alone.
pub fn merge(streams: &mut [Stream<'_>], reverse: bool, each: &mut EachMerged<'_>) -> Flow {
    loop {
        let mut best: Option<(usize, &[u8], &[u8])> = None;
        for (at, stream) in streams.iter().enumerate() {
            if let Some((key, value)) = stream.current()
                && best.is_none_or(|(_, best, _)| if reverse { key > best } else { key < best })
            {
                best = Some((at, key, value));
            }
        }
        let Some((at, key, value)) = best else {
            return Flow::Continue(());
        };
        each(key, value, &streams[at])?;
        let (read, others) = streams.split_at_mut(at + 1);
        let read = &mut read[at];
        for other in others {
            if read.current().map(|(key, _)| key) == other.current().map(|(key, _)| key) {
                other.advance();
            }
        }
        read.advance();
    }
}
