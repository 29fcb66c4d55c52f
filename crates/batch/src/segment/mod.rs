//! The segment format: hash-ordered blocks with a small directory.
//!
//! A segment holds the records of one partition, ordered by (XXH3-64 of the key, key). The hash space is divided into
//! `block_count` equal ranges, and block `i` contains exactly the records whose hash is in range `i`. One
//! multiplication therefore yields the block of a key, the directory contains only the start of each block, and a
//! lookup needs no search before it reads the block.
//!
//! ```text
//! offset                 size           contents
//! 0                      16             header: magic, format, checksum
//! 16                     data_size      records
//! 16 + data_size         sections       dictionary, filter, directory; some may be empty
//! end - 160              160            footer: sizes, counts, checksums, magic
//! ```
//!
//! The data has one of three layouts.
//!
//! | layout | records | directory | a lookup reads |
//! |---|---|---|---|
//! | uniform (`uniform.rs`) | an array, with a checksum in each record | number of records before a block, and the block's word | a directory line, then the record |
//! | varied (`block/varied.rs`) | blocks with a header, and a checksum in each record | positions, and a word per block | the directory, two ends in the header, the record |
//! | sealed (`block/mod.rs`) | blocks with one checksum, optionally compressed | positions | the directory, the complete block |
//!
//! Format 2 uses the uniform layout if all keys have the same size and all values have the same size. It uses the
//! sealed layout if records are compressed, and the varied layout otherwise. Format 1 has only the sealed layout. The
//! word of a block (`ranks.rs`) maps a hash to the candidate records.
//!
//! Integers are little-endian. Invariants:
//!
//! 1. A checksum covers every byte of the file: the header's and the footer's own; one per section (in the footer);
//!    in the data one per block, or one per block header and per record; and one per extent.
//! 2. Records with equal hashes are adjacent in one block, ordered by key.
//! 3. A block without records takes no bytes.
//! 4. A lookup reads one block (and the extent after it, for a value over [`LARGE_VALUE_BYTES_MIN`]). It verifies the
//!    data on which its result depends: the record that it found, or every candidate. A record's checksum covers its
//!    position.
//! 5. Identical records and options yield identical bytes.
//!
//! This differs from Voldemort's read-only stores, which keep a sorted index of 12 bytes per key next to the data and
//! search it by bisection. Here the directory takes half a byte per key, stays in memory, and points directly to the
//! record.

pub mod block;
mod check;
mod compression;
mod directory;
mod filter;
pub mod format;
mod index;
mod memory;
mod ranks;
mod uniform;
mod writer;

pub use block::{FoundValue, RecordRef};
pub use compression::{Codec, Compression};
pub use filter::mask as filter_mask;
pub use format::{Footer, LARGE_VALUE_BYTES_MIN};
pub(crate) use index::block_index;
pub use index::{BlockRange, RecordLocation, Records, SegmentIndex, prefetch_block};
pub use memory::{IndexArena, IndexBytes};
pub use ranks::Candidates;
pub use uniform::Uniform;
pub use writer::{SegmentOptions, SegmentPlan, SegmentSummary, SegmentWriter};
