//! The directory: where each block begins. All of it is held in memory.
//!
//! It has one entry a block and a last one for the end of the data, in groups. Three kinds differ
//! in how far a group may reach, and so in bytes an entry:
//!
//! ```text
//! kind      a group                     bytes an entry   for groups of blocks that span at most
//! 0 narrow  base u64, offset u16 x 16   2.5              64 KiB: short records, the usual case
//! 1 medium  base u64, offset u32 x 16   4.5              4 GiB
//! 2 wide    position u64                8                anything
//! ```
//!
//! The narrowest that fits is written. A narrow group is 40 bytes, so that a lookup, which needs a
//! block's position and the next one's, reads one cache line, sometimes two. Entries that fill up
//! the last group repeat the end of the data.

use super::memory::with_huge_pages;
use crate::error::Error;

const GROUP: usize = 16;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Group<T> {
    base: u64,
    offsets: [T; GROUP],
}

pub enum Directory {
    Narrow(Vec<Group<u16>>),
    Medium(Vec<Group<u32>>),
    Wide(Vec<u64>),
}

impl Directory {
    /// From the position of every block and of the end of the data, ascending.
    pub fn from_positions(positions: Vec<u64>) -> Directory {
        let reach = positions
            .chunks(GROUP)
            .map(|group| group[group.len() - 1] - group[0])
            .max();
        match reach.unwrap_or(0) {
            reach if reach <= u64::from(u16::MAX) => {
                Directory::Narrow(groups(&positions, |offset| offset as u16))
            }
            reach if reach <= u64::from(u32::MAX) => {
                Directory::Medium(groups(&positions, |offset| offset as u32))
            }
            _ => Directory::Wide(positions),
        }
    }

