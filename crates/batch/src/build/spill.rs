//! Chunks of rows for a bucket, and the file for chunks that do not fit in memory.
//!
//! A chunk is a sequence of rows: varint key size, varint value size, varint of the zigzag difference of `seq` from
//! the previous row, key, value.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::counts::RowCounts;
use crate::error::Error;
use crate::segment::format::{put_varint, take_varint};

/// Rows of one bucket from one writer.
#[derive(Default)]
pub struct Chunk {
    pub bytes: Vec<u8>,
    pub counts: RowCounts,
    last_seq: u64,
}

/// A chunk that was passed to its bucket.
pub struct StoredChunk {
    pub counts: RowCounts,
    pub place: ChunkLocation,
}

pub enum ChunkLocation {
    Memory(Vec<u8>),
    File { offset: u64, size: usize },
}

const ROW_OVERHEAD_MAX: usize = 30;

impl Chunk {
    #[inline]
    pub fn has_room(&self, key: &[u8], value: &[u8], chunk_bytes: usize) -> bool {
        self.bytes.is_empty()
            || self.bytes.len() + key.len() + value.len() + ROW_OVERHEAD_MAX <= chunk_bytes
    }

    #[inline]
    pub fn push(&mut self, seq: u64, key: &[u8], value: &[u8], chunk_bytes: usize) {
        if self.bytes.capacity() == 0 {
            self.bytes
                .reserve_exact(chunk_bytes.max(key.len() + value.len() + ROW_OVERHEAD_MAX));
        }
        put_varint(&mut self.bytes, key.len() as u64);
        put_varint(&mut self.bytes, value.len() as u64);
        let step = seq.wrapping_sub(self.last_seq) as i64;
        put_varint(&mut self.bytes, ((step << 1) ^ (step >> 63)) as u64);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.last_seq = seq;
        self.counts.add_row(key, value);
    }

    pub fn into_memory(mut self) -> StoredChunk {
        // A last, partly filled chunk must not occupy the memory of a full one.
        if self.bytes.capacity() > self.bytes.len() * 2 {
            self.bytes.shrink_to_fit();
        }
        StoredChunk {
            counts: self.counts,
            place: ChunkLocation::Memory(self.bytes),
        }
    }
}

/// A row of a chunk.
pub struct Row<'a> {
    pub seq: u64,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// Iterates over the rows of a chunk. This process wrote the bytes, so they are trusted.
pub struct Rows<'a> {
    rest: &'a [u8],
    seq: u64,
}

impl<'a> Rows<'a> {
    pub fn new(bytes: &'a [u8]) -> Rows<'a> {
        Rows {
            rest: bytes,
            seq: 0,
        }
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    #[inline]
    fn next(&mut self) -> Option<Row<'a>> {
        let key_size = take_varint(&mut self.rest)? as usize;
        let value_size = take_varint(&mut self.rest)? as usize;
        let zigzag = take_varint(&mut self.rest)?;
        let step = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        self.seq = self.seq.wrapping_add(step as u64);
        let (key, rest) = self.rest.split_at(key_size);
        let (value, rest) = rest.split_at(value_size);
        self.rest = rest;
        Some(Row {
            seq: self.seq,
            key,
            value,
        })
    }
}

/// The spill file. It is unlinked immediately after it is opened, so that no crash leaves it behind.
pub struct Spill {
    file: File,
    path: PathBuf,
    end: AtomicU64,
}

impl Spill {
    pub fn create(folder: &Path) -> Result<Spill, Error> {
        let path = folder.join(format!(".larder-spill-{}", std::process::id()));
        let unique = (0..1000).map(|n| path.with_extension(n.to_string()));
        let mut last = None;
        for path in unique {
            match OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
            {
                Ok(file) => {
                    fs::remove_file(&path).map_err(Error::io("remove", &path))?;
                    return Ok(Spill {
                        file,
                        path,
                        end: AtomicU64::new(0),
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    last = Some(error)
                }
                Err(error) => {
                    return Err(Error::Io {
                        action: "create spill file",
                        path,
                        source: error,
                    });
                }
            }
        }
        Err(Error::Io {
            action: "create spill file",
            path,
            source: last.expect("a thousand names were taken"),
        })
    }

    pub fn write(&self, chunk: Chunk) -> Result<StoredChunk, Error> {
        let size = chunk.bytes.len();
        let offset = self.end.fetch_add(size as u64, Ordering::Relaxed);
        self.file
            .write_all_at(&chunk.bytes, offset)
            .map_err(Error::io("write spill file", &self.path))?;
        Ok(StoredChunk {
            counts: chunk.counts,
            place: ChunkLocation::File { offset, size },
        })
    }

    pub fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; size];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(Error::io("read spill file", &self.path))?;
        Ok(bytes)
    }

    /// Frees the disk space before the builder is dropped.
    pub fn remove(&self) {
        // Best effort: the file has no name, so its space is freed when the process ends.
        let _ = self.file.set_len(0);
    }
}
