//! Increments on a server: fetched and linked files, a base that is absent or different, compaction, and kills of the
//! server at every step of a compaction.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_batch::{Base, BuildOptions, Builder, Built, DeltaBase, Manifest};
use larder_client::Reply;
use larder_protocol::http::{Gates, PullRequest, PullState, PullStatus, Settings, VersionStatus};

use crate::fixture::{
    RECORDS, STORE, build, build_command, leftovers, pull, pull_ok, served, store, succeed, value,
};
use crate::support::{
    Server, run_failing, run_ok, show, spawn_server, spawn_server_with, text, write_csv,
};

/// Builds a delta that gives every key its value in the data set of `letter`.
fn build_on(letter: char, base: &Path, folder: &Path) -> PathBuf {
    build_some_on(letter, base, folder, 1)
}

/// Like [`build_on`], for every `step`th key.
fn build_some_on(letter: char, base: &Path, folder: &Path, step: usize) -> PathBuf {
    let (place, target) = (base.to_str().unwrap(), folder.to_str().unwrap());
    let options = BuildOptions {
        delta_base: Some(DeltaBase {
            base: Arc::new(Base::open(base, place, target).unwrap()),
            is_full: false,
        }),
        built: Some(Built::default()),
        ..BuildOptions::new(store())
    };
    let builder = Builder::new(options, folder).unwrap();
    let mut rows = builder.writer();
    for number in (0..RECORDS).step_by(step) {
        let (key, value) = (format!("key{number}"), value(letter, number));
        rows.push(number, key.as_bytes(), value.as_bytes()).unwrap();
    }
    rows.close().unwrap();
    builder.finish(&|_| {}).unwrap();
    folder.to_owned()
}

fn manifest(folder: &Path) -> Manifest {
    let bytes = fs::read(folder.join(Manifest::FILE)).unwrap();
    Manifest::decode("a version", &bytes).unwrap()
}

fn live(server: &Server) -> VersionStatus {
    let status = server.admin().store(&store()).unwrap();
    status.versions.into_iter().find(|it| it.live).unwrap()
}

#[track_caller]
fn pulled(server: &Server, source: &Path) -> PullStatus {
    let status = pull(server, source.to_str().unwrap()).unwrap();
    assert_eq!(status.state, PullState::Done, "{:?}", status.error);
    status
}

#[track_caller]
fn refused(server: &Server, source: &Path) -> String {
    let status = pull(server, source.to_str().unwrap()).unwrap();
    assert_eq!(status.state, PullState::Failed);
    status.error.unwrap().message
}

#[test]
fn a_delta_transfers_only_its_own_bytes_and_outlives_its_base() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_on('b', &a, &place("b"));
    let c = build_on('c', &b, &place("c"));
    let data = place("data");
    let server = spawn_server_with(&data, |command| {
        command.env("LARDER_STORES_RETAIN_VERSIONS", "1");
    });
    assert_eq!(pulled(&server, &a).bytes_linked, 0);
    for (version, letter) in [(&b, 'b'), (&c, 'c')] {
        let status = pulled(&server, version);
        let fetched = status.bytes_done - status.bytes_linked;
        assert_eq!(fetched, manifest(version).own_bytes());
        assert_eq!(served(&server), letter);
    }
    assert_eq!(live(&server).layers, 3);
    // The base is gone, on the server and where it was built.
    let kept = server.admin().store(&store()).unwrap().versions;
    assert_eq!(kept.len(), 2);
    fs::remove_dir_all(&a).unwrap();
    assert!(server.admin().verify(&store(), None).unwrap().ok);
    let server_url = ["--server", &server.http];
    let output = run_ok(
        [
            &["store", "diff", STORE, "previous", "live"][..],
            &server_url,
        ]
        .concat(),
    );
    assert!(
        output.contains("3,000") || output.contains("3000"),
        "{output}"
    );
    let info = run_ok([&["store", "info", STORE][..], &server_url].concat());
    assert!(info.contains("layers"), "{info}");
    run_ok([&["store", "rollback", STORE][..], &server_url].concat());
    assert_eq!(served(&server), 'b');
    server.kill();
    let server = spawn_server(&data);
    assert_eq!(served(&server), 'b');
    // Another server pulls the version from this one, without the base.
    let other = spawn_server(&place("other"));
    let files = format!("{}/v1/stores/{STORE}/versions/live/files", server.http);
    let host = server.http.trim_start_matches("http://").to_owned();
    drop(other);
    let other = spawn_server_with(&place("other"), |command| {
        command.env("LARDER_FETCH_ALLOW", format!("http://{host}/"));
    });
    let status = pull(&other, &files).unwrap();
    assert_eq!(status.state, PullState::Done, "{:?}", status.error);
    assert_eq!(served(&other), 'b');
}

