//! Clusters of real processes on loopback, with a real etcd: the life cycle of nodes, and its effects on clients.
//!
//! `harness` starts, kills, suspends and restarts nodes. The other files contain the tests.

mod clients;
mod connection_faults;
mod cut_off_reads;
mod failing_disks;
mod faults;
mod forward;
pub mod harness;
mod histories;
mod lifecycle;
mod map_recovery;
mod min_copies;
mod moved_slots;
mod node_scans;
mod object_histories;
mod objects;
mod pushes;
mod reads_during_moves;
mod replication;
mod rows;
mod sets_and_rankings;
mod signed_versions;
mod spaces;
mod stale_maps;
mod status;
mod stores;
mod subspace_changes;
mod transactions;
