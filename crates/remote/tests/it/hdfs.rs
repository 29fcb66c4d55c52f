//! Files in HDFS, and failures of its parts.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::{StreamExt, TryStreamExt};
use larder_remote::{Error, Location};
use larder_testing::hdfs::Hdfs;

use crate::wait;

/// Three blocks of the mini cluster, the last of them short.
const SIZE: usize = (2 << 20) + 4567;

fn bytes(size: usize) -> Vec<u8> {
    (0..size as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

fn local(folder: &Path, size: usize) -> PathBuf {
    let path = folder.join(format!("{size}.bin"));
    std::fs::write(&path, bytes(size)).unwrap();
    path
}

fn at(hdfs: &Hdfs, path: &str) -> Location {
    Location::parse(&hdfs.url(path)).unwrap()
}

fn from(location: &Location, offset: usize) -> Result<Vec<u8>, Error> {
    wait(async {
        let parts: Vec<_> = location.stream(offset as u64).await?.try_collect().await?;
        Ok(parts.concat())
    })
}

#[test]
fn files_are_written_read_from_any_byte_listed_and_removed() {
    let Some(hdfs) = Hdfs::start(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = at(&hdfs, "/some folder");
    let large = root.join("a/large.bin").unwrap();
    wait(large.put_file(&local(folder.path(), SIZE), &|_| {})).unwrap();
    assert_eq!(large.size_blocking().unwrap(), SIZE as u64);
    for offset in [0, 1, 1 << 20, SIZE - 1, SIZE] {
        let read = from(&large, offset).unwrap();
        assert!(read == bytes(SIZE)[offset..], "from {offset}");
    }
    let past = from(&large, SIZE + 1).unwrap_err().to_string();
    assert!(past.contains("the file has only"), "{past}");
    let mut read = Vec::new();
    large.reader().unwrap().read_to_end(&mut read).unwrap();
    assert!(read == bytes(SIZE));

    // Overwrites it with a shorter file, and with an empty one.
    for size in [12, 0] {
        wait(large.put_file(&local(folder.path(), size), &|_| {})).unwrap();
        assert_eq!(wait(large.get_all(12)).unwrap(), bytes(size));
    }
    assert_eq!(hdfs.list("/").len(), 1, "no unfinished file is left");
    let left = root.join("a/.large.bin.0123456789abcdef.part").unwrap();
    wait(left.put_file(&local(folder.path(), 12), &|_| {})).unwrap();
    root.join("a")
        .unwrap()
        .remove_unfinished_blocking()
        .unwrap();
    assert!(matches!(left.size_blocking(), Err(Error::NotFound { .. })));
    assert_eq!(hdfs.list("/").len(), 1);

    for folder in [&root, &root.join("a").unwrap()] {
        for refused in [folder.size_blocking().map(drop), from(folder, 0).map(drop)] {
            let why = refused.unwrap_err();
            assert!(matches!(why, Error::Unsupported { .. }), "{why}");
        }
    }
    wait(large.remove()).unwrap();
    wait(large.remove()).expect("removing it again is the same");
    for gone in [
        large.size_blocking().map(drop),
        from(&large, 0).map(drop),
        large.list_blocking().map(drop),
    ] {
        let why = gone.unwrap_err();
        assert!(matches!(why, Error::NotFound { .. }), "{why}");
    }
}

#[test]
fn parts_of_a_table_are_listed_as_on_a_disk() {
    let Some(hdfs) = Hdfs::start(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let row = local(folder.path(), 3);
    let root = at(&hdfs, "/t");
    for name in [
        "_SUCCESS",
        ".part-0.crc",
        "day=1/at=09%3A30/a.csv",
        "day=1/_SUCCESS",
        "day=2/b.csv",
        "_temporary/day=3/c.csv",
        "other/d.csv",
        "e.csv",
    ] {
        wait(root.join(name).unwrap().put_file(&row, &|_| {})).unwrap();
    }
    let listed = |pattern: &str| {
        let found = at(&hdfs, &format!("/t{pattern}")).list_blocking().unwrap();
        let shown = found.iter().map(|file| {
            assert_eq!(file.location.size_blocking().unwrap(), 3);
            format!(
                "{} in {}",
                file.location.file_name(),
                file.folders.join("/")
            )
        });
        shown.collect::<Vec<_>>()
    };
    let parts = ["a.csv in day=1/at=09%3A30", "b.csv in day=2", "e.csv in "];
    assert_eq!(listed(""), parts);
    assert_eq!(listed("/"), parts);
    assert_eq!(listed("/day=*/*"), ["b.csv in day=2"]);
    assert_eq!(listed("/day=1"), ["a.csv in at=09%3A30"]);
    assert_eq!(
        listed("/**/*.csv"),
        [
            "a.csv in day=1/at=09%3A30",
            "b.csv in day=2",
            "e.csv in ",
            "d.csv in other"
        ]
    );
    assert_eq!(listed("/day=2/b.csv"), ["b.csv in "]);
    assert_eq!(listed("/_SUCC*"), ["_SUCCESS in "]);
    let nothing = at(&hdfs, "/t/*.none").list_blocking().unwrap_err();
    assert!(matches!(nothing, Error::NotFound { .. }), "{nothing}");
}

#[test]
fn reads_and_writes_survive_a_lost_datanode() {
    let Some(hdfs) = Hdfs::start(2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let size = 12 << 20;
    let file = local(folder.path(), size);
    let first = at(&hdfs, "/first.bin");
    let halfway = |done: u64| done >= size as u64 / 2;
    let stopped = std::sync::Once::new();
    let stop = |done| {
        if halfway(done) {
            stopped.call_once(|| drop(hdfs.send_command("stop-datanode 0")));
        }
    };
    wait(first.put_file(&file, &stop)).expect("the other datanode takes it");
    assert!(stopped.is_completed());
    assert!(from(&first, 0).unwrap() == bytes(size));

    hdfs.send_command("start-datanodes");
    let second = at(&hdfs, "/second.bin");
    wait(second.put_file(&file, &|_| {})).unwrap();
    let read = wait(async {
        let mut stream = second.stream(0).await.unwrap();
        let mut read = Vec::new();
        let mut is_stopped = false;
        while let Some(part) = stream.next().await {
            read.extend_from_slice(&part?);
            if halfway(read.len() as u64) && !std::mem::replace(&mut is_stopped, true) {
                hdfs.send_command("stop-datanode 0");
            }
        }
        assert!(is_stopped);
        Ok::<_, Error>(read)
    });
    assert!(read.expect("the other datanode gives it") == bytes(size));
}

#[test]
fn without_datanodes_no_partial_file_remains_and_a_retry_succeeds() {
    let Some(hdfs) = Hdfs::start(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let size = 6 << 20;
    let file = local(folder.path(), size);
    let place = at(&hdfs, "/d/file.bin");
    let stopped = std::sync::Once::new();
    let stop = |_| stopped.call_once(|| drop(hdfs.send_command("stop-datanode 0")));
    let why = wait(place.put_file(&file, &stop)).unwrap_err();
    assert!(stopped.is_completed() && why.is_retryable(), "{why}");
    let gone = place.size_blocking().unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    hdfs.send_command("start-datanodes");
    wait(place.put_file(&file, &|_| {})).expect("a retry finishes");
    assert!(from(&place, 0).unwrap() == bytes(size));
    assert_eq!(hdfs.list("/"), ["/d/file.bin"]);

    hdfs.send_command("stop-datanode 0");
    let why = from(&place, 0).unwrap_err();
    assert!(why.is_retryable(), "{why}");
}

#[test]
fn safe_mode_is_reported_and_a_namenode_restart_is_survived() {
    let Some(hdfs) = Hdfs::start(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = local(folder.path(), SIZE);
    let place = at(&hdfs, "/file.bin");
    wait(place.put_file(&file, &|_| {})).unwrap();

    hdfs.send_command("safe-mode on");
    let why = wait(at(&hdfs, "/other.bin").put_file(&file, &|_| {})).unwrap_err();
    assert!(
        why.is_retryable() && why.to_string().contains("safe mode"),
        "{why}"
    );
    assert!(!why.to_string().contains('\n'), "{why}");
    assert!(from(&place, 0).unwrap() == bytes(SIZE), "it can be read");
    hdfs.send_command("safe-mode off");

    // The same location after its connection broke.
    hdfs.send_command("stop-namenode");
    hdfs.send_command("start-namenode");
    assert_eq!(place.size_blocking().unwrap(), SIZE as u64);

    // The namenode restarts during a write: the file is complete or absent.
    let other = at(&hdfs, "/other.bin");
    let restarted = std::sync::Once::new();
    let restart = |_| {
        restarted.call_once(|| {
            hdfs.send_command("stop-namenode");
            hdfs.send_command("start-namenode");
        });
    };
    let put = wait(other.put_file(&file, &restart));
    match (put, other.size_blocking()) {
        (Ok(()), Ok(size)) => assert_eq!(size, SIZE as u64),
        (Err(why), Err(Error::NotFound { .. })) => assert!(why.is_retryable(), "{why}"),
        other => panic!("{other:?}"),
    }
    wait(other.put_file(&file, &|_| {})).expect("a retry finishes");
    assert!(from(&other, 0).unwrap() == bytes(SIZE));

    hdfs.send_command("stop-namenode");
    let why = place.size_blocking().unwrap_err();
    assert!(
        why.is_retryable() && why.to_string().contains("namenode"),
        "{why}"
    );
}

/// Set in the process with the Hadoop settings: the URL to which it copies a file.
const INSIDE: &str = "LARDER_TEST_INSIDE_HDFS";

#[test]
fn the_user_is_taken_from_the_environment_or_a_token() {
    if let Ok(url) = std::env::var(INSIDE) {
        let folder = tempfile::tempdir().unwrap();
        let file = local(folder.path(), 12);
        let put = Location::parse(&url).and_then(|place| place.put_file_blocking(&file));
        return println!(
            "said: {}",
            put.map_or_else(|why| why.to_string(), |()| "put".into())
        );
    }
    let Some(hdfs) = Hdfs::start(1) else { return };
    let put = |url: &str, variables: &[(&str, &Path)]| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "--exact"])
            .arg("hdfs::the_user_is_taken_from_the_environment_or_a_token")
            .env(INSIDE, url)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && printed.contains("said: "),
            "{printed}"
        );
        printed
    };
    const USER: &str = "HADOOP_USER_NAME";
    const TOKEN: &str = "HADOOP_TOKEN_FILE_LOCATION";
    let bob = Path::new("bob");
    let output = put(&hdfs.url("/of-bob"), &[(USER, bob)]);
    assert!(output.contains("said: put"), "{output}");
    assert_eq!(hdfs.send_command("owner /of-bob"), "bob");
    let token = hdfs.token("ann");
    let output = put(&hdfs.url("/of-ann"), &[(TOKEN, &token)]);
    assert!(output.contains("said: put"), "{output}");
    assert_eq!(hdfs.send_command("owner /of-ann"), "ann");

    let folder = tempfile::tempdir().unwrap();
    let complete = std::fs::read(&token).unwrap();
    for (name, bytes, expected) in [
        ("none", None, "No such file"),
        ("text", Some(&b"token"[..]), "no file of Hadoop's tokens"),
        (
            "cut",
            Some(&complete[..complete.len() / 2]),
            "HADOOP_TOKEN_FILE_LOCATION",
        ),
    ] {
        let path = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let output = put(&hdfs.url("/x"), &[(TOKEN, &path)]);
        assert!(output.contains(expected), "{name}: {output}");
    }
    // Hadoop settings: the default file system, and a name service.
    let settings = format!(
        "<configuration><property><name>fs.defaultFS</name><value>{}</value></property>\
         <property><name>dfs.ha.namenodes.lake</name><value>n1,n2</value></property>\
         <property><name>dfs.namenode.rpc-address.lake.n1</name><value>127.0.0.1:1</value></property>\
         <property><name>dfs.namenode.rpc-address.lake.n2</name><value>127.0.0.1:{}</value></property>\
         </configuration>",
        hdfs.url(""),
        hdfs.port(),
    );
    std::fs::write(folder.path().join("core-site.xml"), settings).unwrap();
    for (url, path) in [("hdfs:///default", "/default"), ("hdfs://lake/ha", "/ha")] {
        let output = put(url, &[(USER, bob), ("HADOOP_CONF_DIR", folder.path())]);
        assert!(output.contains("said: put"), "{output}");
        assert_eq!(hdfs.send_command(&format!("owner {path}")), "bob");
    }
    let output = put("hdfs://sea/ha", &[("HADOOP_CONF_DIR", folder.path())]);
    assert!(output.contains("no name service"), "{output}");

    hdfs.send_command("protect /");
    let output = put(&hdfs.url("/closed/x"), &[(USER, bob)]);
    assert!(
        output.contains("AccessControlException") && output.contains(USER),
        "{output}"
    );
    assert!(!output.contains("\tat "), "{output}");
}
