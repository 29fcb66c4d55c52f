//! Stores: immutable data sets, built once and looked up many times.
//!
//! ```text
//!  rows ──> build::Builder ──> segments + manifest ──> version::StoreDir (publish, live)
//!                                                              │
//!  key ──> version::Version ──> segment::index (filter, directory: memory) ──> one block ──> value
//! ```
//!
//! Write path: `build` sorts rows by hash within a memory limit, `segment::writer` packs them into blocks, `manifest`
//! describes the version, and `version::publish` makes it durable. Read path: `version` selects the segment by the
//! key's slot, `segment::index` selects the block, and `segment::block` verifies the block and finds the record.
//!
//! Segment writers and readers use only byte slices and `Write`. Files appear in `version`, and in `build::spill` for
//! rows that do not fit in memory.
//!
//! A version may be a *delta* on another: `build::on` creates it, `delta` defines the marker of its values,
//! `version::layers` looks keys up in it, and `build::compact` merges it into a complete version.
//!
//! Read `segment` first: it defines the format.

pub mod build;
mod built;
pub mod delta;
pub mod diff;
mod digest;
mod error;
pub mod manifest;
pub mod profile;
pub mod segment;
pub mod served;
mod signature;
pub mod version;

pub use build::{
    Base, BuildOptions, BuildProgress, Builder, BuiltSegment, Changes, CollectAs, Compaction,
    DeltaBase, OnDuplicate, OpenPartition, RowWriter, clear_remains,
};
pub use built::Built;
pub use digest::{DigestKind, SegmentDigest};
pub use error::Error;
pub use manifest::{Layer, Manifest, SegmentEntry};
pub use profile::Profile;
pub use segment::Compression;
pub use signature::{PublicKey, SecretKey, Signature};
pub use version::{Attempt, Partitions, Residency, StoreDir, Value, VerifyReport, Version, Walk};
