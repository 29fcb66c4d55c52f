//! Kills the server at every step of a pull, and the builder at every step of a build. After each crash, the old
//! version is live and complete, and the next attempt succeeds. Also covers two faults without a crash: a full disk,
//! and a store name that is a path.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use larder_batch::{Manifest, Version};
use larder_protocol::http::{Gates, PullState};

use crate::fixture::{
    RECORDS, STORE, build, build_command, leftovers, pull, pull_ok, pull_through, served, store,
    succeed, value,
};
use crate::support::{run_failing, run_ok, show, spawn_server, spawn_server_with, write_csv};

const SIGKILL: i32 = 9;

/// Steps of publishing and removing a version, which belong to the store's folder and not to the server.
const FOLDER_FAULT_POINTS: [&str; 3] = ["publish.synced", "publish.renamed", "remove.renamed"];

const BUILD_FAULT_POINTS: [&str; 5] = [
    "build.sorted",
    "build.segment",
    "build.segments",
    "build.manifest",
    "build.done",
];

/// The first fault point at which the new version is live.
const LIVE_FROM: &str = "pull.live";

#[test]
fn a_server_killed_at_any_step_of_a_pull_serves_a_complete_version_and_retries() {
    let temp = tempfile::tempdir().unwrap();
    let a = build('a', &temp.path().join("a"));
    let b = build('b', &temp.path().join("b"));
    let before = temp.path().join("before");
    let server = spawn_server(&before);
    pull_ok(&server, &a);
    server.kill();

    let live_from = larder_server::FAULT_POINTS
        .iter()
        .position(|point| *point == LIVE_FROM)
        .unwrap();
    for (index, point) in larder_server::FAULT_POINTS.iter().enumerate() {
        check_crash(
            &before,
            &b,
            point,
            if index < live_from { 'a' } else { 'b' },
        );
    }
    for point in FOLDER_FAULT_POINTS {
        check_crash(
            &before,
            &b,
            point,
            if point.starts_with("publish") {
                'a'
            } else {
                'b'
            },
        );
    }
}

/// Copies the data folder `before`, which serves `a`, and kills the server at `point` of a pull of `b`. After a
/// restart, the server must serve `expected`, and `b` after another pull.
fn check_crash(before: &Path, b: &Path, point: &str, expected: char) {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    copy_folder(before, &data);

    let server = spawn_server_with(&data, |command| {
        command
            .env("LARDER_FAULT_POINT", point)
            .env("LARDER_STORES_RETAIN_VERSIONS", "1");
    });
    // Retention keeps the live and the previous version, so that a removal requires a third version.
    if point == "remove.renamed" {
        let _ = pull(&server, b.to_str().unwrap());
    }
    if let Ok(status) = pull(&server, b.to_str().unwrap()) {
        panic!("{point}: the pull passed it and ended {:?}", status.state);
    }
    assert_eq!(server.wait().signal(), Some(SIGKILL), "{point}");

    let fetched = pulled_files(&data);
    let server = spawn_server(&data);
    assert_eq!(served(&server), expected, "{point}: after the crash");
    assert!(server.admin().verify(&store(), None).unwrap().ok, "{point}");

    pull_ok(&server, b);
    assert_eq!(served(&server), 'b', "{point}: after another pull");
    assert_eq!(leftovers(&data), [""; 0], "{point}");
    if point == "pull.fetched" || point == "publish.synced" {
        assert!(!fetched.is_empty(), "{point}: segments had been fetched");
        let now = published_files(&data);
        let kept = fetched
            .iter()
            .all(|(name, inode)| now.get(name) == Some(inode));
        assert!(
            kept,
            "{point}: what had been fetched was fetched again: {fetched:?}, {now:?}"
        );
    }
}