    pub fn kind(&self) -> u8 {
        match self {
            Directory::Narrow(_) => 0,
            Directory::Medium(_) => 1,
            Directory::Wide(_) => 2,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.memory_bytes());
        match self {
            Directory::Narrow(groups) => groups.iter().for_each(|group| {
                bytes.extend(group.base.to_le_bytes());
                bytes.extend(group.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
            }),
            Directory::Medium(groups) => groups.iter().for_each(|group| {
                bytes.extend(group.base.to_le_bytes());
                bytes.extend(group.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
            }),
            Directory::Wide(positions) => {
                bytes.extend(positions.iter().flat_map(|position| position.to_le_bytes()))
            }
        }
        bytes
    }

    /// Decodes and checks a directory of `block_count` blocks over `data_size` bytes that begin at
    /// `data_start`. The section's own checksum has been checked before.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if sizes do not fit, or positions do not ascend within the data.
    pub fn decode(
        place: &str,
        kind: u8,
        bytes: &[u8],
        block_count: u64,
        data_start: u64,
        data_size: u64,
    ) -> Result<Directory, Error> {
        let damaged = |detail: &str| Error::corrupted(place, format!("the directory {detail}"));
        let count = usize::try_from(block_count)
            .ok()
            .and_then(|n| n.checked_add(1))
            .ok_or_else(|| damaged("is too large"))?;
        let (units, unit_size) = match kind {
            0 => (count.div_ceil(GROUP), 8 + 2 * GROUP),
            1 => (count.div_ceil(GROUP), 8 + 4 * GROUP),
            2 => (count, 8),
            _ => return Err(damaged("is of an unknown kind")),
        };
        if units.checked_mul(unit_size) != Some(bytes.len()) {
            return Err(damaged("has the wrong size"));
        }
        let word = |unit: &[u8]| u64::from_le_bytes(unit[..8].try_into().expect("8 bytes"));
        let units = bytes.chunks_exact(unit_size);
        let directory = match kind {
            0 => Directory::Narrow(collect(units.map(|unit| Group {
                base: word(unit),
                offsets: std::array::from_fn(|i| {
                    u16::from_le_bytes(unit[8 + i * 2..10 + i * 2].try_into().expect("2 bytes"))
                }),
            }))),
            1 => Directory::Medium(collect(units.map(|unit| Group {
                base: word(unit),
                offsets: std::array::from_fn(|i| {
                    u32::from_le_bytes(unit[8 + i * 4..12 + i * 4].try_into().expect("4 bytes"))
                }),
            }))),
            _ => Directory::Wide(collect(units.map(word))),
        };
        directory
            .check(count, data_start, data_size)
            .ok_or_else(|| damaged("is out of order"))?;
        Ok(directory)
    }

    fn check(&self, count: usize, data_start: u64, data_size: u64) -> Option<()> {
        let end = data_start.checked_add(data_size)?;
        let mut previous = data_start;
        for index in 0..count {
            let position = match self {
                Directory::Narrow(groups) => groups[index / GROUP]
                    .base
                    .checked_add(u64::from(groups[index / GROUP].offsets[index % GROUP]))?,
                Directory::Medium(groups) => groups[index / GROUP]
                    .base
                    .checked_add(u64::from(groups[index / GROUP].offsets[index % GROUP]))?,
                Directory::Wide(positions) => positions[index],
            };
            if position < previous || position > end || (index == 0 && position != data_start) {
                return None;
            }
            previous = position;
        }
        (previous == end).then_some(())
    }

    /// Where block `index` begins; the next one's position is its end.
    #[inline]
    pub fn position(&self, index: usize) -> u64 {
        match self {
            Directory::Narrow(groups) => {
                groups[index / GROUP].base + u64::from(groups[index / GROUP].offsets[index % GROUP])
            }
            Directory::Medium(groups) => {
                groups[index / GROUP].base + u64::from(groups[index / GROUP].offsets[index % GROUP])
            }
            Directory::Wide(positions) => positions[index],
        }
    }

    /// Asks the processor to fetch what [`Directory::position`] will read.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        super::block::prefetch(match self {
            Directory::Narrow(groups) => groups.as_ptr().wrapping_add(index / GROUP).cast(),
            Directory::Medium(groups) => groups.as_ptr().wrapping_add(index / GROUP).cast(),
            Directory::Wide(positions) => positions.as_ptr().wrapping_add(index).cast(),
        });
    }

    pub fn memory_bytes(&self) -> usize {
        match self {
            Directory::Narrow(groups) => size_of_val(&groups[..]),
            Directory::Medium(groups) => size_of_val(&groups[..]),
            Directory::Wide(positions) => size_of_val(&positions[..]),
        }
    }
}

fn groups<T: Copy + Default>(positions: &[u64], narrow: impl Fn(u64) -> T) -> Vec<Group<T>> {
    let group = |positions: &[u64]| {
        let base = positions[0];
        let last = positions[positions.len() - 1];
        let offset = |i: usize| narrow(positions.get(i).copied().unwrap_or(last) - base);
        Group {
            base,
            offsets: std::array::from_fn(offset),
        }
    };
    positions.chunks(GROUP).map(group).collect()
}

fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut array = with_huge_pages(items.len());
    array.extend(items);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(positions: Vec<u64>, kind: u8) {
        let (start, end) = (positions[0], *positions.last().expect("positions"));
        let directory = Directory::from_positions(positions.clone());
        assert_eq!(directory.kind(), kind);
        let bytes = directory.encode();
        assert_eq!(bytes.len(), directory.memory_bytes());
        let blocks = positions.len() as u64 - 1;
        let decoded =
            Directory::decode("s", kind, &bytes, blocks, start, end - start).expect("round trip");
        for (index, position) in positions.iter().enumerate() {
            assert_eq!(decoded.position(index), *position);
        }
        assert!(Directory::decode("s", kind, &bytes[1..], blocks, start, end - start).is_err());
        assert!(Directory::decode("s", kind, &bytes, blocks, start, end - start + 1).is_err());
    }

    #[test]
    fn every_kind_round_trips() {
        check(vec![16, 16], 0);
        check((0..1000).map(|i| 16 + i * i).collect(), 0);
        check((0..1000).map(|i| 16 + i * i * i).collect(), 1);
        check((0..300).map(|i| 16 + i * (1 << 30)).collect(), 2);
    }
}
