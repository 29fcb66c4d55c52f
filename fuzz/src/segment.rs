//! Segments: files that come with a pull, and lie on disks that may damage them.

use larder_batch::Error;
use larder_batch::segment::block::Block;
use larder_batch::segment::format::{FOOTER_SIZE, HEADER_SIZE, check_header};
use larder_batch::segment::{Footer, FoundValue, IndexBytes, SegmentIndex};
use larder_types::{checksum32, key_hash};
use xxhash_rust::xxh3::xxh3_64;

/// Lookups in any bytes end in a value, an absence or `Corrupted`; never in a panic.
pub fn segment(bytes: &[u8]) {
    let _ = read_segment(bytes);
    if let Some(sealed) = reseal_segment(bytes) {
        let _ = read_segment(&sealed);
    }
}

/// Opens the segment, walks every block, and looks up every key that it finds.
///
/// # Errors
/// As the segment's own code gives them.
pub fn read_segment(bytes: &[u8]) -> Result<u64, Error> {
    check_header("fuzz", bytes)?;
    let Some(data_end) = bytes.len().checked_sub(FOOTER_SIZE) else {
        return Err(Error::corrupted("fuzz", "too short"));
    };
    let footer = Footer::decode("fuzz", &bytes[data_end..], bytes.len() as u64)?;
    let sections_start = HEADER_SIZE + footer.data_size as usize;
    let index = SegmentIndex::decode(
        "fuzz",
        footer,
        IndexBytes::of(&bytes[sections_start..data_end]),
    )?;

    // A footer may claim more blocks than any file holds; each must still be answered.
    const BLOCKS_WALKED_MAX: u64 = 4096;
    let mut records = 0;
    for number in 0..index.footer.block_count.min(BLOCKS_WALKED_MAX) {
        let Some(range) = index.block(number) else {
            continue;
        };
        let stored = &bytes[range.start as usize..range.end as usize];
        let block = Block::open("fuzz", stored, number, &index.codec)?;
        for record in block.records() {
            records += 1;
            if let FoundValue::Large(large) = record.value {
                let end = large.offset.checked_add(large.stored_size);
                let extent = end.and_then(|end| stored.get(large.offset as usize..end as usize));
                let Some(extent) = extent else {
                    return Err(Error::corrupted("fuzz", "an extent lies outside its block"));
                };
                large.open("fuzz", number, extent, &index.codec)?;
            }
            if let Some(found) = index.locate(key_hash(record.key)) {
                let stored = &bytes[found.start as usize..found.end as usize];
                Block::open("fuzz", stored, found.index, &index.codec)?.find(
                    "fuzz",
                    found.index,
                    key_hash(record.key),
                    record.key,
                )?;
            }
        }
    }
    Ok(records)
}

/// The same bytes with every checksum made to fit, as far as the footer can be believed.
pub fn reseal_segment(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let footer_start = bytes.len().checked_sub(FOOTER_SIZE)?;
    if footer_start < HEADER_SIZE {
        return None;
    }
    let mut footer = unsealed_footer(&bytes[footer_start..]);
    // Sizes that cannot be are made to be: what is left over is data.
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
    bytes[..HEADER_SIZE].copy_from_slice(&larder_batch::segment::format::header());
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
            reseal_block(&mut bytes[range.start as usize..range.end as usize], number);
        }
    }
    Some(bytes)
}

/// A block's checksum covers its bytes from the fourth to its end, where its extents begin.
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

/// What a footer says, whatever its checksum.
fn unsealed_footer(bytes: &[u8]) -> Footer {
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
        ..Footer::default()
    }
}
