//! Compares deltas with a map to which the same changes are applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_batch::{
    Base, BuildOptions, Builder, Compaction, Compression, DeltaBase, Error, Manifest, OnDuplicate,
    Version, diff,
};
use proptest::prelude::*;

use crate::lookups::check;
use crate::support::{build, options, pairs, some_records};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;
/// A new value, or `None` for a removed key.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn on(base: &Path, out: &Path, is_full: bool) -> Result<DeltaBase, Error> {
    let (place, target) = (base.to_str().expect("text"), out.to_str().expect("text"));
    let base = Arc::new(Base::open(base, place, target)?);
    Ok(DeltaBase { base, is_full })
}

fn built_description() -> larder_batch::Built {
    larder_batch::Built {
        by: "a test".to_owned(),
        ..Default::default()
    }
}

fn delta_options(base: &Path, out: &Path, is_full: bool) -> Result<BuildOptions, Error> {
    Ok(BuildOptions {
        delta_base: Some(on(base, out, is_full)?),
        built: Some(built_description()),
        ..options()
    })
}

fn build_changes(base: &Path, out: &Path, changes: &Changes) -> Result<Manifest, Error> {
    let builder = Builder::new(delta_options(base, out, false)?, out)?;
    let mut writer = builder.writer();
    for (seq, (key, value)) in (0..).zip(changes) {
        match value {
            Some(value) => writer.push(seq, key, value)?,
            None => writer.push_removed(seq, key)?,
        }
    }
    writer.close()?;
    builder.finish(&|_| ())
}

fn build_full(base: &Path, out: &Path, records: &Records) -> Result<Manifest, Error> {
    build(delta_options(base, out, true)?, out, pairs(records))
}

fn apply(records: &mut Records, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(records.insert(key.clone(), value.clone())),
            None => drop(records.remove(key)),
        }
    }
}

fn compact(version: &Version, out: &Path) -> Result<Manifest, Error> {
    let compaction = Compaction {
        version,
        by: "a test".to_owned(),
        at: 7,
        sign: None,
        pace: &|_| true,
    };
    compaction.write_new(out)
}

fn bytes_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("list")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|it| it == "segment"))
        .map(|path| {
            let name = path
                .file_name()
                .expect("name")
                .to_string_lossy()
                .into_owned();
            (name, fs::read(path).expect("read"))
        })
        .collect();
    files.sort();
    files
}

fn check_all(folder: &Path, records: &Records) {
    let version = Version::open(folder).expect("opens");
    check(&version, records);
    version.warm(&|_| true);
    assert!(version.is_resident());
    check(&version, records);
    let sample = version.sample(20, 1 << 20, 7).expect("undamaged");
    assert_eq!(sample.records.len().min(1), records.len().min(1));
    let mut seen = BTreeSet::new();
    for (key, value) in sample.records {
        assert_eq!(records.get(&*key).map(|it| &it[..]), Some(&*value));
        assert!(seen.insert(key), "a key comes once");
    }
    let totals = version.manifest();
    let key_bytes: usize = records.keys().map(Vec::len).sum();
    let value_bytes: usize = records.values().map(Vec::len).sum();
    assert_eq!(
        (totals.key_bytes, totals.value_bytes),
        (key_bytes as u64, value_bytes as u64)
    );
}

