//! How many bits each attribute of a subspace gets.
//!
//! The product of the cells is what was asked for, never more. HyperDex took the root of the number of regions, rounded, and counted up
//! dimensions while a product that it computed wrongly was too small: of 8 regions over four attributes it made 2, of 256 over five 1,024.

use super::REGION_BITS_MAX;

/// Why there is no such allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BitsError {
    /// The number of regions is no power of two from 1 to 16,384.
    Regions(u32),
    /// What was asked for attribute by attribute is more than the regions allow.
    TooMany { asked: u32, allowed: u8 },
}

impl std::fmt::Display for BitsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BitsError::Regions(regions) => write!(
                f,
                "{regions} regions: must be a power of two from 1 to {}",
                1 << REGION_BITS_MAX
            ),
            BitsError::TooMany { asked, allowed } => write!(
                f,
                "the attributes ask for {asked} bits, {allowed} are what the regions allow; ask for fewer bits or for more regions"
            ),
        }
    }
}

impl std::error::Error for BitsError {}

/// The bits of each attribute, given those that were asked for by number. `values_max` says how many different values an attribute has, where that is known:
/// it gets no more bits than make a cell for each of them.
///
/// Those without a number share what is left one bit at a time, the first attributes first. Then the product of the cells is `regions`, unless
/// all attributes have few values or the numbers asked for say less.
///
/// # Errors
/// `regions` is no power of two, or the numbers asked for make more than that.
pub fn allocate_bits(
    regions: u32,
    asked: &[Option<u8>],
    values_max: impl Fn(usize) -> Option<u64>,
) -> Result<Vec<u8>, BitsError> {
    if !regions.is_power_of_two() || regions > 1 << REGION_BITS_MAX {
        return Err(BitsError::Regions(regions));
    }
    let allowed = regions.ilog2() as u8;
    let sum: u32 = asked.iter().flatten().map(|&bits| u32::from(bits)).sum();
    if sum > u32::from(allowed) {
        return Err(BitsError::TooMany {
            asked: sum,
            allowed,
        });
    }
    let mut left = allowed - sum as u8;
    let mut bits: Vec<u8> = asked.iter().map(|asked| asked.unwrap_or(0)).collect();
    let most = |at: usize| {
        let values = values_max(at).unwrap_or(u64::MAX).max(1);
        let bits = u64::BITS - (values - 1).leading_zeros();
        (bits as u8).min(REGION_BITS_MAX)
    };
    loop {
        let before = left;
        for (at, bits) in bits.iter_mut().enumerate() {
            if asked[at].is_none() && *bits < most(at) && left > 0 {
                *bits += 1;
                left -= 1;
            }
        }
        if left == before {
            return Ok(bits);
        }
    }
}

/// Whether an attribute of this name would be taken for another with its bits, as `name:bits` has them.
pub(crate) fn reads_as_cut(name: &str) -> bool {
    let bits = name.rsplit_once(':').map_or("", |it| it.1);
    !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit())
}
