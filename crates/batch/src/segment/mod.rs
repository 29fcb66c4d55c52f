//! The segment format: hash-ordered blocks with a small directory.
//!
//! A segment holds the records of one partition, ordered by (XXH3-64 of the key, key). The hash
//! space is cut into `block_count` equal ranges, and block `i` holds exactly the records whose
//! hash falls in range `i`. So the block of a key is one multiplication away, the directory need
//! only say where each block begins, and no search is made before the block is read.
//!
//! ```text
//! offset                 size           what
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
//! | uniform (`uniform.rs`) | an array, each with its check | how many before a block, and its word | a directory line, then the record |
//! | varied (`block/varied.rs`) | blocks with a head, a check in each record | positions, and a word a block | the directory, two ends in the head, the record |
//! | sealed (`block/mod.rs`) | blocks under one checksum, perhaps compressed | positions | the directory, the whole block |
//!
//! Format 2 writes the first where all keys have one size and all values have, the second otherwise, and the last where
//! records are compressed. Format 1 has the last alone. The word of a block (`ranks.rs`) says which of its records can
//! have a hash.
//!
//! Integers are little-endian. Invariants:
//!
//! 1. Every byte of the file is covered by a checksum: the header's and the footer's own, one per
//!    section (in the footer), and in the data one per block, or one per head and per record; one per extent.
//! 2. Records with equal hashes are in one block, next to each other, ordered by key.
//! 3. A block without records takes no bytes.
//! 4. A lookup reads of one block (and, for a value over [`LARGE_VALUE_BYTES_MIN`], its extent, which
//!    follows the block), and checks what it answers from: the record that it found, or every record that could have
//!    been it. The check of a record covers where it belongs.
//! 5. Identical records and options give identical bytes.
//!
//! This differs from Voldemort's read-only stores, which keep a sorted index of 12 bytes a key
//! beside the data and search it by bisection: here the directory is half a byte a key, it stays in memory, and the
//! record is where the directory points.

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
pub use index::{BlockRange, Located, Records, SegmentIndex, prefetch_block};
pub use memory::{IndexArena, IndexBytes};
pub use ranks::Candidates;
pub use uniform::Uniform;
pub use writer::{SegmentOptions, SegmentPlan, SegmentSummary, SegmentWriter};
