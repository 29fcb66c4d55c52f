//! The interface of a compared engine: it builds a durable, servable form from the CSV, opens it, and looks up keys.

use std::path::Path;

use crate::data::DataSet;
use crate::engines;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub trait Engine {
    /// Builds into the empty folder `out`; returns when all of it is on the disk.
    fn build(&self, data: &DataSet, out: &Path) -> Result<()>;

    /// Puts what was built where it is served from, in place, if the engine's way to its readers has such a step.
    fn install(&self, _out: &Path) -> Result<()> {
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>>;
}

pub trait Reader {
    /// Looks up one key: compares the whole key, and returns [`touch`] of the value if it is there.
    fn get(&mut self, key: &[u8]) -> Option<u64>;

    /// Many keys in one call, where the engine has such a thing: the sum of [`touch`] over those found.
    fn get_many(&mut self, _keys: &[&[u8]]) -> Option<u64> {
        None
    }

    /// Called once, after all files have been read into the page cache.
    fn on_warmed(&mut self) {}

    /// Returns the size in bytes of the directory of record positions, if the engine reports it.
    fn directory_bytes(&self) -> Option<u64> {
        None
    }
}

/// Reads every byte of a value: the same work for all engines.
#[inline]
pub fn touch(value: &[u8]) -> u64 {
    let mut sum = value.len() as u64;
    let mut words = value.chunks_exact(8);
    for word in &mut words {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        sum = sum.wrapping_add(u64::from_le_bytes(bytes));
    }
    for byte in words.remainder() {
        sum = sum.wrapping_add(u64::from(*byte));
    }
    sum
}

/// An engine in the run.
pub struct Entry {
    pub name: &'static str,
    /// Shares the file of this other engine, and only reads in its own way.
    pub reads_from: Option<&'static str>,
    /// Only its build counts; its file is as another's.
    pub build_only: bool,
    pub what: &'static str,
    pub engine: fn() -> Box<dyn Engine>,
}

/// All engines, in the order of the report.
pub fn all() -> Vec<Entry> {
    fn entry(name: &'static str, what: &'static str, engine: fn() -> Box<dyn Engine>) -> Entry {
        Entry {
            name,
            reads_from: None,
            build_only: false,
            what,
            engine,
        }
    }
    use engines::{cdb, larder, lmdb, perfect_hash, rocksdb, sparkey, voldemort};
    vec![
        entry(
            "larder",
            "`larder-ingest` and `larder-batch`, memory 1 GiB, all else at its default (8 partitions, filter, blocks uncompressed)",
            || {
                Box::new(larder::Larder {
                    memory_bytes: 1 << 30,
                })
            },
        ),
        Entry {
            build_only: true,
            ..entry(
                "larder-4g",
                "the same with memory 4 GiB; the files are the same",
                || {
                    Box::new(larder::Larder {
                        memory_bytes: 4 << 30,
                    })
                },
            )
        },
        entry(
            "lmdb",
            "heed 0.23: rows sorted first, MDB_APPEND into a writable map, one transaction, then sync",
            || {
                Box::new(lmdb::Lmdb {
                    mode: lmdb::Mode::AppendMapped,
                })
            },
        ),
        Entry {
            build_only: true,
            ..entry(
                "lmdb-append",
                "rows sorted first, MDB_APPEND, one transaction, default flags",
                || {
                    Box::new(lmdb::Lmdb {
                        mode: lmdb::Mode::Append,
                    })
                },
            )
        },
        Entry {
            build_only: true,
            ..entry(
                "lmdb-unsorted",
                "a user's first command: put in the order of the file, one transaction, default flags",
                || {
                    Box::new(lmdb::Lmdb {
                        mode: lmdb::Mode::Unsorted,
                    })
                },
            )
        },
        entry(
            "rocksdb-block",
            "Debian's librocksdb by its C API: sorted, one SST file, ingested; 4 KiB blocks with hash index, bloom filter of 10 bits, mmap reads, no checksums on reads",
            || {
                Box::new(rocksdb::RocksDb {
                    table: rocksdb::Table::Block,
                })
            },
        ),
        entry(
            "rocksdb-cuckoo",
            "the same library, cuckoo table (which cannot be ingested: sorted rows put without a log, flushed, compacted), mmap reads",
            || {
                Box::new(rocksdb::RocksDb {
                    table: rocksdb::Table::Cuckoo,
                })
            },
        ),
        entry(
            "cdb",
            "Debian's libcdb (tinycdb), streamed from the CSV, fsync",
            || Box::new(cdb::Cdb),
        ),
        entry(
            "sparkey",
            "sparkey-sys 0.1 (C sources of 2017), log and hash file, uncompressed, fsync",
            || Box::new(sparkey::Sparkey),
        ),
        entry(
            "perfect-hash",
            "ptr_hash 2.1 in memory, mapped 4-byte offsets, mapped records with keys",
            || Box::new(perfect_hash::PerfectHash),
        ),
        entry(
            "voldemort-binary",
            "Voldemort's read-only layout: 8 bytes of md5 and 4 bytes of offset, sorted and mapped; records with keys; binary search",
            || {
                Box::new(voldemort::Voldemort {
                    search: voldemort::Search::Binary,
                })
            },
        ),
        Entry {
            reads_from: Some("voldemort-binary"),
            ..entry(
                "voldemort-interpolation",
                "the same file, interpolation search",
                || {
                    Box::new(voldemort::Voldemort {
                        search: voldemort::Search::Interpolation,
                    })
                },
            )
        },
    ]
}
