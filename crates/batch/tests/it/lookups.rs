use std::collections::BTreeMap;
use std::fs;

use larder_batch::{
    Attempt, BuildOptions, Builder, Compression, Error, OnDuplicate, Partitions, Version, diff,
};
use larder_types::{ByteSize, SLOTS, SlotSet};
use proptest::prelude::*;

use crate::support::{build, options, pairs, records, some_records, uniform_records};

/// Compares all read operations of a version with a map of the records.
pub fn check(version: &Version, oracle: &BTreeMap<Vec<u8>, Vec<u8>>) {
    assert_eq!(version.manifest().record_count, oracle.len() as u64);
    for (key, value) in oracle {
        assert_eq!(
            version.get(key).expect("undamaged").as_deref(),
            Some(&value[..])
        );
        let absent = [key, &b"?"[..]].concat();
        if !oracle.contains_key(&absent) {
            assert_eq!(version.get(&absent).expect("undamaged"), None);
        }
        match version.try_get(key).expect("undamaged") {
            Attempt::Ready(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Attempt::WouldBlock => {}
        }
    }
    let keys: Vec<&[u8]> = oracle
        .keys()
        .flat_map(|key| [&key[..], b"no such key"])
        .collect();
    let mut found = Vec::new();
    version.get_many(&keys, &mut found);
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(
            found.expect("undamaged").as_deref(),
            oracle.get(*key).map(|value| &value[..])
        );
    }
    let all: BTreeMap<Vec<u8>, Vec<u8>> = version
        .iter()
        .map(|record| record.expect("undamaged"))
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    assert_eq!(&all, oracle);
    assert_eq!(
        version.verify(&|_| true).expect("undamaged").record_count,
        oracle.len() as u64
    );

    let (mut cursor, mut scanned) = (0, Vec::new());
    loop {
        let page = version.scan(cursor, 7).expect("undamaged");
        scanned.extend(page.keys.into_iter().map(Vec::from));
        cursor = page.next_cursor;
        if cursor == 0 {
            break;
        }
    }
    scanned.sort();
    assert!(scanned.iter().eq(oracle.keys()));
}

fn build_and_check(options: BuildOptions, oracle: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let folder = tempfile::tempdir().expect("temp dir");
    let out = folder.path().join("v");
    build(options, &out, pairs(oracle)).expect("builds");
    let version = Version::open(&out).expect("opens");
    check(&version, oracle);
    version.warm(&|_| true);
    check(&version, oracle);
}

fn compressions() -> [Compression; 3] {
    [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 3 },
    ]
}

#[test]
fn built_records_are_found_under_every_option() {
    for compression in compressions() {
        for (partitions, filter, block_size) in [
            (1, true, None),
            (7, false, None),
            (3, true, Some(256)),
            (64, true, Some(1 << 16)),
        ] {
            for (segment_format, is_uniform) in [(1, false), (2, false), (2, true)] {
                build_and_check(
                    BuildOptions {
                        compression,
                        partitions,
                        filter,
                        block_size,
                        segment_format,
                        ..options()
                    },
                    &some_records(3000, is_uniform),
                );
            }
        }
    }
}

#[test]
fn an_empty_version_and_one_with_a_single_record_work() {
    build_and_check(options(), &BTreeMap::new());
    build_and_check(options(), &BTreeMap::from([(b"k".to_vec(), b"".to_vec())]));
}

#[test]
fn values_of_all_sizes_and_the_longest_keys_are_found() {
    for compression in compressions() {
        let sizes = [
            0, 1, 127, 128, 4095, 65_535, 65_536, 65_537, 300_000, 3_000_000,
        ];
        let mut oracle: BTreeMap<Vec<u8>, Vec<u8>> = sizes
            .iter()
            .map(|&size| {
                (
                    format!("{size}").into_bytes(),
                    (0..size as u64).map(|i| ((i * i) >> 3) as u8).collect(),
                )
            })
            .collect();
        oracle.insert(vec![b'k'; 65_536], b"long".to_vec());
        oracle.insert(vec![0], vec![0; 100_000]);
        build_and_check(
            BuildOptions {
                compression,
                ..options()
            },
            &oracle,
        );
    }
}

