use std::fs;

use larder_batch::{Error, Partitions, StoreDir, Version};
use larder_types::VersionId;

use crate::support::{build, options, pairs, records};

#[test]
fn a_version_is_pulled_published_made_live_and_removed() {
    let data = tempfile::tempdir().expect("temp dir");
    let store =
        StoreDir::open_or_create(data.path(), &"pymk".parse().expect("a name")).expect("made");
    assert_eq!(store.live().expect("read"), None);
    let version = store.next_version().expect("read");
    assert_eq!(version, VersionId(1));
    let pull = store.begin_pull(version).expect("made");
    assert_eq!(
        store.next_version().expect("read"),
        VersionId(2),
        "a pull's number is taken"
    );
    assert_eq!(store.pulls().expect("read"), [(version, pull.clone())]);
    build(options(), &pull, pairs(&records(10))).expect("builds");
    assert!(store.set_live(Some(version)).is_err(), "not published yet");
    let path = store.publish(version).expect("published");
    store.set_live(Some(version)).expect("live");
    assert_eq!(store.live().expect("read"), Some(version));
    assert_eq!(store.versions().expect("read"), [version]);
    assert!(store.remove(version).is_err(), "the live version stays");

    let open = Version::open(&path).expect("opens");
    store.set_live(None).expect("none live");
    assert_eq!(store.live().expect("read"), None);
    store.remove(version).expect("removed");
    assert!(!path.exists());
    assert_eq!(
        open.get(b"key-3")
            .expect("still readable")
            .map(|value| value.len()),
        Some(24)
    );
}

#[test]
fn remains_of_a_crash_are_swept_and_never_become_versions() {
    let data = tempfile::tempdir().expect("temp dir");
    let store =
        StoreDir::open_or_create(data.path(), &"pymk".parse().expect("a name")).expect("made");
    for name in ["v0000000003.trash", "v0000000004.pull", "v5", "other"] {
        fs::create_dir(store.path().join(name)).expect("made");
    }
    assert_eq!(store.versions().expect("read"), []);
    assert_eq!(store.next_version().expect("read"), VersionId(5));
    store.sweep().expect("swept");
    assert!(!store.path().join("v0000000003.trash").exists());
    assert!(
        store.path().join("v0000000004.pull").exists(),
        "a pull can resume"
    );
    fs::write(store.path().join("LIVE"), "seven").expect("write");
    let error = store.live().expect_err("nonsense");
    assert!(error.to_string().contains("not a link"), "{error}");
}

/// A node of a cluster keeps only the partitions of its slots.
#[test]
fn absent_partitions_are_reported_as_on_another_node() {
    let folder = tempfile::tempdir().expect("temp dir");
    let path = folder.path().join("version");
    let manifest = build(options(), &path, pairs(&records(300))).expect("builds");
    let complete = Version::open(&path).expect("opens");
    let first = Partitions::of_slots([manifest.segments[0].slots], 3);
    first.keep_only(&path, &manifest).expect("two are removed");
    assert!(!path.join(&manifest.segments[2].file).exists());

    let part = Version::open(&path).expect("opens without them");
    assert_eq!(part.local_partitions(), first);
    assert!(!part.has_all_partitions() && complete.has_all_partitions());
    assert_eq!(part.local_size_bytes(), manifest.segments[0].size_bytes);
    let (mut here, mut elsewhere) = (0, 0);
    let keys: Vec<Vec<u8>> = (0..320).map(|i| format!("key-{i}").into_bytes()).collect();
    for resident in [false, true] {
        if resident {
            part.warm(&|_| true);
        }
        for key in &keys {
            let expected = complete.get(key).expect("it is still open");
            match part.get(key) {
                Ok(found) => {
                    assert!(part.has_partition_of(key));
                    assert_eq!(found.as_deref(), expected.as_deref());
                    here += 1;
                }
                Err(Error::NotHere { partition, .. }) => {
                    assert!(!part.has_partition_of(key) && partition > 0);
                    assert!(matches!(part.try_get(key), Err(Error::NotHere { .. })));
                    elsewhere += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = Vec::new();
        part.get_many(&keys, &mut found);
        for (key, found) in keys.iter().zip(found) {
            let one = part
                .get(key)
                .map(|value| value.map(|value| value.into_vec()));
            let found = found.map(|value| value.map(|value| value.into_vec()));
            assert_eq!(found.ok(), one.ok());
        }
    }
    assert!(here > 150 && elsewhere > 300, "{here} {elsewhere}");
    let report = part.verify(&|_| true).expect("what is here is sound");
    assert_eq!(report.record_count, manifest.segments[0].record_count);
    let is_not_here = |result: Result<(), Error>| matches!(result, Err(Error::NotHere { .. }));
    // The scan stops at a partition that is not present; a node that has it continues there.
    let page = part.scan(0, 1000).expect("the first partition is here");
    assert_eq!(page.keys.len() as u64, manifest.segments[0].record_count);
    assert!(is_not_here(part.scan(page.next_cursor, 1000).map(|_| ())));
    assert!(is_not_here(part.iter().try_for_each(|it| it.map(|_| ()))));
    assert_eq!(
        part.sample(5, 1 << 20, 1)
            .expect("of what is here")
            .records
            .len(),
        5
    );

    fs::write(path.join(Partitions::FILE), "{\"here\":[[2,3]]}").expect("write");
    assert!(matches!(Version::open(&path), Err(Error::Corrupted { .. })));
}
