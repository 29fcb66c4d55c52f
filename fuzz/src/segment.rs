//! Segments: files that arrive with a pull, and are stored on disks that may damage them.

use larder_batch::Error;
use larder_batch::delta::{MarkedValue, decode};
use larder_batch::segment::block::{Block, LargeRef, Varied};
use larder_batch::segment::format::{FOOTER_SIZE, HEADER_SIZE, Layout, check_header, header};
use larder_batch::segment::{
    BlockRange, Footer, FoundValue, IndexBytes, RecordRef, Records, SegmentIndex,
};
use larder_types::{checksum32, key_hash};
use xxhash_rust::xxh3::xxh3_64;

/// Lookups in any bytes yield a value, an absence or `Corrupted`, but no panic.
pub fn segment(bytes: &[u8]) {
    let _ = read_segment(bytes);
    if let Some(sealed) = reseal_segment(bytes) {
        let _ = read_segment(&sealed);
        if let Some(sealed) = with_dictionary(&sealed, bytes) {
            let _ = read_segment(&sealed);
        }
    }
}

/// The magic number of a zstd dictionary.
const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];
const DICTIONARY_BYTES_MAX: usize = 256;

/// Returns a zstd-compressed segment with a dictionary, which consists of the magic number and the end of `bytes`, and
/// with correct checksums. Mutations hardly ever produce one, because zstd treats a dictionary without the magic number
/// as plain bytes.
pub fn with_dictionary(segment: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    const ZSTD: u8 = 2;
    let footer_start = segment.len().checked_sub(FOOTER_SIZE)?;
    let mut footer = unsealed_footer(&segment[footer_start..]);
    if footer.compression != ZSTD {
        return None;
    }
    let start = HEADER_SIZE.checked_add(footer.data_size as usize)?;
    let end = start.checked_add(footer.dictionary_size as usize)?;
    let rest = segment.get(end..footer_start)?;
    let contents = &bytes[bytes.len().saturating_sub(DICTIONARY_BYTES_MAX)..];
    let dictionary = [&DICTIONARY_MAGIC[..], contents].concat();
    footer.dictionary_size = dictionary.len() as u64;
    reseal_segment(&[&segment[..start], &dictionary, rest, &footer.encode()].concat())
}

/// Opens the segment, iterates over every block, and looks up every key found.
///
/// # Errors
/// The errors of the segment's own code.
pub fn read_segment(bytes: &[u8]) -> Result<u64, Error> {
    let format = check_header("fuzz", bytes)?;
    let Some(data_end) = bytes.len().checked_sub(FOOTER_SIZE) else {
        return Err(Error::corrupted("fuzz", "too short"));
    };
    let footer = Footer::decode("fuzz", &bytes[data_end..], bytes.len() as u64, format)?;
    let sections_start = HEADER_SIZE + footer.data_size as usize;
    let index = SegmentIndex::decode(
        "fuzz",
        footer,
        IndexBytes::of(&bytes[sections_start..data_end]),
    )?;

    // A footer may claim more blocks than any file can hold. Each must still be handled.
    const BLOCKS_WALKED_MAX: u64 = 4096;
    let mut records = 0;
    for number in 0..index.footer.block_count.min(BLOCKS_WALKED_MAX) {
        let Some(range) = index.block(number) else {
            continue;
        };
        let stored = &bytes[range.start as usize..range.end as usize];
        let mut each = |record: RecordRef<'_>| {
            records += 1;
            match record.value {
                FoundValue::Large(large) => open_large(large, number, stored, &index)?,
                FoundValue::Inline(marked) if index.footer.is_delta => {
                    if let Some(MarkedValue::Value(value)) = decode(marked) {
                        assert_eq!(value.len() + 1, marked.len());
                    }
                }
                FoundValue::Inline(_) => {}
            }
            look_up(&index, bytes, record.key)
        };
        match &index.records {
            Records::Sealed(_) => {
                let block = Block::open("fuzz", stored, number, &index.codec)?;
                block.records().try_for_each(&mut each)?;
            }
            Records::Uniform(uniform) => {
                for (number, bytes) in uniform.each(stored, uniform.number_at(range.start)) {
                    let record = uniform.record(bytes, number).ok_or_else(damaged)?;
                    let value = FoundValue::Inline(record.value);
                    each(RecordRef {
                        key: record.key,
                        value,
                    })?;
                }
            }
            Records::Varied(_) => {
                let block = Varied::parse(stored, number).filter(Varied::has_intact_head);
                let block = block.ok_or_else(damaged)?;
                for number in 0..block.count() as u32 {
                    each(block.record(number).ok_or_else(damaged)?)?;
                }
            }
        }
    }
    look_up(&index, bytes, b"a key that is not there")?;
    Ok(records)
}

fn damaged() -> Error {
    Error::corrupted("fuzz", "a check does not fit")
}

fn open_large(
    large: LargeRef,
    number: u64,
    stored: &[u8],
    index: &SegmentIndex,
) -> Result<(), Error> {
    let end = large.offset.checked_add(large.stored_size);
    let extent = end.and_then(|end| stored.get(large.offset as usize..end as usize));
    let extent =
        extent.ok_or_else(|| Error::corrupted("fuzz", "an extent lies outside its block"))?;
    large.open("fuzz", number, extent, &index.codec).map(|_| ())
}

