//! Avro object container files: framed and unpacked here, decoded row by row by the Arrow crate.
//!
//! The framing is ours because a file may end only between two blocks, a block must hold
//! exactly the rows it says, and an unpacked block must fit the memory; a reader that takes what comes would load a part of a cut-off file.
//!
//! | part | holds |
//! |---|---|
//! | header | `Obj` 1, a map with `avro.schema` and `avro.codec`, 16 bytes of sync marker |
//! | block | number of rows, number of bytes, the bytes, the sync marker again |

use std::io::Read;

use arrow_avro::reader::{Decoder, DecoderMode, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, SchemaStore};

use crate::error::{At, Fault, one_line};
use crate::plan::Plan;
use crate::record_batch::{project, push_batch};
use crate::rows::Rows;
use crate::run::{Task, Tasks};

pub(crate) struct AvroFile {
    reader: Option<Box<dyn Read + Send>>,
}

impl AvroFile {
    pub fn new(reader: Box<dyn Read + Send>) -> AvroFile {
        AvroFile {
            reader: Some(reader),
        }
    }
}

impl Tasks for AvroFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        let reader = self
            .reader
            .take()
            .map(|reader| Stream(Box::new(std::io::BufReader::new(reader))));
        Ok(reader.map(|reader| (0, Box::new(AvroTask { reader }) as Box<dyn Task>)))
    }
}

struct AvroTask {
    reader: Stream,
}

const BATCH_ROWS: usize = 1024;
const HEADER_BYTES_MAX: u64 = 16 << 20;

impl Task for AvroTask {
    fn run(mut self: Box<Self>, file: u64, _data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let header = self.reader.header()?;
        let mut decoder = decoder(&header.schema)?;
        let names = decoder
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        let plan = Plan::new(names, rows.options)?;
        let budget = rows.budget;
        let mut row = 0;
        loop {
            let at = At::Row(row + 1);
            let Some(block) = self
                .reader
                .block(&header.sync, budget.total())
                .map_err(|f| f.or_at(at))?
            else {
                return Ok(());
            };
            // The block packed, unpacked, and as rows.
            let unpacked_max = budget.total() / 4;
            let data = header
                .codec
                .unpack(block.data, unpacked_max)
                .map_err(|f| f.or_at(at))?;
            let _claim = budget.claim((data.len() as u64 * 2).min(budget.total()));
            row = decode_block(&data, block.rows, &mut decoder, &plan, (file, row), rows)?;
        }
    }
}

/// Decodes exactly `count` rows, which must take all of `data`, and returns the next row's number.
fn decode_block(
    data: &[u8],
    count: u64,
    decoder: &mut Decoder,
    plan: &Plan,
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
            // Rows of no bytes are possible, millions of them in a block are an attack.
            return Err(damaged(
                row,
                "a block says to hold more rows than bytes".into(),
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

struct Block {
    rows: u64,
    data: Vec<u8>,
}

struct Stream(Box<dyn Read + Send>);

impl Stream {
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
                let name = self.bytes(HEADER_BYTES_MAX)?;
                let value = self.bytes(HEADER_BYTES_MAX)?;
                match name.as_slice() {
                    b"avro.schema" => schema = String::from_utf8(value).ok(),
                    b"avro.codec" => codec = Codec::named(&value)?,
                    _ => {}
                }
            }
        }
        let mut sync = [0; 16];
        self.exact(&mut sync)?;
        let schema =
            schema.ok_or_else(|| Fault::file("its header holds no schema; the file is damaged"))?;
        Ok(Header {
            schema,
            codec,
            sync,
        })
    }

    /// The next block; `None` at an end that lies between two blocks.
    fn block(&mut self, sync: &[u8; 16], memory: u64) -> Result<Option<Block>, Fault> {
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
        let data = self.bytes(memory / 4)?;
        let mut own_sync = [0; 16];
        self.exact(&mut own_sync)?;
        if &own_sync != sync {
            return Err(Fault::file(
                "a block does not end with the file's sync marker; the file is damaged",
            ));
        }
        Ok(Some(Block { rows, data }))
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

    /// A length and as many bytes.
    fn bytes(&mut self, max: u64) -> Result<Vec<u8>, Fault> {
        let length = self.long()?;
        let length = u64::try_from(length)
            .map_err(|_| Fault::file("a length is negative; the file is damaged"))?;
        if length > max {
            return Err(Fault::file(format!(
                "a block has {length} bytes and at most {max} fit the memory; raise --memory, or write smaller blocks"
            )));
        }
        let mut bytes = Vec::new();
        let read = self
            .0
            .by_ref()
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if (read as u64) < length {
            return Err(cut_off());
        }
        Ok(bytes)
    }
}

fn cut_off() -> Fault {
    Fault::file("it ends inside a block; the file is cut off, copy it again")
}

fn unreadable(error: std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => cut_off(),
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
    fn named(name: &[u8]) -> Result<Codec, Fault> {
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

    fn unpack(self, data: Vec<u8>, max: u64) -> Result<Vec<u8>, Fault> {
        let packed = data.as_slice();
        match self {
            Codec::Null => Ok(data),
            Codec::Deflate => limited(flate2::read::DeflateDecoder::new(packed), max),
            Codec::Zstandard => {
                limited(zstd::Decoder::with_buffer(packed).map_err(unreadable)?, max)
            }
            Codec::Bzip2 => limited(bzip2::read::BzDecoder::new(packed), max),
            Codec::Xz => limited(liblzma::read::XzDecoder::new(packed), max),
            Codec::Snappy => unpack_snappy(packed, max),
        }
    }
}

fn limited(unpacker: impl Read, max: u64) -> Result<Vec<u8>, Fault> {
    let mut unpacked = Vec::new();
    let read = unpacker.take(max + 1).read_to_end(&mut unpacked);
    read.map_err(|e| {
        Fault::file(format!(
            "a block cannot be unpacked: {}; the file is damaged",
            one_line(&e)
        ))
    })?;
    if unpacked.len() as u64 > max {
        return Err(too_large(max));
    }
    Ok(unpacked)
}

fn too_large(max: u64) -> Fault {
    Fault::file(format!(
        "a block unpacks to more than the {max} bytes that fit the memory; raise --memory, or write smaller blocks"
    ))
}

/// Raw snappy, then the CRC-32 of the unpacked bytes.
fn unpack_snappy(packed: &[u8], max: u64) -> Result<Vec<u8>, Fault> {
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
        return Err(too_large(max));
    }
    let unpacked = snap::raw::Decoder::new()
        .decompress_vec(packed)
        .map_err(|e| damaged(&one_line(&e)))?;
    let mut crc = flate2::Crc::new();
    crc.update(&unpacked);
    if crc.sum() != u32::from_be_bytes(*checksum) {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(unpacked)
}
