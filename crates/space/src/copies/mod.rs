//! Copies of objects in the regions of subspaces: the regions, the holders that store the copies, and the routes of
//! searches.
//!
//! ```text
//!  an object changes at its owner ─► regions::Regions: its region before and after ─► CopyUpdate ─► the holders of these regions
//!  a search ─► route: the cheapest route ─► holder::Holder: the matches in its regions
//! ```
//!
//! The owner of an object's key stores the object; a holder's copies are derived data, like the computed rows of a
//! join. A holder requests the objects of its regions from all owners once, and then receives every change. It
//! acknowledges each change before the writer receives its reply. The loss of a holder therefore loses no data: its
//! successor requests the copies again, and until it has all of them, searches contact the owners.
//!
//! | file | contents |
//! |---|---|
//! | `regions` | the subspaces of a space and their cuts; the regions of an object before and after a change |
//! | `partitioning` | the creation of cuts: by hash, by samples, again after changes of data or of subspaces |
//! | `copy_request` | the request of a holder to an owner, and the updates that follow |
//! | `holder` | the copies in some regions of one subspace, and whether they are complete |
//! | `copy_store` | these copies, addressed by the rows of their index |
//! | `route` | the choice of the nodes or cores that a search contacts |
//! | `drift` | the decision to partition subspaces again |
//!
//! Invariants, tested with random objects, changes and moves of slots:
//!
//! 1. A complete holder has exactly the objects of its regions.
//! 2. A search that uses regions returns the same result as a search of all objects.

mod copy_request;
mod copy_store;
mod drift;
mod holder;
mod partitioning;
mod regions;
mod route;
#[cfg(test)]
mod tests;

pub use copy_request::{CopyRequest, CopyUpdate};
pub use drift::{CUT_OBJECTS_MIN, select_recuts};
pub use holder::Holder;
pub use regions::{RegionChange, RegionFields, Regions};
pub use route::{Estimate, PricedRoute, Route, RouteTargets, price_routes, route};