/// Builds each set of changes on the previous version and checks everything after each; then compacts.
fn check_history(options: BuildOptions, first: Records, history: &[Changes]) {
    let temp = tempfile::tempdir().expect("temp dir");
    let place = |name: &str, at: usize| temp.path().join(format!("{name}{at}"));
    let mut records = first;
    let mut below: PathBuf = place("v", 0);
    build(options.clone(), &below, pairs(&records)).expect("builds");
    for (at, changes) in (1..).zip(history) {
        let before = records.clone();
        apply(&mut records, changes);
        let (out, full) = (place("v", at), place("full", at));
        let manifest = build_changes(&below, &out, changes).expect("builds");
        assert_eq!(manifest.layer_count(), at + 1);
        if at == 1 || at == history.len() {
            check_all(&out, &records);
        }
        let differences = build_full(&below, &full, &records).expect("builds");
        assert_eq!(differences.record_count, manifest.record_count);
        if at == history.len() {
            check_all(&full, &records);
        }
        let (old, new) = (
            Version::open(&below).expect("opens"),
            Version::open(&out).expect("opens"),
        );
        let summary = diff::diff(&old, &new, &mut |_| true).expect("undamaged");
        let is_gone = |key: &&Vec<u8>| !records.contains_key(*key);
        assert_eq!(
            summary.removed,
            before.keys().filter(is_gone).count() as u64
        );
        let same = before
            .iter()
            .filter(|(key, value)| records.get(*key) == Some(value))
            .count();
        assert_eq!(summary.unchanged, same as u64);
        below = out;
    }
    let (complete, compacted) = (temp.path().join("whole"), temp.path().join("compacted"));
    let manifest = build(options, &complete, pairs(&records)).expect("builds");
    let layered = Version::open(&below).expect("opens");
    let made = compact(&layered, &compacted).expect("compacts");
    assert_eq!(made.digest, manifest.digest);
    assert!(
        bytes_of(&compacted) == bytes_of(&complete),
        "the same bytes"
    );
    check_all(&compacted, &records);
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// Returns changes: a tenth of the keys change, some are removed and some are added. Every third time a value is
/// larger than a block.
fn some_changes(count: u32, round: u32, is_uniform: bool) -> Changes {
    let changed = (0..count).step_by(10).map(|number| {
        let number = number + round;
        let value = if is_uniform {
            format!("value of some LENGTH {:08}", number * round)
        } else {
            format!("{round} ").repeat((number % 40) as usize + (number % 3 / 2 * 30_000) as usize)
        };
        (key(number), Some(value.into_bytes()))
    });
    let removed = (0..count)
        .step_by(17)
        .map(|number| (key(number + round), None));
    changed.chain(removed).collect()
}

#[test]
fn layers_behave_like_one_version_under_every_option() {
    for compression in [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 3 },
    ] {
        for (partitions, filter, is_uniform) in
            [(1, true, true), (3, false, false), (5, true, false)]
        {
            let options = BuildOptions {
                compression,
                partitions,
                filter,
                ..options()
            };
            let history: Vec<Changes> = (1..=7)
                .map(|round| some_changes(600, round, is_uniform))
                .collect();
            check_history(options, some_records(400, is_uniform), &history);
        }
    }
}

#[test]
fn removing_everything_and_adding_to_nothing_work() {
    let all: Changes = some_records(50, true)
        .into_keys()
        .map(|key| (key, None))
        .collect();
    let again: Changes = some_records(50, false)
        .into_iter()
        .map(|(key, value)| (key, Some(value)))
        .collect();
    check_history(
        options(),
        some_records(50, true),
        &[all, again, Changes::new()],
    );
    let many: Changes = some_records(1000, true)
        .into_iter()
        .map(|(key, value)| (key, Some(value)))
        .collect();
    check_history(options(), Records::new(), &[Changes::new(), many]);
}

#[test]
fn rows_that_equal_the_base_are_not_written() {
    let temp = tempfile::tempdir().expect("temp dir");
    let (base, out, full) = (
        temp.path().join("a"),
        temp.path().join("b"),
        temp.path().join("c"),
    );
    let records = some_records(1000, true);
    build(options(), &base, pairs(&records)).expect("builds");
    let mut changes: Changes = records
        .iter()
        .map(|(key, value)| (key.clone(), Some(value.clone())))
        .collect();
    changes.insert(b"no such key".to_vec(), None);
    changes.insert(key(3), Some(b"new".to_vec()));
    let manifest = build_changes(&base, &out, &changes).expect("builds");
    let written: u64 = manifest.segments.iter().map(|it| it.record_count).sum();
    assert_eq!(written, 1);
    let mut now = records;
    now.insert(key(3), b"new".to_vec());
    let manifest = build_full(&base, &full, &now).expect("builds");
    let written: u64 = manifest.segments.iter().map(|it| it.record_count).sum();
    assert_eq!((written, manifest.own_bytes() < 4000), (1, true));
    check_all(&full, &now);
}