#[test]
fn repetitive_data_trains_a_dictionary_and_shrinks() {
    let oracle: BTreeMap<Vec<u8>, Vec<u8>> = (0..30_000)
        .map(|i| {
            (
                format!("member:{i}").into_bytes(),
                format!("{{\"name\":\"member {i}\",\"city\":\"Paris\"}}").into_bytes(),
            )
        })
        .collect();
    let folder = tempfile::tempdir().expect("temp dir");
    let sizes = compressions().map(|compression| {
        let out = folder.path().join(compression.to_string());
        let options = BuildOptions {
            compression,
            partitions: 1,
            ..options()
        };
        let manifest = build(options, &out, pairs(&oracle)).expect("builds");
        check(&Version::open(&out).expect("opens"), &oracle);
        manifest.size_bytes
    });
    assert!(sizes[1] < sizes[0] && sizes[2] < sizes[1], "{sizes:?}");
}

#[test]
fn output_is_identical_for_any_threads_memory_and_row_order() {
    let oracle = records(20_000);
    let folder = tempfile::tempdir().expect("temp dir");
    let bytes_of = |name: &str, threads: usize, memory: u64, reversed: bool| {
        let out = folder.path().join(name);
        let builder = Builder::new(
            BuildOptions {
                threads,
                memory: ByteSize(memory),
                ..options()
            },
            &out,
        )
        .expect("options");
        let mut rows: Vec<_> = pairs(&oracle).collect();
        if reversed {
            rows.reverse();
        }
        std::thread::scope(|scope| {
            for part in rows.chunks(rows.len() / 3 + 1) {
                let mut writer = builder.writer();
                scope.spawn(move || {
                    part.iter()
                        .for_each(|(key, value)| writer.push(0, key, value).expect("fits"));
                    writer.close().expect("fits");
                });
            }
        });
        let manifest = builder.finish(&|_| ()).expect("builds");
        let segments = manifest
            .segments
            .iter()
            .map(|segment| fs::read(out.join(&segment.file)).expect("written"));
        (manifest.clone(), segments.collect::<Vec<_>>())
    };
    let one = bytes_of("one", 1, 1 << 30, false);
    assert!(one == bytes_of("two", 4, 16 << 20, true));
}

#[test]
fn rows_beyond_memory_are_sorted_on_disk() {
    let value = vec![b'v'; 1000];
    let folder = tempfile::tempdir().expect("temp dir");
    let out = folder.path().join("v");
    let builder = Builder::new(
        BuildOptions {
            memory: ByteSize(16 << 20),
            ..options()
        },
        &out,
    )
    .expect("options");
    let mut writer = builder.writer();
    for i in 0..60_000u32 {
        writer
            .push(u64::from(i), &i.to_be_bytes(), &value)
            .expect("fits");
    }
    writer.close().expect("fits");
    builder.finish(&|_| ()).expect("builds");
    let version = Version::open(&out).expect("opens");
    assert_eq!(
        version.verify(&|_| true).expect("undamaged").record_count,
        60_000
    );
    assert_eq!(
        fs::read_dir(&out).expect("folder").count(),
        4,
        "three segments and the manifest, nothing else"
    );
}

#[test]
fn a_bucket_larger_than_its_share_is_sorted_in_passes() {
    // With 16 MiB of memory, each thread has 2 MiB for a bucket; 600 values of 64 KiB in few buckets exceed that, and
    // so do the large ones alone.
    let folder = tempfile::tempdir().expect("temp dir");
    let out = folder.path().join("v");
    let options = BuildOptions {
        partitions: 512,
        threads: 2,
        memory: ByteSize(16 << 20),
        ..options()
    };
    let builder = Builder::new(options, &out).expect("options");
    let mut writer = builder.writer();
    for i in 0..1500u32 {
        // A common hash tag: all rows are in one partition, which has a single bucket.
        writer
            .push(
                u64::from(i),
                format!("{{t}}{i}").as_bytes(),
                &vec![i as u8; 10_000],
            )
            .expect("fits");
    }
    writer.close().expect("fits");
    builder.finish(&|_| ()).expect("builds");
    let version = Version::open(&out).expect("opens");
    assert_eq!(
        version.verify(&|_| true).expect("undamaged").record_count,
        1500
    );
    for i in 0..1500u32 {
        assert_eq!(
            version
                .get(format!("{{t}}{i}").as_bytes())
                .expect("undamaged")
                .as_deref(),
            Some(&vec![i as u8; 10_000][..])
        );
    }
}

