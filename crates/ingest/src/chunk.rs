//! Divides a stream of text into chunks of complete records.
//!
//! One worker at a time holds the cutter. It reads (and decompresses) the next chunk into its own buffer, finds the
//! end of the last record, keeps the rest for the next chunk, and releases the cutter. Parsing happens afterwards.
//!
//! Invariants:
//! 1. Every chunk begins at the start of a record and ends at the end of a record, or at the end of the file.
//! 2. Chunks are numbered from 0 without gaps, independent of the cutting thread.
//! 3. Of all files together, only one chunk at a time is longer than `chunk_bytes`: a worker that cuts another one
//!    waits until the first is parsed. The longest record is therefore in memory once, however many threads there
//!    are.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use memchr::{memchr, memrchr};

use crate::csv::Syntax;
use crate::csv::parse::unclosed_quote;
use crate::csv::scan::{Scan, scan};
use crate::error::{At, Fault};

/// The end of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Boundary {
    Newline,
    /// A newline outside quotes.
    Csv(Syntax),
}

pub(crate) struct Cutter {
    reader: Box<dyn Read + Send>,
    carry: Vec<u8>,
    chunk_bytes: usize,
    record_bytes_max: usize,
    long_chunk: Arc<LongChunk>,
    pub next_chunk: u64,
    ended: bool,
    /// Held if `carry` had to grow beyond a chunk.
    turn: Option<LongChunkGuard>,
}

pub(crate) struct Chunk {
    pub chunk: u64,
    pub has_quotes: bool,
    /// Held until the chunk is parsed.
    pub turn: Option<LongChunkGuard>,
}

/// A lock for the long chunk.
#[derive(Default)]
pub(crate) struct LongChunk {
    taken: Mutex<bool>,
    returned: Condvar,
}

/// The exclusive right to the long chunk.
pub(crate) struct LongChunkGuard(Arc<LongChunk>);

impl LongChunkGuard {
    /// Blocks until the right is free. Its holder takes no file's lock, so there is no deadlock.
    fn take(of: &Arc<LongChunk>) -> LongChunkGuard {
        let mut taken = of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            taken = of
                .returned
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
        LongChunkGuard(Arc::clone(of))
    }
}

impl Drop for LongChunkGuard {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.returned.notify_one();
    }
}

impl Cutter {
    pub fn new(
        reader: Box<dyn Read + Send>,
        chunk_bytes: usize,
        record_bytes_max: usize,
        long_chunk: &Arc<LongChunk>,
    ) -> Self {
        Cutter {
            long_chunk: Arc::clone(long_chunk),
            reader,
            carry: Vec::new(),
            chunk_bytes,
            record_bytes_max: record_bytes_max.max(chunk_bytes),
            next_chunk: 0,
            ended: false,
            turn: None,
        }
    }

    /// Reads until `carry` has a full chunk or the end of the input. For the first chunk, before the boundary is
    /// known.
    pub fn peek(&mut self) -> Result<&mut Vec<u8>, Fault> {
        let mut carry = std::mem::take(&mut self.carry);
        let filled = self.fill(&mut carry, self.chunk_bytes);
        self.carry = carry;
        filled?;
        Ok(&mut self.carry)
    }

    /// Like [`Cutter::peek`], but reads on until `holds_record` returns that the first record ends in the data.
    pub fn peek_record(
        &mut self,
        holds_record: impl Fn(&[u8]) -> bool,
    ) -> Result<&mut Vec<u8>, Fault> {
        self.peek()?;
        let mut target = self.chunk_bytes;
        while !self.ended && !holds_record(&self.carry) {
            if target >= self.record_bytes_max {
                return Err(self.too_long());
            }
            if self.turn.is_none() {
                self.turn = Some(LongChunkGuard::take(&self.long_chunk));
            }
            target = target.saturating_mul(2).min(self.record_bytes_max);
            let mut carry = std::mem::take(&mut self.carry);
            let filled = self.fill(&mut carry, target);
            self.carry = carry;
            filled?;
        }
        Ok(&mut self.carry)
    }

    fn too_long(&self) -> Fault {
        let what =
            "a record is longer than that (unless a quote is left open, or this is another format)";
        Fault::memory(what.into(), None, self.record_bytes_max as u64).or_at(At::Line(1))
    }

    /// Returns whether all of the text has been read, even if not all is cut.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads the next chunk into `buffer`; `None` at the end.
    pub fn cut(
        &mut self,
        boundary: Boundary,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Chunk>, Fault> {
        buffer.clear();
        buffer.extend_from_slice(&self.carry);
        self.carry.clear();
        let mut target = self.chunk_bytes;
        let mut turn = self.turn.take();
        loop {
            self.fill(buffer, target)?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let found = match boundary {
                Boundary::Csv(syntax) if memchr(b'"', buffer).is_some() => {
                    RecordEnd::from(scan(buffer, syntax))
                }
                _ => RecordEnd {
                    end: memrchr(b'\n', buffer).map(|at| at + 1),
                    has_quotes: false,
                    open_quote: None,
                },
            };
            if self.ended {
                if let Some(at) = found.open_quote {
                    let line = 1 + memchr::memchr_iter(b'\n', &buffer[..at]).count() as u64;
                    return Err(Fault::data(At::Line(line), unclosed_quote(&buffer[at..])));
                }
            } else if let Some(end) = found.end {
                self.carry.extend_from_slice(&buffer[end..]);
                buffer.truncate(end);
            } else if target >= self.record_bytes_max {
                return Err(self.too_long());
            } else {
                turn.get_or_insert_with(|| LongChunkGuard::take(&self.long_chunk));
                target = target.saturating_mul(2).min(self.record_bytes_max);
                continue;
            }
            let chunk = self.next_chunk;
            self.next_chunk += 1;
            return Ok(Some(Chunk {
                chunk,
                has_quotes: found.has_quotes,
                turn,
            }));
        }
    }

    fn fill(&mut self, buffer: &mut Vec<u8>, target: usize) -> Result<(), Fault> {
        if self.ended || buffer.len() >= target {
            return Ok(());
        }
        let wanted = target - buffer.len();
        // With one spare byte `read_to_end` reaches the limit without growing the buffer.
        buffer.reserve(wanted + 32);
        let read = self.reader.by_ref().take(wanted as u64).read_to_end(buffer);
        match read {
            Ok(count) => self.ended = count < wanted,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Fault::file(format!(
                    "the compressed data ends in the middle ({error}); the file is cut off, copy it again"
                )));
            }
            Err(error) => return Err(Fault::file(format!("it cannot be read: {error}"))),
        }
        Ok(())
    }
}

struct RecordEnd {
    end: Option<usize>,
    has_quotes: bool,
    open_quote: Option<usize>,
}

impl From<Scan> for RecordEnd {
    fn from(scan: Scan) -> RecordEnd {
        RecordEnd {
            end: scan.records_end,
            has_quotes: true,
            open_quote: scan.open_quote,
        }
    }
}