#[test]
fn a_delta_is_the_same_when_built_with_little_memory() {
    let temp = tempfile::tempdir().expect("temp dir");
    let base = temp.path().join("base");
    let value = |number: u32| vec![(number % 251) as u8; 3000 + number as usize % 100];
    let mut records: Records = (0..12_000)
        .map(|number| (key(number), value(number)))
        .collect();
    build(options(), &base, pairs(&records)).expect("builds");
    for number in (0..12_000).step_by(3) {
        records.insert(key(number), value(number + 1));
    }
    records.retain(|key, _| !key.ends_with(b"7"));
    let digests = [16u64 << 20, 1 << 30].map(|memory| {
        let out = temp.path().join(format!("in-{memory}"));
        let options = BuildOptions {
            memory: larder_types::ByteSize(memory),
            ..delta_options(&base, &out, true).expect("a base")
        };
        build(options, &out, pairs(&records))
            .expect("builds")
            .digest
    });
    assert_eq!(digests[0], digests[1]);
    check_all(&temp.path().join("in-16777216"), &records);
}

#[test]
fn duplicate_changes_and_removals_follow_the_policy() {
    let temp = tempfile::tempdir().expect("temp dir");
    let base = temp.path().join("base");
    build(options(), &base, pairs(&some_records(10, true))).expect("builds");
    let built = |name: &str, on_duplicate, removed_first: bool| {
        let out = temp.path().join(name);
        let options = BuildOptions {
            on_duplicate,
            ..delta_options(&base, &out, false)?
        };
        let builder = Builder::new(options, &out)?;
        let mut writer = builder.writer();
        let (given, removed) = if removed_first { (1, 0) } else { (0, 1) };
        writer.push(given, &key(1), b"\"new\"")?;
        writer.push_removed(removed, &key(1))?;
        writer.push(2, &key(2), b"2")?;
        writer.push(3, b"other", b"3")?;
        writer.close()?;
        builder.finish(&|_| ())?;
        let version = Version::open(&out)?;
        let found = version.get(&key(1))?.map(|it| it.to_vec());
        Ok::<_, Error>((found, version.get(b"other")?.map(|it| it.to_vec())))
    };
    let last = built("last", OnDuplicate::Last, false).expect("builds");
    assert_eq!(last, (None, Some(b"3".to_vec())));
    let again = built("again", OnDuplicate::Last, true).expect("builds");
    assert_eq!(again.0.as_deref(), Some(&b"\"new\""[..]));
    let error = built("error", OnDuplicate::Error, false).expect_err("refused");
    assert!(
        error.to_string().contains("two rows have the key"),
        "{error}"
    );
    let error = built("collect", OnDuplicate::Collect, false).expect_err("refused");
    assert!(error.to_string().contains("a removal"), "{error}");
}

