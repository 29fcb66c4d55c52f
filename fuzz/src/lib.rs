//! The requirement for every decoder: any bytes at all, without a panic, a hang or a wrong result.
//!
//! There is one function per target. `fuzz_targets` runs them under libFuzzer (`make fuzz`). `tests/it/main.rs` runs
//! them over the seeds and some thousands of their mutations in every `cargo test`.
//!
//! Checksums would reject nearly every mutation immediately. Each function therefore also *reseals* its input: it adds
//! the correct checksum to damaged contents, so that the code behind the check is tested too.

mod collected;
mod dump;
mod ingest;
mod join;
mod journal;
mod manifest;
mod mutate;
mod peer;
mod pgoutput;
mod replication;
mod reply;
mod resp;
mod segment;
mod space;
mod trace;
mod version;
mod wire;

pub use collected::{collected, is_collected};
pub use dump::{dump, is_dump};
pub use ingest::{bundle, csv, json_lines, rows_in_bundle};
pub use join::{is_join, join};
pub use journal::{journal, journal_file, read_journal, reseal_journal};
pub use manifest::manifest;
pub use mutate::Mutations;
pub use peer::{complete_frames, peer};
pub use pgoutput::{changes_of, pgoutput};
pub use replication::{replication, replication_pieces};
pub use reply::{complete_replies, reply};
pub use resp::resp;
pub use segment::{read_segment, reseal_segment, segment, with_dictionary};
pub use space::{searches, space};
pub use trace::{bg_text, holds_records, reseal_trace, trace};
pub use version::{verify_version, version};
pub use wire::{is_wire, wire};
