//! Where objects lie: which region of a subspace an object falls in, which regions a search contacts, and on which hash slot a region is.
//!
//! ```text
//!  an object's values ──► cut::Cut, one for each dimension ──► cells ──► subspace::Subspace::region ──► Placement::slot ──► node
//!  a search's constraints ──────────────┘                       └────► contacts::Contacts: runs of regions ──┘
//! ```
//!
//! A *subspace* is a list of attributes, its *dimensions*. Each is cut into a power of two of *cells*; its *bits* are the exponent. A *region*
//! is one cell of each dimension, and its number is their numbers put together, the first dimension outermost.
//!
//! | read | for |
//! |---|---|
//! | `cut` | the cells of one dimension: by hash, or by the quantiles of the data |
//! | `quantiles` | such a cut from a sample: equal values stay together, hot values are spread |
//! | `subspace` | dimensions together: the region of an object, the regions of a search |
//! | `contacts` | those regions as runs, without listing them |
//! | `bits` | how many bits each dimension gets of a number of regions |
//! | `recut` | when to cut anew |
//! | `placement` | regions on hash slots, so that a search asks few nodes |
//!
//! Invariants, tested with random cuts, values and constraints:
//! 1. Every object falls in exactly one region of a subspace, whatever its values are or lack.
//! 2. The regions that a search contacts include that of every object that its constraints let through.
//! 3. Equal values lie in the same cell, unless the value has several cells for itself; then the key decides among these.
//! 4. Cells of a cut by quantiles are in the order of the values, so a range contacts one run of them.
//!
//! What is left out: attributes with several values at once (a list of tags). They have no one cell, so they are no dimensions.

mod bits;
mod contacts;
mod cut;
mod placement;
mod quantiles;
mod recut;
mod subspace;

pub(crate) use bits::reads_as_cut;
pub use bits::{BitsError, allocate_bits};
pub use contacts::{CellSet, Contacts, Runs};
pub use cut::{Cells, Constraint, Cut, CutError, Interval, Place};
pub use placement::{Placement, SlotOwner, SlotRun};
pub use recut::{Balance, RECUT_MEAN_MIN, RECUT_TIMES_MEAN};
pub use subspace::{Dimension, Subspace, SubspaceError};

/// An attribute: its index in the schema of its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute(pub u16);

/// A region of a subspace, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region(pub u16);

/// The most bits that the dimensions of a subspace have together: there are as many hash slots.
pub const REGION_BITS_MAX: u8 = 14;