#[test]
fn collected_values_replace_those_of_the_base() {
    let temp = tempfile::tempdir().expect("temp dir");
    let (base, out) = (temp.path().join("base"), temp.path().join("out"));
    let collect = |options| BuildOptions {
        on_duplicate: OnDuplicate::Collect,
        ..options
    };
    let rows =
        |rows: &'static [(&str, &str)]| rows.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes()));
    build(
        collect(options()),
        &base,
        rows(&[("a", "1"), ("a", "2"), ("b", "3")]),
    )
    .expect("builds");
    let options = collect(delta_options(&base, &out, false).expect("a base"));
    let builder = Builder::new(options, &out).expect("begins");
    let mut writer = builder.writer();
    writer.push(0, b"a", b"4").expect("a row");
    writer.push(1, b"a", b"5").expect("a row");
    writer.push_removed(2, b"b").expect("a row");
    writer.close().expect("closed");
    builder.finish(&|_| ()).expect("builds");
    let records = Records::from([(b"a".to_vec(), br#"["4","5"]"#.to_vec())]);
    check_all(&out, &records);
}

#[test]
fn a_missing_damaged_or_different_base_is_rejected() {
    let temp = tempfile::tempdir().expect("temp dir");
    let place = |name: &str| temp.path().join(name);
    let (base, out) = (place("base"), place("out"));
    let records = some_records(300, false);
    build(options(), &base, pairs(&records)).expect("builds");
    let changes = Changes::from([(key(1), None), (key(2), Some(b"x".to_vec()))]);
    build_changes(&base, &out, &changes).expect("builds");
    let refused = |path: &Path| {
        Version::open(path)
            .map(drop)
            .expect_err("refused")
            .to_string()
    };

    fs::rename(&base, place("away")).expect("rename");
    assert!(
        refused(&out).contains("base; restore it, or build a complete version"),
        "{}",
        refused(&out)
    );
    build(options(), &base, pairs(&some_records(300, true))).expect("builds");
    assert!(refused(&out).contains("another one"), "{}", refused(&out));
    fs::remove_dir_all(&base).expect("remove");
    fs::rename(place("away"), &base).expect("rename");
    Version::open(&out).expect("it is back");

    // Both may be moved together.
    fs::create_dir(place("moved")).expect("a folder");
    for name in ["base", "out"] {
        fs::rename(place(name), place("moved").join(name)).expect("rename");
    }
    let (base, out) = (place("moved").join("base"), place("moved").join("out"));
    Version::open(&out).expect("side by side still");

    let segment = base.join("p00001.segment");
    let bytes = fs::read(&segment).expect("read");
    fs::write(&segment, &bytes[..bytes.len() - 1]).expect("cut");
    assert!(
        refused(&out).contains("p00001.segment is damaged"),
        "{}",
        refused(&out)
    );
    let error = build_changes(&base, &place("next"), &changes).expect_err("refused");
    assert!(error.to_string().contains("is damaged"), "{error}");
    let mut flipped = bytes.clone();
    flipped[40] ^= 1;
    fs::write(&segment, &flipped).expect("write");
    let error = build_full(&base, &place("next"), &records).expect_err("refused");
    assert!(matches!(error, Error::Corrupted { .. }), "{error}");
    assert!(!place("next").exists(), "nothing is left of what failed");
    fs::write(&segment, &bytes).expect("write");
    let manifest = base.join(Manifest::FILE);
    let mut text = fs::read(&manifest).expect("read");
    text[100] ^= 1;
    fs::write(&manifest, text).expect("write");
    assert!(refused(&out).contains("manifest"), "{}", refused(&out));
}

/// The location of the lower version must be recorded even if the builder describes nothing else.
#[test]
fn a_delta_without_a_build_description_finds_its_base() {
    let temp = tempfile::tempdir().expect("temp dir");
    let place = |at: usize| temp.path().join(format!("v{at}"));
    let mut records = some_records(10, true);
    build(options(), &place(0), pairs(&records)).expect("builds");
    let untold = BuildOptions {
        built: None,
        ..delta_options(&place(0), &place(1), true).expect("a base")
    };
    records.remove(&key(3));
    build(untold, &place(1), pairs(&records)).expect("builds");
    check_all(&place(1), &records);
}

/// The layout of a server's folder, and of a copy of one.
#[test]
fn a_folder_with_all_its_layers_is_usable_as_a_base() {
    let temp = tempfile::tempdir().expect("temp dir");
    let place = |name: &str| temp.path().join(name);
    let mut records = some_records(10, true);
    build(options(), &place("monday"), pairs(&records)).expect("builds");
    records.remove(&key(3));
    let manifest = build_full(&place("monday"), &place("tuesday"), &records).expect("builds");
    for layer in &manifest.layers {
        for segment in &layer.segments {
            let (from, to) = (place("monday"), place("tuesday"));
            fs::copy(from.join(&segment.file), to.join(&segment.file)).expect("copied");
        }
    }
    fs::remove_dir_all(place("monday")).expect("removed");
    check_all(&place("tuesday"), &records);
    records.remove(&key(4));
    build_full(&place("tuesday"), &place("wednesday"), &records).expect("builds");
    check_all(&place("wednesday"), &records);
    // Some files of a lower layer are missing.
    let lost = &manifest.layers[0].segments[0].file;
    fs::remove_file(place("tuesday").join(lost)).expect("removed");
    assert!(Version::open(&place("wednesday")).is_err());
}

#[test]
fn a_base_with_too_many_layers_missing_partitions_or_another_store_is_rejected() {
    let temp = tempfile::tempdir().expect("temp dir");
    let place = |at: usize| temp.path().join(format!("v{at}"));
    build(options(), &place(0), pairs(&some_records(10, true))).expect("builds");
    for at in 1..Manifest::LAYERS_MAX {
        let changes = Changes::from([(key(at as u32), None)]);
        build_changes(&place(at - 1), &place(at), &changes).expect("builds");
    }
    let last = place(Manifest::LAYERS_MAX - 1);
    let refused = |error: Error| error.to_string();
    let error = on(&last, &place(99), false).map(drop).expect_err("refused");
    assert!(refused(error).contains("it has 8 layers"));
    let other = BuildOptions {
        delta_base: Some(on(&place(1), &place(99), false).expect("a base")),
        ..BuildOptions::new("other".parse().expect("a name"))
    };
    let error = Builder::new(other, &place(99))
        .map(drop)
        .expect_err("refused");
    assert!(refused(error).contains("the base is a version of store pymk"));
    let old = BuildOptions {
        segment_format: 1,
        ..options()
    };
    build(old, &place(50), pairs(&some_records(10, true))).expect("builds");
    let error = on(&place(50), &place(99), false)
        .map(drop)
        .expect_err("refused");
    assert!(refused(error).contains("build a complete version once"));
    let error =
        compact(&Version::open(&place(0)).expect("opens"), &place(99)).expect_err("refused");
    assert!(refused(error).contains("nothing to compact"));
    assert!(!place(99).exists());
}

#[test]
fn the_signature_of_a_delta_covers_every_layer() {
    let temp = tempfile::tempdir().expect("temp dir");
    let (base, out) = (temp.path().join("base"), temp.path().join("out"));
    build(options(), &base, pairs(&some_records(100, true))).expect("builds");
    let key = larder_batch::SecretKey::from_seed([1; 32]);
    let options = BuildOptions {
        sign: Some(key.clone()),
        ..delta_options(&base, &out, false).expect("a base")
    };
    let manifest = build(options, &out, [(&b"k"[..], &b"v"[..])]).expect("builds");
    assert_eq!(manifest.check_signature(&[key.public()]), Ok(()));
    let mut changed = manifest;
    changed.layers[0].segments[0].digest = "0".repeat(64);
    assert!(changed.check_signature(&[key.public()]).is_err());
}

#[test]
fn every_flipped_bit_of_a_delta_is_found_or_harmless() {
    let temp = tempfile::tempdir().expect("temp dir");
    let (base, out) = (temp.path().join("base"), temp.path().join("out"));
    let mut records = some_records(40, false);
    let options = BuildOptions {
        partitions: 1,
        ..options()
    };
    build(options, &base, pairs(&records)).expect("builds");
    let changes = some_changes(40, 1, false);
    build_changes(&base, &out, &changes).expect("builds");
    apply(&mut records, &changes);
    let path = out.join("p00000.1.segment");
    let intact = fs::read(&path).expect("read");
    let bits = intact.len() * 8;
    for bit in (0..bits).step_by(bits / 700 + 1) {
        let mut damaged = intact.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &damaged).expect("write");
        let Ok(version) = Version::open(&out) else {
            continue;
        };
        assert!(version.verify(&|_| true).is_err(), "bit {bit}");
        for key in records.keys().chain(changes.keys()) {
            match version.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), records.get(key).map(|it| &it[..])),
                Err(error) => assert!(matches!(error, Error::Corrupted { .. }), "{error}"),
            }
        }
    }
}

fn any_changes() -> impl Strategy<Value = Changes> {
    let value = prop_oneof![
        2 => Just(None),
        5 => (0..40usize, any::<u8>()).prop_map(|(size, byte)| Some(vec![byte; size])),
        1 => (65_530..65_545usize, any::<u8>()).prop_map(|(size, byte)| Some(vec![byte; size])),
    ];
    proptest::collection::btree_map((0..60u32).prop_map(key), value, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_layers_answer_as_a_map_does(
        first in any_changes(),
        history in proptest::collection::vec(any_changes(), 1..5),
        partitions in 1..5u32,
        compression in 0..3usize,
        filter in any::<bool>(),
    ) {
        let compression = [Compression::None, Compression::Lz4, Compression::Zstd { level: 1 }][compression];
        let first = first.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        check_history(BuildOptions { partitions, compression, filter, ..options() }, first, &history);
    }
}
