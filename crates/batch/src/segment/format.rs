//! Constants, header and footer of a segment, and the varints inside blocks.
//!
//! ```text
//! header   offset size                    footer   offset size
//! magic    0      8  "LARDSEG1"           record_count      0   8
//! format   8      4  1 or 2               block_count       8   8
//! checksum 12     4  XXH3 of the above    key_bytes         16  8
//!                                         value_bytes       24  8
//!                                         data_size         32  8
//!                                         dictionary_size   40  8
//!                                         filter_size       48  8
//!                                         directory_size    56  8
//!                                         dictionary_check  64  8  XXH3-64 of the section
//!                                         filter_check      72  8
//!                                         directory_check   80  8
//!                                         partition         88  4
//!                                         partitions        92  4
//!                                         block_size        96  4  target, uncompressed
//!                                         compression       100 1  0 none, 1 lz4, 2 zstd
//!                                         directory_kind    101 1  0 narrow, 1 medium, 2 wide
//!                                         layout            102 1  only in format 2, see [`Layout`]
//!                                         delta             103 1  1: values have a marker, see `delta.rs`
//!                                         key_size          104 4  of all keys, if uniform
//!                                         value_size        108 4  of all values, if uniform
//!                                         reserved          112 32 zero
//!                                         checksum          144 8  XXH3-64 of bytes 0..144
//!                                         magic             152 8  "LARDEND1"
//! ```

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;

pub const HEADER_SIZE: usize = 16;
pub const FOOTER_SIZE: usize = 160;
/// The format that is written, unless an earlier reader must understand the segment.
pub const FORMAT: u32 = 2;
pub const FORMAT_MIN: u32 = 1;

/// Longer values are stored outside their block, in an extent after it.
pub const LARGE_VALUE_BYTES_MIN: usize = 64 * 1024;

const HEADER_MAGIC: &[u8; 8] = b"LARDSEG1";
const FOOTER_MAGIC: &[u8; 8] = b"LARDEND1";

/// The arrangement of the records in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Blocks with one checksum each: all segments of format 1, and all compressed ones.
    #[default]
    Sealed = 0,
    /// An array of records of equal size.
    Uniform = 1,
    /// Blocks with the end of each record in a header.
    Varied = 2,
}