#[test]
fn a_delta_is_built_on_a_servers_live_delta() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let rows = |name: &str, rows: &[(&str, &str)]| {
        let owned = |it: &(&str, &str)| (it.0.to_owned(), it.1.to_owned());
        write_csv(temp.path(), name, rows.iter().map(owned))
    };
    let server = spawn_server(&place("data"));
    let (a, b, c) = (place("a"), place("b"), place("c"));
    let input = rows("a.csv", &[("k1", "a1"), ("k2", "a2"), ("k3", "a3")]);
    succeed(&mut build_command(&input, &a));
    let input = rows("b.csv", &[("k2", "b2")]);
    succeed(build_command(&input, &b).arg("--on").arg(&a));
    pulled(&server, &a);
    pulled(&server, &b);
    fs::remove_dir_all(&a).unwrap();
    fs::remove_dir_all(&b).unwrap();

    let files = format!("{}/v1/stores/{STORE}/versions/live/files", server.http);
    let input = rows("c.csv", &[("k3", "c3")]);
    succeed(build_command(&input, &c).args(["--on", &files]));
    // The delta names the version by its number, because the live version may change before the delta is pushed.
    let numbered = files.replace("/live/", "/2/");
    assert_eq!(manifest(&c).built.unwrap().on, [&numbered[..], &numbered]);
    let host = server.http.trim_start_matches("http://");
    let other = spawn_server_with(&place("other"), |command| {
        let local = temp.path().display();
        command.env("LARDER_FETCH_ALLOW", format!("http://{host}/,{local}"));
    });
    for server in [&other, &server] {
        pulled(server, &c);
        let values = ["k1", "k2", "k3"].map(|key| {
            let key = format!("{STORE}:{key}");
            server.resp().command(&[b"GET", key.as_bytes()]).unwrap()
        });
        let expected = ["a1", "b2", "c3"].map(|value| Reply::Bulk(value.into()));
        assert_eq!(values, expected);
    }

    let refused = |on: &str| {
        let output = build_command(&input, place("d"))
            .args(["--on", on])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", show(&output));
        text(&output.stderr)
    };
    let stdout = refused(&server.http);
    assert!(
        stdout.contains("is not a version") && stdout.contains("/versions/live/files"),
        "{stdout}"
    );
}

#[test]
fn a_served_segment_of_another_version_is_rejected_as_a_base() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let data = place("data");
    let server = spawn_server(&data);
    let (a, b) = (build('a', &place("a")), build('b', &place("b")));
    pull_ok(&server, &a);
    let segment = &manifest(&a).segments[0].file;
    let other = fs::read(b.join(segment)).unwrap();
    let served = data.join(format!("stores/{STORE}/v0000000001/{segment}"));
    assert_eq!(fs::metadata(&served).unwrap().len(), other.len() as u64);
    fs::remove_file(&served).unwrap();
    fs::write(&served, other).unwrap();

    let files = format!("{}/v1/stores/{STORE}/versions/live/files", server.http);
    let input = write_csv(temp.path(), "c.csv", [("k".to_owned(), "v".to_owned())]);
    let output = build_command(&input, place("c"))
        .args(["--on", &files])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", show(&output));
    let stdout = text(&output.stderr);
    assert!(
        stdout.contains(segment) && stdout.contains("does not have the digest"),
        "{stdout}"
    );
}