#[test]
fn a_version_left_unchecked_by_a_crash_goes_live_only_after_its_gates() {
    let temp = tempfile::tempdir().unwrap();
    let a = build('a', &temp.path().join("a"));
    let b = build('b', &temp.path().join("b"));
    let before = temp.path().join("before");
    let server = spawn_server(&before);
    pull_ok(&server, &a);
    server.kill();

    for (point, refused) in [
        ("publish.renamed", true),
        ("pull.published", true),
        ("pull.verified", true),
        ("pull.warmed", false),
    ] {
        let data = temp.path().join(point);
        copy_folder(&before, &data);
        let server = spawn_server_with(&data, |command| {
            command.env("LARDER_FAULT_POINT", point);
        });
        let gates = Gates {
            min_records: Some(if refused { RECORDS + 1 } else { RECORDS }),
            ..Gates::default()
        };
        pull_through(&server, b.to_str().unwrap(), Some(gates)).unwrap_err();
        assert_eq!(server.wait().signal(), Some(SIGKILL), "{point}");

        let server = spawn_server(&data);
        let admin = server.admin();
        let left = |version: u64| {
            let versions = admin.store(&store()).unwrap().versions;
            versions
                .into_iter()
                .find(|kept| kept.version == version)
                .unwrap()
        };
        assert!(left(2).unchecked && !left(1).unchecked, "{point}");
        assert!(run_ok(["store", "info", STORE, "--server", &server.http]).contains("unchecked"));
        let swapped = admin.swap(&store(), 2);
        let rolled_back = admin.rollback(&store(), Some(2.into()));
        if refused {
            assert_eq!(swapped.unwrap_err().code(), Some("REFUSED"), "{point}");
            assert_eq!(rolled_back.unwrap_err().code(), Some("REFUSED"), "{point}");
            assert_eq!(served(&server), 'a', "{point}");
            assert!(left(2).unchecked, "{point}");
            continue;
        }
        swapped.unwrap();
        assert_eq!(served(&server), 'b', "{point}");
        assert!(!left(2).unchecked, "{point}");
        server.kill();
        let server = spawn_server(&data);
        assert!(!server.admin().store(&store()).unwrap().versions[0].unchecked);
        assert_eq!(served(&server), 'b', "{point}: after another restart");
    }
}

#[test]
fn a_version_left_unchecked_by_a_crash_is_verified_before_it_goes_live() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let server = spawn_server_with(&data, |command| {
        command.env("LARDER_FAULT_POINT", "pull.published");
    });
    let b = build('b', &temp.path().join("b"));
    pull(&server, b.to_str().unwrap()).unwrap_err();
    assert_eq!(server.wait().signal(), Some(SIGKILL));
    let segment = data
        .join("stores")
        .join(STORE)
        .join("v0000000001/p00000.segment");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();

    let server = spawn_server(&data);
    let error = server.admin().swap(&store(), 1).unwrap_err();
    assert_eq!(error.code(), Some("CORRUPTED"), "{error}");
    assert_eq!(server.admin().store(&store()).unwrap().live, None);
    // A push of the same bytes finds the local copy damaged and removes it. The next push fetches them again.
    assert_eq!(
        pull(&server, b.to_str().unwrap()).unwrap().state,
        PullState::Failed
    );
    pull_ok(&server, &b);
    assert_eq!(served(&server), 'b');
}

#[test]
fn a_build_killed_at_any_step_leaves_a_complete_version_or_none() {
    let temp = tempfile::tempdir().unwrap();
    let rows = (0..RECORDS).map(|number| (format!("key{number}"), value('a', number)));
    let input = write_csv(temp.path(), "rows.csv", rows);
    for point in BUILD_FAULT_POINTS {
        let out = temp.path().join(point);
        let output = build_command(&input, &out)
            .env("LARDER_FAULT_POINT", point)
            .output()
            .unwrap();
        assert_eq!(
            output.status.signal(),
            Some(SIGKILL),
            "{point}: {}",
            show(&output)
        );

        if point == "build.done" {
            let version = Version::open(&out).unwrap();
            assert_eq!(version.manifest().record_count, RECORDS);
            version.verify(&|_| true).unwrap();
            continue;
        }
        assert!(
            !out.join(Manifest::FILE).exists(),
            "{point}: a half version looks like a whole one"
        );
        assert!(Version::open(&out).is_err(), "{point}");
        // Remains of a killed build do not prevent the next one.
        succeed(&mut build_command(&input, &out));
        let version = Version::open(&out).unwrap();
        assert_eq!(version.manifest().record_count, RECORDS);
    }
}