#[test]
fn duplicates_follow_the_policy() {
    let rows: [(&[u8], &[u8]); 5] = [
        (b"a", b"1"),
        (b"b", b"x"),
        (b"a", b"text"),
        (b"c", b"{\"z\": 1}"),
        (b"a", b"3"),
    ];
    let folder = tempfile::tempdir().expect("temp dir");
    for (policy, a, c) in [
        (OnDuplicate::First, "1", "{\"z\": 1}"),
        (OnDuplicate::Last, "3", "{\"z\": 1}"),
        (
            OnDuplicate::Collect,
            "[\"1\",\"text\",\"3\"]",
            "[\"{\\\"z\\\": 1}\"]",
        ),
    ] {
        let out = folder.path().join(format!("{policy:?}"));
        build(
            BuildOptions {
                on_duplicate: policy,
                ..options()
            },
            &out,
            rows,
        )
        .expect("builds");
        let version = Version::open(&out).expect("opens");
        assert_eq!(
            version.get(b"a").expect("undamaged").as_deref(),
            Some(a.as_bytes())
        );
        assert_eq!(
            version.get(b"c").expect("undamaged").as_deref(),
            Some(c.as_bytes())
        );
        assert_eq!(version.manifest().record_count, 3);
    }
    let out = folder.path().join("error");
    let error = build(options(), &out, rows).expect_err("refused");
    assert!(
        matches!(&error, Error::DuplicateKey { key, .. } if key == b"a"),
        "{error}"
    );
    assert!(!out.exists(), "nothing is left behind");
}

/// Builds 1200 rows of one key, alternating with as many of other keys, in descending order of `seq`. 2 MiB are
/// available for sorting, and 4 MiB for the values of one key.
fn build_with_a_heavy_key(
    on_duplicate: OnDuplicate,
    value_size: usize,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let folder = tempfile::tempdir().expect("temp dir");
    let out = folder.path().join("v");
    let options = BuildOptions {
        partitions: 512,
        threads: 4,
        memory: ByteSize(32 << 20),
        on_duplicate,
        ..options()
    };
    let builder = Builder::new(options, &out).expect("options");
    let mut writer = builder.writer();
    for i in (0..2400u64).rev() {
        // A common hash tag: all rows are in one partition, which has a single bucket.
        let (key, size) = match i % 2 {
            0 => ("{t}heavy".to_owned(), value_size),
            _ => (format!("{{t}}{i}"), 8000),
        };
        let value = format!("{i:0size$}");
        writer.push(i, key.as_bytes(), value.as_bytes())?;
    }
    writer.close()?;
    builder.finish(&|_| ())?;
    let version = Version::open(&out)?;
    let records = version.iter();
    records
        .map(|record| record.map(|(key, value)| (key.into(), value.into())))
        .collect()
}

#[test]
fn a_key_whose_rows_exceed_the_sort_memory_follows_the_policy() {
    let value = |i: u64| format!("{i:02500}");
    let all: Vec<String> = (0..2400).step_by(2).map(value).collect();
    for (on_duplicate, heavy, light) in [
        (OnDuplicate::First, value(0), format!("{:08000}", 7)),
        (OnDuplicate::Last, value(2398), format!("{:08000}", 7)),
        (
            OnDuplicate::Collect,
            serde_json::to_string(&all).expect("texts"),
            format!("[\"{:08000}\"]", 7),
        ),
    ] {
        let records = build_with_a_heavy_key(on_duplicate, 2500).expect("builds");
        assert_eq!(records.len(), 1201);
        assert!(
            records[&b"{t}heavy"[..]] == heavy.as_bytes(),
            "{on_duplicate:?}"
        );
        assert!(
            records[&b"{t}7"[..]] == light.as_bytes(),
            "{on_duplicate:?}"
        );
    }
    let error = build_with_a_heavy_key(OnDuplicate::Error, 10_000).expect_err("refused");
    assert!(
        matches!(&error, Error::DuplicateKey { key, rows: [0, 2] } if key == b"{t}heavy"),
        "{error}"
    );
}

#[test]
fn collecting_one_key_is_rejected_before_it_exceeds_its_memory() {
    let error = build_with_a_heavy_key(OnDuplicate::Collect, 10_000).expect_err("refused");
    assert!(
        error
            .to_string()
            .starts_with("collecting the 1200 values of key \"{t}heavy\" needs 11.5MiB of memory, but 4MiB are available for one key"),
        "{error}"
    );
}

