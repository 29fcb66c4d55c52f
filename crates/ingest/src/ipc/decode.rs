//! Decodes Arrow IPC messages: a schema, dictionaries and record batches.
//!
//! A message is decoded when its memory fits the budget, together with the file's dictionaries. A thread holds no
//! memory while it waits for memory.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Read};
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{
    Endianness, Message, MessageHeader, RecordBatch as RecordBatchMessage, Schema as SchemaMessage,
    root_as_message,
};
use arrow_schema::SchemaRef;
use larder_types::ByteSize;

use crate::error::{At, Fault, decode_fault};
use crate::plan::FolderColumns;
use crate::record_batch::{BatchPlan, push_batch};
use crate::rows::Rows;
use crate::run::{Budget, MemoryClaim};

/// The state of decoding one file or stream.
pub(super) struct Decoder {
    file: u64,
    folder: Arc<FolderColumns>,
    schema: Option<(SchemaRef, BatchPlan)>,
    dictionaries: HashMap<i64, ArrayRef>,
    /// The size of each dictionary.
    dictionary_bytes: BTreeMap<i64, u64>,
    /// The number of rows decoded so far.
    row: u64,
}

impl Decoder {
    pub fn new(file: u64, folder: Arc<FolderColumns>) -> Decoder {
        Decoder {
            file,
            folder,
            schema: None,
            dictionaries: HashMap::new(),
            dictionary_bytes: BTreeMap::new(),
            row: 0,
        }
    }

    /// Returns the position of the next message's rows.
    pub fn at(&self) -> At {
        At::Row(self.row + 1)
    }

    /// Sets the columns.
    pub fn schema(&mut self, schema: SchemaMessage<'_>, rows: &Rows<'_>) -> Result<(), Fault> {
        if self.schema.is_some() {
            return Err(Fault::file("it has two schemas; the file is damaged"));
        }
        if schema.endianness() == Endianness::Big {
            return Err(Fault::file(
                "it was written on a big-endian machine, which is not supported; \
                 read and write it again on a little-endian one (Arrow's own libraries swap the bytes)",
            ));
        }
        let schema = try_fb_to_schema(schema).map_err(|e| decode_fault(&e))?;
        let plan = BatchPlan::new(schema.fields(), &self.folder, rows.options)?;
        self.schema = Some((Arc::new(schema), plan));
        Ok(())
    }

    /// Returns whether the message replaces an earlier dictionary with the same id.
    pub fn replaces_dictionary(&self, message: &Message<'_>) -> bool {
        let dictionary = message.header_as_dictionary_batch();
        dictionary.is_some_and(|it| !it.isDelta() && self.dictionary_bytes.contains_key(&it.id()))
    }

    /// Waits for memory, reads a message's body from `reader`, and decodes it.
    pub fn message(
        &mut self,
        message: &Message<'_>,
        body_bytes: u64,
        reader: &mut dyn Read,
        rows: &mut Rows<'_>,
    ) -> Result<(), Fault> {
        let at = self.at();
        let kept = self.dictionary_bytes.values().sum();
        let budget = rows.budget;
        let mut claim = MemoryEstimate::of(message, body_bytes, kept)
            .claim(budget)
            .map_err(|fault| fault.or_at(at))?;
        let mut body = Vec::new();
        let read = reader.take(body_bytes).read_to_end(&mut body);
        read.map_err(unreadable)?;
        if (body.len() as u64) < body_bytes {
            return Err(Fault::data(
                at,
                "it ends inside a batch; the file is cut off, copy it again",
            ));
        }
        let bytes = unpacked_bytes(message, &body)?;
        if let Some(bytes) = bytes
            && kept + body_bytes + bytes > claim.bytes()
        {
            // The batch is larger than estimated. The first claim is released before the second is made, so that two
            // threads never wait for each other.
            drop(claim);
            claim =
                claim_batch(budget, kept + body_bytes + bytes).map_err(|fault| fault.or_at(at))?;
        }
        keep_dictionary(
            &mut self.dictionary_bytes,
            message,
            bytes.unwrap_or(body_bytes),
        );
        let decoded = self.decode(message, &Buffer::from_vec(body), rows);
        drop(claim);
        decoded.map_err(|fault| fault.or_at(at))
    }

