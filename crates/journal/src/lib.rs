//! Durable base rows: an append-only log with group commit, snapshots, and recovery.
//!
//! ```text
//!  core 0 ─ Producer ─┐  commit           ┌─ log-0000000007      frames of entries; one write and
//!  core 1 ─ Producer ─┼────────> Log ─────┤                      one sync for all gathered commits
//!  core 2 ─ Producer ─┘                   └─ wakers: acknowledgements, or the journal has stopped
//!  every core ─ SnapshotPart ──> SnapshotWriter ─ snapshot-0000000007, then older files are removed
//!
//!  start: snapshot-0000000007 ──> log-0000000007 ──> ... ──> rows
//! ```
//!
//! A put passes through these files: `entry` encodes it; `producer` appends it to the core's buffer and commits the
//! buffer; `log` makes a frame of it (`format`) and writes it, in the core's own thread or in that of `writer`, which
//! also requests the sync. The waker notifies the core, whose `Producer::outcome` then permits the reply. A start is
//! `recover`, which reads each file with `scan` and combines batches of several cores (`part_assembler`). `snapshot` shortens
//! both. `disk` is the environment, `folder` defines the file names.
//!
//! The format is in `docs/formats/journal.md`, with the reasons for one journal for all cores.

mod disk;
mod entry;
mod error;
mod fault;
mod folder;
pub mod format;
mod journal;
mod log;
mod newest_log;
mod part_assembler;
mod producer;
mod recover;
mod scan;
mod shared;
mod snapshot;
mod writer;

pub use disk::{Disk, DiskFile, RealDisk};
pub use entry::Entry;
pub use error::{Error, Failure};
pub use fault::FAULT_POINTS;
pub use journal::{Fsync, Health, Journal, LastSnapshot, Options, Sizes};
pub use producer::{AppendOutcome, BATCH_BYTES_MAX, Batch, Producer, Ticket};
pub use recover::{Recovery, TornTail, replay, size_on_disk};
pub use scan::{Ending, LogScan, scan_log, scan_snapshot};
pub use snapshot::{SnapshotPart, SnapshotStep, SnapshotWriter};
pub use writer::{Syncer, Writer, WriterStep};
