//! Recovery of tables: restores tables and joins from the journal at startup.
//!
//! The first core reads the journal and sends each row to the core that owns it. The number of cores may differ from
//! the one at which the rows were written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Instant;

use larder_join::{Engine, NO_OWNER, Shard, SlotOwners, ValueFile, ValuesOnDisk};
use larder_journal::{Entry, Journal, Options, Recovery};
use larder_protocol::config::ClusterMode;
use larder_types::{SLOTS, fault_point};
use tokio::sync::Notify;

use super::field_expiries::FieldExpiries;
use super::replicated::{Replicated, SlotRecovery};
use super::shards::ShardState;
use super::{STEP_ROWS, Tables, decode_catalog, journal_fsync, postgres};
use crate::Shared;
use crate::cluster::core_of;
use crate::error::Error;
use crate::spaces::Spaces;

/// Entries that are sent to another core in one message, and messages that may be queued.
const BATCH_ENTRIES: usize = 1024;
const QUEUED_BATCHES_MAX: usize = 16;

/// Messages of the first core to the others while it reads the journal.
pub enum RecoveryMessage {
    Entries(Vec<OwnedEntry>),
    /// All entries were sent. The definitions, oldest first.
    End {
        definitions: Vec<(String, String)>,
        journal: Arc<Journal>,
    },
}

/// A journal entry about rows, with its own memory.
pub enum OwnedEntry {
    Put(Vec<u8>, Vec<u8>, Option<u64>),
    Expire(Vec<u8>, Option<u64>),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, Vec<u8>),
    Slot(u16, Vec<u8>),
}

/// One core's channel ends, between the cores while they open the tables.
///
/// Each core owns its ends and drops them when it fails, so that the others notice instead of waiting.
pub enum OpeningChannels {
    /// For the first core, which reads the journal.
    Reader {
        /// One sender per core; `None` for the first core itself.
        senders: Vec<Option<SyncSender<RecoveryMessage>>>,
        /// Receives the row count of every other core.
        counts: Receiver<u64>,
    },
    Other {
        entries: Receiver<RecoveryMessage>,
        row_counts: Sender<u64>,
    },
}

impl OpeningChannels {
    /// Creates the channel ends of all cores, in order.
    pub fn for_cores(cores: usize) -> Vec<OpeningChannels> {
        let (counted, counts) = channel();
        let (mut deal, mut others) = (vec![None], Vec::new());
        for _ in 1..cores {
            let (sender, dealt) = sync_channel(QUEUED_BATCHES_MAX);
            deal.push(Some(sender));
            others.push(OpeningChannels::Other {
                entries: dealt,
                row_counts: counted.clone(),
            });
        }
        others.insert(
            0,
            OpeningChannels::Reader {
                senders: deal,
                counts,
            },
        );
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
pub fn open(shared: &Shared, index: usize, opening: OpeningChannels) -> Result<Tables, OpenError> {
    fault_point("core.opening");
    let shard = Shard::new(index as u16, shared.tables.cores() as u16);
    let mut replay = Replay::new(shared, shard)?;
    let journal = match opening {
        OpeningChannels::Reader {
            senders: deal,
            counts,
        } => read_journal(shared, deal, &counts, &mut replay)?,
        OpeningChannels::Other {
            entries: dealt,
            row_counts: counted,
        } => {
            let journal = receive_entries(&dealt, &mut replay)?;
            // Fails only if the first core has failed.
            let _ = counted.send(replay.row_count());
            journal
        }
    };
    Ok(build_part(shared, replay, journal)?)
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
            "cannot create a file for values (tables.values_on_disk) in {}: {error}",
            folder.display()
        ))
    })?;
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    Ok(Some(ValuesOnDisk {
        file,
        min_bytes: from,
    }))
}

