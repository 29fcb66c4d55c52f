//! One binary: small files that are generated here, and real files where they are available.

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