#[test]
fn a_server_pulls_a_missing_base_from_its_build_location() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_on('b', &a, &place("b"));
    let server = spawn_server(&place("data"));
    fs::rename(&a, place("away")).unwrap();
    let output = refused(&server, &b);
    assert!(
        output.contains("this version is a delta") && output.contains("push the base first"),
        "{output}"
    );
    build('x', &a);
    let output = refused(&server, &b);
    assert!(
        output.contains("is not the version that the delta was built on"),
        "{output}"
    );
    fs::remove_dir_all(&a).unwrap();
    fs::rename(place("away"), &a).unwrap();
    let segment = a.join("p00002.segment");
    let bytes = fs::read(&segment).unwrap();
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    fs::write(&segment, damaged).unwrap();
    let output = refused(&server, &b);
    assert!(
        output.contains("p00002.segment had a digest other than"),
        "{output}"
    );
    fs::write(&segment, bytes).unwrap();
    assert_eq!(pulled(&server, &b).bytes_linked, 0);
    assert_eq!(served(&server), 'b');
    assert_eq!(leftovers(&place("data")), [""; 0]);
}

/// `today` is a link to a delta that is stored next to its base.
#[test]
fn the_base_of_a_delta_behind_a_link_is_found_beside_the_delta_itself() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    fs::create_dir(place("built")).unwrap();
    let a = build('a', &place("built/a"));
    let b = build_on('b', &a, &place("built/b"));
    std::os::unix::fs::symlink(&b, place("today")).unwrap();
    let server = spawn_server(&place("data"));
    assert_eq!(pulled(&server, &place("today")).bytes_linked, 0);
    assert_eq!(served(&server), 'b');
    let today = place("today").display().to_string();
    assert!(run_ok(["get", &today, "key1"]).starts_with('b'));
    fs::rename(&a, place("away")).unwrap();
    let other = spawn_server(&place("other"));
    let output = refused(&other, &place("today"));
    assert!(output.contains("built/a/manifest.json"), "{output}");
}

#[test]
fn an_unchanged_partition_is_linked_and_a_damaged_one_is_fetched() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let (a, data) = (build('a', &place("a")), place("data"));
    let server = spawn_server(&data);
    pull_ok(&server, &a);
    let again = pulled(&server, &a);
    assert_eq!(again.bytes_linked, manifest(&a).size_bytes);
    let file = |version: u64| data.join(format!("stores/{STORE}/v{version:010}/p00001.segment"));
    let inode = |version| fs::metadata(file(version)).unwrap().ino();
    assert_eq!(inode(1), inode(2));
    let mut bytes = fs::read(file(1)).unwrap();
    bytes[100] ^= 1;
    fs::write(file(1), bytes).unwrap();
    let again = pulled(&server, &a);
    let size = manifest(&a).segments[1].size_bytes;
    assert_eq!(again.bytes_done - again.bytes_linked, size);
    assert!(server.admin().verify(&store(), None).unwrap().ok);
    assert_ne!(inode(2), inode(3));
}

#[test]
fn damage_to_a_shared_file_affects_all_its_versions_until_the_next_push() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let (a, data) = (build('a', &place("a")), place("data"));
    let b = build_some_on('b', &a, &place("b"), 7);
    let server = spawn_server(&data);
    pull_ok(&server, &a);
    pull_ok(&server, &b);
    let file = data.join(format!("stores/{STORE}/v0000000001/p00001.segment"));
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let verified = server.admin().verify(&store(), None);
    assert!(!verified.is_ok_and(|report| report.ok));
    let status = server.admin().store(&store()).unwrap();
    assert!(status.versions.iter().all(|it| it.damaged.is_some()));
    let refused = run_failing(4, ["store", "rollback", STORE, "--server", &server.http]);
    assert!(refused.contains("damaged"), "{refused}");
    // The next pull of the delta finds no undamaged file to link. The one after it links all files.
    assert_eq!(pulled(&server, &b).bytes_linked, 0);
    assert!(server.admin().verify(&store(), None).unwrap().ok);
    let again = pulled(&server, &b);
    assert_eq!(again.bytes_linked, again.bytes_done);
    assert!(server.admin().verify(&store(), None).unwrap().ok);
}

