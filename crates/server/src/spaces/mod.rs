//! Spaces: objects that are searchable by their attributes. This module contains the set of spaces, and on each core the indexes
//! of the objects that it owns.
//!
//! ```text
//!  FT.CREATE ─► change: names and records ─► journal, or in a cluster the map ─► catalog ─► local, on every core
//!  HSET, DEL, expiry ─► engine ─► `Tables::log` ─► local: the index follows in the same turn
//! ```
//!
//! - `record` encodes the value of a space's name, `catalog` is a snapshot of all names, and `change` computes the effect of a
//!   command on them.
//! - `local` is the state of all spaces on one core. `prefix_index` finds the spaces of a key, `space` is the state of one space, and
//!   `walk` fills the index of a space that was just declared.
//! - `placement` is the placement of own objects in subspaces, `copies` the held copies of regions, `copy_exchange` their interface for
//!   the exchange, and `subscribed_part` the parts of which readers are notified.
//! - `cursors` stores the rest of long results, and `recording` records a workload on request.
//!
//! `tables/spaces.rs` keeps `local` up to date; the commands are in `resp/spaces`.

pub mod catalog;
pub mod change;
pub mod copies;
mod copy_exchange;
pub mod cursors;
mod local;
mod placement;
mod prefix_index;
pub mod record;
pub mod recording;
#[cfg(test)]
mod simulation;
mod space;
mod subscribed_part;
mod walk;

pub use catalog::{Catalog, DeclaredSpace};
pub use change::{NameUpdate, SpaceChange, SpaceVersion};
pub use local::{Backlog, SpaceStats, Spaces, merge_stats};
