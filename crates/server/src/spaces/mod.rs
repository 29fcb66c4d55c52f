//! Spaces: objects that can be searched by their attributes. Which there are, and on each core the index over the objects that it owns.
//!
//! ```text
//!  FT.CREATE ─► change: names and records ─► journal, or in a cluster the map ─► catalog ─► local, on every core
//!  HSET, DEL, expiry ─► engine ─► `Tables::log` ─► local: the index follows in the same turn
//! ```
//!
//! `record` is what a name stands for, as bytes; `catalog` all names at one moment; `change` what a command makes of them. `local` is what one core has of all
//! spaces, `covering` finds those of a key, `space` is what it has of one, and `walk` how the index of a space that was just declared is filled. `placed` is where own objects lie in subspaces, `copies` what is
//! held of regions, which `exchanged` shows to exchanges, `subscribed` what others are told of. `cursors` is what is left of long answers, `recording` what is seen of a workload while somebody wants to know it.
//! How the tables keep `local` true is in their own `spaces.rs`; the commands are in `resp/spaces`.

pub mod catalog;
pub mod change;
pub mod copies;
mod covering;
pub mod cursors;
mod exchanged;
mod local;
mod placed;
pub mod record;
pub mod recording;
#[cfg(test)]
mod simulation;
mod space;
mod subscribed;
mod walk;

pub use catalog::{Catalog, Declared};
pub use change::{Before, Change, Set};
pub use local::{Behind, Figures, Spaces, add_figures};
