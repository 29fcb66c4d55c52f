//! Recovery of tables: restores tables and joins from the journal at startup.
//!
//! The first core reads the journal and sends each row to the core that owns it. The number of cores may differ from
//! the one at which the rows were written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Instant;

use larder_batch::fault_point;
use larder_join::{Engine, NOBODY, Shard, SlotOwners, ValueFile, ValuesOnDisk};
use larder_journal::{Entry, Journal, Options, Recovery};
use larder_protocol::config::ClusterMode;
use larder_types::SLOTS;
use tokio::sync::Notify;

use super::objects::FieldTimes;
use super::replicated::{Recovered, Replicated};
use super::shards::Sharing;
use super::{STEP_ROWS, Tables, fsync, postgres, read_catalog};
use crate::Shared;
use crate::cluster::core_of;
use crate::error::Error;
use crate::spaces::Spaces;

/// Entries that are sent to another core in one message, and messages that may be queued.
const PARCEL_ENTRIES: usize = 1024;
const PARCELS_MAX: usize = 16;

/// Messages of the first core to the others while it reads the journal.
pub enum Dealt {
    Entries(Vec<Owned>),
    /// All entries were sent. The definitions, oldest first.
    End {
        definitions: Vec<(String, String)>,
        journal: Arc<Journal>,
    },
}

/// A journal entry about rows, with its own memory.
pub enum Owned {
    Put(Vec<u8>, Vec<u8>, Option<u64>),
    Expire(Vec<u8>, Option<u64>),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, Vec<u8>),
    Slot(u16, Vec<u8>),
}

/// One core's channel ends, between the cores while they open the tables.
///
/// Each core owns its ends and drops them when it fails, so that the others notice instead of waiting.
pub enum Opening {
    /// For the first core, which reads the journal.
    Reader {
        /// One sender per core; `None` for the first core itself.
        deal: Vec<Option<SyncSender<Dealt>>>,
        /// Receives the row count of every other core.
        counts: Receiver<u64>,
    },
    Other {
        dealt: Receiver<Dealt>,
        counted: Sender<u64>,
    },
}

impl Opening {
    /// Creates the channel ends of all cores, in order.
    pub fn of_cores(cores: usize) -> Vec<Opening> {
        let (counted, counts) = channel();
        let (mut deal, mut others) = (vec![None], Vec::new());
        for _ in 1..cores {
            let (sender, dealt) = sync_channel(PARCELS_MAX);
            deal.push(Some(sender));
            others.push(Opening::Other {
                dealt,
                counted: counted.clone(),
            });
        }
        others.insert(0, Opening::Reader { deal, counts });
        others
    }
}

/// The reason why a core's part was not opened.
pub enum OpenError {
    Failed(Error),
    /// Another core failed, and reports the reason.
    Abandoned,
}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        OpenError::Failed(error)
    }
}

/// Opens a core's part. The first core reads `<data>/tables`; the others receive their part from it.
///
/// # Errors
/// [`Error::Corrupted`] describes the damage or the inconsistency; [`Error::Io`].
pub fn open(shared: &Shared, index: usize, opening: Opening) -> Result<Tables, OpenError> {
    fault_point("core.opening");
    let shard = Shard::new(index as u16, shared.tables.cores() as u16);
    let mut replay = Replay::new(shared, shard)?;
    let journal = match opening {
        Opening::Reader { deal, counts } => read(shared, deal, &counts, &mut replay)?,
        Opening::Other { dealt, counted } => {
            let journal = receive(&dealt, &mut replay)?;
            // Fails only if the first core has failed.
            let _ = counted.send(replay.row_count());
            journal
        }
    };
    Ok(part(shared, replay, journal)?)
}

/// Returns whether the rows belong to a cluster.
fn is_in_cluster(shared: &Shared) -> bool {
    shared.config.cluster.mode == ClusterMode::Etcd
}

/// Returns the location of a core's long values on disk; `None` if they are stored in memory.
fn values_on_disk(shared: &Shared) -> Result<Option<ValuesOnDisk>, Error> {
    let from = shared.config.tables.values_on_disk.0;
    if from == 0 {
        return Ok(None);
    }
    let folder = shared.config.server.data.join("tables");
    let file = std::fs::create_dir_all(&folder).and_then(|()| ValueFile::create(&folder));
    let file = file.map_err(|error| {
        Error::Io(format!(
            "cannot make a file for values (tables.values_on_disk) in {}: {error}",
            folder.display()
        ))
    })?;
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    Ok(Some(ValuesOnDisk { file, from }))
}

