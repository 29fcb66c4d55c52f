use std::collections::BTreeMap;
use std::path::Path;

use larder_batch::{BuildOptions, Builder, Error, Manifest};

pub fn options() -> BuildOptions {
    BuildOptions {
        partitions: 3,
        ..BuildOptions::new("pymk".parse().expect("a name"))
    }
}

/// Builds rows in the given order, with one thread.
pub fn build<'a>(
    options: BuildOptions,
    out: &Path,
    rows: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Manifest, Error> {
    let builder = Builder::new(options, out)?;
    let mut writer = builder.writer();
    for (seq, (key, value)) in (0..).zip(rows) {
        writer.push(seq, key, value)?;
    }
    writer.close()?;
    builder.finish(&|_| ())
}

/// Returns `count` records with keys and values of mixed sizes.
pub fn records(count: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..count)
        .map(|i| {
            let value = format!("value {i} ").repeat((i % 17) as usize).into_bytes();
            (format!("key-{i}").into_bytes(), value)
        })
        .collect()
}

/// Returns `count` records of equal size.
pub fn uniform_records(count: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..count)
        .map(|i| {
            let value = format!("value of some length {i:08}").into_bytes();
            (format!("key-{i:06}").into_bytes(), value)
        })
        .collect()
}

/// Returns `count` records, of one size or of many.
pub fn some_records(count: u32, is_uniform: bool) -> BTreeMap<Vec<u8>, Vec<u8>> {
    if is_uniform {
        uniform_records(count)
    } else {
        records(count)
    }
}

pub fn pairs(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> impl Iterator<Item = (&[u8], &[u8])> {
    records.iter().map(|(key, value)| (&key[..], &value[..]))
}
