//! Clusters of real processes on loopback, with a real etcd: how nodes live and die, and what clients see of it.
//!
//! `harness` starts, kills, stops and starts again; the other files are the claims.

mod broken;
mod clients;
mod cut_off;
mod failing_disks;
mod faults;
mod forward;
mod found;
pub mod harness;
mod histories;
mod late;
mod layouts;
mod life;
mod lost_map;
mod min_copies;
mod moved;
mod moving;
mod objects;
mod own_slots;
mod pushes;
mod replicated;
mod rows;
mod sets;
mod signed;
mod spaces;
mod status;
mod stores;
mod transactions;
