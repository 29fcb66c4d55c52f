//! One file per engine. Each builds as its documentation advises for a bulk load, and reads through a map where it can.

pub mod cdb;
pub mod larder;
pub mod lmdb;
pub mod perfect_hash;
pub mod rocksdb;
pub mod sparkey;
pub mod voldemort;

use std::fs::File;
use std::path::Path;

/// Makes a file and its folder durable.
pub fn sync(file: &Path) -> std::io::Result<()> {
    File::open(file)?.sync_all()?;
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
