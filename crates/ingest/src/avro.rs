//! Avro object container files. This module parses and unpacks the blocks; the Arrow crate decodes the rows.
//! `avro_schema` checks the schema first.
//!
//! The framing is implemented here for three reasons: a file may end only between two blocks, a block must have
//! exactly the rows that it declares, and an unpacked block must fit in memory. A more tolerant reader would load
//! part of a truncated file.
//!
//! | part | contents |
//! |---|---|
//! | header | `Obj` 1, a map with `avro.schema` and `avro.codec`, 16 bytes of sync marker |
//! | block | number of rows, number of bytes, the bytes, the sync marker again |

use std::io::Read;
use std::sync::Arc;

use arrow_avro::reader::{Decoder, DecoderMode, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, SchemaStore};

use larder_types::ByteSize;

use crate::avro_schema::RefusedColumns;
use crate::error::{At, Fault, one_line};
use crate::plan::FolderColumns;
use crate::record_batch::{BatchPlan, project, push_batch};
use crate::rows::Rows;
use crate::run::{MemoryClaim, Task, Tasks};

pub(crate) struct AvroFile {
    reader: Option<Box<dyn Read + Send>>,
    folder: Arc<FolderColumns>,
}

impl AvroFile {
    pub fn new(reader: Box<dyn Read + Send>, folder: Arc<FolderColumns>) -> AvroFile {
        AvroFile {
            reader: Some(reader),
            folder,
        }
    }
}

impl Tasks for AvroFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        let reader = self
            .reader
            .take()
            .map(|reader| AvroStream(Box::new(std::io::BufReader::new(reader))));
        let folder = Arc::clone(&self.folder);
        Ok(reader.map(|reader| (0, Box::new(AvroTask { reader, folder }) as Box<dyn Task>)))
    }
}

struct AvroTask {
    reader: AvroStream,
    folder: Arc<FolderColumns>,
}

const BATCH_ROWS: usize = 1024;
const HEADER_BYTES_MAX: u64 = 16 << 20;

impl Task for AvroTask {
    fn run(mut self: Box<Self>, file: u64, _data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let header = self.reader.header()?;
        let refused = RefusedColumns::of(&header.schema)?;
        let mut decoder = decoder(&header.schema)?;
        let fields = refused.annotate(decoder.schema().fields());
        let plan = BatchPlan::new(&fields, &self.folder, rows.options)?;
        let budget = rows.budget;
        let mut row = 0;
        loop {
            let at = At::Row(row + 1);
            let Some(head) = self.reader.block_head().map_err(|f| f.or_at(at))? else {
                return Ok(());
            };
            let too_large = |needed: Option<u64>| {
                let what = match needed {
                    Some(bytes) => format!("the next block takes {}", ByteSize(bytes)),
                    None => "the next block takes more".to_owned(),
                };
                Fault::memory(what, needed, budget.total()).or_at(at)
            };
            // The block packed, unpacked, and as rows.
            let least = head.bytes.saturating_mul(header.codec.copies());
            let claim = budget.claim(
                header
                    .codec
                    .likely_bytes(head.bytes)
                    .min(budget.total())
                    .max(least),
            );
            let mut claim = claim.ok_or_else(|| too_large(Some(least)))?;
            let packed = self
                .reader
                .block_data(head.bytes, &header.sync)
                .map_err(|f| f.or_at(at))?;
            let room = |claim: &MemoryClaim<'_>| claim.bytes().saturating_sub(head.bytes) / 2;
            let unpacked = header.codec.unpack(&packed, room(&claim));
            let unpacked = match unpacked.map_err(|f| f.or_at(at))? {
                Some(unpacked) => unpacked,
                // It is larger than estimated: retry with all of the memory. The first claim is released before, so
                // that threads do not deadlock.
                None => {
                    drop(claim);
                    claim = budget.claim(budget.total()).expect("all is never too much");
                    let unpacked = header.codec.unpack(&packed, room(&claim));
                    unpacked
                        .map_err(|f| f.or_at(at))?
                        .ok_or_else(|| too_large(None))?
                }
            };
            let data = unpacked.as_deref().unwrap_or(&packed);
            row = decode_block(data, head.rows, &mut decoder, &plan, (file, row), rows)?;
            drop(claim);
        }
    }
}

