//! Spaces: secondary indexes over objects, the placement of object copies by value, and a planner for both.
//!
//! The design follows HyperDex (Escriva, Wong, Sirer: "HyperDex: A Distributed, Searchable Key-Value Store", SIGCOMM
//! 2012) and the configurator of its spaces.
//!
//! ```text
//!  HSET hotel:7 city Rome price 120 ─► object ─► value: columns by the schema ─► mapping: regions
//!  FT.SEARCH hotels "@city:{rome} @price:[100 200]" ─► query: predicate ─► mapping: regions ─► search: partial results, merged
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `mapping` | the placement of objects: regions of subspaces, the regions that a search contacts, their hash slots |
//! | `plan` | the configurator: a cost model for a workload and a set of subspaces, and the search for the best set |
//! | `base` | numbers, words, instants, points, order-preserving byte encodings, command arguments |
//! | `expression` | the expressions of FILTER and APPLY: grammar, functions, values |
//! | `object` | hashes and JSON documents, JSON paths, and the effects of commands on objects |
//! | `schema` | the definition of a space: attributes, their types, the arguments of FT.CREATE |
//! | `value` | the conversion of fields to attribute values; the columns of an object as bytes |
//! | `query` | the query language: parses a text into a predicate over objects |
//! | `search` | FT.SEARCH: options, partial results and their merge, the reply |
//! | `aggregate` | FT.AGGREGATE: its stages, at the regions and at the coordinating core |
//! | `index` | the indexes of one core; searches and aggregations that run in steps |
//! | `copies` | the copies of objects in the regions of subspaces: their holders, and the route of a search |
//!
//! Modules depend only on modules above them in this table. Each module's `mod.rs` lists its files. All modules report
//! errors with `error`.
//!
//! The crate does no I/O: time and randomness are arguments.

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
