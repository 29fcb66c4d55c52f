//! The directory: where each block begins. All of it is held in memory.
//!
//! It has one entry a block and a last one for the end of the data. *Narrow*, the usual kind, is
//! 4 bytes an entry, relative to a base of 8 bytes for every 64 entries; *wide* is 8 bytes an
//! entry, for segments in which 64 neighbours span 4 GiB. For blocks of 1 KiB that is 0.4 % of the
//! data.
//!
//! ```text
//! narrow:  base u64 x ceil(n / 64), then offset u32 x n     (n = block_count + 1)
//! wide:    position u64 x n
//! ```

use crate::error::Error;

const GROUP_LOG2: u32 = 6;
const GROUP: usize = 1 << GROUP_LOG2;

pub enum Directory {
    Narrow { bases: Vec<u64>, offsets: Vec<u32> },
    Wide { positions: Vec<u64> },
}

impl Directory {
    /// From the position of every block and of the end of the data, ascending.
    pub fn from_positions(positions: Vec<u64>) -> Directory {
        let fits = |group: &[u64]| {
            group
                .last()
                .zip(group.first())
                .is_none_or(|(last, first)| u32::try_from(last - first).is_ok())
        };
        if !positions.chunks(GROUP).all(fits) {
            return Directory::Wide { positions };
        }
        let bases: Vec<u64> = positions.iter().step_by(GROUP).copied().collect();
        let offsets = positions
            .iter()
            .enumerate()
            .map(|(index, position)| (position - bases[index / GROUP]) as u32)
            .collect();
        Directory::Narrow { bases, offsets }
    }

    pub fn kind(&self) -> u8 {
        match self {
            Directory::Narrow { .. } => 0,
            Directory::Wide { .. } => 1,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            Directory::Narrow { bases, offsets } => {
                let bases = bases.iter().flat_map(|base| base.to_le_bytes());
                bases
                    .chain(offsets.iter().flat_map(|offset| offset.to_le_bytes()))
                    .collect()
            }
            Directory::Wide { positions } => positions
                .iter()
                .flat_map(|position| position.to_le_bytes())
                .collect(),
        }
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
        let base_count = count.div_ceil(GROUP);
        let expected = match kind {
            0 => base_count
                .checked_mul(8)
                .zip(count.checked_mul(4))
                .and_then(|(a, b)| a.checked_add(b)),
            1 => count.checked_mul(8),
            _ => return Err(damaged("is of an unknown kind")),
        };
        if expected != Some(bytes.len()) {
            return Err(damaged("has the wrong size"));
        }
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
                .collect()
        };
        let directory = if kind == 0 {
            let (bases, offsets) = bytes.split_at(base_count * 8);
            Directory::Narrow {
                bases: words(bases),
                offsets: offsets
                    .chunks_exact(4)
                    .map(|half| u32::from_le_bytes(half.try_into().expect("4 bytes")))
                    .collect(),
            }
        } else {
            Directory::Wide {
                positions: words(bytes),
            }
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
                Directory::Narrow { bases, offsets } => {
                    bases[index / GROUP].checked_add(u64::from(offsets[index]))?
                }
                Directory::Wide { positions } => positions[index],
            };
            if position < previous || position > end || (index == 0 && position != data_start) {
                return None;
            }
            previous = position;
        }
        (previous == end).then_some(())
    }

    /// Where block `index` begins; the next one's position is its end. One or two memory reads.
    #[inline]
    pub fn position(&self, index: usize) -> u64 {
        match self {
            Directory::Narrow { bases, offsets } => {
                bases[index >> GROUP_LOG2] + u64::from(offsets[index])
            }
            Directory::Wide { positions } => positions[index],
        }
    }

    /// Asks the processor to fetch what [`Directory::position`] will read.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        match self {
            Directory::Narrow { offsets, .. } => {
                super::block::prefetch(offsets.as_ptr().wrapping_add(index).cast())
            }
            Directory::Wide { positions } => {
                super::block::prefetch(positions.as_ptr().wrapping_add(index).cast())
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        match self {
            Directory::Narrow { bases, offsets } => bases.len() * 8 + offsets.len() * 4,
            Directory::Wide { positions } => positions.len() * 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(positions: Vec<u64>, kind: u8) {
        let (start, end) = (positions[0], *positions.last().expect("positions"));
        let directory = Directory::from_positions(positions.clone());
        assert_eq!(directory.kind(), kind);
        let bytes = directory.encode();
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
    fn narrow_and_wide_round_trip() {
        check(vec![16, 16], 0);
        check((0..1000).map(|i| 16 + i * i).collect(), 0);
        check((0..300).map(|i| 16 + i * (1 << 30)).collect(), 1);
    }
}
