//! The directory: the position of each block. It is held in memory completely, in the encoding of the file.
//!
//! It has one entry per block and a last one for the end of the data, in groups. Three kinds differ in the maximum
//! span of a group, and therefore in the bytes per entry:
//!
//! ```text
//! kind      a group                     bytes per entry  maximum span of a group
//! 0 narrow  base u64, offset u16 x 16   2.5              64 KiB: short records, the usual case
//! 1 medium  base u64, offset u32 x 16   4.5              4 GiB
//! 2 wide    position u64                8                anything
//! ```
//!
//! A writer chooses the narrowest kind that fits. A narrow group is 40 bytes, so a lookup, which needs the positions
//! of a block and of the next one, reads one cache line or sometimes two. Unused entries of the last group repeat the
//! end of the data.

use super::block::prefetch;
use super::memory::IndexBytes;
use crate::error::Error;

const GROUP: usize = 16;
const NARROW_SIZE: usize = 8 + 2 * GROUP;
const MEDIUM_SIZE: usize = 8 + 4 * GROUP;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Narrow = 0,
    Medium = 1,
    Wide = 2,
}

/// Encodes the positions of all blocks and of the end of the data, in ascending order.
pub fn encode(positions: &[u64]) -> (Kind, Vec<u8>) {
    let groups = positions.chunks(GROUP);
    let reach = groups
        .clone()
        .map(|group| group[group.len() - 1] - group[0])
        .max()
        .unwrap_or(0);
    let kind = match reach {
        _ if reach <= u64::from(u16::MAX) => Kind::Narrow,
        _ if reach <= u64::from(u32::MAX) => Kind::Medium,
        _ => Kind::Wide,
    };
    let mut bytes = Vec::with_capacity(positions.len() * 3);
    for group in groups {
        if kind == Kind::Wide {
            bytes.extend(group.iter().flat_map(|position| position.to_le_bytes()));
            continue;
        }
        let (base, last) = (group[0], group[group.len() - 1]);
        bytes.extend(base.to_le_bytes());
        for index in 0..GROUP {
            let offset = group.get(index).unwrap_or(&last) - base;
            match kind {
                Kind::Narrow => bytes.extend((offset as u16).to_le_bytes()),
                _ => bytes.extend((offset as u32).to_le_bytes()),
            }
        }
    }
    (kind, bytes)
}

pub struct Directory {
    kind: Kind,
    bytes: IndexBytes,
}

impl Directory {
    /// Validates a directory of `block_count` blocks over `data_size` bytes from `data_start` on. The caller has
    /// verified the section's checksum.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if sizes do not match, or positions do not ascend within the data.
    pub fn decode(
        place: &str,
        kind: u8,
        bytes: IndexBytes,
        block_count: u64,
        data_start: u64,
        data_size: u64,
    ) -> Result<Directory, Error> {
        let damaged = |detail: &str| Error::corrupted(place, format!("the directory {detail}"));
        let count = usize::try_from(block_count)
            .ok()
            .and_then(|n| n.checked_add(1))
            .ok_or_else(|| damaged("is too large"))?;
        let (kind, units, unit_size) = match kind {
            0 => (Kind::Narrow, count.div_ceil(GROUP), NARROW_SIZE),
            1 => (Kind::Medium, count.div_ceil(GROUP), MEDIUM_SIZE),
            2 => (Kind::Wide, count, 8),
            _ => return Err(damaged("is of an unknown kind")),
        };
        if units.checked_mul(unit_size) != Some(bytes.len()) {
            return Err(damaged("has the wrong size"));
        }
        let directory = Directory { kind, bytes };
        directory
            .check(count, data_start, data_size)
            .ok_or_else(|| damaged("is out of order"))?;
        Ok(directory)
    }