/// Looks up a key as a version does, both in the mapped file and by positional reads.
fn look_up(index: &SegmentIndex, file: &[u8], key: &[u8]) -> Result<(), Error> {
    let hash = key_hash(key);
    if let Records::Uniform(uniform) = &index.records {
        let _ = uniform.find(file, hash, key);
    }
    let Some(located) = index.locate(hash) else {
        return Ok(());
    };
    let BlockRange {
        index: number,
        start,
        end,
    } = located.range;
    let stored = &file[start as usize..end as usize];
    match &index.records {
        Records::Sealed(_) => {
            let block = Block::open("fuzz", stored, number, &index.codec)?;
            block.find("fuzz", number, hash, key)?;
        }
        Records::Uniform(uniform) => {
            let found = uniform
                .find_among(stored, number, key)
                .ok_or_else(damaged)?;
            assert_eq!(
                uniform.find(file, hash, key),
                Some(found),
                "both ways find the same"
            );
        }
        Records::Varied(_) => {
            let _ = Varied::size_needed(stored);
            let block = Varied::parse(stored, number).ok_or_else(damaged)?;
            let _ = block.candidates(located.candidates);
            if let Some(FoundValue::Large(large)) =
                block.find(located.candidates, key).ok_or_else(damaged)?
            {
                open_large(large, number, stored, index)?;
            }
        }
    }
    Ok(())
}

/// Returns the same bytes with correct checksums, as far as the footer is plausible.
pub fn reseal_segment(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let footer_start = bytes.len().checked_sub(FOOTER_SIZE)?;
    if footer_start < HEADER_SIZE {
        return None;
    }
    let mut footer = unsealed_footer(&bytes[footer_start..]);
    // Reduce impossible sizes. The rest is data.
    let mut room = (footer_start - HEADER_SIZE) as u64;
    for size in [
        &mut footer.dictionary_size,
        &mut footer.filter_size,
        &mut footer.directory_size,
    ] {
        *size = (*size).min(room);
        room -= *size;
    }
    footer.data_size = room;

    let dictionary_start = HEADER_SIZE + footer.data_size as usize;
    let filter_start = dictionary_start + footer.dictionary_size as usize;
    let directory_start = filter_start + footer.filter_size as usize;
    footer.dictionary_check = xxh3_64(&bytes[dictionary_start..filter_start]);
    footer.filter_check = xxh3_64(&bytes[filter_start..directory_start]);
    footer.directory_check = xxh3_64(&bytes[directory_start..footer_start]);
    let format = if footer.layout == Layout::Sealed {
        1 + u32::from(bytes[8] & 1 == 0)
    } else {
        2
    };
    bytes[..HEADER_SIZE].copy_from_slice(&header(format));
    bytes[footer_start..].copy_from_slice(&footer.encode());

    if let Ok(index) = SegmentIndex::decode(
        "fuzz",
        footer.clone(),
        IndexBytes::of(&bytes[dictionary_start..footer_start]),
    ) {
        for number in 0..footer.block_count.min(64) {
            let Some(range) = index.block(number) else {
                continue;
            };
            let stored = &mut bytes[range.start as usize..range.end as usize];
            match &index.records {
                Records::Sealed(_) => reseal_block(stored, number),
                Records::Uniform(uniform) => uniform.reseal(stored, uniform.number_at(range.start)),
                Records::Varied(_) => {
                    Varied::reseal(stored, number);
                }
            }
        }
    }
    Some(bytes)
}

/// Updates the checksum of a block, which covers its bytes from the fifth to the start of its extents.
fn reseal_block(stored: &mut [u8], number: u64) {
    if stored.len() < 9 {
        return;
    }
    let end = Block::size_needed(stored).unwrap_or(stored.len());
    if (5..=stored.len()).contains(&end) {
        let checksum = checksum32(&stored[4..end], number);
        stored[..4].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Decodes a footer, whatever its checksum.
pub fn unsealed_footer(bytes: &[u8]) -> Footer {
    let word = |position: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[position * 8..position * 8 + 8]);
        u64::from_le_bytes(word)
    };
    let half = |position: usize| (word(position / 2) >> (32 * (position % 2))) as u32;
    Footer {
        record_count: word(0),
        block_count: word(1).max(1),
        key_bytes: word(2),
        value_bytes: word(3),
        data_size: word(4),
        dictionary_size: word(5),
        filter_size: word(6),
        directory_size: word(7),
        partition: half(22) % half(23).max(1),
        partitions: half(23).max(1),
        block_size: half(24),
        compression: bytes[100],
        directory_kind: bytes[101],
        is_delta: bytes[103] & 1 == 1,
        layout: match bytes[102] {
            1 => Layout::Uniform,
            2 => Layout::Varied,
            _ => Layout::Sealed,
        },
        key_size: half(26),
        value_size: half(27),
        ..Footer::default()
    }
}
