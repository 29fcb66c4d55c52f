//! Cursors of aggregations: the unread rest of a result. Their number and their lifetime are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_protocol::errors::Code;
use larder_space::aggregate::ResultRow;

use crate::error::Refusal;

/// For all spaces together.
pub const CURSORS_MAX: usize = 1024;
/// Maximum idle time, whatever MAXIDLE specifies.
const IDLE_MS_MAX: u64 = 300_000;

#[derive(Debug)]
pub struct Cursor {
    pub space: String,
    /// Distinguishes spaces that had the same name: [`DeclaredSpace::created`](super::Declared::created).
    pub created: u64,
    /// Rows per read.
    pub count: usize,
    pub idle_ms: u64,
    pub rest: Rest,
}

/// The rest of a result.
#[derive(Debug)]
pub enum Rest {
    Rows(UnreadRows),
    /// The result of the aggregation with these arguments, after a key.
    Resume {
        arguments: Vec<Vec<u8>>,
        after: Option<Vec<u8>>,
    },
}

/// Rows that have not been read yet.
#[derive(Debug, Default)]
pub struct UnreadRows {
    rows: VecDeque<ResultRow>,
    /// Their approximate memory.
    bytes: usize,
}

impl UnreadRows {
    pub fn new(rows: Vec<ResultRow>) -> UnreadRows {
        UnreadRows {
            bytes: rows.iter().map(size_bytes).sum(),
            rows: rows.into(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Removes and returns the next rows, with their approximate memory.
    pub fn take(&mut self, count: usize) -> (Vec<ResultRow>, usize) {
        let rows: Vec<ResultRow> = self.rows.drain(..count.min(self.rows.len())).collect();
        let bytes = rows.iter().map(size_bytes).sum();
        self.bytes -= bytes;
        (rows, bytes)
    }

    /// Puts rows back that [`UnreadRows::take`] removed.
    pub fn put_back(&mut self, rows: Vec<ResultRow>, bytes: usize) {
        self.bytes += bytes;
        rows.into_iter()
            .rev()
            .for_each(|row| self.rows.push_front(row));
    }
}

fn size_bytes(row: &ResultRow) -> usize {
    let cells = row.iter();
    cells
        .map(|(name, cell)| name.len() + cell.size_bytes())
        .sum()
}

struct StoredCursor {
    cursor: Cursor,
    until_ms: u64,
    bytes: usize,
}

#[derive(Default)]
struct CursorTable {
    next: u64,
    stored: BTreeMap<u64, StoredCursor>,
    bytes: usize,
}

/// The cursors of one node.
#[derive(Default)]
pub struct Cursors {
    all: Mutex<CursorTable>,
    /// Other nodes assign other numbers.
    is_of_node: bool,
}

impl Cursors {
    /// The cursors of a cluster node. Their numbers have 53 bits, which every client's number type can represent.
    pub fn for_node(name: &str) -> Cursors {
        let next = (larder_types::key_hash(name.as_bytes()) >> 43) << 32;
        Cursors {
            all: Mutex::new(CursorTable {
                next,
                ..CursorTable::default()
            }),
            is_of_node: true,
        }
    }

    /// Advice for an unknown cursor.
    pub fn unknown_cursor_hint(&self) -> &'static str {
        if self.is_of_node {
            " (it may belong to another node: continue at the node that returned it)"
        } else {
            ""
        }
    }

    /// Returns a number for a new cursor.
    pub fn next_id(&self) -> u64 {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.next += 1;
        all.next
    }

    /// Stores a cursor, under its previous number if it has one.
    ///
    /// # Errors
    /// There are too many cursors, or they would take more than `bytes_max`.
    pub fn store(
        &self,
        id: Option<u64>,
        cursor: Cursor,
        now_ms: u64,
        bytes_max: usize,
    ) -> Result<u64, Refusal> {
        let all = &mut *self.lock_unexpired(now_ms);
        if all.stored.len() >= CURSORS_MAX {
            let message =
                format!("Too many cursors: {CURSORS_MAX} are open; end some with FT.CURSOR DEL");
            return Err((Code::BadRequest, message));
        }
        let bytes = cursor.rest.size_bytes();
        if all.bytes + bytes > bytes_max {
            let message = format!(
                "the rows of open cursors would take more than {bytes_max} bytes: read some cursors to their end, or end them with FT.CURSOR DEL"
            );
            return Err((Code::OutOfMemory, message));
        }
        let id = id.unwrap_or_else(|| {
            all.next += 1;
            all.next
        });
        all.bytes += bytes;
        let idle_ms = cursor.idle_ms.min(IDLE_MS_MAX);
        let until_ms = now_ms.saturating_add(idle_ms);
        let kept = StoredCursor {
            cursor,
            until_ms,
            bytes,
        };
        if let Some(replaced) = all.stored.insert(id, kept) {
            all.bytes -= replaced.bytes;
        }
        Ok(id)
    }

    /// Removes and returns a cursor of the space with this name and creation number.
    pub fn take(&self, id: u64, (space, created): (&str, u64), now_ms: u64) -> Option<Cursor> {
        let all = &mut *self.lock_unexpired(now_ms);
        all.stored
            .get(&id)
            .filter(|kept| kept.cursor.space == space && kept.cursor.created == created)?;
        let kept = all.stored.remove(&id)?;
        all.bytes -= kept.bytes;
        Some(kept.cursor)
    }

    /// The number of cursors.
    pub fn count(&self, now_ms: u64) -> usize {
        self.lock_unexpired(now_ms).stored.len()
    }

    /// Locks the cursors, after removing those that have been idle for too long.
    fn lock_unexpired(&self, now_ms: u64) -> MutexGuard<'_, CursorTable> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.stored.values().any(|kept| kept.until_ms <= now_ms) {
            all.stored.retain(|_, kept| kept.until_ms > now_ms);
            all.bytes = all.stored.values().map(|kept| kept.bytes).sum();
        }
        all
    }
}