/// Builds a core's part from its recovered rows.
fn part(shared: &Shared, replay: Replay, journal: Arc<Journal>) -> Result<Tables, Error> {
    let Replay {
        shard,
        mut engine,
        recovered,
        on_disk,
        ..
    } = replay;
    let replicated = match recovered {
        None => None,
        Some(recovered) => {
            let (found, copies) = recovered.finish().map_err(unfitting)?;
            engine.record_befores(true);
            Some(Replicated::new(shard.index, shard.count, found, copies))
        }
    };
    shared.tables.ability.watch(journal.health());
    let (index, cores) = (usize::from(shard.index), usize::from(shard.count));
    postgres::declare(&mut engine, &shared.config)?;
    engine.record_changes(true);
    engine.set_step_rows(Some(STEP_ROWS));
    let config = &shared.config.tables;
    let limit = usize::try_from(config.memory.0).unwrap_or(usize::MAX);
    engine.set_memory_limit((limit > 0).then_some(limit / cores));
    let woken = Arc::new(Notify::new());
    let waker = woken.clone();
    let producer = journal.producer(move || waker.notify_one());
    let tables = Tables {
        index,
        engine: RefCell::new(engine),
        producer: RefCell::new(producer),
        journal,
        woken,
        is_woken: Cell::new(false),
        waiting: RefCell::default(),
        write_refusal: RefCell::default(),
        part: Cell::new(None),
        transaction_changes: RefCell::default(),
        postgres_progress: postgres::PostgresProgress::default(),
        are_reads_deferred: Cell::new(false),
        watched: Default::default(),
        tracked: Default::default(),
        executing: Default::default(),
        subscriptions: Default::default(),
        visited_at_once: Cell::new(0),
        memory_limit: config.memory,
        on_disk,
        handle: shared.tables.clone(),
        sharing: match shared.config.cluster.mode {
            ClusterMode::Etcd => Some(
                Sharing::new(Shard::among(
                    shard.index,
                    shard.count.max(2),
                    Arc::new(SlotOwners::new(vec![NOBODY; usize::from(SLOTS)])),
                ))
                .in_cluster(),
            ),
            _ => (cores > 1).then(|| Sharing::new(shard)),
        },
        replicated,
        pause: RefCell::default(),
        field_times: FieldTimes::default(),
        spaces: Spaces::default(),
        copying: super::copying::Copying::default(),
    };
    tables.note_field_times();
    tables.begin_spaces();
    tables.publish_figures();
    tables.note_expiring(&tables.engine.borrow());
    Ok(tables)
}

/// Like [`open`], for all cores on one thread, with the journal on any disk and without its threads: the caller drives
/// the writer.
#[cfg(test)]
pub fn open_stepped(
    shared: &Shared,
    disk: Arc<dyn larder_journal::Disk>,
) -> Result<(Vec<Tables>, larder_journal::Writer), Error> {
    let cores = shared.tables.cores() as u16;
    let shards = (0..cores).map(|index| Shard::new(index, cores));
    let new = |shard| Replay::new(shared, shard);
    let mut replays: Vec<Replay> = shards.map(new).collect::<Result<_, _>>()?;
    let folder = std::path::Path::new("tables");
    let (journal, writer, _) =
        Journal::open_stepped(disk, folder, journal_options(shared), &mut |entry| {
            for (core, replay) in replays.iter_mut().enumerate() {
                if owner_of(&replay.shard, entry).is_none_or(|owner| owner == core) {
                    replay.apply(entry);
                }
            }
        })
        .map_err(failed)?;
    let journal = Arc::new(journal);
    if let Some(first) = replays.first() {
        first.show_spaces(shared);
    }
    let open = |mut replay: Replay| {
        replay.finish()?;
        part(shared, replay, journal.clone())
    };
    let parts = replays.into_iter().map(open).collect::<Result<_, _>>()?;
    Ok((parts, writer))
}

fn journal_options(shared: &Shared) -> Options {
    Options {
        fsync: fsync(shared.config.tables.fsync),
        ..Options::default()
    }
}

/// Returns the core that owns the entry's row; `None` for entries that all cores need.
fn owner_of(shard: &Shard, entry: Entry<'_>) -> Option<usize> {
    match entry {
        Entry::Put { key, .. } | Entry::Expire { key, .. } | Entry::Remove { key } => {
            Some(usize::from(shard.owner_of(key)))
        }
        Entry::Slot { slot, .. } => Some(usize::from(core_of(slot, shard.count))),
        _ => None,
    }
}