#[test]
fn a_full_disk_fails_a_pull_and_a_build_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(temp.path().join("disk"), "8m") else {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    };
    let a = build('a', &temp.path().join("a"));
    let rows = (0..40_000).map(|number| {
        (
            format!("key{number}"),
            value('b', number) + &"x".repeat(400),
        )
    });
    let input = write_csv(temp.path(), "big.csv", rows);

    let out = disk.path.join("out");
    let output = build_command(&input, &out).output().unwrap();
    assert!(!output.status.success(), "{}", show(&output));
    assert!(show(&output).contains("disk is full"), "{}", show(&output));
    let left = fs::read_dir(&out).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a failed build left files in its folder");
    let big = temp.path().join("big");
    succeed(&mut build_command(&input, &big));

    let data = disk.path.join("data");
    let server = spawn_server(&data);
    pull_ok(&server, &a);
    let status = pull(&server, big.to_str().unwrap()).unwrap();
    assert_eq!(status.state, PullState::Failed);
    assert_eq!(
        status.error.as_ref().unwrap().code,
        "DISK_FULL",
        "{:?}",
        status.error
    );
    assert_eq!(served(&server), 'a');
    assert_eq!(leftovers(&data), [""; 0]);

    let b = build('b', &temp.path().join("b"));
    pull_ok(&server, &b);
    assert_eq!(served(&server), 'b');
    server.kill();
}

#[test]
fn a_store_name_that_is_a_path_is_rejected_and_changes_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let a = build('a', &temp.path().join("a"));
    let data = temp.path().join("data");
    let server = spawn_server(&data);
    let before = names(temp.path());

    let input = write_csv(temp.path(), "rows.csv", [("k".to_owned(), "v".to_owned())]);
    let arguments = [
        "push",
        input.to_str().unwrap(),
        "--store",
        "../x",
        "--key",
        "key",
        "--server",
        &server.http,
    ];
    let message = run_failing(2, arguments);
    assert!(message.contains("../x"), "{message}");
    fs::remove_file(input).unwrap();

    for name in ["..%2Fx", "%2e%2e%2fx", "..", "%2e%2e", "a%00b"] {
        let body = format!("{{\"source\": {:?}}}", a.to_str().unwrap());
        let status = post(&server.http, &format!("/v1/stores/{name}/pull"), &body);
        assert!((400..500).contains(&status), "{name}: {status}");
    }
    assert_eq!(names(temp.path()), before);
    assert_eq!(fs::read_dir(data.join("stores")).unwrap().count(), 0);
}

/// A small in-memory file system, unmounted on drop.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: PathBuf, size: &str) -> Option<SmallDisk> {
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "larder-test"])
            .arg(&path)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk { path })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.path)
            .status();
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy_folder(&entry.path(), &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), target).unwrap();
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns the segments in folders of interrupted pulls, with their inodes.
fn pulled_files(data: &Path) -> BTreeMap<String, u64> {
    segments(data, |folder| folder.ends_with(".pull"))
}

/// Returns the segments of version 2, with their inodes.
fn published_files(data: &Path) -> BTreeMap<String, u64> {
    segments(data, |folder| folder == "v0000000002")
}

fn segments(data: &Path, wanted: impl Fn(&str) -> bool) -> BTreeMap<String, u64> {
    let store = data.join("stores").join(STORE);
    let mut found = BTreeMap::new();
    for folder in names(&store).iter().filter(|folder| wanted(folder)) {
        for name in names(&store.join(folder))
            .iter()
            .filter(|name| name.ends_with(".segment"))
        {
            found.insert(
                name.clone(),
                fs::metadata(store.join(folder).join(name)).unwrap().ino(),
            );
        }
    }
    found
}

/// Sends a POST whose path is not normalized, and returns the status.
fn post(base: &str, path: &str, body: &str) -> u16 {
    let address = base.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}