    fn check(&self, count: usize, data_start: u64, data_size: u64) -> Option<()> {
        let end = data_start.checked_add(data_size)?;
        let mut previous = data_start;
        for index in 0..count {
            let (base, offset) = self.parts(index);
            let position = base.checked_add(offset)?;
            if position < previous || position > end || (index == 0 && position != data_start) {
                return None;
            }
            previous = position;
        }
        (previous == end).then_some(())
    }

    /// Returns the start and the end of block `index`.
    #[inline(always)]
    pub fn range(&self, index: usize) -> (u64, u64) {
        let within = index % GROUP;
        if self.kind != Kind::Narrow || within == GROUP - 1 {
            return (self.position(index), self.position(index + 1));
        }
        let start = index / GROUP * NARROW_SIZE;
        let group = &self.bytes[start..start + NARROW_SIZE];
        let at = 8 + within * 2;
        let base = word(group);
        let offset = |at: usize| u64::from(u16::from_le_bytes([group[at], group[at + 1]]));
        (base + offset(at), base + offset(at + 2))
    }

    /// Returns the start of block `index`; it ends where the next one starts.
    #[inline]
    pub fn position(&self, index: usize) -> u64 {
        let (base, offset) = self.parts(index);
        base + offset
    }

    #[inline(always)]
    fn parts(&self, index: usize) -> (u64, u64) {
        let bytes = &*self.bytes;
        if self.kind != Kind::Narrow {
            return self.wider_parts(index);
        }
        let start = index / GROUP * NARROW_SIZE;
        let group: &[u8; NARROW_SIZE] = bytes[start..start + NARROW_SIZE]
            .try_into()
            .expect("a group's size");
        let at = 8 + index % GROUP * 2;
        (
            word(group),
            u64::from(u16::from_le_bytes([group[at], group[at + 1]])),
        )
    }

    #[inline(never)]
    fn wider_parts(&self, index: usize) -> (u64, u64) {
        let bytes = &*self.bytes;
        match self.kind {
            Kind::Narrow | Kind::Medium => {
                let group = &bytes[index / GROUP * MEDIUM_SIZE..][..MEDIUM_SIZE];
                let at = 8 + index % GROUP * 4;
                (
                    word(group),
                    u64::from(u32::from_le_bytes([
                        group[at],
                        group[at + 1],
                        group[at + 2],
                        group[at + 3],
                    ])),
                )
            }
            Kind::Wide => (word(&bytes[index * 8..]), 0),
        }
    }

    /// Prefetches the memory that [`Directory::position`] reads.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        let offset = match self.kind {
            Kind::Narrow => index / GROUP * NARROW_SIZE,
            Kind::Medium => index / GROUP * MEDIUM_SIZE,
            Kind::Wide => index * 8,
        };
        prefetch(self.bytes.as_ptr().wrapping_add(offset));
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(positions: Vec<u64>, kind: Kind) {
        let (start, end) = (positions[0], *positions.last().expect("positions"));
        let (chosen, bytes) = encode(&positions);
        assert_eq!(chosen, kind);
        let blocks = positions.len() as u64 - 1;
        let decode = |bytes: &[u8], size| {
            Directory::decode("s", kind as u8, IndexBytes::of(bytes), blocks, start, size)
        };
        let decoded = decode(&bytes, end - start).expect("round trip");
        for (index, position) in positions.iter().enumerate() {
            assert_eq!(decoded.position(index), *position);
        }
        for (index, pair) in positions.windows(2).enumerate() {
            assert_eq!(decoded.range(index), (pair[0], pair[1]));
        }
        assert!(decode(&bytes[1..], end - start).is_err());
        assert!(decode(&bytes, end - start + 1).is_err());
    }

    #[test]
    fn every_kind_round_trips() {
        check(vec![16, 16], Kind::Narrow);
        check((0..1000).map(|i| 16 + i * i).collect(), Kind::Narrow);
        check((0..1000).map(|i| 16 + i * i * i).collect(), Kind::Medium);
        check((0..300).map(|i| 16 + i * (1 << 30)).collect(), Kind::Wide);
    }
}
