//! The placement of objects: the region of an object in a subspace, the regions that a search contacts, and the hash
//! slot of a region.
//!
//! ```text
//!  an object's values ──► cut::Cut, one for each dimension ──► cells ──► subspace::Subspace::region ──► Placement::slot ──► node
//!  a search's constraints ──────────────┘                       └────► contacts::Contacts: runs of regions ──┘
//! ```
//!
//! A *subspace* is a list of attributes, its *dimensions*. Each dimension is divided into a power of two of *cells*;
//! its *bits* are the exponent. A *region* is one cell of each dimension. Its number is the concatenation of the cells'
//! numbers, outermost dimension first.
//!
//! | file | contents |
//! |---|---|
//! | `cut` | the cells of one dimension: by hash, or by quantiles of the values |
//! | `quantiles` | the quantile cut of a sample: equal values stay together, and frequent values are spread |
//! | `subspace` | all dimensions: the region of an object, the regions of a search |
//! | `contacts` | the regions of a search as runs, without listing them |
//! | `bits` | the number of bits of each dimension, given a number of regions |
//! | `recut` | the decision to partition again |
//! | `placement` | the hash slots of regions, chosen so that a search contacts few nodes |
//!
//! Invariants, tested with random cuts, values and constraints:
//!
//! 1. Every object is in exactly one region of a subspace, whatever values it has or lacks.
//! 2. The regions that a search contacts include the region of every object that satisfies its constraints.
//! 3. Equal values are in the same cell, unless the value alone has several cells. Then the key selects one of them.
//! 4. The cells of a quantile cut are in the order of the values, so a range contacts one run of cells.
//!
//! Out of scope: an attribute with several values in one object (a list of tags) has no single cell, and so cannot be a
//! dimension.

mod bits;
mod contacts;
mod cut;
mod placement;
mod quantiles;
mod recut;
mod subspace;

pub(crate) use bits::looks_like_cut;
pub use bits::{BitsError, allocate_bits};
pub use contacts::{CellSet, Contacts, Runs};
pub use cut::{CellValue, Cells, Constraint, Cut, CutError, Interval};
pub use placement::{Placement, SlotOwner, SlotRun};
pub use recut::{Balance, RECUT_MEAN_MIN, RECUT_TIMES_MEAN};
pub use subspace::{Dimension, Subspace, SubspaceError};

/// An attribute, as its index in the schema of the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute(pub u16);

/// A region of a subspace, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region(pub u16);

/// The maximum number of bits of a subspace. It corresponds to the number of hash slots.
pub const REGION_BITS_MAX: u8 = 14;
