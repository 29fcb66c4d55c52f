//! Faults of the tables' folder at startup: with any number of threads, the server does not start and reports the
//! reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use larder_protocol::config::ServerConfig;
use larder_server::Server;

use crate::full_disk::SmallDisk;
use crate::resp::Client;
use crate::support::{TestServer, put_pipe};

const THREADS: [u32; 3] = [1, 2, 4];

/// Returns the error of a start with `data`. Fails if the start hangs.
fn failed_start(data: &Path, threads: u32, change: fn(&mut ServerConfig)) -> String {
    let mut config = ServerConfig::default();
    config.server.data = data.to_owned();
    config.server.resp = "127.0.0.1:0".to_owned();
    config.server.http = "127.0.0.1:0".to_owned();
    config.server.threads = threads;
    change(&mut config);
    let (sender, answer) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let started = runtime.block_on(Server::start(config));
        let error = started.map(drop).expect_err("it must not start");
        // The send fails only if the test has ended.
        let _ = sender.send(error.to_string());
    });
    let answer = answer.recv_timeout(Duration::from_secs(60));
    answer.expect("the start ends")
}

/// Returns the data folder of a stopped server, with rows of several cores, and its log.
fn create_rows(folder: &Path) -> (PathBuf, PathBuf) {
    let data = folder.join("data");
    let copied = data.clone();
    let mut server = TestServer::with(|config| config.server.threads = 2);
    let mut client = Client::connect(&server);
    for n in 0..200 {
        assert_eq!(client.call(&format!("SET t{n}|{n} value")), "+OK");
    }
    drop(client);
    server.restart(move |stopped| {
        fs::create_dir_all(copied.join("tables")).expect("a folder");
        for file in fs::read_dir(stopped.join("tables")).expect("the folder") {
            let file = file.expect("a file");
            let to = copied.join("tables").join(file.file_name());
            fs::copy(file.path(), to).expect("copied");
        }
    });
    let log = data.join("tables/log-0000000001");
    (data, log)
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).expect("the file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_flipped_bit_in_a_log_prevents_startup() {
    for threads in THREADS {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, log) = create_rows(folder.path());
        flip_a_bit(&log);
        let why = failed_start(&data, threads, |_| {});
        let named = format!("{} is damaged at byte", log.display());
        assert!(why.starts_with(&named), "{threads} threads: {why}");
    }
}

#[test]
fn a_flipped_bit_in_a_snapshot_prevents_startup() {
    let golden = larder_testing::golden_path("journal-1");
    for threads in THREADS {
        let folder = tempfile::tempdir().expect("a folder");
        let tables = folder.path().join("tables");
        fs::create_dir(&tables).expect("a folder");
        for name in ["log-0000000002", "snapshot-0000000002"] {
            fs::copy(golden.join(name), tables.join(name)).expect("copied");
        }
        let snapshot = tables.join("snapshot-0000000002");
        flip_a_bit(&snapshot);
        let why = failed_start(folder.path(), threads, |_| {});
        let named = format!("{} is damaged at byte", snapshot.display());
        assert!(why.starts_with(&named), "{threads} threads: {why}");
    }
}

#[test]
fn a_folder_in_place_of_a_log_prevents_startup() {
    for threads in THREADS {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, log) = create_rows(folder.path());
        fs::remove_file(&log).expect("removed");
        fs::create_dir(&log).expect("a folder");
        let why = failed_start(&data, threads, |_| {});
        let log = log.display().to_string();
        assert!(why.contains(&log), "{threads} threads: {why}");
    }
}

/// A pipe has no writer, so that a start that reads it would wait forever.
#[test]
fn a_pipe_in_place_of_a_server_file_prevents_startup() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden/journal-1");
    let names = ["log-0000000002", "snapshot-0000000002"];
    for pipe in names
        .map(|name| format!("tables/{name}"))
        .iter()
        .map(String::as_str)
        .chain(["settings.json"])
    {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("tables")).expect("a folder");
        for name in names {
            let to = folder.path().join("tables").join(name);
            fs::copy(golden.join(name), to).expect("copied");
        }
        let pipe = folder.path().join(pipe);
        put_pipe(&pipe);
        for threads in THREADS {
            let why = failed_start(folder.path(), threads, |_| {});
            let named = why.contains(&pipe.display().to_string());
            assert!(
                named && why.contains("it is not a regular file"),
                "{threads} threads: {why}"
            );
        }
    }
}

/// Permissions do not apply to root. Instead, a file makes the creation of the folder impossible.
#[test]
fn a_read_only_folder_prevents_startup() {
    for threads in THREADS {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("a folder");
        fs::write(data.join("tables"), "a file").expect("written");
        let why = failed_start(&data, threads, |_| {});
        assert!(why.contains("tables"), "{threads} threads: {why}");
        // The file for values is the first file that each core creates there.
        let why = failed_start(&data, threads, |config| {
            config.tables.values_on_disk.0 = 100;
        });
        let expected = "cannot create a file for values (tables.values_on_disk)";
        assert!(why.starts_with(expected), "{threads} threads: {why}");
    }
}

#[test]
fn a_full_disk_prevents_startup() {
    for threads in THREADS {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 4) else {
            return larder_testing::report_unsupported("mount a small file system (it takes root)");
        };
        let (data, _) = create_rows(&disk.0);
        fs::create_dir_all(data.join("stores")).expect("a folder");
        fs::write(data.join("LOCK"), "0\n").expect("written");
        disk.fill();
        let why = failed_start(&data, threads, |_| {});
        assert!(why.contains("the disk is full"), "{threads} threads: {why}");
    }
}
