//! A subspace: its dimensions together.

use larder_types::mix;

use super::contacts::Contacts;
use super::cut::{Constraint, Cut, Place};
use super::{Attribute, REGION_BITS_MAX, Region};

/// One attribute of a subspace, and how it is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dimension {
    pub attribute: Attribute,
    pub cut: Cut,
}

/// Attributes, each with its cut. The first is outermost: the regions of one of its cells are adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subspace {
    dimensions: Vec<Dimension>,
    bits: u8,
}

/// Dimensions that are no subspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubspaceError {
    NoAttribute,
    Twice(Attribute),
    /// All bits together.
    TooManyBits(u32),
}

impl std::fmt::Display for SubspaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SubspaceError::NoAttribute => f.write_str("a subspace needs an attribute"),
            SubspaceError::Twice(attribute) => {
                write!(
                    f,
                    "attribute {} is in the subspace twice; name it once",
                    attribute.0
                )
            }
            SubspaceError::TooManyBits(bits) => write!(
                f,
                "the attributes of the subspace have {bits} bits; {REGION_BITS_MAX} are the most, that is {} regions",
                1 << REGION_BITS_MAX
            ),
        }
    }
}

impl std::error::Error for SubspaceError {}

impl Subspace {
    /// # Errors
    /// There is no dimension, an attribute twice, or too many bits.
    pub fn new(dimensions: Vec<Dimension>) -> Result<Subspace, SubspaceError> {
        if dimensions.is_empty() {
            return Err(SubspaceError::NoAttribute);
        }
        for (at, dimension) in dimensions.iter().enumerate() {
            let same = |other: &Dimension| other.attribute == dimension.attribute;
            if dimensions[..at].iter().any(same) {
                return Err(SubspaceError::Twice(dimension.attribute));
            }
        }
        let bits = dimensions.iter().map(|it| u32::from(it.cut.bits())).sum();
        if bits > u32::from(REGION_BITS_MAX) {
            return Err(SubspaceError::TooManyBits(bits));
        }
        Ok(Subspace {
            dimensions,
            bits: bits as u8,
        })
    }

    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    pub fn bits(&self) -> u8 {
        self.bits
    }

    pub fn regions(&self) -> u32 {
        1 << self.bits
    }

    /// The region of an object with these values, whose key has this hash ([`larder_types::key_hash`]).
    #[inline]
    pub fn region<'a>(&self, place: impl Fn(Attribute) -> Place<'a>, key_hash: u64) -> Region {
        let mut region = 0;
        for (number, dimension) in (0..).zip(&self.dimensions) {
            // A key lies in the cells of two hot values independently.
            let key_hash = mix(key_hash.wrapping_add(number));
            let cell = dimension.cut.cell(place(dimension.attribute), key_hash);
            region = (region << dimension.cut.bits()) | cell;
        }
        Region(region)
    }

    /// The regions of all objects that pass these constraints, and perhaps others.
    pub fn contacts<'a>(&self, constraint: impl Fn(Attribute) -> Constraint<'a>) -> Contacts {
        let set = |dimension: &Dimension| {
            let cut = &dimension.cut;
            let set = cut.contacts(&constraint(dimension.attribute));
            (cut.bits(), set)
        };
        Contacts::new(self.dimensions.iter().map(set).collect())
    }

    /// The cell that a region has in each dimension.
    pub fn cells(&self, region: Region) -> Vec<u16> {
        let mut rest = region.0;
        let mut cells: Vec<u16> = Vec::with_capacity(self.dimensions.len());
        for dimension in self.dimensions.iter().rev() {
            let bits = dimension.cut.bits();
            cells.push(rest & ((1 << bits) - 1));
            rest = rest.checked_shr(bits.into()).unwrap_or(0);
        }
        cells.reverse();
        cells
    }
}