/// Builds a core's part from its recovered rows.
fn build_part(shared: &Shared, replay: Replay, journal: Arc<Journal>) -> Result<Tables, Error> {
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
            let (found, copies) = recovered.finish().map_err(inapplicable)?;
            engine.enable_before_images(true);
            Some(Replicated::new(shard.index, shard.count, found, copies))
        }
    };
    shared.tables.fault_monitor.watch_journal(journal.health());
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
        watched_keys: Default::default(),
        tracked_reads: Default::default(),
        executing: Default::default(),
        subscriptions: Default::default(),
        visited_per_step_max: Cell::new(0),
        memory_limit: config.memory,
        on_disk,
        handle: shared.tables.clone(),
        sharing: match shared.config.cluster.mode {
            ClusterMode::Etcd => Some(
                ShardState::new(Shard::with_owners(
                    shard.index,
                    shard.count.max(2),
                    Arc::new(SlotOwners::new(vec![NO_OWNER; usize::from(SLOTS)])),
                ))
                .into_cluster(),
            ),
            _ => (cores > 1).then(|| ShardState::new(shard)),
        },
        replicated,
        pause: RefCell::default(),
        field_expiries: FieldExpiries::default(),
        spaces: Spaces::default(),
        copy_pacer: super::copy_pacing::CopyPacer::default(),
    };
    tables.load_field_expiries();
    tables.load_spaces();
    tables.publish_stats();
    tables.update_expiry(&tables.engine.borrow());
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
        .map_err(journal_error)?;
    let journal = Arc::new(journal);
    if let Some(first) = replays.first() {
        first.publish_spaces(shared);
    }
    let open = |mut replay: Replay| {
        replay.finish()?;
        build_part(shared, replay, journal.clone())
    };
    let parts = replays.into_iter().map(open).collect::<Result<_, _>>()?;
    Ok((parts, writer))
}

fn journal_options(shared: &Shared) -> Options {
    Options {
        fsync: journal_fsync(shared.config.tables.fsync),
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
fn read_journal(
    shared: &Shared,
    deal: Vec<Option<SyncSender<RecoveryMessage>>>,
    counts: &Receiver<u64>,
    replay: &mut Replay,
) -> Result<Arc<Journal>, Error> {
    let folder = shared.config.server.data.join("tables");
    let options = journal_options(shared);
    let started = Instant::now();
    let mut parcels: Vec<Vec<OwnedEntry>> = deal.iter().map(|_| Vec::new()).collect();
    let send = |core: usize, dealt: RecoveryMessage| {
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
            let Some(owned) = OwnedEntry::from_entry(entry) else {
                continue;
            };
            let parcel = &mut parcels[core];
            parcel.push(owned);
            if parcel.len() == BATCH_ENTRIES {
                send(core, RecoveryMessage::Entries(std::mem::take(parcel)));
            }
        }
    })
    .map_err(journal_error)?;
    let journal = Arc::new(journal);
    replay.publish_spaces(shared);
    for (core, parcel) in parcels.into_iter().enumerate().skip(1) {
        send(core, RecoveryMessage::Entries(parcel));
        let end = RecoveryMessage::End {
            definitions: replay.definitions.clone(),
            journal: journal.clone(),
        };
        send(core, end);
    }
    let joins = replay.definitions.len();
    replay.finish()?;
    let others: u64 = (1..deal.len()).map(|_| counts.recv().unwrap_or(0)).sum();
    log_recovery(replay.row_count() + others, joins, &recovery, started);
    Ok(journal)
}

