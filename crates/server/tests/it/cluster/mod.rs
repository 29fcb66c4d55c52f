//! Clusters of real processes on loopback, with a real etcd: the life cycle of nodes, and its effects on clients.
//!
//! `harness` starts, kills, suspends and restarts nodes. The other files contain the tests.

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
