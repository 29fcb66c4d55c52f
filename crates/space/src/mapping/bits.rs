//! Divides the bits of a subspace among its attributes.
//!
//! The product of the numbers of cells never exceeds the requested number of regions. HyperDex rounded a root of the
//! number of regions, and then incremented dimensions while a product, which it computed wrongly, was too small: 8
//! regions over four attributes became 2, and 256 over five became 1,024.

use super::REGION_BITS_MAX;

/// The reason why bits cannot be allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BitsError {
    /// The number of regions is not a power of two from 1 to 16,384.
    Regions(u32),
    /// The bits requested for attributes need more regions than allowed.
    TooMany { requested: u32, allowed: u8 },
}

impl std::fmt::Display for BitsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BitsError::Regions(regions) => write!(
                f,
                "{regions} regions: must be a power of two from 1 to {}",
                1 << REGION_BITS_MAX
            ),
            BitsError::TooMany { requested, allowed } => write!(
                f,
                "the attributes request {requested} bits, but the regions allow {allowed}: request fewer bits or more regions"
            ),
        }
    }
}

impl std::error::Error for BitsError {}

/// Returns the bits of each attribute, given the requested ones. `values_max` returns the number of distinct values of
/// an attribute, if known. An attribute gets no more bits than it needs for one cell per value.
///
/// The attributes without a request share the remaining bits, one bit at a time, starting with the first attribute. The
/// product of the numbers of cells is then `regions`, unless all these attributes have few values or the requests
/// amount to less.
///
/// # Errors
/// `regions` is not a power of two, or the requests amount to more than that.
pub fn allocate_bits(
    regions: u32,
    requested: &[Option<u8>],
    values_max: impl Fn(usize) -> Option<u64>,
) -> Result<Vec<u8>, BitsError> {
    if !regions.is_power_of_two() || regions > 1 << REGION_BITS_MAX {
        return Err(BitsError::Regions(regions));
    }
    let allowed = regions.ilog2() as u8;
    let sum: u32 = requested
        .iter()
        .flatten()
        .map(|&bits| u32::from(bits))
        .sum();
    if sum > u32::from(allowed) {
        return Err(BitsError::TooMany {
            requested: sum,
            allowed,
        });
    }
    let mut left = allowed - sum as u8;
    let mut bits: Vec<u8> = requested
        .iter()
        .map(|requested| requested.unwrap_or(0))
        .collect();
    let most = |at: usize| {
        let values = values_max(at).unwrap_or(u64::MAX).max(1);
        let bits = u64::BITS - (values - 1).leading_zeros();
        (bits as u8).min(REGION_BITS_MAX)
    };
    loop {
        let before = left;
        for (at, bits) in bits.iter_mut().enumerate() {
            if requested[at].is_none() && *bits < most(at) && left > 0 {
                *bits += 1;
                left -= 1;
            }
        }
        if left == before {
            return Ok(bits);
        }
    }
}

/// Returns whether this name has the form `name:bits`, and so could be mistaken for another attribute with its bits.
pub(crate) fn looks_like_cut(name: &str) -> bool {
    let bits = name.rsplit_once(':').map_or("", |it| it.1);
    !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit())
}