#[test]
fn a_dump_of_a_damaged_version_fails_and_the_server_records_the_damage() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let (a, data) = (build('a', &place("a")), place("data"));
    let server = spawn_server(&data);
    pull_ok(&server, &a);
    let file = data.join(format!("stores/{STORE}/v0000000001/p00002.segment"));
    let mut bytes = fs::read(&file).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&file, bytes).unwrap();
    let dump = ["store", "dump", STORE, "--server", &server.http];
    let output = run_failing(6, dump);
    assert!(
        output.contains("p00002.segment")
            && output.contains("is incomplete")
            && output.contains("again"),
        "{output}"
    );
    let noted = live(&server).damaged.unwrap();
    assert!(noted.contains("p00002.segment"), "{noted}");
    let folder = data.join(format!("stores/{STORE}"));
    let output = run_failing(6, ["dump", folder.to_str().unwrap()]);
    assert!(output.contains("is incomplete"), "{output}");
}

#[test]
fn a_compacted_version_equals_a_complete_build() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_some_on('b', &a, &place("b"), 7);
    let c = build_on('c', &b, &place("c"));
    let complete = build('c', &place("whole"));
    let server = spawn_server(&place("data"));
    let compact = ["store", "compact", STORE, "--server", &server.http];
    pull_ok(&server, &a);
    assert!(run_failing(4, compact).contains("one layer"));
    pull_ok(&server, &c);
    let output = run_ok(compact);
    assert!(output.contains("is live, of one layer"), "{output}");
    let now = live(&server);
    assert_eq!((now.layers, now.digest), (1, manifest(&complete).digest));
    assert_eq!(served(&server), 'c');
    server.admin().rollback(&store(), None).unwrap();
    assert_eq!((served(&server), live(&server).layers), ('c', 3));
}

#[test]
fn a_version_of_many_layers_is_compacted_automatically() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_on('b', &a, &place("b"));
    let server = spawn_server_with(&place("data"), |command| {
        command.env("LARDER_STORES_COMPACT_LAYERS", "1");
    });
    pull_ok(&server, &a);
    pull_ok(&server, &b);
    while live(&server).layers > 1 {
        assert_eq!(served(&server), 'b');
    }
    assert_eq!(served(&server), 'b');
}

/// At one byte per second, a compaction does not end during the test.
#[test]
fn a_push_cancels_only_the_compaction_of_its_store() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_on('b', &a, &place("b"));
    let c = build_on('c', &b, &place("c"));
    let server = spawn_server(&place("data"));
    pull_ok(&server, &a);
    pull_ok(&server, &b);
    set_rate(&server, 1);
    let compaction = server.admin().compact(&store()).unwrap();
    let pull = server.admin().pull(&store(), &of(&c, None)).unwrap();
    assert_ne!(pull.id, compaction.id);
    let again = server.admin().pull(&store(), &of(&c, None)).unwrap();
    assert_eq!(
        again.id, pull.id,
        "the same push is told of the one that waits"
    );
    let other = server.admin().pull(&store(), &of(&a, None)).unwrap_err();
    assert_eq!(other.code(), Some("CONFLICT"));
    let other = server.admin().compact(&store()).unwrap_err();
    assert_eq!(other.code(), Some("CONFLICT"));
    set_rate(&server, 0);
    let compaction = ended(&server, compaction);
    assert_eq!(compaction.state, PullState::Cancelled);
    let output = compaction.error.unwrap();
    assert!(
        output
            .message
            .contains("takes precedence over the compaction"),
        "{output:?}"
    );
    assert_eq!(ended(&server, pull).state, PullState::Done);
    assert_eq!((served(&server), live(&server).layers), ('c', 3));
    assert_eq!(leftovers(&place("data")), [""; 0]);
    run_ok(["store", "compact", STORE, "--server", &server.http]);
    assert_eq!((served(&server), live(&server).layers), ('c', 1));
}

