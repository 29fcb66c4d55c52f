//! Files of a live version that are truncated while it is served. The damage must stay confined to the affected keys.

use std::fs::File;
use std::io::Read;

use larder_batch::Manifest;
use serde_json::json;

use crate::resp::Client;
use crate::support::{TestServer, build, build_rows};

/// Truncates every segment of the store's first version from `size` to `keep(size)` bytes.
fn truncate_segment(server: &TestServer, store: &str, keep: impl Fn(u64) -> u64) {
    let folder = server.store_folder(store).join("v0000000001");
    let bytes = std::fs::read(folder.join(Manifest::FILE)).expect("a manifest");
    let manifest = Manifest::decode("of the test", &bytes).expect("sound");
    for segment in &manifest.segments {
        let path = folder.join(&segment.file);
        let file = File::options().write(true).open(path).expect("a segment");
        file.set_len(keep(segment.size_bytes)).expect("cut");
    }
}

fn serve_store(store: &str) -> TestServer {
    let versions = tempfile::tempdir().expect("a folder");
    build(versions.path(), store, 2000, "some value");
    let server = TestServer::start();
    let pull = server.pull_from(store, versions.path().to_str().expect("UTF-8"));
    assert_eq!(pull["state"], "done", "{pull}");
    server
}

/// A user truncates the files of a live version, for example with a wrong `cp`. Every read returns an error, and
/// tables keep working.
#[test]
fn a_truncated_live_version_reports_corruption_and_the_server_survives() {
    let server = serve_store("pymk");
    let mut client = Client::connect(&server);
    client.check("GET pymk:k7", "$10|some value");
    let shared = server.server().shared();
    let live = shared.catalog.load().get(b"pymk").expect("live").clone();
    assert!(live.version.is_resident(), "lookups read the map");
    truncate_segment(&server, "pymk", |_| 100);
    // The first of these commands faults on the missing page, on the serving thread.
    for command in [
        "GET pymk:k7",
        "MGET pymk:k1 pymk:k2 pymk:k3",
        "EXISTS pymk:k1",
        "STRLEN pymk:k5",
        "GETRANGE pymk:k6 0 1",
        "SCAN 0 MATCH pymk:* COUNT 100",
    ] {
        let reply = client.call(command);
        assert!(reply.starts_with("-CORRUPTED"), "{command}: {reply}");
    }
    for path in ["keys/k8", "sample?n=5", "diff?from=1&to=1"] {
        let (status, error) = server.get(&format!("/v1/stores/pymk/{path}"));
        assert_eq!(
            (status, &error["error"]["code"]),
            (500, &json!("CORRUPTED")),
            "{path}"
        );
    }
    let (status, error) = server.post("/v1/stores/pymk/verify", json!({}));
    assert_eq!(
        (status, &error["error"]["code"]),
        (500, &json!("CORRUPTED"))
    );
    client.check("SET row|1 on", "+OK");
    client.check("GET row|1", "$2|on");
}

#[test]
fn keys_in_intact_blocks_are_served_after_truncation() {
    let server = serve_store("pymk");
    truncate_segment(&server, "pymk", |size| size / 2);
    let mut client = Client::connect(&server);
    let (mut found, mut corrupted) = (0, 0);
    for key in 0..2000 {
        match client.call(&format!("GET pymk:k{key}")) {
            reply if reply == "$10|some value" => found += 1,
            reply if reply.starts_with("-CORRUPTED") => corrupted += 1,
            reply => panic!("{key}: {reply}"),
        }
    }
    assert!(found > 200 && corrupted > 200, "{found} {corrupted}");
}

/// A pipeline of GETs is looked up in the map as a batch, and the first lookup faults on the missing page.
#[test]
fn a_pipeline_on_a_truncated_version_returns_every_reply() {
    let server = serve_store("pymk");
    let mut client = Client::connect(&server);
    client.check("GET pymk:k0", "$10|some value");
    truncate_segment(&server, "pymk", |_| 0);
    client.send("GET pymk:k1\r\n".repeat(100).as_bytes());
    for _ in 0..100 {
        let reply = client.reply();
        assert!(reply.starts_with("-CORRUPTED"), "{reply}");
    }
}

/// A large value is sent directly from the map. When its file is truncated midway, reads by other clients replace the
/// lost pages by zeros. The client that waits for the rest must not receive these as the value.
#[test]
fn a_value_truncated_during_sending_closes_the_connection() {
    const SIZE: usize = 48 << 20;
    let versions = tempfile::tempdir().expect("a folder");
    let value = "x".repeat(SIZE);
    let rows = [("k".to_owned(), value)].into_iter();
    build_rows(versions.path(), "big", rows, 1);
    let server = TestServer::start();
    server.pull_from("big", versions.path().to_str().expect("UTF-8"));
    let mut slow = Client::connect(&server);
    slow.send(b"GET big:k\r\n");
    let mut begin = [0; 1000];
    slow.stream.read_exact(&mut begin).expect("its beginning");
    truncate_segment(&server, "big", |_| 4096);
    let mut other = Client::connect(&server);
    let reply = other.call("GET big:k");
    assert!(reply.starts_with("-CORRUPTED"), "{:.80}", reply);
    let mut rest = Vec::new();
    // The connection is closed or reset, and the reply stays incomplete in both cases.
    let _ = slow.stream.read_to_end(&mut rest);
    assert!(rest.len() < SIZE, "{}", rest.len());
}