/// Reads the journal: applies own rows to `replay`, and sends the others to their cores.
fn read(
    shared: &Shared,
    deal: Vec<Option<SyncSender<Dealt>>>,
    counts: &Receiver<u64>,
    replay: &mut Replay,
) -> Result<Arc<Journal>, Error> {
    let folder = shared.config.server.data.join("tables");
    let options = journal_options(shared);
    let started = Instant::now();
    let mut parcels: Vec<Vec<Owned>> = deal.iter().map(|_| Vec::new()).collect();
    let send = |core: usize, dealt: Dealt| {
        // A core that has failed reports its own error.
        let _ = deal[core].as_ref().map(|core| core.send(dealt));
    };
    let (journal, recovery) = Journal::open(&folder, options, &mut |entry| {
        shared.loading.count(&entry);
        let owner = owner_of(&replay.shard, entry);
        if owner.is_none_or(|owner| owner == 0) {
            replay.apply(entry);
        }
        for core in (1..parcels.len()).filter(|&core| owner.is_none_or(|owner| owner == core)) {
            let Some(owned) = Owned::from(entry) else {
                continue;
            };
            let parcel = &mut parcels[core];
            parcel.push(owned);
            if parcel.len() == PARCEL_ENTRIES {
                send(core, Dealt::Entries(std::mem::take(parcel)));
            }
        }
    })
    .map_err(failed)?;
    let journal = Arc::new(journal);
    replay.show_spaces(shared);
    for (core, parcel) in parcels.into_iter().enumerate().skip(1) {
        send(core, Dealt::Entries(parcel));
        let end = Dealt::End {
            definitions: replay.definitions.clone(),
            journal: journal.clone(),
        };
        send(core, end);
    }
    let joins = replay.definitions.len();
    replay.finish()?;
    let others: u64 = (1..deal.len()).map(|_| counts.recv().unwrap_or(0)).sum();
    tell(replay.row_count() + others, joins, &recovery, started);
    Ok(journal)
}

/// Applies the entries that the first core sends.
fn receive(dealt: &Receiver<Dealt>, replay: &mut Replay) -> Result<Arc<Journal>, OpenError> {
    loop {
        match dealt.recv().map_err(|_| OpenError::Abandoned)? {
            Dealt::Entries(entries) => entries.iter().for_each(|e| replay.apply(e.entry())),
            Dealt::End {
                definitions,
                journal,
            } => {
                replay.definitions = definitions;
                replay.finish()?;
                return Ok(journal);
            }
        }
    }
}

fn failed(error: larder_journal::Error) -> Error {
    match error {
        larder_journal::Error::Corrupted { .. } => Error::Corrupted(error.to_string()),
        other => Error::Io(other.to_string()),
    }
}

fn tell(rows: u64, joins: usize, recovery: &Recovery, started: Instant) {
    if let Some(cut) = &recovery.cut {
        tracing::warn!(
            path = %cut.path.display(),
            offset = cut.offset,
            bytes = cut.bytes,
            "the journal was not closed in order and its log ends in an incomplete frame, which is cut off; under \
             tables.fsync = always it held nothing that was acknowledged, otherwise perhaps the last writes before a crash of the machine"
        );
    }
    if !recovery.new {
        tracing::info!(
            rows,
            joins,
            snapshot_rows = recovery.snapshot_rows,
            log_entries = recovery.log_entries,
            log_bytes = recovery.log_bytes,
            took_ms = started.elapsed().as_millis() as u64,
            "tables recovered"
        );
    }
}

impl Owned {
    /// Returns `None` for entries that are not about rows.
    fn from(entry: Entry<'_>) -> Option<Owned> {
        Some(match entry {
            Entry::Put {
                key,
                value,
                deadline_ms,
            } => Owned::Put(key.to_vec(), value.to_vec(), deadline_ms),
            Entry::Expire { key, deadline_ms } => Owned::Expire(key.to_vec(), deadline_ms),
            Entry::Remove { key } => Owned::Remove(key.to_vec()),
            Entry::RemoveRange { lo, hi: Some(hi) } => Owned::RemoveRange(lo.to_vec(), hi.to_vec()),
            Entry::Slot { slot, record } => Owned::Slot(slot, record.to_vec()),
            _ => return None,
        })
    }

