//! Stores: immutable data sets, built once, looked up for ever after.
//!
//! ```text
//!  rows ──> build::Builder ──> segments + manifest ──> version::StoreDir (publish, live)
//!                                                              │
//!  key ──> version::Version ──> segment::index (filter, directory: memory) ──> one block ──> value
//! ```
//!
//! A record's way in: `build` sorts rows by hash within the memory given, `segment::writer` packs
//! them into blocks, `manifest` says what the version holds, `version::publish` makes it durable.
//! Its way out: `version` picks the segment by the key's slot, `segment::index` picks the block,
//! `segment::block` checks the block and finds the record.
//!
//! Segment writers and readers see bytes and `Write` only. Files appear in `version`, and in
//! `build::spill` for what does not fit in memory.
//!
//! A version may be a *delta* on another: `build::on` says how it is made, `delta` what its values end with, `version::layers` how
//! it is looked up, `build::compact` how it becomes a whole version again.
//!
//! Read `segment` first: the format is there.

pub mod build;
mod built;
pub mod delta;
pub mod diff;
mod digest;
mod error;
mod fault;
pub mod manifest;
pub mod profile;
pub mod segment;
mod signature;
pub mod version;

pub use build::{
    Base, BuildOptions, BuildProgress, Builder, Changes, CollectAs, Compaction, On, OnDuplicate,
    OpenPart, RowWriter, SegmentPart, clear_remains,
};
pub use built::Built;
pub use digest::{DigestKind, SegmentDigest};
pub use error::Error;
pub use fault::fault_point;
pub use manifest::{Layer, Manifest, SegmentEntry};
pub use profile::Profile;
pub use segment::Compression;
pub use signature::{PublicKey, SecretKey, Signature};
pub use version::{Attempt, Partitions, Residency, StoreDir, Value, VerifyReport, Version, Walk};
