//! Objects: hashes and JSON documents, as clients of Redis use them.

mod fields;
mod hashes;
mod keys;
