//! Compression of blocks and extents: none, lz4, or zstd with a dictionary trained per segment.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use larder_types::VALUE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use zstd::zstd_safe;

use crate::error::Error;

/// The compression of a segment's blocks. Its text form is `none`, `lz4`, `zstd` or `zstd:LEVEL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Compression {
    #[default]
    None,
    Lz4,
    Zstd {
        level: i32,
    },
}

const ZSTD_LEVEL_DEFAULT: i32 = 3;
const ZSTD_LEVEL_MAX: i32 = 19;

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Compression::None),
            None if text == "lz4" => Ok(Compression::Lz4),
            None if text == "zstd" => Ok(Compression::Zstd {
                level: ZSTD_LEVEL_DEFAULT,
            }),
            Some(("zstd", level)) => match level.parse() {
                Ok(level) if (1..=ZSTD_LEVEL_MAX).contains(&level) => {
                    Ok(Compression::Zstd { level })
                }
                _ => Err(format!(
                    "zstd has no level {level:?}; use 1 to {ZSTD_LEVEL_MAX}"
                )),
            },
            _ => Err(format!(
                "{text:?} is no compression; use none, lz4, zstd or zstd:LEVEL"
            )),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::Lz4 => f.write_str("lz4"),
            Compression::Zstd {
                level: ZSTD_LEVEL_DEFAULT,
            } => f.write_str("zstd"),
            Compression::Zstd { level } => write!(f, "zstd:{level}"),
        }
    }
}

impl TryFrom<String> for Compression {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> String {
        compression.to_string()
    }
}

impl Compression {
    /// Returns the footer's code. It omits the level, which readers do not need.
    pub(crate) fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd { .. } => 2,
        }
    }

    /// Returns the default block size. It is small in uncompressed segments of format 1, where a lookup verifies the
    /// complete block. Otherwise it suits one disk read and gives the compressor enough context.
    pub(crate) fn block_size(self, format: u32) -> u32 {
        match (self, format) {
            (Compression::None, 1) => 560,
            _ => 4096,
        }
    }
}

/// Compresses blocks while a segment is written.
pub(crate) enum Encoder {
    None,
    Lz4,
    Zstd(Box<zstd::bulk::Compressor<'static>>),
}

impl Encoder {
    pub fn new(compression: Compression, dictionary: &[u8]) -> Result<Encoder, Error> {
        Ok(match compression {
            Compression::None => Encoder::None,
            Compression::Lz4 => Encoder::Lz4,
            Compression::Zstd { level } => {
                let made = zstd::bulk::Compressor::with_dictionary(level, dictionary);
                Encoder::Zstd(Box::new(made.map_err(|error| {
                    Error::state(format!("cannot start zstd: {error}"))
                })?))
            }
        })
    }

    /// Returns the compressed bytes, or `None` if they would not be fewer.
    pub fn compress(&mut self, raw: &[u8]) -> Option<Vec<u8>> {
        let packed = match self {
            Encoder::None => return None,
            Encoder::Lz4 => lz4_flex::block::compress(raw),
            Encoder::Zstd(compressor) => compressor.compress(raw).ok()?,
        };
        (packed.len() < raw.len()).then_some(packed)
    }
}

/// Decompresses the blocks of one segment. Cheap to clone; each thread has its own zstd context.
#[derive(Clone)]
pub enum Codec {
    None,
    Lz4,
    Zstd(Arc<zstd_safe::DDict<'static>>),
}

thread_local! {
    static ZSTD_CONTEXT: RefCell<zstd_safe::DCtx<'static>> = RefCell::new(zstd_safe::DCtx::create());
}

impl Codec {
    /// # Errors
    /// [`Error::Corrupted`] for an unknown code and for an invalid zstd dictionary.
    pub fn new(place: &str, code: u8, dictionary: &[u8]) -> Result<Codec, Error> {
        match code {
            0 => Ok(Codec::None),
            1 => Ok(Codec::Lz4),
            2 => match zstd_safe::DDict::try_create(dictionary) {
                Some(dictionary) => Ok(Codec::Zstd(Arc::new(dictionary))),
                None => Err(Error::corrupted(place, "its zstd dictionary is invalid")),
            },
            _ => Err(Error::corrupted(
                place,
                format!("compression {code} is unknown to this larder"),
            )),
        }
    }

    /// # Errors
    /// [`Error::Corrupted`] if `packed` does not decompress to exactly `raw_size` bytes.
    pub fn decompress(
        &self,
        place: &str,
        packed: &[u8],
        raw_size: usize,
    ) -> Result<Vec<u8>, Error> {
        let damaged = |detail: String| Error::corrupted(place, detail);
        if raw_size as u64 > VALUE_BYTES_MAX {
            return Err(damaged(format!(
                "{raw_size} bytes after decompression cannot be"
            )));
        }
        let mut raw = vec![0; raw_size];
        let size = match self {
            Codec::None => {
                return Err(damaged(
                    "a block is compressed, the segment is not".to_owned(),
                ));
            }
            Codec::Lz4 => lz4_flex::block::decompress_into(packed, &mut raw)
                .map_err(|error| damaged(error.to_string()))?,
            Codec::Zstd(dictionary) => ZSTD_CONTEXT.with_borrow_mut(|context| {
                context
                    .decompress_using_ddict(&mut raw[..], packed, dictionary)
                    .map_err(|code| damaged(zstd_safe::get_error_name(code).to_owned()))
            })?,
        };
        if size != raw_size {
            return Err(damaged(format!(
                "a block decompresses to {size} bytes, {raw_size} were written"
            )));
        }
        Ok(raw)
    }
}
