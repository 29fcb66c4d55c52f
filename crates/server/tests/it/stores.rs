//! Versions after their arrival: swaps, rollbacks, retention, damage and restarts.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{TestServer, build};

/// Starts a server whose store `pymk` has been pulled once for each value.
fn server_with(values: &[&str]) -> (TestServer, TempDir) {
    let versions = tempfile::tempdir().unwrap();
    let server = TestServer::start();
    pull_each(&server, versions.path(), values);
    (server, versions)
}

fn pull_each(server: &TestServer, versions: &Path, values: &[&str]) {
    for value in values {
        let folder = versions.join(value);
        build(&folder, "pymk", 300, value);
        let pull = server.pull_from("pymk", folder.to_str().unwrap());
        assert_eq!(pull["state"], "done", "{pull:#}");
    }
}

fn ids(status: &Value) -> Vec<u64> {
    let versions = status["versions"].as_array().unwrap();
    versions
        .iter()
        .map(|v| v["version"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_rollback_returns_to_the_previous_version_and_survives_a_restart() {
    let (mut server, _versions) = server_with(&["one", "two", "three"]);
    server.check_value("pymk", "k7", "three");
    let (status, back) = server.post("/v1/stores/pymk/rollback", json!({}));
    assert_eq!(
        (status, &back["live"], &back["previous"]),
        (200, &json!(2), &json!(1)),
        "{back}"
    );
    assert!(back["took_us"].is_u64());
    server.check_value("pymk", "k7", "two");
    server.restart(|_| {});
    server.check_value("pymk", "k7", "two");
    let (_, back) = server.post("/v1/stores/pymk/rollback", json!({}));
    assert_eq!(
        (&back["live"], &back["previous"]),
        (&json!(1), &Value::Null)
    );
    let (status, refused) = server.post("/v1/stores/pymk/rollback", json!({}));
    assert_eq!(
        (status, &refused["error"]["code"]),
        (422, &json!("REFUSED"))
    );
    let (status, _) = server.post("/v1/stores/pymk/rollback", json!({"version": 3}));
    assert_eq!(status, 200, "any kept version can be returned to");
    server.check_value("pymk", "k7", "three");
    let (status, error) = server.post("/v1/stores/pymk/swap", json!({"version": 9}));
    assert_eq!(
        (status, &error["error"]["code"]),
        (404, &json!("NO_SUCH_VERSION"))
    );
}

#[test]
fn retention_keeps_the_newest_the_live_and_the_previous_version() {
    let (server, versions) = server_with(&["one", "two", "three"]);
    server.patch("/v1/settings", json!({"retain_versions": 1}));
    pull_each(&server, versions.path(), &["four"]);
    let (_, status) = server.get("/v1/stores/pymk");
    assert_eq!((ids(&status), &status["previous"]), (vec![4, 3], &json!(3)));
    let (status, error) = server.patch("/v1/settings", json!({"retain_versions": 0}));
    assert_eq!(status, 400, "{error}");
}

#[test]
fn retention_set_at_runtime_survives_restarts_until_the_configuration_changes() {
    let mut server = TestServer::start();
    let (_, before) = server.get("/v1/settings");
    assert_eq!(
        (&before["retain_versions"], &before["until_restart"]),
        (&json!(3), &json!([]))
    );
    let change =
        json!({"retain_versions": 7, "retain_bytes": 1000, "fetch_bytes_per_second": 5000});
    let (status, changed) = server.patch("/v1/settings", change);
    assert_eq!(
        (status, &changed["until_restart"]),
        (200, &json!(["fetch_bytes_per_second"]))
    );
    server.restart(|_| {});
    let (_, after) = server.get("/v1/settings");
    let kept = |settings: &Value| {
        ["retain_versions", "retain_bytes", "fetch_bytes_per_second"]
            .map(|name| settings[name].as_u64().unwrap())
    };
    assert_eq!(kept(&after), [7, 1000, 0]);
    assert_eq!(after["until_restart"], json!([]));

    server.restart_with(|config| config.stores.retain_versions = 4);
    assert_eq!(kept(&server.get("/v1/settings").1), [4, 1000, 0]);
}

#[test]
fn the_live_version_cannot_be_removed_and_others_can() {
    let (server, _versions) = server_with(&["one", "two"]);
    assert_eq!(server.delete("/v1/stores/pymk/versions/2").0, 409);
    assert_eq!(server.delete("/v1/stores/pymk/versions/1").0, 204);
    assert_eq!(server.delete("/v1/stores/pymk/versions/1").0, 404);
    assert_eq!(ids(&server.get("/v1/stores/pymk").1), [2]);
}

/// The files of a removed store are deleted immediately. A reader that holds the version can continue.
#[test]
fn readers_keep_the_version_of_a_store_that_is_removed() {
    let (server, _versions) = server_with(&["one"]);
    let held = server
        .server()
        .shared()
        .catalog
        .load()
        .get(b"pymk")
        .cloned()
        .unwrap();
    assert_eq!(server.delete("/v1/stores/pymk").0, 204);
    assert!(!server.store_folder("pymk").exists());
    assert_eq!(server.get("/v1/stores/pymk").0, 404);
    assert_eq!(server.get("/v1/stores/pymk/keys/k1").0, 404);
    let value = held.version.get(b"k1").unwrap().unwrap();
    assert_eq!(&value[..], b"one");
}

#[test]
fn reads_during_swaps_see_one_version() {
    let (server, _versions) = server_with(&["one", "two"]);
    let catalog = &server.server().shared().catalog;
    let (stop, seen) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    let keys: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let snapshot = catalog.load();
                    let live = snapshot.get(b"pymk").expect("always live");
                    let mut values = Vec::new();
                    live.version.get_many(&keys, &mut values);
                    let expected: &[u8] = [b"one", b"two"][live.version_id.0 as usize - 1];
                    for value in &values {
                        assert_eq!(&value.as_ref().unwrap().as_ref().unwrap()[..], expected);
                    }
                    seen[live.version_id.0 as usize - 1].fetch_add(1, Relaxed);
                }
            });
        }
        let (mut target, mut swaps) = (1, 0);
        // Continues until both versions were read often during the swaps, on a machine of any speed.
        while swaps < 50 || seen.iter().any(|count| count.load(Relaxed) < 50) {
            let (status, _) = server.post("/v1/stores/pymk/swap", json!({"version": target}));
            assert_eq!(status, 200);
            target = 3 - target;
            swaps += 1;
        }
        stop.store(true, Relaxed);
    });
}

