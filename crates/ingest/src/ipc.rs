//! Arrow IPC, files and streams alike: a file is a stream between two magic words.
//!
//! Messages are framed here and decoded by the Arrow crate, so that sizes are checked before memory is taken
//! for them, and so that a file cut off between two messages is not taken for a whole one.
//!
//! A message is decoded when what it takes fits the memory, together with the file's dictionaries. Nothing is held while more is waited for.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{Endianness, Message, RecordBatch as RecordBatchMessage, root_as_message};
use larder_types::ByteSize;

use crate::error::{At, Fault, one_line};
use crate::plan::FolderColumns;
use crate::record_batch::{BatchPlan, project, push_batch};
use crate::rows::Rows;
use crate::run::{Budget, Claim, Task, Tasks};

pub(crate) struct IpcFile {
    reader: Option<Box<dyn Read + Send>>,
    folder: Arc<FolderColumns>,
}

impl IpcFile {
    pub fn new(reader: Box<dyn Read + Send>, folder: Arc<FolderColumns>) -> IpcFile {
        IpcFile {
            reader: Some(reader),
            folder,
        }
    }
}

impl Tasks for IpcFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        let folder = Arc::clone(&self.folder);
        Ok(self
            .reader
            .take()
            .map(|reader| (0, Box::new(IpcTask { reader, folder }) as Box<dyn Task>)))
    }
}

struct IpcTask {
    reader: Box<dyn Read + Send>,
    folder: Arc<FolderColumns>,
}

const FILE_MAGIC: &[u8; 8] = b"ARROW1\0\0";
const END_MARKER: &[u8; 8] = b"\xff\xff\xff\xff\0\0\0\0";
const METADATA_BYTES_MAX: u64 = 64 << 20;

/// A message's frame: its prefix and metadata as they came, and the length of its body.
enum Frame {
    Message { head: Vec<u8>, body_bytes: u64 },
    EndMarker,
    EndOfInput,
}

impl Task for IpcTask {
    fn run(mut self: Box<Self>, file: u64, _data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let mut first = [0; 8];
        self.read_exact(&mut first)?;
        let is_file = &first == FILE_MAGIC;
        let mut padding = 0;
        // Some writers pad the magic word to 64 bytes.
        while is_file && (first == *FILE_MAGIC || first == [0; 8]) && padding <= 64 {
            self.read_exact(&mut first)?;
            padding += 8;
        }
        let mut pending = Some(first);
        let mut batches = Batches {
            file,
            folder: self.folder.clone(),
            decoder: StreamDecoder::new(),
            plan: None,
            row: 0,
        };
        let mut dictionaries = BTreeMap::new();
        loop {
            let (head, body_bytes) = match self.frame(pending.take())? {
                Frame::Message { head, body_bytes } => (head, body_bytes),
                Frame::EndMarker => break,
                Frame::EndOfInput if is_file => {
                    return Err(Fault::file(
                        "it ends before its footer; the file is cut off, copy it again",
                    ));
                }
                Frame::EndOfInput => break,
            };
            let at = At::Row(batches.row + 1);
            let kept = dictionaries.values().sum();
            let budget = rows.budget;
            let mut claim = Reckoned::of(&head, body_bytes, kept)?
                .claim(budget)
                .map_err(|fault| fault.or_at(at))?;
            let mut body = Vec::new();
            let read = self.reader.by_ref().take(body_bytes).read_to_end(&mut body);
            read.map_err(unreadable)?;
            if (body.len() as u64) < body_bytes {
                return Err(Fault::data(
                    at,
                    "it ends inside a batch; the file is cut off, copy it again",
                ));
            }
            let bytes = unpacked_bytes(&head, &body)?;
            if let Some(bytes) = bytes
                && kept + body_bytes + bytes > claim.bytes()
            {
                // Packed better than was reckoned. What was claimed is given back first, so that nobody waits for us.
                drop(claim);
                claim = claim_batch(budget, kept + body_bytes + bytes)
                    .map_err(|fault| fault.or_at(at))?;
            }
            keep_dictionary(&mut dictionaries, &head, bytes.unwrap_or(body_bytes))?;
            for part in [head, body] {
                batches.decode(Buffer::from_vec(part), rows)?;
            }
            drop(claim);
        }
        // What a message without a body says is only looked at when something follows it.
        batches.decode(Buffer::from_vec(END_MARKER.to_vec()), rows)?;
        batches.decoder.finish().map_err(|e| damaged(&e))?;
        // A file without rows must still have the columns asked for.
        batches.plan(rows)?;
        if is_file {
            self.check_file_end()?;
        }
        Ok(())
    }
}

