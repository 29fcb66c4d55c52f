//! Arrow IPC, files and streams alike: a file is a stream between two magic words.
//!
//! Messages are framed here and decoded by the Arrow crate, so that sizes are checked before memory is taken
//! for them, and so that a file cut off between two messages is not taken for a whole one.

use std::io::{ErrorKind, Read};

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{Message, RecordBatch as RecordBatchMessage, root_as_message};

use crate::error::{At, Fault, one_line};
use crate::plan::Plan;
use crate::record_batch::{project, push_batch};
use crate::rows::Rows;
use crate::run::{Task, Tasks};

pub(crate) struct IpcFile {
    reader: Option<Box<dyn Read + Send>>,
}

impl IpcFile {
    pub fn new(reader: Box<dyn Read + Send>) -> IpcFile {
        IpcFile {
            reader: Some(reader),
        }
    }
}

impl Tasks for IpcFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        Ok(self
            .reader
            .take()
            .map(|reader| (0, Box::new(IpcTask { reader }) as Box<dyn Task>)))
    }
}

struct IpcTask {
    reader: Box<dyn Read + Send>,
}

const FILE_MAGIC: &[u8; 8] = b"ARROW1\0\0";
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
        let mut decoder = StreamDecoder::new();
        let mut plan = None;
        let (mut row, mut padding) = (0, 0);
        // Some writers pad the magic word to 64 bytes.
        while is_file && (first == *FILE_MAGIC || first == [0; 8]) && padding <= 64 {
            self.read_exact(&mut first)?;
            padding += 8;
        }
        let mut pending = Some(first);
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
            let memory = rows.budget.total();
            let needed = needed_bytes(&head, body_bytes)?;
            let budget = rows.budget;
            let _claim = budget.claim(needed).ok_or_else(|| {
                Fault::data(
                    At::Row(row + 1),
                    format!("the next batch takes {needed} bytes and the memory is {memory}; raise --memory, or write smaller batches"),
                )
            })?;
            let mut body = Vec::new();
            let read = self.reader.by_ref().take(body_bytes).read_to_end(&mut body);
            read.map_err(unreadable)?;
            if (body.len() as u64) < body_bytes {
                return Err(Fault::data(
                    At::Row(row + 1),
                    "it ends inside a batch; the file is cut off, copy it again",
                ));
            }
            for part in [head, body] {
                let mut buffer = Buffer::from_vec(part);
                while !buffer.is_empty() {
                    let batch = decoder
                        .decode(&mut buffer)
                        .map_err(|e| damaged(&e).or_at(At::Row(row + 1)))?;
                    if let Some(batch) = batch {
                        let plan = find_plan(&mut plan, &decoder, rows)?;
                        push_batch(&project(&batch, plan)?, plan, file, row, rows)?;
                        row += batch.num_rows() as u64;
                    }
                }
            }
        }
        decoder.finish().map_err(|e| damaged(&e))?;
        // A file without rows must still have the columns asked for.
        find_plan(&mut plan, &decoder, rows)?;
        if is_file {
            self.check_file_end()?;
        }
        Ok(())
    }
}

fn find_plan<'p>(
    plan: &'p mut Option<Plan>,
    decoder: &StreamDecoder,
    rows: &Rows<'_>,
) -> Result<&'p Plan, Fault> {
    if plan.is_none() {
        let schema = decoder
            .schema()
            .ok_or_else(|| Fault::file("it holds no schema; it is damaged or empty"))?;
        let names = schema
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        *plan = Some(Plan::new(names, rows.options)?);
    }
    Ok(plan.as_ref().expect("it was just made"))
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
        if head.starts_with(&[0; 4]) || head.starts_with(b"\xff\xff\xff\xff\0\0\0\0") {
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

/// The body, and what its buffers unpack to where they are compressed: each says so in its first 8 bytes, which are not read yet,
/// so a compressed batch is reckoned from its rows and fields, with the ratio that LZ4 and zstd seldom pass.
fn needed_bytes(head: &[u8], body_bytes: u64) -> Result<u64, Fault> {
    let prefix = if head.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = root_as_message(&head[prefix..]).map_err(|e| damaged(&e))?;
    let is_compressed = batch_of(&message).is_some_and(|batch| batch.compression().is_some());
    let factor = if is_compressed { 8 } else { 2 };
    Ok(body_bytes.saturating_mul(factor))
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
