//! Reads files and yields rows: everything between `larder build INPUT...` and a key with its value. Also writes rows
//! to a Parquet file (`write`); the output of `larder space dump` can be read here again.
//!
//! ```text
//!  inputs ──► input: expand, open, detect ──► Tasks (one per file) ──► Task ──► Rows ──► RowSink
//!                                              │ csv/, json_lines: chunks of complete records
//!                                              │ parquet: row groups
//!                                              └ ipc/, avro: the complete file
//! ```
//!
//! Read `options` for the terms, `run` for the threads, and then one format: `csv/mod` for performance, `parquet` and
//! `pages` for bounded memory.
//!
//! A file is loaded completely or rejected with its name: any error ends the run, and the caller discards what it has
//! built. This is the only crate that links Arrow.

mod assemble;
mod avro;
mod avro_schema;
mod batches;
mod bundle;
mod cell;
mod chunk;
mod csv;
mod emit;
mod error;
mod folder;
mod guard;
mod in_memory;
mod input;
mod ipc;
mod json_lines;
mod json_text;
mod key;
mod options;
mod pages;
mod parquet;
mod parquet_footer;
mod parquet_remote;
mod parquet_schema;
mod plan;
mod positions;
mod record_batch;
mod rows;
mod run;
mod thrift;
mod time;
mod unpack;
mod write;

pub use arrow_array::ffi_stream::FFI_ArrowArrayStream as CStream;
pub use assemble::{
    BUNDLE_COLUMN, BundleOptions, TARGET_COLUMN, WriteValue, assemble, assemble_c_stream,
};
pub use batches::{Batches, ingest_batches, ingest_bundles};
pub use bundle::{bundle_of, rows_of_bundle};
pub use csv::types::CellType;
pub use error::{At, Error};
pub use in_memory::ingest_text;
pub use options::{
    Format, InputOptions, NullPolicy, Progress, RowError, RowSink, SinkError, Summary, ValueSpec,
};
pub use positions::{RowPositions, seq_after};
pub use run::ingest;
pub use write::ParquetWriter;
