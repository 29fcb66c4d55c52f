//! Versions on disk with any bytes as their segment, under correct checksums and digests.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use larder_batch::manifest::{layer_file, slots_of};
use larder_batch::segment::Footer;
use larder_batch::segment::format::FOOTER_SIZE;
use larder_batch::{Compression, DigestKind, Error, Layer, Manifest, SegmentEntry, Version};
use larder_types::PartitionId;
use tempfile::TempDir;

use crate::segment::{reseal_segment, unsealed_footer, with_dictionary};

/// An intact segment, as the base of a delta.
const BASE: &[u8] = include_bytes!("../seeds/segment/none-varied-2.seed");
/// An intact delta, to be layered above a segment.
const DELTA: &[u8] = include_bytes!("../seeds/segment/delta-varied-2.seed");

/// Opening, verifying, iterating, scanning and looking up a version yields results or errors. If a version passes
/// verification, every kind of lookup returns the same value for every key as iteration.
pub fn version(bytes: &[u8]) {
    let Some(sealed) = reseal_segment(bytes) else {
        return;
    };
    for segment in with_dictionary(&sealed, bytes).into_iter().chain([sealed]) {
        let Ok(segment) = of_only_partition(&segment) else {
            continue;
        };
        let _ = read_with_layers(&segment);
        if !footer_of(&segment).is_delta {
            let _ = read_version(&[&segment, DELTA]);
        }
    }
}

/// Reads the version of the resealed bytes, like [`version`].
///
/// # Errors
/// The errors of verification and of opening the version, or the bytes are shorter than a segment.
pub fn verify_version(bytes: &[u8]) -> Result<(), Error> {
    let sealed = reseal_segment(bytes);
    let sealed = sealed.ok_or_else(|| Error::corrupted("fuzz", "too short"))?;
    read_with_layers(&of_only_partition(&sealed)?)
}

/// Reads a segment as a complete version, or on an intact base if it is a delta.
fn read_with_layers(segment: &[u8]) -> Result<(), Error> {
    if footer_of(segment).is_delta {
        read_version(&[BASE, segment])
    } else {
        read_version(&[segment])
    }
}

/// Converts a resealed segment to that of a version with one partition.
fn of_only_partition(segment: &[u8]) -> Result<Vec<u8>, Error> {
    let (rest, footer) = segment.split_at(segment.len() - FOOTER_SIZE);
    let footer = Footer {
        partition: 0,
        partitions: 1,
        ..Footer::decode("fuzz", footer, segment.len() as u64, 2)?
    };
    Ok([rest, &footer.encode()].concat())
}

fn footer_of(segment: &[u8]) -> Footer {
    unsealed_footer(&segment[segment.len() - FOOTER_SIZE..])
}

/// Writes a version with one partition, lowest layer first, and reads it in every way that a server does.
fn read_version(layers: &[&[u8]]) -> Result<(), Error> {
    thread_local! {
        static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
    }
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| TempDir::new().expect("a folder"));
        read_in(folder.path(), layers)
    })
}

fn read_in(folder: &Path, layers: &[&[u8]]) -> Result<(), Error> {
    for (layer, segment) in layers.iter().enumerate() {
        write(folder.join(layer_file(0, layer)), segment);
    }
    let mut manifest = manifest_of(layers);
    write(folder.join(Manifest::FILE), &manifest.encode());
    let version = Version::open(folder)?;
    let walked = version.iter().collect::<Result<Vec<_>, Error>>();
    if let Ok(records) = &walked {
        // The number of keys that a delta leaves is known only after iterating.
        manifest.record_count = records.len() as u64;
    }
    write(folder.join(Manifest::FILE), &manifest.encode());
    let version = Version::open(folder)?;
    let verified = version.verify(&|_| true);
    let scanned = scan(&version);
    let _ = version.sample(10, 1 << 20, 7);
    let absent: &[u8] = b"a key that is not there";
    let mut keys = vec![absent];
    if let Ok(records) = &walked {
        keys.extend(records.iter().map(|(key, _)| &key[..]));
    }
    for is_warm in [false, true] {
        if is_warm {
            version.warm(&|_| true);
        }
        let mut found = Vec::new();
        version.get_many(&keys, &mut found);
        for (at, key) in keys.iter().enumerate() {
            let (one, attempt) = (version.get(key), version.try_get(key));
            if verified.is_err() {
                continue;
            }
            let records = walked.as_ref().expect("a verified version can be walked");
            let expected = at.checked_sub(1).map(|at| &records[at].1[..]);
            let one = one.expect("keys of a verified version can be looked up");
            assert_eq!(one.as_deref(), expected);
            assert_eq!(found[at].as_ref().expect("the same").as_deref(), expected);
            attempt.expect("the same");
        }
    }
    if verified.is_ok() {
        let mut scanned = scanned.expect("a verified version can be scanned");
        let mut keys: Vec<&[u8]> = keys.split_off(1);
        scanned.sort();
        keys.sort();
        assert!(scanned.iter().map(|key| &key[..]).eq(keys));
    }
    verified.map(drop)
}

/// Scans all keys. Each page advances the cursor, so the scan terminates.
fn scan(version: &Version) -> Result<Vec<Box<[u8]>>, Error> {
    let (mut keys, mut cursor) = (Vec::new(), 0);
    loop {
        let page = version.scan(cursor, 3)?;
        keys.extend(page.keys);
        if page.next_cursor == 0 {
            return Ok(keys);
        }
        assert!(page.next_cursor > cursor, "the cursor moves forward");
        cursor = page.next_cursor;
    }
}

/// Writes a new file, because the previous one may still be mapped.
fn write(path: PathBuf, bytes: &[u8]) {
    let _ = fs::remove_file(&path);
    fs::write(path, bytes).expect("a file in a folder of its own");
}

fn manifest_of(layers: &[&[u8]]) -> Manifest {
    let entry = |(layer, segment): (usize, &&[u8])| SegmentEntry {
        file: layer_file(0, layer),
        partition: PartitionId(0),
        slots: slots_of(0, 1),
        size_bytes: segment.len() as u64,
        record_count: footer_of(segment).record_count,
        digest: DigestKind::Blake3.of(segment),
    };
    let mut entries: Vec<SegmentEntry> = layers.iter().enumerate().map(entry).collect();
    let own = entries.pop().expect("a version has a layer");
    let below = entries.into_iter().map(|entry| Layer {
        digest: DigestKind::Blake3.of(b"its manifest"),
        segments: vec![entry],
    });
    let layers: Vec<Layer> = below.collect();
    Manifest {
        format: if layers.is_empty() {
            Manifest::FORMAT
        } else {
            Manifest::FORMAT_DELTA
        },
        store: "fuzz".parse().expect("a name"),
        partitions: 1,
        record_count: own.record_count,
        key_bytes: 0,
        value_bytes: 0,
        size_bytes: layers
            .iter()
            .map(|layer| layer.segments[0].size_bytes)
            .chain([own.size_bytes])
            .sum(),
        compression: Compression::None,
        segments: vec![own],
        layers,
        built: None,
        signature: None,
        digest: String::new(),
    }
}