/// Decodes exactly `count` rows, which must consume all of `data`, and returns the next row's number.
fn decode_block(
    data: &[u8],
    count: u64,
    decoder: &mut Decoder,
    plan: &BatchPlan,
    (file, mut row): (u64, u64),
    rows: &mut Rows<'_>,
) -> Result<u64, Fault> {
    let damaged = |at: u64, reason: String| {
        Fault::data(
            At::Row(at + 1),
            format!("it cannot be decoded: {reason}; the file is damaged, write it again"),
        )
    };
    let mut at = 0;
    for decoded in 0..count {
        if at == data.len() && count > BATCH_ROWS as u64 && decoded > data.len() as u64 {
            // Rows without bytes are valid, but millions of them in a block are an attack.
            return Err(damaged(
                row,
                "a block declares more rows than it has bytes".into(),
            ));
        }
        at += decoder
            .decode(&data[at..])
            .map_err(|e| damaged(row + decoder_rows(decoder), one_line(&e)))?;
        if decoder.batch_is_full() || decoded + 1 == count {
            let batch = decoder.flush().map_err(|e| damaged(row, one_line(&e)))?;
            if let Some(batch) = batch {
                push_batch(&project(&batch, plan)?, plan, file, row, rows)?;
                row += batch.num_rows() as u64;
            }
        }
    }
    if at != data.len() {
        return Err(damaged(
            row,
            format!("a block holds {} bytes after its last row", data.len() - at),
        ));
    }
    Ok(row)
}

fn decoder_rows(decoder: &Decoder) -> u64 {
    (decoder.batch_size() - decoder.capacity().min(decoder.batch_size())) as u64
}

fn decoder(schema: &str) -> Result<Decoder, Fault> {
    let refused = |e: &dyn std::fmt::Display| {
        Fault::file(format!("its schema cannot be read: {}", one_line(e)))
    };
    let mut store = SchemaStore::new();
    let fingerprint = store
        .register(AvroSchema::new(schema.to_owned()))
        .map_err(|e| refused(&e))?;
    ReaderBuilder::new()
        .with_batch_size(BATCH_ROWS)
        .with_writer_schema_store(store)
        .with_active_fingerprint(fingerprint)
        .with_decoder_mode(DecoderMode::UnframedDatum)
        .build_decoder()
        .map_err(|e| refused(&e))
}

struct Header {
    schema: String,
    codec: Codec,
    sync: [u8; 16],
}

/// The header of a block.
struct BlockHead {
    rows: u64,
    /// The stored size.
    bytes: u64,
}

struct AvroStream(Box<dyn Read + Send>);

impl AvroStream {
    fn header(&mut self) -> Result<Header, Fault> {
        let mut magic = [0; 4];
        self.exact(&mut magic)?;
        if &magic != b"Obj\x01" {
            return Err(Fault::file(
                "it does not begin as an Avro container file does; is it another format?",
            ));
        }
        let (mut schema, mut codec) = (None, Codec::Null);
        loop {
            let mut count = self.long()?;
            if count == 0 {
                break;
            }
            if count < 0 {
                self.long()?;
                count = count.saturating_neg();
            }
            for _ in 0..count {
                let name = self.bytes()?;
                let value = self.bytes()?;
                match name.as_slice() {
                    b"avro.schema" => schema = String::from_utf8(value).ok(),
                    b"avro.codec" => codec = Codec::from_name(&value)?,
                    _ => {}
                }
            }
        }
        let mut sync = [0; 16];
        self.exact(&mut sync)?;
        let schema =
            schema.ok_or_else(|| Fault::file("its header has no schema; the file is damaged"))?;
        Ok(Header {
            schema,
            codec,
            sync,
        })
    }

    /// Reads the next block's header; `None` at an end between two blocks.
    fn block_head(&mut self) -> Result<Option<BlockHead>, Fault> {
        let mut first = [0];
        let read = loop {
            match self.0.read(&mut first) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read.map_err(unreadable)?,
            }
        };
        if read == 0 {
            return Ok(None);
        }
        let rows = self.long_from(first[0])?;
        let rows = u64::try_from(rows).map_err(|_| {
            Fault::file("a block has a negative number of rows; the file is damaged")
        })?;
        let bytes = self.length()?;
        Ok(Some(BlockHead { rows, bytes }))
    }

    /// Reads the rest of a block.
    fn block_data(&mut self, bytes: u64, sync: &[u8; 16]) -> Result<Vec<u8>, Fault> {
        let data = self.take(bytes)?;
        let mut own_sync = [0; 16];
        self.exact(&mut own_sync)?;
        if &own_sync != sync {
            return Err(Fault::file(
                "a block does not end with the file's sync marker; the file is damaged",
            ));
        }
        Ok(data)
    }

    fn exact(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        self.0.read_exact(out).map_err(unreadable)
    }

    fn long(&mut self) -> Result<i64, Fault> {
        let mut first = [0];
        self.exact(&mut first)?;
        self.long_from(first[0])
    }

    fn long_from(&mut self, first: u8) -> Result<i64, Fault> {
        let mut value = u64::from(first & 0x7f);
        let (mut byte, mut shift) = ([first], 7);
        while byte[0] & 0x80 != 0 {
            if shift > 63 {
                return Err(Fault::file("a number is too long; the file is damaged"));
            }
            self.exact(&mut byte)?;
            value |= u64::from(byte[0] & 0x7f) << shift;
            shift += 7;
        }
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn length(&mut self) -> Result<u64, Fault> {
        u64::try_from(self.long()?)
            .map_err(|_| Fault::file("a length is negative; the file is damaged"))
    }

    /// Reads a length and that number of bytes, in the header.
    fn bytes(&mut self) -> Result<Vec<u8>, Fault> {
        let length = self.length()?;
        if length > HEADER_BYTES_MAX {
            return Err(Fault::file(format!(
                "its header has a part of {length} bytes, at most {HEADER_BYTES_MAX} are allowed; is it damaged?"
            )));
        }
        self.take(length)
    }

    fn take(&mut self, length: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        let read = self
            .0
            .by_ref()
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if (read as u64) < length {
            return Err(truncated());
        }
        Ok(bytes)
    }
}