/// The batches of a file, as far as they have come.
struct Batches {
    file: u64,
    folder: Arc<FolderColumns>,
    decoder: StreamDecoder,
    plan: Option<BatchPlan>,
    row: u64,
}

impl Batches {
    fn decode(&mut self, mut buffer: Buffer, rows: &mut Rows<'_>) -> Result<(), Fault> {
        while !buffer.is_empty() {
            let batch = self
                .decoder
                .decode(&mut buffer)
                .map_err(|e| damaged(&e).or_at(At::Row(self.row + 1)))?;
            let Some(batch) = batch else { continue };
            let (file, row) = (self.file, self.row);
            let plan = self.plan(rows)?;
            push_batch(&project(&batch, plan)?, plan, file, row, rows)?;
            self.row += batch.num_rows() as u64;
        }
        Ok(())
    }

    fn plan(&mut self, rows: &Rows<'_>) -> Result<&BatchPlan, Fault> {
        if self.plan.is_none() {
            let schema = self
                .decoder
                .schema()
                .ok_or_else(|| Fault::file("it holds no schema; it is damaged or empty"))?;
            self.plan = Some(BatchPlan::new(schema.fields(), &self.folder, rows.options)?);
        }
        Ok(self.plan.as_ref().expect("it was just made"))
    }
}

/// What a message will take, before its body is read.
struct Reckoned {
    /// What it takes at least: packed buffers are seldom larger than what they hold.
    least: u64,
    /// What it most likely takes: packed buffers say their unpacked sizes in the body.
    likely: u64,
}

impl Reckoned {
    /// `kept`: what the file's dictionaries take meanwhile.
    fn of(head: &[u8], body_bytes: u64, kept: u64) -> Result<Reckoned, Fault> {
        let message = message_of(head)?;
        let is_packed = batch_of(&message).is_some_and(|batch| batch.compression().is_some());
        let (least, likely) = if is_packed { (2, 8) } else { (1, 1) };
        Ok(Reckoned {
            least: body_bytes.saturating_mul(least).saturating_add(kept),
            likely: body_bytes.saturating_mul(likely).saturating_add(kept),
        })
    }

    fn claim<'b>(&self, budget: &'b Budget) -> Result<Claim<'b>, Fault> {
        claim_batch(budget, self.likely.min(budget.total()).max(self.least))
    }
}

fn claim_batch(budget: &Budget, bytes: u64) -> Result<Claim<'_>, Fault> {
    budget.claim(bytes).ok_or_else(|| {
        Fault::memory(
            format!(
                "the next batch, with the dictionaries before it, takes {}",
                ByteSize(bytes)
            ),
            Some(bytes),
            budget.total(),
        )
    })
}

/// What the buffers of a packed batch unpack to, `None` where they are not packed: each says so in its first 8 bytes.
fn unpacked_bytes(head: &[u8], body: &[u8]) -> Result<Option<u64>, Fault> {
    let message = message_of(head)?;
    let Some(batch) = batch_of(&message).filter(|batch| batch.compression().is_some()) else {
        return Ok(None);
    };
    let mut sum = 0_u64;
    for buffer in batch.buffers().into_iter().flatten() {
        if buffer.length() == 0 {
            continue;
        }
        let begin = usize::try_from(buffer.offset()).ok();
        let prefix = begin
            .and_then(|begin| body.get(begin..)?.first_chunk::<8>())
            .ok_or_else(|| {
                Fault::file("a buffer lies outside of its batch; the file is damaged")
            })?;
        // A buffer that would not get smaller is stored as it is, and says -1.
        let size = match i64::from_le_bytes(*prefix) {
            -1 => buffer.length(),
            size => size,
        };
        let size = u64::try_from(size)
            .map_err(|_| Fault::file("a buffer has a negative size; the file is damaged"))?;
        sum = sum.saturating_add(size);
    }
    Ok(Some(sum))
}

