//! Spaces: objects found by any of their attributes, kept where their values say, tuned by a model.
//!
//! After HyperDex (Escriva, Wong, Sirer: "HyperDex: A Distributed, Searchable Key-Value Store", SIGCOMM 2012) and the configurator of
//! its spaces.
//!
//! ```text
//!  HSET hotel:7 city Rome price 120 ─► object ─► value: columns by the schema ─► mapping: regions
//!  FT.SEARCH hotels "@city:{rome} @price:[100 200]" ─► query: predicate ─► mapping: regions ─► search: partial answers, merged
//! ```
//!
//! | room | holds |
//! |---|---|
//! | `mapping` | where objects lie: regions of subspaces, the regions that a search contacts, their hash slots |
//! | `plan` | the configurator: what a workload costs with which subspaces, and which are best |
//! | `base` | numbers, words, instants, points, bytes that sort, the arguments of commands |
//! | `expression` | expressions of FILTER and APPLY: grammar, functions, values |
//! | `object` | hashes and JSON documents, paths into them, and what commands make of them |
//! | `schema` | the definition of a space: attributes, their types, the arguments of FT.CREATE |
//! | `value` | what an object's fields mean as values of attributes; its columns as bytes |
//! | `query` | the query language: a text becomes a predicate, which holds for an object or does not |
//! | `search` | FT.SEARCH: its options, partial answers that merge, what is returned |
//! | `aggregate` | FT.AGGREGATE: its stages, at the regions and at whoever asked |
//! | `index` | the objects of one core, found by their attributes: searches and aggregations that run in steps |
//! | `copies` | copies of objects in the regions of subspaces: who keeps them, whom a search asks |
//!
//! What stands higher is used by what stands lower. Each room's `mod.rs` says in which order to read it; `error` is what all of them refuse with.
//!
//! The crate does no I/O: time and randomness come in as arguments.

pub mod aggregate;
pub mod base;
pub mod copies;
pub mod error;
pub mod expression;
pub mod index;
pub mod mapping;
pub mod object;
pub mod plan;
pub mod query;
pub mod schema;
pub mod search;
pub mod value;
