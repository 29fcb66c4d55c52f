use std::fs;

use larder_batch::{StoreDir, Version};
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
fn what_a_crash_left_is_swept_and_is_never_a_version() {
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
