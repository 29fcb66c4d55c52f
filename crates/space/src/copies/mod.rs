//! Copies of objects in the regions of subspaces: which there are, who keeps them and how, and whom a search asks.
//!
//! ```text
//!  an object changes at its owner ─► regions::Regions: where it was, where it is ─► part::Told ─► the holders of these regions
//!  a search ─► route: the cheapest way ─► holder::Holder: what it finds in its regions
//! ```
//!
//! The owner of an object's key keeps the object; what a holder has is derived from that, as the rows that a join computes are. A holder asks all
//! owners for the objects of its regions once, is told of every change from then on, and acknowledges it before the writer is answered. So
//! nothing is lost with a holder; who takes over its regions asks anew, and until it has all of them searches go to the owners.
//!
//! | read | for |
//! |---|---|
//! | `regions` | the subspaces of a space with their cuts: the regions of an object, before and after a change |
//! | `cutting` | how they come to be: by hash, by samples, cut anew, with other subspaces |
//! | `part` | what a holder asks an owner for, and what it is told |
//! | `holder` | the copies in some regions of one subspace, and whether they are all there |
//! | `kept` | these copies by the rows of their index |
//! | `route` | whom a search asks |
//! | `drift` | when subspaces are cut anew |
//!
//! Invariants, tested with random objects, changes and moves of slots:
//! 1. A holder that is whole has exactly the objects that lie in its regions.
//! 2. A search that asks regions finds what the same search finds among all objects.

mod cutting;
mod drift;
mod holder;
mod kept;
mod part;
mod regions;
mod route;
#[cfg(test)]
mod tests;

pub use drift::{CUT_OBJECTS_MIN, to_cut};
pub use holder::Holder;
pub use part::{Part, Told};
pub use regions::{Moved, Regions, Written};
pub use route::{Estimate, Places, Route, Way, route, ways};