    fn entry(&self) -> Entry<'_> {
        match self {
            Owned::Put(key, value, deadline_ms) => Entry::Put {
                key,
                value,
                deadline_ms: *deadline_ms,
            },
            Owned::Expire(key, deadline_ms) => Entry::Expire {
                key,
                deadline_ms: *deadline_ms,
            },
            Owned::Remove(key) => Entry::Remove { key },
            Owned::RemoveRange(lo, hi) => Entry::RemoveRange { lo, hi: Some(hi) },
            Owned::Slot(slot, record) => Entry::Slot {
                slot: *slot,
                record,
            },
        }
    }
}

/// Restores rows first and definitions last, so that no join is maintained meanwhile.
struct Replay {
    shard: Shard,
    engine: Engine,
    definitions: Vec<(String, String)>,
    /// The records of spaces, by name.
    spaces: BTreeMap<String, Vec<u8>>,
    /// The state of a cluster's slots; `None` outside clusters.
    recovered: Option<Recovered>,
    /// The location of long values on disk; `None` if they are stored in memory.
    on_disk: Option<ValuesOnDisk>,
    wrong: Option<String>,
}

impl Replay {
    /// # Errors
    /// The file for values cannot be created.
    fn new(shared: &Shared, shard: Shard) -> Result<Replay, Error> {
        let on_disk = values_on_disk(shared)?;
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        let mut recovered = is_in_cluster(shared).then(Recovered::default);
        if let Some(on_disk) = &on_disk {
            engine.keep_values_on_disk(on_disk.clone());
            if let Some(recovered) = &mut recovered {
                recovered.copies.on_disk = Some(on_disk.clone());
            }
        }
        Ok(Replay {
            shard,
            engine,
            definitions: Vec::new(),
            spaces: BTreeMap::new(),
            recovered,
            on_disk,
            wrong: None,
        })
    }

    /// Publishes the recovered spaces, before any core opens its part.
    fn show_spaces(&self, shared: &Shared) {
        let records = self.spaces.iter();
        let catalog = read_catalog(records.map(|(name, record)| (name.as_str(), &record[..])));
        shared.tables.spaces.store(Arc::new(catalog));
    }

    fn row_count(&self) -> u64 {
        let copies = self.recovered.as_ref().map_or(0, |it| it.copies.count().0);
        self.engine.row_count() + copies as u64
    }

    fn apply(&mut self, entry: Entry<'_>) {
        // Time does not pass during recovery: expired rows must be present for later entries.
        const NOW: u64 = 0;
        match (&mut self.recovered, entry) {
            (Some(recovered), Entry::Slot { slot, record }) => {
                if let Err(why) = recovered.apply(slot, record) {
                    self.wrong.get_or_insert(why);
                }
                return;
            }
            (None, Entry::Slot { .. }) => {
                self.wrong.get_or_insert_with(|| {
                    "it is a cluster's node's: set cluster.mode to etcd, or start with another data folder".to_owned()
                });
                return;
            }
            (Some(_), Entry::Put { .. } | Entry::Define { .. } | Entry::Space { .. }) => {
                self.wrong.get_or_insert_with(|| {
                    "it is of a server that was no node of a cluster: start with another data folder, and write its rows to the cluster \
                     as a client"
                        .to_owned()
                });
                return;
            }
            _ => {}
        }
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
                // This server never writes such an entry.
                None => Ok(()),
            },
            Entry::Space { name, record } => {
                let name = String::from_utf8_lossy(name).into_owned();
                match record {
                    [] => drop(self.spaces.remove(&name)),
                    record => drop(self.spaces.insert(name, record.to_vec())),
                }
                Ok(())
            }
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
            // The journal has already assembled parts.
            Entry::Position { .. }
            | Entry::Part { .. }
            | Entry::Kept { .. }
            | Entry::Abandoned { .. }
            | Entry::Slot { .. } => Ok(()),
        };
        if let Err(error) = done {
            self.wrong.get_or_insert_with(|| error.to_string());
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        for (name, definition) in &self.definitions {
            if let Err(error) = self.engine.create(name, definition, 0) {
                self.wrong
                    .get_or_insert_with(|| format!("join {name}: {error}"));
            }
        }
        match self.wrong.take() {
            None => Ok(()),
            Some(why) => Err(unfitting(why)),
        }
    }
}

fn unfitting(why: String) -> Error {
    Error::Corrupted(format!(
        "the journal of the tables cannot be applied: {why}"
    ))
}