#[test]
fn rows_that_exceed_limits_are_rejected_and_leave_no_files() {
    let folder = tempfile::tempdir().expect("temp dir");
    let long_key = vec![b'k'; 65_537];
    let long_value = vec![b'v'; 1001];
    for (key, value, says) in [
        (&b""[..], &b""[..], "at least one byte"),
        (&long_key, b"", "65537 bytes"),
        (b"k", &long_value, "1001 bytes"),
    ] {
        let out = folder.path().join("v");
        let error = build(
            BuildOptions {
                value_bytes_max: 1000,
                ..options()
            },
            &out,
            [(key, value)],
        )
        .expect_err("refused");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!out.exists());
    }
    let out = folder.path().join("v");
    let builder = Builder::new(options(), &out).expect("options");
    builder.writer().push(0, b"k", b"v").expect("fits");
    let error = builder
        .finish(&|_| ())
        .expect_err("a writer was dropped before it was closed");
    assert!(error.to_string().contains("ended early"), "{error}");
    assert!(!out.exists());
}

#[test]
fn a_diff_names_every_change() {
    let folder = tempfile::tempdir().expect("temp dir");
    let old = records(500);
    let mut new = old.clone();
    new.remove(&b"key-7"[..]);
    new.insert(b"key-8".to_vec(), b"other".to_vec());
    new.insert(b"new".to_vec(), b"".to_vec());
    let open = |name: &str, partitions, records: &BTreeMap<_, _>| {
        let out = folder.path().join(name);
        build(
            BuildOptions {
                partitions,
                ..options()
            },
            &out,
            pairs(records),
        )
        .expect("builds");
        Version::open(&out).expect("opens")
    };
    let (old, new) = (open("old", 2, &old), open("new", 5, &new));
    let mut changes = Vec::new();
    let summary = diff::diff(&old, &new, &mut |change| {
        changes.push(format!("{change:?}"));
        true
    });
    assert_eq!(
        summary.expect("undamaged"),
        diff::DiffSummary {
            added: 1,
            removed: 1,
            changed: 1,
            unchanged: 498
        }
    );
    assert_eq!(changes.len(), 3);

    // The union of the changes of disjoint slot sets is the complete diff.
    let mut parts = Vec::new();
    for part in 0..3 {
        let slots: SlotSet = (0..SLOTS).filter(|slot| slot % 3 == part).collect();
        let summary = diff::diff_slots(&slots, &old, &new, &mut |change| {
            parts.push(format!("{change:?}"));
            true
        });
        assert!(summary.expect("undamaged").unchanged > 50);
    }
    parts.sort();
    changes.sort();
    assert_eq!(parts, changes);
}

#[test]
fn a_scan_continues_on_the_node_of_the_next_partition() {
    let folder = tempfile::tempdir().expect("temp dir");
    let oracle = records(1000);
    let options = BuildOptions {
        partitions: 6,
        ..options()
    };
    let halves = ["one", "other"].map(|name| folder.path().join(name));
    let open = |(half, path): (u32, &std::path::PathBuf)| {
        build(options.clone(), path, pairs(&oracle)).expect("builds");
        let complete = Version::open(path).expect("opens");
        let slots = [2 * half, 2 * half + 1, 5 - half]
            .map(|partition| larder_batch::manifest::slots_of(partition, 6));
        let here = Partitions::of_slots(slots, 6);
        here.keep_only(path, complete.manifest()).expect("removes");
        Version::open(path).expect("opens")
    };
    let halves: Vec<Version> = (0..).zip(&halves).map(open).collect();
    let (mut cursor, mut scanned, mut turns) = (0, Vec::new(), 0);
    loop {
        let page = halves.iter().find_map(|half| half.scan(cursor, 7).ok());
        let page = page.expect("one of them has the partition");
        turns += usize::from(halves.iter().any(|half| half.scan(cursor, 7).is_err()));
        scanned.extend(page.keys.into_iter().map(Vec::from));
        cursor = page.next_cursor;
        if cursor == 0 {
            break;
        }
    }
    assert!(turns > 10, "each of them lacks something");
    scanned.sort();
    assert!(scanned.iter().eq(oracle.keys()));
    let past_end = halves[0].scan(6 << 33, 7);
    assert!(matches!(past_end, Err(larder_batch::Error::Limit { .. })));
}

