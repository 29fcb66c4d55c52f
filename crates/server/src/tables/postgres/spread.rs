//! Sends what PostgreSQL tells to the cores: rows to the core that asked for them, and changes to all cores in one order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_postgres::{Change, Credit, Event, Range, Reply, Sink, Written};

use super::super::{CoreMessage, TablesHandle};

type Row = (Vec<u8>, Vec<u8>);

/// What a core is told of PostgreSQL.
pub enum PostgresUpdate {
    /// All rows of ranges that this core asked for. Then tell those who wait.
    Supply {
        ranges: Vec<Range>,
        rows: Vec<Row>,
        done: Vec<Reply<()>>,
    },
    /// To all cores.
    Apply { number: u64, changes: Arc<Changes> },
    /// To all cores.
    Forget { number: u64, ranges: Arc<[Range]> },
    /// To all cores: let go of it when outputs reflect what came before.
    Seen(Arc<Seen>),
}

impl PostgresUpdate {
    /// Whether it is so much work that clients have their turn before the next message.
    pub fn is_large(&self) -> bool {
        const LARGE: usize = 256;
        match self {
            PostgresUpdate::Supply { rows, .. } => rows.len() >= LARGE,
            PostgresUpdate::Apply { changes, .. } => changes.changes.len() >= LARGE,
            PostgresUpdate::Forget { .. } | PostgresUpdate::Seen(_) => false,
        }
    }
}

/// Changes that are seen together. When the last core lets go of them, the connection's thread may send more.
pub struct Changes {
    pub changes: Vec<Change>,
    _credit: Credit,
}

/// A write has come back. Its writer is told when the last core lets go of this.
pub struct Seen(Option<(Written, Reply<Written>)>);

impl Drop for Seen {
    fn drop(&mut self) {
        if let Some((written, done)) = self.0.take() {
            // Whoever wrote may have gone.
            let _ = done.send(Ok(written));
        }
    }
}

pub(super) fn sink(tables: Arc<TablesHandle>) -> Sink {
    let numbers = AtomicU64::new(0);
    // The connection's thread alone calls it.
    let next = move || numbers.fetch_add(1, Relaxed) + 1;
    Box::new(move |event| {
        let all = |update: &dyn Fn() -> PostgresUpdate| {
            for core in 0..tables.cores() {
                tables.send(core, CoreMessage::Postgres(update()));
            }
        };
        match event {
            Event::Supply {
                core,
                ranges,
                rows,
                done,
            } => {
                let update = PostgresUpdate::Supply { ranges, rows, done };
                tables.send(core, CoreMessage::Postgres(update));
            }
            Event::Apply { changes, credit } => {
                let number = next();
                let changes = Arc::new(Changes {
                    changes,
                    _credit: credit,
                });
                all(&|| PostgresUpdate::Apply {
                    number,
                    changes: changes.clone(),
                });
            }
            Event::Forget { ranges } => {
                let (number, ranges) = (next(), Arc::from(ranges));
                all(&|| PostgresUpdate::Forget {
                    number,
                    ranges: Arc::clone(&ranges),
                });
            }
            Event::Seen { written, done } => {
                let seen = Arc::new(Seen(Some((written, done))));
                all(&|| PostgresUpdate::Seen(seen.clone()));
            }
        }
    })
}