pub fn header(format: u32) -> [u8; HEADER_SIZE] {
    let mut bytes = [0; HEADER_SIZE];
    bytes[..8].copy_from_slice(HEADER_MAGIC);
    bytes[8..12].copy_from_slice(&format.to_le_bytes());
    let checksum = xxh3_64(&bytes[..12]) as u32;
    bytes[12..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the format of a segment that begins with these bytes.
///
/// # Errors
/// [`Error::Corrupted`] if the bytes are not the header of a segment, or if its format is not supported.
pub fn check_header(place: &str, bytes: &[u8]) -> Result<u32, Error> {
    if bytes.len() < HEADER_SIZE || &bytes[..8] != HEADER_MAGIC {
        return Err(Error::corrupted(
            place,
            "it does not begin as a larder segment does",
        ));
    }
    let format = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    if !(FORMAT_MIN..=FORMAT).contains(&format) || bytes[..HEADER_SIZE] != header(format) {
        return Err(Error::corrupted(
            place,
            format!(
                "its header is of format {format}, this larder reads {FORMAT_MIN} to {FORMAT}, or it is damaged"
            ),
        ));
    }
    Ok(format)
}

/// The contents of a segment and the sizes of its sections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footer {
    pub record_count: u64,
    pub block_count: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub data_size: u64,
    pub dictionary_size: u64,
    pub filter_size: u64,
    pub directory_size: u64,
    pub dictionary_check: u64,
    pub filter_check: u64,
    pub directory_check: u64,
    pub partition: u32,
    pub partitions: u32,
    pub block_size: u32,
    pub compression: u8,
    pub directory_kind: u8,
    pub layout: Layout,
    /// True if the segment belongs to a delta, so that each value ends with a marker.
    pub is_delta: bool,
    /// The sizes of all keys and all values in a uniform segment; else 0.
    pub key_size: u32,
    pub value_size: u32,
}

const CHECKSUM_OFFSET: usize = 144;

impl Footer {
    pub fn encode(&self) -> [u8; FOOTER_SIZE] {
        let mut bytes = [0; FOOTER_SIZE];
        for (position, word) in self.words().into_iter().enumerate() {
            bytes[position * 8..position * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (position, word) in [self.partition, self.partitions, self.block_size]
            .into_iter()
            .enumerate()
        {
            bytes[88 + position * 4..92 + position * 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[100] = self.compression;
        bytes[101] = self.directory_kind;
        bytes[102] = self.layout as u8;
        bytes[103] = u8::from(self.is_delta);
        bytes[104..108].copy_from_slice(&self.key_size.to_le_bytes());
        bytes[108..112].copy_from_slice(&self.value_size.to_le_bytes());
        let checksum = xxh3_64(&bytes[..CHECKSUM_OFFSET]);
        bytes[CHECKSUM_OFFSET..152].copy_from_slice(&checksum.to_le_bytes());
        bytes[152..].copy_from_slice(FOOTER_MAGIC);
        bytes
    }

    /// Decodes the last [`FOOTER_SIZE`] bytes of a file of `file_size` bytes whose header has this format.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the bytes are damaged, or the sizes do not add up to the file size.
    pub fn decode(place: &str, bytes: &[u8], file_size: u64, format: u32) -> Result<Footer, Error> {
        let damaged = |detail: &str| Error::corrupted(place, detail);
        if bytes.len() != FOOTER_SIZE || &bytes[152..] != FOOTER_MAGIC {
            return Err(damaged(
                "it does not end as a larder segment does; it may be cut short",
            ));
        }
        if xxh3_64(&bytes[..CHECKSUM_OFFSET]) != read_u64(bytes, CHECKSUM_OFFSET) {
            return Err(damaged("the footer's checksum does not fit"));
        }
        let word = |position: usize| read_u64(bytes, position * 8);
        let half = |offset: usize| {
            u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("4 bytes"))
        };
        let layout = match (format, bytes[102]) {
            (_, 0) => Layout::Sealed,
            (2.., 1) => Layout::Uniform,
            (2.., 2) => Layout::Varied,
            _ => return Err(damaged("its layout is unknown to this larder")),
        };
        let footer = Footer {
            record_count: word(0),
            block_count: word(1),
            key_bytes: word(2),
            value_bytes: word(3),
            data_size: word(4),
            dictionary_size: word(5),
            filter_size: word(6),
            directory_size: word(7),
            dictionary_check: word(8),
            filter_check: word(9),
            directory_check: word(10),
            partition: half(88),
            partitions: half(92),
            block_size: half(96),
            compression: bytes[100],
            directory_kind: bytes[101],
            layout,
            is_delta: bytes[103] == 1,
            key_size: half(104),
            value_size: half(108),
        };
        if bytes[103] > 1 {
            return Err(damaged("its kind is unknown to this larder"));
        }
        if layout != Layout::Sealed && (footer.compression != 0 || footer.dictionary_size != 0) {
            return Err(damaged(
                "records with checks of their own are not compressed",
            ));
        }
        let sections = [
            footer.data_size,
            footer.dictionary_size,
            footer.filter_size,
            footer.directory_size,
        ];
        let total = sections
            .into_iter()
            .try_fold((HEADER_SIZE + FOOTER_SIZE) as u64, u64::checked_add)
            .ok_or_else(|| damaged("its sizes overflow"))?;
        if total != file_size {
            return Err(damaged(&format!(
                "it has {file_size} bytes, its footer declares {total}"
            )));
        }
        if footer.block_count == 0 || footer.partition >= footer.partitions {
            return Err(damaged("the footer's counts are impossible"));
        }
        Ok(footer)
    }

    fn words(&self) -> [u64; 11] {
        [
            self.record_count,
            self.block_count,
            self.key_bytes,
            self.value_bytes,
            self.data_size,
            self.dictionary_size,
            self.filter_size,
            self.directory_size,
            self.dictionary_check,
            self.filter_check,
            self.directory_check,
        ]
    }
}

fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
}

/// Appends `number` in LEB128: 7 bits per byte, lowest first.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns the number of bytes that [`put_varint`] writes.
pub fn varint_size(number: u64) -> usize {
    ((64 - (number | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Reads a varint from the front of `bytes`; `None` if it is truncated or too long.
#[inline]
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    take_long_varint(bytes)
}

fn take_long_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for (position, &byte) in bytes.iter().enumerate().take(10) {
        if position == 9 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            *bytes = &bytes[position + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_sizes_agree() {
        for shift in 0..64 {
            for number in [(1u64 << shift) - 1, 1 << shift, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, number);
                assert_eq!(bytes.len(), varint_size(number));
                let mut rest = &bytes[..];
                assert_eq!(take_varint(&mut rest), Some(number));
                assert!(rest.is_empty());
                assert_eq!(take_varint(&mut &bytes[..bytes.len() - 1]), None);
            }
        }
        assert_eq!(take_varint(&mut &[0xff; 11][..]), None);
    }

    #[test]
    fn every_flipped_bit_of_header_and_footer_is_found() {
        let footer = Footer {
            record_count: 5,
            block_count: 2,
            data_size: 100,
            partitions: 1,
            ..Footer::default()
        };
        let size = (HEADER_SIZE + FOOTER_SIZE) as u64 + 100;
        let bytes = footer.encode();
        let decode = |bytes: &[u8]| Footer::decode("s", bytes, size, FORMAT);
        assert_eq!(decode(&bytes).expect("intact"), footer);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for bit in 0..HEADER_SIZE * 8 {
            for format in [1, 2] {
                let mut damaged = header(format);
                assert_eq!(check_header("s", &damaged).expect("intact"), format);
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(check_header("s", &damaged).is_err(), "bit {bit}");
            }
        }
    }
}
