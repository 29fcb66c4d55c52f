//! Spaces: objects found by any of their attributes, kept where their values say, tuned by a model.
//!
//! After HyperDex (Escriva, Wong, Sirer: "HyperDex: A Distributed, Searchable Key-Value Store", SIGCOMM 2012) and the configurator of
//! its spaces.
//!
//! | room | holds |
//! |---|---|
//! | `mapping` | where objects lie: regions of subspaces, the regions that a search contacts, their hash slots |
//!
//! The crate does no I/O: time and randomness come in as arguments.

pub mod mapping;