    fn decode(
        &mut self,
        message: &Message<'_>,
        body: &Buffer,
        rows: &mut Rows<'_>,
    ) -> Result<(), Fault> {
        if let Some(schema) = message.header_as_schema() {
            return self.schema(schema, rows);
        }
        if message.header_type() == MessageHeader::NONE {
            return Ok(());
        }
        let (schema, plan) = self.schema.as_ref().ok_or_else(no_schema)?;
        let version = message.version();
        if let Some(dictionary) = message.header_as_dictionary_batch() {
            return read_dictionary(body, dictionary, schema, &mut self.dictionaries, &version)
                .map_err(|e| decode_fault(&e));
        }
        let batch = message.header_as_record_batch().ok_or_else(|| {
            let kind = message.header_type().variant_name().unwrap_or("unknown");
            Fault::file(format!(
                "it has a message of type {kind}, which is not supported"
            ))
        })?;
        let columns = plan.columns();
        let batch = read_record_batch(
            body,
            batch,
            Arc::clone(schema),
            &self.dictionaries,
            Some(&columns),
            &version,
        )
        .map_err(|e| decode_fault(&e))?;
        push_batch(&batch, plan, self.file, self.row, rows)?;
        self.row += batch.num_rows() as u64;
        Ok(())
    }

    /// Ends the file. Even without rows it must have a schema with the requested columns.
    pub fn finish(self) -> Result<(), Fault> {
        self.schema.map(drop).ok_or_else(no_schema)
    }
}

fn no_schema() -> Fault {
    Fault::file("it has no schema; it is damaged or empty")
}

/// The estimated memory for a message, before its body is read.
struct MemoryEstimate {
    /// The minimum: packed buffers are seldom larger than their contents.
    least: u64,
    /// The probable size: packed buffers have their unpacked sizes in the body.
    likely: u64,
}

impl MemoryEstimate {
    /// Estimates the memory; `kept` is the size of the file's dictionaries.
    fn of(message: &Message<'_>, body_bytes: u64, kept: u64) -> MemoryEstimate {
        let is_packed = batch_of(message).is_some_and(|batch| batch.compression().is_some());
        let (least, likely) = if is_packed { (2, 8) } else { (1, 1) };
        MemoryEstimate {
            least: body_bytes.saturating_mul(least).saturating_add(kept),
            likely: body_bytes.saturating_mul(likely).saturating_add(kept),
        }
    }

    fn claim<'b>(&self, budget: &'b Budget) -> Result<MemoryClaim<'b>, Fault> {
        claim_batch(budget, self.likely.min(budget.total()).max(self.least))
    }
}

fn claim_batch(budget: &Budget, bytes: u64) -> Result<MemoryClaim<'_>, Fault> {
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

/// Returns the unpacked size of a packed batch's buffers, `None` if they are not packed. The first 8 bytes of each
/// buffer have its size.
fn unpacked_bytes(message: &Message<'_>, body: &[u8]) -> Result<Option<u64>, Fault> {
    let Some(batch) = batch_of(message).filter(|batch| batch.compression().is_some()) else {
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
            .ok_or_else(|| Fault::file("a buffer is outside its batch; the file is damaged"))?;
        // A buffer that would not become smaller is stored unpacked, with size -1.
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

/// Records the size of a dictionary, which is kept while the file is read.
fn keep_dictionary(dictionaries: &mut BTreeMap<i64, u64>, message: &Message<'_>, bytes: u64) {
    if let Some(dictionary) = message.header_as_dictionary_batch() {
        let kept = dictionaries.entry(dictionary.id()).or_default();
        *kept = if dictionary.isDelta() {
            // The old and the new part are combined in a new array.
            kept.saturating_add(bytes)
        } else {
            bytes
        };
    }
}

/// Returns the length of a message's prefix before its metadata.
pub(super) fn prefix_bytes(head: &[u8]) -> usize {
    // Before format version 5 the length came first, without a marker.
    if head.starts_with(&[0xff; 4]) { 8 } else { 4 }
}

pub(super) fn message_of(head: &[u8]) -> Result<Message<'_>, Fault> {
    let message = head.get(prefix_bytes(head)..).unwrap_or_default();
    root_as_message(message).map_err(|e| decode_fault(&e))
}

fn batch_of<'m>(message: &Message<'m>) -> Option<RecordBatchMessage<'m>> {
    message.header_as_record_batch().or_else(|| {
        message
            .header_as_dictionary_batch()
            .and_then(|dictionary| dictionary.data())
    })
}

pub(super) fn unreadable(error: std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::UnexpectedEof => Fault::file("it is cut off; copy it again"),
        _ => Fault::file(format!("it cannot be read: {error}")),
    }
}
