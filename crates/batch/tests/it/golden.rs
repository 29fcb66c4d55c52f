//! Files of every published format version must stay readable, and the current writer must reproduce them byte for
//! byte. `LARDER_BLESS=1 cargo test -p larder-batch golden` created `testdata/golden/format-1` and `format-2`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use larder_batch::{BuildOptions, Compression, Version};

use crate::support::{build, options, pairs, records, uniform_records};

/// Records of all kinds: many sizes, an empty one, a large one.
fn all_kinds() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = records(60);
    all.insert(b"large".to_vec(), vec![7; 70_000]);
    all.insert(b"empty".to_vec(), Vec::new());
    all
}

fn check(name: &str, options: BuildOptions, byte_for_byte: bool) {
    for segment_format in [1, 2] {
        let options = BuildOptions {
            segment_format,
            ..options.clone()
        };
        check_folder(
            &format!("format-{segment_format}/{name}"),
            options,
            &all_kinds(),
            byte_for_byte,
        );
    }
}

fn check_folder(
    name: &str,
    options: BuildOptions,
    oracle: &BTreeMap<Vec<u8>, Vec<u8>>,
    byte_for_byte: bool,
) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    let golden = |name: &str| -> PathBuf { folder.join(name) };
    if std::env::var_os("LARDER_BLESS").is_some() {
        let _ = fs::remove_dir_all(golden(name));
        build(options.clone(), &golden(name), pairs(oracle)).expect("builds");
    }
    let version = Version::open(&golden(name)).expect("the golden files open");
    version.verify(&|_| true).expect("the golden files verify");
    for (key, value) in oracle {
        assert_eq!(
            version.get(key).expect("undamaged").as_deref(),
            Some(&value[..])
        );
    }
    if byte_for_byte {
        let folder = tempfile::tempdir().expect("temp dir");
        let out = folder.path().join("v");
        build(options, &out, pairs(oracle)).expect("builds");
        for entry in fs::read_dir(golden(name)).expect("folder") {
            let path = entry.expect("entry").path();
            let now = fs::read(out.join(path.file_name().expect("name"))).expect("written again");
            assert!(
                fs::read(&path).expect("golden") == now,
                "{} is written differently today",
                path.display()
            );
        }
    }
}

#[test]
fn the_golden_version_without_compression() {
    check(
        "none",
        BuildOptions {
            partitions: 2,
            ..options()
        },
        true,
    );
}

#[test]
fn the_golden_version_with_lz4() {
    // The output of the compressors may change with their releases; earlier output must stay readable.
    check(
        "lz4",
        BuildOptions {
            partitions: 1,
            compression: Compression::Lz4,
            ..options()
        },
        false,
    );
}

#[test]
fn the_golden_version_with_zstd() {
    check(
        "zstd",
        BuildOptions {
            partitions: 1,
            compression: Compression::Zstd { level: 3 },
            ..options()
        },
        false,
    );
}

#[test]
fn the_golden_version_of_records_of_one_size() {
    let options = BuildOptions {
        partitions: 2,
        ..options()
    };
    check_folder("format-2/uniform", options, &uniform_records(90), true);
}
