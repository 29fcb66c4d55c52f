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
//! 16                     data_size      blocks in order, each followed by its extents
//! 16 + data_size         dictionary     zstd dictionary (empty unless compressed by zstd)
//! ...                    filter         split block Bloom filter (empty when there is none)
//! ...                    directory      where each block begins
//! end - 160              160            footer: sizes, counts, checksums, magic
//! ```
//!
//! Integers are little-endian. Invariants:
//!
//! 1. Every byte of the file is covered by a checksum: the header's and the footer's own, one per
//!    section (in the footer), one per block, one per extent.
//! 2. Records with equal hashes are in one block, next to each other, ordered by key.
//! 3. A block without records takes no bytes.
//! 4. A lookup reads one block (and, for a value over [`LARGE_VALUE_BYTES_MIN`], its extent, which
//!    follows the block), and checks all it reads before it answers.
//! 5. Identical records and options give identical bytes.
//!
//! This differs from Voldemort's read-only stores, which keep a sorted index of 12 bytes a key
//! beside the data and search it by bisection: here the directory is a fifth of a byte to half a byte
//! a key, it stays in memory, and the record is where the directory points.

pub mod block;
mod compression;
mod directory;
mod filter;
pub mod format;
mod index;
mod memory;
mod writer;

pub use block::{FoundValue, RecordRef};
pub use compression::{Codec, Compression};
pub use format::{Footer, LARGE_VALUE_BYTES_MIN};
pub use index::{BlockRange, SegmentIndex, prefetch_block};
pub use memory::{IndexArena, IndexBytes};
pub use writer::{SegmentOptions, SegmentPlan, SegmentSummary, SegmentWriter};