/// Applies the entries that the first core sends.
fn receive_entries(
    dealt: &Receiver<RecoveryMessage>,
    replay: &mut Replay,
) -> Result<Arc<Journal>, OpenError> {
    loop {
        match dealt.recv().map_err(|_| OpenError::Abandoned)? {
            RecoveryMessage::Entries(entries) => {
                entries.iter().for_each(|e| replay.apply(e.entry()))
            }
            RecoveryMessage::End {
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

fn journal_error(error: larder_journal::Error) -> Error {
    match error {
        larder_journal::Error::Corrupted { .. } => Error::Corrupted(error.to_string()),
        other => Error::Io(other.to_string()),
    }
}

fn log_recovery(rows: u64, joins: usize, recovery: &Recovery, started: Instant) {
    if let Some(cut) = &recovery.torn_tail {
        tracing::warn!(
            path = %cut.path.display(),
            offset = cut.offset,
            bytes = cut.bytes,
            "the journal was not closed in order and its log ends in an incomplete frame, which is truncated; with \
             tables.fsync = always it contained no acknowledged write, otherwise possibly the last writes before a crash of the machine"
        );
    }
    if !recovery.is_new {
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

impl OwnedEntry {
    /// Returns `None` for entries that are not about rows.
    fn from_entry(entry: Entry<'_>) -> Option<OwnedEntry> {
        Some(match entry {
            Entry::Put {
                key,
                value,
                deadline_ms,
            } => OwnedEntry::Put(key.to_vec(), value.to_vec(), deadline_ms),
            Entry::Expire { key, deadline_ms } => OwnedEntry::Expire(key.to_vec(), deadline_ms),
            Entry::Remove { key } => OwnedEntry::Remove(key.to_vec()),
            Entry::RemoveRange { lo, hi: Some(hi) } => {
                OwnedEntry::RemoveRange(lo.to_vec(), hi.to_vec())
            }
            Entry::Slot { slot, record } => OwnedEntry::Slot(slot, record.to_vec()),
            _ => return None,
        })
    }

    fn entry(&self) -> Entry<'_> {
        match self {
            OwnedEntry::Put(key, value, deadline_ms) => Entry::Put {
                key,
                value,
                deadline_ms: *deadline_ms,
            },
            OwnedEntry::Expire(key, deadline_ms) => Entry::Expire {
                key,
                deadline_ms: *deadline_ms,
            },
            OwnedEntry::Remove(key) => Entry::Remove { key },
            OwnedEntry::RemoveRange(lo, hi) => Entry::RemoveRange { lo, hi: Some(hi) },
            OwnedEntry::Slot(slot, record) => Entry::Slot {
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
    recovered: Option<SlotRecovery>,
    /// The location of long values on disk; `None` if they are stored in memory.
    on_disk: Option<ValuesOnDisk>,
    error: Option<String>,
}

impl Replay {
    /// # Errors
    /// The file for values cannot be created.
    fn new(shared: &Shared, shard: Shard) -> Result<Replay, Error> {
        let on_disk = values_on_disk(shared)?;
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        let mut recovered = is_in_cluster(shared).then(SlotRecovery::default);
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
            error: None,
        })
    }

    /// Publishes the recovered spaces, before any core opens its part.
    fn publish_spaces(&self, shared: &Shared) {
        let records = self.spaces.iter();
        let catalog = decode_catalog(records.map(|(name, record)| (name.as_str(), &record[..])));
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
                    self.error.get_or_insert(why);
                }
                return;
            }
            (None, Entry::Slot { .. }) => {
                self.error.get_or_insert_with(|| {
                    "it belongs to a node of a cluster: set cluster.mode to etcd, or start with another data folder".to_owned()
                });
                return;
            }
            (Some(_), Entry::Put { .. } | Entry::Define { .. } | Entry::Space { .. }) => {
                self.error.get_or_insert_with(|| {
                    "it belongs to a server outside any cluster: start with another data folder, and write its rows to the cluster \
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
            | Entry::Commit { .. }
            | Entry::Abort { .. }
            | Entry::Slot { .. } => Ok(()),
        };
        if let Err(error) = done {
            self.error.get_or_insert_with(|| error.to_string());
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        for (name, definition) in &self.definitions {
            if let Err(error) = self.engine.create(name, definition, 0) {
                self.error
                    .get_or_insert_with(|| format!("join {name}: {error}"));
            }
        }
        match self.error.take() {
            None => Ok(()),
            Some(why) => Err(inapplicable(why)),
        }
    }
}

fn inapplicable(why: String) -> Error {
    Error::Corrupted(format!(
        "the journal of the tables cannot be applied: {why}"
    ))
}