#[test]
fn a_sample_holds_records_of_the_version() {
    let folder = tempfile::tempdir().expect("temp dir");
    let oracle = records(1000);
    build(options(), &folder.path().join("v"), pairs(&oracle)).expect("builds");
    let version = Version::open(&folder.path().join("v")).expect("opens");
    let sample = version.sample(20, 1 << 20, 42).expect("undamaged");
    assert_eq!((sample.records.len(), sample.is_truncated), (20, false));
    assert!(sample.records.iter().all(|(key, value)| {
        oracle
            .get(&key[..])
            .is_some_and(|known| known[..] == value[..])
    }));
    assert_eq!(
        version.sample(20, 1 << 20, 42).expect("undamaged"),
        sample,
        "one seed, one sample"
    );
    let all = version.sample(5000, 1 << 20, 1).expect("undamaged");
    assert_eq!(all.records.len(), 1000);
    for count in [500, 5000] {
        let some = version.sample(count, 2000, 1).expect("undamaged");
        let bytes: usize = some
            .records
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        assert!(
            some.is_truncated && (1000..=2000).contains(&bytes),
            "{bytes}"
        );
    }
}

/// Most keys fall into a few of the equal hash ranges, so that blocks have far more records than intended.
#[test]
fn crowded_blocks_return_correct_values() {
    for is_uniform in [false, true] {
        let all = some_records(20_000, is_uniform);
        let is_kept = |(at, (key, _)): &(usize, (Vec<u8>, Vec<u8>))| {
            let hash = larder_types::key_hash(key);
            at % 20 == 0 || hash >> 57 == 77 || (hash >> 56 == 9 && at % 3 == 0)
        };
        let kept = all.into_iter().enumerate().filter(is_kept);
        let oracle = kept.map(|(_, record)| record).collect();
        for filter in [false, true] {
            let options = BuildOptions {
                partitions: 1,
                filter,
                ..options()
            };
            build_and_check(options, &oracle);
        }
    }
}

#[test]
fn iteration_follows_hash_order() {
    for is_uniform in [false, true] {
        let folder = tempfile::tempdir().expect("temp dir");
        let out = folder.path().join("v");
        let oracle = some_records(500, is_uniform);
        build(
            BuildOptions {
                partitions: 1,
                ..options()
            },
            &out,
            pairs(&oracle),
        )
        .expect("builds");
        let version = Version::open(&out).expect("opens");
        let keys = version.iter().map(|record| record.expect("undamaged").0);
        let hashes: Vec<u64> = keys.map(|key| larder_types::key_hash(&key)).collect();
        assert_eq!(hashes.len(), 500);
        assert!(hashes.is_sorted());
    }
}

#[test]
fn uniform_records_have_little_overhead() {
    let oracle = uniform_records(5000);
    let folder = tempfile::tempdir().expect("temp dir");
    let options = BuildOptions {
        partitions: 2,
        ..options()
    };
    let built = build(options, &folder.path().join("v"), pairs(&oracle)).expect("builds");
    let size = built.size_bytes;
    let raw: usize = oracle
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    // Per record: three bytes of checksum, ten bits of filter and four of directory.
    assert!(size < raw as u64 + 5000 * 5 + 1000, "{size}, raw {raw}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_records_are_found_under_random_options(
        oracle in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(any::<u8>(), 0..400), 0..300),
        key_size in 4usize..24,
        value_size in 0usize..300,
        is_uniform: bool,
        partitions in 1u32..20,
        filter: bool,
        block_size in 256u32..5000,
        compression in 0usize..3,
        segment_format in 1u32..=2,
    ) {
        let cut = |(key, value): (Vec<u8>, Vec<u8>)| {
            let fit = |mut bytes: Vec<u8>, size| { bytes.resize(size, 7); bytes };
            if is_uniform { (fit(key, key_size), fit(value, value_size)) } else { (key, value) }
        };
        let oracle = oracle.into_iter().map(cut).collect();
        let compression = compressions()[compression];
        let options = BuildOptions { partitions, filter, block_size: Some(block_size), compression, segment_format, ..options() };
        build_and_check(options, &oracle);
    }
}