fn flip_a_bit(version: &Path) {
    let path = version.join("p00000.segment");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // A byte of the first block, which contains records.
    let mut byte = [0];
    let at = 4096 + 100;
    let at = at.min(file.metadata().unwrap().len() / 3);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn verify_detects_a_flipped_bit_and_reads_never_report_an_absent_key() {
    let (server, _versions) = server_with(&["one", "two"]);
    let (status, report) = server.post("/v1/stores/pymk/verify", json!({}));
    assert_eq!(
        (status, &report["ok"], &report["record_count"]),
        (200, &json!(true), &json!(300))
    );
    flip_a_bit(&server.store_folder("pymk").join("v0000000002"));
    let (status, error) = server.post("/v1/stores/pymk/verify", json!({"version": 2}));
    assert_eq!(
        (status, &error["error"]["code"]),
        (500, &json!("CORRUPTED")),
        "{error}"
    );
    let mut damaged = 0;
    for i in 0..300 {
        match server.get(&format!("/v1/stores/pymk/keys/k{i}")) {
            (200, value) => assert_eq!(value, "two"),
            (500, error) => {
                assert_eq!(error["error"]["code"], "CORRUPTED");
                damaged += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(damaged > 0);
    assert_eq!(server.post("/v1/stores/pymk/rollback", json!({})).0, 200);
    server.check_value("pymk", "k0", "one");
}

#[test]
fn verify_streams_lines_to_clients_that_accept_them() {
    let (server, _versions) = server_with(&["one"]);
    let verify = || {
        let request = ureq::post(server.url("/v1/stores/pymk/verify"));
        let request = request.header("Accept", "application/x-ndjson");
        let mut answer = request.send_json(json!({})).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        let last = text.lines().last().unwrap();
        serde_json::from_str::<Value>(last).unwrap()
    };
    assert_eq!(verify()["done"]["record_count"], 300);
    flip_a_bit(&server.store_folder("pymk").join("v0000000001"));
    assert_eq!(verify()["error"]["code"], "CORRUPTED");
}

#[test]
fn a_damaged_live_version_is_reported_and_not_replaced_by_an_older_one() {
    let (mut server, versions) = server_with(&["one", "two"]);
    let other = versions.path().join("other");
    build(&other, "fine", 10, "v");
    server.pull_from("fine", other.to_str().unwrap());
    assert_eq!(server.get("/readyz").0, 200);
    server.restart(|data| {
        let manifest = data.join("stores/pymk/v0000000002/manifest.json");
        std::fs::write(manifest, "{}").unwrap();
    });
    let (status, error) = server.get("/v1/stores/pymk/keys/k0");
    assert_eq!(
        (status, &error["error"]["code"]),
        (500, &json!("CORRUPTED")),
        "{error}"
    );
    server.check_value("fine", "k0", "v");
    let (status, ready) = server.get("/readyz");
    assert_eq!(status, 200, "the other stores are served");
    assert!(ready.as_str().unwrap().contains("store pymk"), "{ready}");
    assert_eq!(server.get("/healthz").0, 200);
    assert_eq!(server.post("/v1/stores/pymk/rollback", json!({})).0, 200);
    server.check_value("pymk", "k0", "one");
    assert_eq!(server.get("/readyz").0, 200);
}

#[test]
fn a_second_server_on_the_same_folder_is_rejected() {
    let server = TestServer::start();
    let error = server.start_another().err().expect("refused").to_string();
    assert!(
        error.contains("is in use by another larder server"),
        "{error}"
    );
    assert!(error.contains(&std::process::id().to_string()), "{error}");
}

#[test]
fn leftovers_of_a_crash_are_removed_at_startup() {
    let (mut server, _versions) = server_with(&["one"]);
    server.restart(|data| {
        let store = data.join("stores/pymk");
        std::fs::create_dir(store.join("v0000000002.pull")).unwrap();
        std::fs::write(data.join("stores/stray"), "x").unwrap();
    });
    server.check_value("pymk", "k0", "one");
    assert_eq!(
        server.files("pymk"),
        ["LIVE", "history.json", "v0000000001"]
    );
}

#[test]
fn a_version_found_damaged_by_verify_goes_live_only_with_force_even_after_a_restart() {
    let (mut server, _versions) = server_with(&["one", "two", "three"]);
    let damaged = |server: &TestServer| {
        let (_, status) = server.get("/v1/stores/pymk");
        let versions = status["versions"].as_array().unwrap().clone();
        let damaged = versions.iter().filter(|v| !v["damaged"].is_null());
        let damaged: Vec<_> = damaged.map(|v| v["version"].as_u64().unwrap()).collect();
        (damaged, status["previous"].as_u64())
    };
    let folder = server.store_folder("pymk").join("v0000000002");
    let segment = folder.join("p00000.segment");
    let whole = std::fs::read(&segment).unwrap();
    flip_a_bit(&folder);
    let verify = json!({"version": "previous"});
    let (status, error) = server.post("/v1/stores/pymk/verify", verify.clone());
    assert_eq!(
        (status, &error["error"]["code"]),
        (500, &json!("CORRUPTED"))
    );
    for restarts in 0..2 {
        assert_eq!(damaged(&server), (vec![2], Some(1)), "{restarts}");
        for (path, version) in [("rollback", json!(2)), ("swap", json!("v2"))] {
            let path = format!("/v1/stores/pymk/{path}");
            let (status, refused) = server.post(&path, json!({"version": version}));
            assert_eq!(
                (status, &refused["error"]["code"]),
                (422, &json!("REFUSED"))
            );
            let message = refused["error"]["message"].as_str().unwrap();
            assert!(
                message.contains("version 2 of store pymk was found damaged"),
                "{message}"
            );
        }
        server.check_value("pymk", "k7", "three");
        server.restart(|_| {});
    }
    let forced = json!({"version": 2, "force": true});
    assert_eq!(server.post("/v1/stores/pymk/swap", forced).0, 200);
    assert_eq!(
        server.post("/v1/stores/pymk/swap", json!({"version": 3})).0,
        200
    );
    // Without a version number, a rollback skips the damaged version.
    let (_, back) = server.post("/v1/stores/pymk/rollback", json!({}));
    assert_eq!(back["live"], 1);
    // A successful verification removes the restriction.
    std::fs::write(&segment, whole).unwrap();
    server.restart(|_| {});
    assert_eq!(
        server
            .post("/v1/stores/pymk/verify", json!({"version": 2}))
            .0,
        200
    );
    assert_eq!(damaged(&server).0, Vec::<u64>::new());
    assert_eq!(
        server.post("/v1/stores/pymk/swap", json!({"version": 2})).0,
        200
    );
}

#[test]
fn all_interfaces_name_versions_identically() {
    let (server, _versions) = server_with(&["one", "two", "three"]);
    let swap = |version: Value| server.post("/v1/stores/pymk/swap", json!({"version": version}));
    for (version, live) in [
        (json!(1), 1),
        (json!("v2"), 2),
        (json!("v0000000003"), 3),
        (json!("2"), 2),
        (json!("live"), 2),
        (json!("previous"), 1),
    ] {
        let (status, swapped) = swap(version.clone());
        assert_eq!((status, &swapped["live"]), (200, &json!(live)), "{version}");
    }
    for bad in [json!("latest"), json!(-1), json!(1.5), json!(null)] {
        let (status, error) = swap(bad.clone());
        assert_eq!(
            (status, &error["error"]["code"]),
            (400, &json!("BAD_REQUEST")),
            "{bad}"
        );
    }
    assert_eq!(server.get("/v1/stores/pymk/sample?version=v3").0, 200);
    assert_eq!(server.get("/v1/stores/pymk/sample?version=v9").0, 404);
    assert_eq!(server.get("/v1/stores/pymk/sample?version=newest").0, 400);
    // Version 1 is live, and no older version exists.
    let key = |query: &str| server.get(&format!("/v1/stores/pymk/keys/k7{query}")).0;
    assert_eq!(
        [
            "?version=v3",
            "?version=live",
            "?version=9",
            "?version=newest"
        ]
        .map(key),
        [200, 200, 404, 400]
    );
    let (status, diff) = server.get("/v1/stores/pymk/diff?from=v3&to=live");
    assert_eq!(
        (status, &diff["from"], &diff["to"]),
        (200, &json!(3), &json!(1))
    );
    let (status, error) = server.delete("/v1/stores/pymk/versions/live");
    assert_eq!((status, &error["error"]["code"]), (409, &json!("CONFLICT")));
    assert_eq!(server.delete("/v1/stores/pymk/versions/x").0, 400);
    assert_eq!(server.delete("/v1/stores/pymk/versions/v3").0, 204);
    assert_eq!(server.delete("/v1/stores/pymk/versions/3").0, 404);
}

#[test]
fn a_rollback_to_an_empty_version_requires_force() {
    let server = TestServer::start();
    let versions = tempfile::tempdir().unwrap();
    let (empty, full) = (versions.path().join("empty"), versions.path().join("full"));
    build(&empty, "pymk", 0, "");
    build(&full, "pymk", 10, "v");
    for folder in [&empty, &full] {
        let pull = server.pull_from("pymk", folder.to_str().unwrap());
        assert_eq!(pull["state"], "done", "{pull:#}");
    }
    let (status, refused) = server.post("/v1/stores/pymk/rollback", json!({}));
    assert_eq!(
        (status, &refused["error"]["code"]),
        (422, &json!("REFUSED"))
    );
    server.check_value("pymk", "k7", "v");
    let pull = server.pull_from("pymk", empty.to_str().unwrap());
    assert_eq!(pull["error"]["code"], "REFUSED", "{pull:#}");
    let allowed = json!({"source": empty.to_str().unwrap(), "gates": {"allow_empty": true}});
    assert_eq!(server.pull("pymk", allowed)["state"], "done");
    assert_eq!(server.post("/v1/stores/pymk/rollback", json!({})).0, 200);
    let forced = json!({"version": "v0000000001", "force": true});
    assert_eq!(server.post("/v1/stores/pymk/rollback", forced).0, 200);
}
