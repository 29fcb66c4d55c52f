//! A subspace: a list of dimensions.

use larder_types::mix;

use super::contacts::Contacts;
use super::cut::{CellValue, Constraint, Cut};
use super::{Attribute, REGION_BITS_MAX, Region};

/// One attribute of a subspace, and its division into cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dimension {
    pub attribute: Attribute,
    pub cut: Cut,
}

/// The dimensions of a subspace. The first is outermost: the regions of one of its cells are adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subspace {
    dimensions: Vec<Dimension>,
    bits: u8,
}

/// The reason why dimensions are not a valid subspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubspaceError {
    NoAttribute,
    Twice(Attribute),
    /// The sum of the bits of all dimensions.
    TooManyBits(u32),
}

impl std::fmt::Display for SubspaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SubspaceError::NoAttribute => f.write_str("a subspace needs an attribute"),
            SubspaceError::Twice(attribute) => {
                write!(
                    f,
                    "attribute {} occurs twice in the subspace; name it once",
                    attribute.0
                )
            }
            SubspaceError::TooManyBits(bits) => write!(
                f,
                "the attributes of the subspace have {bits} bits; the maximum is {REGION_BITS_MAX}, that is {} regions",
                1 << REGION_BITS_MAX
            ),
        }
    }
}

impl std::error::Error for SubspaceError {}

impl Subspace {
    /// Creates a subspace.
    ///
    /// # Errors
    /// There are no dimensions, an attribute occurs twice, or there are too many bits.
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

    /// Returns the region of an object with these values. `key_hash` is the [hash](larder_types::key_hash) of its key.
    #[inline]
    pub fn region<'a>(&self, place: impl Fn(Attribute) -> CellValue<'a>, key_hash: u64) -> Region {
        let mut region = 0;
        for (number, dimension) in (0..).zip(&self.dimensions) {
            // Rehash the key for each dimension, so that the cells of two frequent values are chosen independently.
            let key_hash = mix(key_hash.wrapping_add(number));
            let cell = dimension.cut.cell(place(dimension.attribute), key_hash);
            region = (region << dimension.cut.bits()) | cell;
        }
        Region(region)
    }

    /// Returns the regions of all objects that satisfy these constraints, and possibly further regions.
    pub fn contacts<'a>(&self, constraint: impl Fn(Attribute) -> Constraint<'a>) -> Contacts {
        let set = |dimension: &Dimension| {
            let cut = &dimension.cut;
            let set = cut.contacts(&constraint(dimension.attribute));
            (cut.bits(), set)
        };
        Contacts::new(self.dimensions.iter().map(set).collect())
    }

    /// Returns the cell of a region in each dimension.
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