impl Cursor {
    /// Returns a copy without rows, so that the read can be repeated.
    pub fn without_rows(&self) -> Cursor {
        Cursor {
            space: self.space.clone(),
            rest: match &self.rest {
                Rest::Rows(_) => Rest::Rows(UnreadRows::default()),
                Rest::Resume { arguments, after } => Rest::Resume {
                    arguments: arguments.clone(),
                    after: after.clone(),
                },
            },
            ..*self
        }
    }
}

impl Rest {
    fn size_bytes(&self) -> usize {
        match self {
            Rest::Rows(rows) => rows.bytes,
            Rest::Resume { arguments, after } => {
                let after = after.as_ref().map_or(0, Vec::len);
                arguments.iter().map(Vec::len).sum::<usize>() + after
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(idle_ms: u64) -> Cursor {
        Cursor {
            space: "hotels".to_owned(),
            created: 7,
            count: 1,
            idle_ms,
            rest: Rest::Resume {
                arguments: vec![b"*".to_vec()],
                after: Some(vec![b'k'; 7]),
            },
        }
    }

    #[test]
    fn a_cursor_is_read_once_and_expires_when_idle() {
        let cursors = Cursors::for_node("node-1");
        let id = cursors
            .store(None, cursor(1000), 0, 100)
            .expect("there is room");
        assert!(0 < id && id < 1 << 53);
        assert!(cursors.take(id, ("bars", 7), 10).is_none());
        // Another space of the same name.
        assert!(cursors.take(id, ("hotels", 8), 10).is_none());
        let taken = cursors.take(id, ("hotels", 7), 10).expect("it is there");
        assert!(cursors.take(id, ("hotels", 7), 10).is_none());
        assert_eq!(cursors.store(Some(id), taken, 10, 100), Ok(id));
        assert!(cursors.take(id, ("hotels", 7), 1010).is_none());
        // However long the requested idle time.
        let id = cursors.store(None, cursor(u64::MAX), 0, 100).expect("room");
        assert!(cursors.take(id, ("hotels", 7), IDLE_MS_MAX).is_none());
    }

    #[test]
    fn the_memory_of_cursors_is_bounded() {
        let cursors = Cursors::default();
        for _ in 0..3 {
            cursors
                .store(None, cursor(1000), 0, 24)
                .expect("8 bytes each");
        }
        let (code, why) = cursors.store(None, cursor(1000), 0, 24).unwrap_err();
        assert!(
            code == Code::OutOfMemory && why.contains("more than 24 bytes"),
            "{why}"
        );
        // After some have expired, there is room.
        assert!(cursors.store(None, cursor(1000), 1000, 24).is_ok());
        assert_eq!(cursors.count(1000), 1);
    }
}
