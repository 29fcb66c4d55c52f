//! Distributes events from PostgreSQL to the cores: loaded rows to the core that requested them, changes to all cores
//! in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_join::KeyRange;
use larder_postgres::{Change, Credit, Event, Reply, Sink, Written};

use super::super::{CoreMessage, TablesHandle};

type Row = (Vec<u8>, Vec<u8>);

/// An update from PostgreSQL for one core.
pub enum PostgresUpdate {
    /// All rows of ranges that this core requested. `done` notifies the waiting reads.
    Supply {
        ranges: Vec<KeyRange>,
        rows: Vec<Row>,
        done: Vec<Reply<()>>,
    },
    /// Sent to all cores.
    Apply {
        number: u64,
        changes: Arc<AtomicChanges>,
    },
    /// Sent to all cores.
    Forget {
        number: u64,
        ranges: Arc<[KeyRange]>,
    },
    /// Sent to all cores: drop it when outputs reflect all earlier updates.
    WriteReplicated(Arc<ReplicatedWrite>),
}

impl PostgresUpdate {
    /// Returns whether the update is so much work that clients get a turn before the next message.
    pub fn is_large(&self) -> bool {
        const LARGE: usize = 256;
        match self {
            PostgresUpdate::Supply { rows, .. } => rows.len() >= LARGE,
            PostgresUpdate::Apply { changes, .. } => changes.changes.len() >= LARGE,
            PostgresUpdate::Forget { .. } | PostgresUpdate::WriteReplicated(_) => false,
        }
    }
}

/// Changes that become visible together. When the last core drops them, the connection's thread may send more.
pub struct AtomicChanges {
    pub changes: Vec<Change>,
    _credit: Credit,
}

/// A write that the replication stream has returned. Its writer is notified when the last core drops this value.
pub struct ReplicatedWrite(Option<(Written, Reply<Written>)>);

impl Drop for ReplicatedWrite {
    fn drop(&mut self) {
        if let Some((written, done)) = self.0.take() {
            // The writer may be gone.
            let _ = done.send(Ok(written));
        }
    }
}

pub(super) fn sink(tables: Arc<TablesHandle>) -> Sink {
    let numbers = AtomicU64::new(0);
    // Only the connection's thread calls this function.
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
                let changes = Arc::new(AtomicChanges {
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
            Event::WriteVisible { written, done } => {
                let seen = Arc::new(ReplicatedWrite(Some((written, done))));
                all(&|| PostgresUpdate::WriteReplicated(seen.clone()));
            }
        }
    })
}