#[test]
fn a_compaction_cancelled_by_a_rejected_push_restarts_automatically() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_on('b', &a, &place("b"));
    let server = spawn_server(&place("data"));
    pull_ok(&server, &a);
    pull_ok(&server, &b);
    server.kill();
    let server = spawn_server_with(&place("data"), |command| {
        command
            .env("LARDER_STORES_COMPACT_LAYERS", "1")
            .env("LARDER_FETCH_BYTES_PER_SECOND", "1");
    });
    let compaction = loop {
        let running = server.admin().store(&store()).unwrap().pull;
        if let Some(running) = running {
            break running;
        }
    };
    let gates = Gates {
        min_records: Some(RECORDS + 1),
        ..Gates::default()
    };
    let pull = server.admin().pull(&store(), &of(&a, Some(gates))).unwrap();
    set_rate(&server, 0);
    assert_eq!(ended(&server, compaction).state, PullState::Cancelled);
    assert_eq!(ended(&server, pull).error.unwrap().code, "REFUSED");
    while live(&server).layers > 1 {
        assert_eq!(served(&server), 'b');
    }
}

fn of(source: &Path, gates: Option<Gates>) -> PullRequest {
    PullRequest {
        source: source.to_str().unwrap().to_owned(),
        gates,
        activate: true,
        allow_missing_replicas: 0,
    }
}

fn ended(server: &Server, mut pull: PullStatus) -> PullStatus {
    while !pull.state.has_ended() {
        pull = server.admin().pull_status(&pull).unwrap();
    }
    pull
}

/// Limits pulls and compactions to this rate; 0 is unlimited.
fn set_rate(server: &Server, fetch_bytes_per_second: u64) {
    let settings = Settings {
        fetch_bytes_per_second: Some(fetch_bytes_per_second),
        ..Settings::default()
    };
    server.admin().change_settings(&settings).unwrap();
}

#[test]
fn a_server_killed_at_any_step_of_a_compaction_serves_the_same_records_and_retries() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name: &str| temp.path().join(name);
    let a = build('a', &place("a"));
    let b = build_on('b', &a, &place("b"));
    let before = place("before");
    let server = spawn_server(&before);
    pull_ok(&server, &a);
    pull_ok(&server, &b);
    server.kill();
    let points = larder_server::COMPACT_FAULT_POINTS;
    let live_from = points
        .iter()
        .position(|point| *point == "pull.live")
        .unwrap();
    for (index, point) in points.iter().enumerate() {
        let data = place(point);
        copy_tree(&before, &data);
        let server = spawn_server_with(&data, |command| {
            command.env("LARDER_FAULT_POINT", point);
        });
        let compact = || -> Result<PullStatus, larder_client::Error> {
            let admin = server.admin();
            let mut status = admin.compact(&store())?;
            while !status.state.has_ended() {
                status = admin.pull_status(&status)?;
            }
            Ok(status)
        };
        assert!(compact().is_err(), "{point}: the compaction passed it");
        assert_eq!(server.wait().signal(), Some(9), "{point}");

        let server = spawn_server(&data);
        assert_eq!(served(&server), 'b', "{point}");
        let layers = if index < live_from { 2 } else { 1 };
        assert_eq!(live(&server).layers, layers, "{point}");
        assert!(server.admin().verify(&store(), None).unwrap().ok, "{point}");
        if layers == 2 {
            run_ok(["store", "compact", STORE, "--server", &server.http]);
        }
        assert_eq!((served(&server), live(&server).layers), ('b', 1), "{point}");
        assert_eq!(leftovers(&data), [""; 0], "{point}");
        let kept = server.admin().store(&store()).unwrap().versions;
        assert_eq!(kept.len(), 3, "{point}: nothing of the first try is left");
        server.kill();
    }
}

fn copy_tree(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status();
    assert!(copied.unwrap().success());
}