fn truncated() -> Fault {
    Fault::file("it ends inside a block; the file is cut off, copy it again")
}

fn unreadable(error: std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => truncated(),
        _ => Fault::file(format!("it cannot be read: {error}")),
    }
}

#[derive(Clone, Copy)]
enum Codec {
    Null,
    Deflate,
    Snappy,
    Zstandard,
    Bzip2,
    Xz,
}

impl Codec {
    fn from_name(name: &[u8]) -> Result<Codec, Fault> {
        Ok(match name {
            b"null" | b"" => Codec::Null,
            b"deflate" => Codec::Deflate,
            b"snappy" => Codec::Snappy,
            b"zstandard" => Codec::Zstandard,
            b"bzip2" => Codec::Bzip2,
            b"xz" => Codec::Xz,
            other => {
                return Err(Fault::file(format!(
                    "its codec {:?} is unknown; write it with null, deflate, snappy, zstandard, bzip2 or xz",
                    String::from_utf8_lossy(&other[..other.len().min(40)])
                )));
            }
        })
    }

    /// Returns the minimum number of simultaneous copies of a block's bytes: as stored, and as rows.
    fn copies(self) -> u64 {
        2
    }

    /// Returns the probable memory for a block with this stored size.
    fn likely_bytes(self, stored: u64) -> u64 {
        match self {
            Codec::Null => stored.saturating_mul(3),
            _ => stored.saturating_mul(16).max(1 << 20),
        }
    }

    /// Unpacks the bytes. Returns `Some(None)` if they are not packed, `None` if the result would exceed `max`.
    fn unpack(self, packed: &[u8], max: u64) -> Result<Option<Option<Vec<u8>>>, Fault> {
        let unpacked = match self {
            Codec::Null => return Ok(Some(None)),
            Codec::Deflate => read_limited(flate2::read::DeflateDecoder::new(packed), max),
            Codec::Zstandard => {
                read_limited(zstd::Decoder::with_buffer(packed).map_err(unreadable)?, max)
            }
            Codec::Bzip2 => read_limited(bzip2::read::BzDecoder::new(packed), max),
            Codec::Xz => read_limited(liblzma::read::XzDecoder::new(packed), max),
            Codec::Snappy => unpack_snappy(packed, max),
        };
        Ok(unpacked?.map(Some))
    }
}

/// Returns `None` if there are more than `max` bytes.
fn read_limited(unpacker: impl Read, max: u64) -> Result<Option<Vec<u8>>, Fault> {
    let mut unpacked = Vec::new();
    let read = unpacker
        .take(max.saturating_add(1))
        .read_to_end(&mut unpacked);
    read.map_err(|e| {
        Fault::file(format!(
            "a block cannot be unpacked: {}; the file is damaged",
            one_line(&e)
        ))
    })?;
    Ok((unpacked.len() as u64 <= max).then_some(unpacked))
}

/// Unpacks raw snappy, followed by the CRC-32 of the unpacked bytes.
fn unpack_snappy(packed: &[u8], max: u64) -> Result<Option<Vec<u8>>, Fault> {
    let damaged = |reason: &str| {
        Fault::file(format!(
            "a block cannot be unpacked: {reason}; the file is damaged"
        ))
    };
    let Some((packed, checksum)) = packed.split_last_chunk::<4>() else {
        return Err(damaged("it is too short"));
    };
    let length = snap::raw::decompress_len(packed).map_err(|e| damaged(&one_line(&e)))?;
    if length as u64 > max {
        return Ok(None);
    }
    let unpacked = snap::raw::Decoder::new()
        .decompress_vec(packed)
        .map_err(|e| damaged(&one_line(&e)))?;
    let mut crc = flate2::Crc::new();
    crc.update(&unpacked);
    if crc.sum() != u32::from_be_bytes(*checksum) {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(Some(unpacked))
}
