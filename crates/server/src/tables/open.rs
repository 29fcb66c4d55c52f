//! The start: everything in the journal becomes tables and joins again.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use larder_join::Engine;
use larder_journal::{Entry, Journal, Options, Recovery};
use tokio::sync::Notify;

use super::{STEP_ROWS, Tables, fsync};
use crate::Shared;
use crate::error::Error;

/// Reads `<data>/tables` and opens it for writing. Takes as long as reading all rows does.
///
/// # Errors
/// [`Error::Corrupted`] names what is damaged or does not fit; [`Error::Io`].
pub fn open(shared: &Shared) -> Result<Tables, Error> {
    let config = &shared.config.tables;
    let folder = shared.config.server.data.join("tables");
    let options = Options {
        fsync: fsync(&config.fsync),
        ..Options::default()
    };
    let started = Instant::now();
    let mut replay = Replay::default();
    let (journal, recovery) =
        Journal::open(&folder, options, &mut |entry| replay.apply(entry)).map_err(failed)?;
    let mut engine = replay.finish()?;
    engine.record_changes(true);
    engine.set_step_rows(Some(STEP_ROWS));
    let limit = usize::try_from(config.memory.0).unwrap_or(usize::MAX);
    engine.set_memory_limit((limit > 0).then_some(limit));
    tell(&engine, &recovery, started);
    let called = Arc::new(Notify::new());
    let waker = called.clone();
    let producer = journal.producer(move || waker.notify_one());
    let tables = Tables {
        engine: RefCell::new(engine),
        producer: RefCell::new(producer),
        journal,
        is_always: config.fsync == "always",
        called,
        uncommitted: Cell::new(false),
        waiting: RefCell::default(),
        stopped: RefCell::default(),
        now: Cell::new(0),
        together: RefCell::default(),
        pending: RefCell::default(),
        handle: shared.tables.clone(),
    };
    tables.publish_figures();
    Ok(tables)
}

fn failed(error: larder_journal::Error) -> Error {
    match error {
        larder_journal::Error::Corrupted { .. } => Error::Corrupted(error.to_string()),
        other => Error::Io(other.to_string()),
    }
}

fn tell(engine: &Engine, recovery: &Recovery, started: Instant) {
    if let Some(cut) = &recovery.cut {
        tracing::warn!(
            path = %cut.path.display(),
            offset = cut.offset,
            bytes = cut.bytes,
            "the journal's end was torn by a crash and is cut off; nothing in it had been acknowledged as durable"
        );
    }
    if !recovery.new {
        tracing::info!(
            rows = engine.row_count(),
            joins = engine.list().len(),
            snapshot_rows = recovery.snapshot_rows,
            log_entries = recovery.log_entries,
            log_bytes = recovery.log_bytes,
            took_ms = started.elapsed().as_millis() as u64,
            "tables recovered"
        );
    }
}

/// Rows first, definitions last, so that no join is maintained meanwhile.
#[derive(Default)]
struct Replay {
    engine: Engine,
    definitions: Vec<(String, String)>,
    wrong: Option<String>,
}

impl Replay {
    fn apply(&mut self, entry: Entry<'_>) {
        // The time stands still: rows that are to go are still there for later entries.
        const NOW: u64 = 0;
        let engine = &mut self.engine;
        let done = match entry {
            Entry::Put {
                key,
                value,
                deadline_ms,
            } => engine.put(key, value, NOW).and_then(|_| match deadline_ms {
                None => Ok(()),
                at => engine.expire(key, at, NOW).map(drop),
            }),
            Entry::Expire { key, deadline_ms } => engine.expire(key, deadline_ms, NOW).map(drop),
            Entry::Remove { key } => engine.remove(key, NOW).map(drop),
            Entry::RemoveRange { lo, hi } => match hi {
                Some(hi) => engine.remove_range(lo, hi, u64::MAX, NOW).map(drop),
                // Never written by this server.
                None => Ok(()),
            },
            Entry::Define { name, text } => {
                let [name, text] =
                    [name, text].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                self.definitions.retain(|(other, _)| *other != name);
                self.definitions.push((name, text));
                Ok(())
            }
            Entry::Drop { name } => {
                self.definitions
                    .retain(|(other, _)| other.as_bytes() != name);
                Ok(())
            }
            Entry::Position { .. } => Ok(()),
        };
        if let Err(error) = done {
            self.wrong.get_or_insert_with(|| error.to_string());
        }
    }

    fn finish(mut self) -> Result<Engine, Error> {
        for (name, definition) in &self.definitions {
            if let Err(error) = self.engine.create(name, definition, 0) {
                self.wrong
                    .get_or_insert_with(|| format!("join {name}: {error}"));
            }
        }
        match self.wrong {
            None => Ok(self.engine),
            Some(why) => Err(Error::Corrupted(format!(
                "the journal of the tables cannot be applied: {why}"
            ))),
        }
    }
}