/// Notes what a dictionary takes as long as the file is read.
fn keep_dictionary(
    dictionaries: &mut BTreeMap<i64, u64>,
    head: &[u8],
    bytes: u64,
) -> Result<(), Fault> {
    let message = message_of(head)?;
    if let Some(dictionary) = message.header_as_dictionary_batch() {
        let kept = dictionaries.entry(dictionary.id()).or_default();
        *kept = match dictionary.isDelta() {
            // The old and the new part are put together in a new array.
            true => kept.saturating_add(bytes),
            false => bytes,
        };
    }
    Ok(())
}

impl IpcTask {
    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        self.reader.read_exact(out).map_err(unreadable)
    }

    /// Reads a message's prefix and metadata. `first` holds bytes that were read already.
    fn frame(&mut self, first: Option<[u8; 8]>) -> Result<Frame, Fault> {
        let mut head = Vec::with_capacity(1024);
        match first {
            Some(first) => head.extend_from_slice(&first),
            None => {
                let read = self.reader.by_ref().take(8).read_to_end(&mut head);
                read.map_err(unreadable)?;
            }
        }
        if head.is_empty() {
            return Ok(Frame::EndOfInput);
        }
        if head.starts_with(&[0; 4]) || head.starts_with(END_MARKER) {
            return Ok(Frame::EndMarker);
        }
        if head.len() < 8 {
            return Err(Fault::file(
                "it ends inside a message; the file is cut off, copy it again",
            ));
        }
        // Before format version 5 the length stood first, without a marker.
        let (prefix, at) = if head.starts_with(&[0xff; 4]) {
            (8, 4)
        } else {
            (4, 0)
        };
        let length = i32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let length = u64::try_from(length)
            .ok()
            .filter(|n| (8..=METADATA_BYTES_MAX).contains(n));
        let length = length.ok_or_else(|| {
            Fault::file("a message has an impossible length; the file is damaged")
        })?;
        let missing = length - (8 - prefix);
        let read = self.reader.by_ref().take(missing).read_to_end(&mut head);
        if (read.map_err(unreadable)? as u64) < missing {
            return Err(Fault::file(
                "it ends inside a message; the file is cut off, copy it again",
            ));
        }
        let message = root_as_message(&head[prefix as usize..]).map_err(|e| damaged(&e))?;
        if let Some(schema) = message.header_as_schema()
            && schema.endianness() == Endianness::Big
        {
            return Err(Fault::file(
                "it was written on a big-endian machine, with the bytes of its numbers the other way round; \
                 read and write it again on a little-endian one (Arrow's own libraries swap them)",
            ));
        }
        let body_bytes = u64::try_from(message.bodyLength())
            .map_err(|_| Fault::file("a message has a negative length; the file is damaged"))?;
        Ok(Frame::Message { head, body_bytes })
    }

    /// After the end marker of a file come its footer and its magic word.
    fn check_file_end(&mut self) -> Result<(), Fault> {
        let mut rest = Vec::new();
        let read = self
            .reader
            .by_ref()
            .take(4 * METADATA_BYTES_MAX)
            .read_to_end(&mut rest);
        read.map_err(unreadable)?;
        if !rest.ends_with(&FILE_MAGIC[..6]) {
            return Err(Fault::file(
                "it ends before its footer; the file is cut off, copy it again",
            ));
        }
        Ok(())
    }
}

fn message_of(head: &[u8]) -> Result<Message<'_>, Fault> {
    let prefix = if head.starts_with(&[0xff; 4]) { 8 } else { 4 };
    root_as_message(&head[prefix..]).map_err(|e| damaged(&e))
}

fn batch_of<'m>(message: &Message<'m>) -> Option<RecordBatchMessage<'m>> {
    message.header_as_record_batch().or_else(|| {
        message
            .header_as_dictionary_batch()
            .and_then(|dictionary| dictionary.data())
    })
}

fn unreadable(error: std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::UnexpectedEof => Fault::file("it is cut off; copy it again"),
        _ => Fault::file(format!("it cannot be read: {error}")),
    }
}

fn damaged(error: &dyn std::fmt::Display) -> Fault {
    Fault::file(format!(
        "it is not Arrow IPC that can be read: {}; write it again",
        one_line(error)
    ))
}
