//! The payload of DUMP and RESTORE: a text or a hash in the format of Redis's RDB files, or a JSON document.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | type |
//! | the value | strings and lengths, encoded as in an RDB file |
//! | 2 | version of the format, little-endian |
//! | 8 | CRC-64 (Jones) of all preceding bytes, little-endian |
//!
//! | type | value | |
//! |---|---|---|
//! | 0 | text | written and read |
//! | 4 | hash, field by field | written and read |
//! | 13, 16 | small hash as one ziplist (before Redis 7) or listpack | read |
//! | 24, 25 | hash with expiring fields (since Redis 7.4), field by field or as one listpack | 24 is written, both are read |
//! | 200 | text of a JSON document; Redis has no such type and rejects it | written and read |
//!
//! Invariants:
//! 1. An encoded payload has the lowest version that defines its type, so that older Redis servers accept it.
//! 2. Decoding never allocates more than the caller's limits, whatever lengths the payload announces.

mod reader;
#[cfg(test)]
mod tests;

use std::fmt;

use reader::Reader;

const TEXT: u8 = 0;
const HASH: u8 = 4;
const HASH_ZIPLIST: u8 = 13;
const HASH_LISTPACK: u8 = 16;
const HASH_EXPIRING: u8 = 24;
const HASH_LISTPACK_EXPIRING: u8 = 25;
const JSON: u8 = 200;

/// Version of the format in Redis 5 and 6.
const VERSION: u16 = 9;
/// Version of the format in Redis 7.4, the first with expiring fields.
const VERSION_EXPIRING: u16 = 12;
/// The newest version that is read. Redis 8 writes 12 and 13. The types of later versions are unknown.
const VERSION_MAX: u16 = 13;
/// The version and the checksum.
const FOOTER_BYTES: usize = 10;

/// A value that DUMP encodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpValue {
    Text(Vec<u8>),
    /// The fields, in order.
    Hash(Vec<DumpedField>),
    /// The text of a JSON document. Decoding does not parse it.
    Json(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedField {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    /// Milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
}

/// Limits of the size of a decoded value.
#[derive(Debug, Clone, Copy)]
pub struct DumpLimits {
    /// Maximum size of a text.
    pub text_bytes: usize,
    /// Maximum size of a JSON document, or of all names and values of a hash together.
    pub object_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpError {
    /// The version is unknown because it is too new, or the checksum does not match.
    Footer,
    /// The bytes are not a valid value of their type, or the value exceeds the limits.
    Malformed,
    /// A value of another type, such as a list.
    Type(u8),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Footer => f.write_str("DUMP payload version or checksum are wrong"),
            DumpError::Malformed => f.write_str("Bad data format"),
            DumpError::Type(kind) => write!(
                f,
                "the payload has type {kind} of Redis's RDB format; only strings, hashes and JSON documents of larder can be restored"
            ),
        }
    }
}

impl std::error::Error for DumpError {}

impl DumpValue {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut version = VERSION;
        match self {
            DumpValue::Text(text) => {
                out.push(TEXT);
                put_string(&mut out, text);
            }
            DumpValue::Json(text) => {
                out.push(JSON);
                put_string(&mut out, text);
            }
            DumpValue::Hash(fields) => {
                let first = fields.iter().filter_map(|field| field.expires_at_ms).min();
                if let Some(first) = first {
                    version = VERSION_EXPIRING;
                    out.push(HASH_EXPIRING);
                    out.extend_from_slice(&first.to_le_bytes());
                } else {
                    out.push(HASH);
                }
                put_length(&mut out, fields.len() as u64);
                for field in fields {
                    if let Some(first) = first {
                        // 0: the field does not expire.
                        put_length(&mut out, field.expires_at_ms.map_or(0, |at| at - first + 1));
                    }
                    put_string(&mut out, &field.name);
                    put_string(&mut out, &field.value);
                }
            }
        }
        out.extend_from_slice(&version.to_le_bytes());
        let checksum = crc64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// # Errors
    /// The bytes are damaged, or the value is of another type or exceeds the limits.
    pub fn decode(bytes: &[u8], limits: DumpLimits) -> Result<DumpValue, DumpError> {
        let body = bytes.len().checked_sub(FOOTER_BYTES);
        let (body, footer) = bytes.split_at(body.ok_or(DumpError::Footer)?);
        let version = u16::from_le_bytes([footer[0], footer[1]]);
        let checksum = crc64(&bytes[..bytes.len() - 8]).to_le_bytes();
        if version > VERSION_MAX || footer[2..] != checksum {
            return Err(DumpError::Footer);
        }
        let (&kind, value) = body.split_first().ok_or(DumpError::Malformed)?;
        let (text, object) = (limits.text_bytes, limits.object_bytes);
        match kind {
            TEXT => Reader::all(value, text, |reader| reader.string().map(DumpValue::Text)),
            JSON => Reader::all(value, object, |reader| reader.string().map(DumpValue::Json)),
            HASH => Reader::all(value, object, |reader| reader.hash(false)),
            HASH_EXPIRING => Reader::all(value, object, |reader| reader.hash(true)),
            HASH_ZIPLIST => Reader::all(value, object, Reader::ziplist),
            HASH_LISTPACK => Reader::all(value, object, |reader| reader.listpack(false)),
            HASH_LISTPACK_EXPIRING => Reader::all(value, object, |reader| reader.listpack(true)),
            other => return Err(DumpError::Type(other)),
        }
        .ok_or(DumpError::Malformed)
    }
}

/// Recomputes the checksum at the end of a payload, for tests of the checks that follow.
pub fn reseal(payload: &mut [u8]) {
    if let Some((body, checksum)) = payload.split_last_chunk_mut::<8>() {
        *checksum = crc64(body).to_le_bytes();
    }
}

fn put_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..64 => out.push(length as u8),
        64..16_384 => out.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        _ if length <= u64::from(u32::MAX) => {
            out.push(0x80);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    put_length(out, string.len() as u64);
    out.extend_from_slice(string);
}

/// Computes the CRC-64 with the polynomial of Jones, reflected, like Redis.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc: u64, &byte| {
        TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8
    })
}

static TABLE: [u64; 256] = {
    const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u64, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
