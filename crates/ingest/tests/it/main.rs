//! One binary: small files made here, and the real ones where they are at hand.

mod avro;
mod bundles;
mod columns;
mod csv;
mod folders;
mod malformed;
mod memory;
mod other_formats;
mod parquet_files;
mod real_data;
mod support;
mod writers;
