//! Versions with invalid content but valid checksums: a pull rejects them, and after a restart only their own store
//! is affected.

use std::fs;
use std::path::Path;

use larder_batch::Manifest;
use larder_batch::segment::Footer;
use larder_batch::segment::format::{FOOTER_SIZE, HEADER_SIZE};
use larder_types::key_hash;

use crate::resp::Client;
use crate::support::{TestServer, build, put_pipe};

const STORE: &str = "pymk";

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in fs::read_dir(from).expect("the folder") {
        let file = file.expect("a file");
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

fn golden() -> std::path::PathBuf {
    larder_testing::golden_path("format-2/zstd")
}

/// Replaces the dictionary of the golden version in `folder` by one that zstd does not take, and makes all checksums fit.
fn corrupt_dictionary(folder: &Path) {
    let text = fs::read(folder.join(Manifest::FILE)).expect("the manifest");
    let mut manifest = Manifest::decode("golden", &text).expect("a manifest");
    let entry = &mut manifest.segments[0];
    let path = folder.join(&entry.file);
    let bytes = fs::read(&path).expect("the segment");
    let (before, footer) = bytes.split_at(bytes.len() - FOOTER_SIZE);
    let mut footer = Footer::decode("golden", footer, bytes.len() as u64, 2).expect("a footer");
    let start = HEADER_SIZE + footer.data_size as usize;
    let end = start + footer.dictionary_size as usize;
    let dictionary = [&[0x37, 0xa4, 0x30, 0xec][..], &[1; 200]].concat();
    footer.dictionary_size = dictionary.len() as u64;
    // XXH3-64, like all checksums of a footer.
    footer.dictionary_check = key_hash(&dictionary);
    let parts = [
        &before[..start],
        &dictionary,
        &before[end..],
        &footer.encode(),
    ];
    let spoiled = parts.concat();
    fs::write(&path, &spoiled).expect("written");

    let mut digest = entry.begin_digest();
    digest.update(&spoiled);
    entry.digest = digest.finish_hex();
    entry.size_bytes = spoiled.len() as u64;
    manifest.size_bytes = spoiled.len() as u64;
    manifest.digest = manifest.compute_digest();
    fs::write(folder.join(Manifest::FILE), manifest.encode()).expect("written");
}

#[test]
fn a_pull_of_a_version_with_an_invalid_dictionary_fails_as_corrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    copy_folder(&golden(), folder.path());
    corrupt_dictionary(folder.path());
    let server = TestServer::start();
    let pull = server.pull_from(STORE, &folder.path().display().to_string());
    assert_eq!(pull["state"], "failed", "{pull}");
    assert_eq!(pull["error"]["code"], "CORRUPTED", "{pull}");
    let why = pull["error"]["message"].as_str().expect("a message");
    assert!(why.contains("its zstd dictionary is invalid"), "{why}");
    assert!(server.files(STORE).is_empty(), "{:?}", server.files(STORE));
    let pull = server.pull_from(STORE, &golden().display().to_string());
    assert_eq!(pull["state"], "done", "{pull}");
}

#[test]
fn a_damaged_store_leaves_the_server_ready_unless_configured_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = TestServer::start();
    let whole = build(folder.path(), "whole", 10, "value");
    assert_eq!(whole.record_count, 10);
    for (store, source) in [("whole", folder.path()), (STORE, &golden())] {
        let pull = server.pull_from(store, &source.display().to_string());
        assert_eq!(pull["state"], "done", "{pull}");
    }
    server.restart(|data| corrupt_dictionary(&data.join("stores/pymk/v0000000001")));
    check_unreadable(&mut server, "-CORRUPTED ", "dictionary is invalid");
}

/// The file system rejects a read of a file. The reason differs from damage, but is reported in the same way.
#[test]
fn a_store_whose_files_cannot_be_read_is_reported_as_a_damaged_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = TestServer::start();
    build(folder.path(), "whole", 10, "value");
    for (store, source) in [("whole", folder.path()), (STORE, &golden())] {
        let pull = server.pull_from(store, &source.display().to_string());
        assert_eq!(pull["state"], "done", "{pull}");
    }
    server.restart(|data| {
        let manifest = data.join("stores/pymk/v0000000001/manifest.json");
        fs::remove_file(&manifest).expect("removed");
        fs::create_dir(&manifest).expect("a folder in its place");
    });
    check_unreadable(&mut server, "-IOERR ", "repair that, and restart larder");
}

/// A pipe has no writer, so that a start that reads it would wait forever.
#[test]
fn pipes_in_place_of_the_files_of_a_store_do_not_block_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = TestServer::start();
    build(folder.path(), "whole", 10, "value");
    for (store, source) in [("whole", folder.path()), (STORE, &golden())] {
        let pull = server.pull_from(store, &source.display().to_string());
        assert_eq!(pull["state"], "done", "{pull}");
    }
    server.restart(|data| {
        let version = data.join("stores/pymk/v0000000001");
        put_pipe(&data.join("stores/pymk/history.json"));
        for name in ["pull.json", "damaged.json", "p00000.segment"] {
            put_pipe(&version.join(name));
        }
    });
    check_unreadable(&mut server, "-IOERR ", "it is not a regular file");
    server.restart(|data| put_pipe(&data.join("stores/pymk/v0000000001/manifest.json")));
    let refused = Client::connect(&server).call("GET pymk:any");
    assert!(
        refused.contains("manifest.json: it is not a regular file"),
        "{refused}"
    );
}

/// Checks that the live version of one store is not open, for a reason that contains `why`, and that the other store
/// is served.
fn check_unreadable(server: &mut TestServer, code: &str, why: &str) {
    let mut client = Client::connect(server);
    assert_eq!(client.call("GET whole:k1"), "$5|value");
    let refused = client.call("GET pymk:any");
    assert!(refused.starts_with(code), "{refused}");
    assert!(refused.contains(why), "{refused}");
    let (status, body) = server.get("/readyz");
    let body = body.as_str().expect("text").to_owned();
    assert_eq!(status, 200, "{body}");
    assert!(
        body.starts_with("ready\nstore pymk cannot be read"),
        "{body}"
    );
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("text").to_owned();
    assert!(metrics.contains("larder_stores_unreadable 1"), "{metrics}");

    server.restart_with(|config| config.stores.unready_when_damaged = true);
    let (status, body) = server.get("/readyz");
    assert_eq!(status, 503, "{body}");
    assert!(body.as_str().expect("text").contains("pymk"), "{body}");
}
