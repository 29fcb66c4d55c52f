//! Pulls from failing sources, and the files that they leave behind.

use larder_batch::Manifest;
use serde_json::json;

use crate::source::{Fault, Source};
use crate::support::{TestServer, build, build_rows};

const SEGMENT: &str = "p00000.segment";

#[track_caller]
fn check_done(pull: &serde_json::Value) {
    assert_eq!(pull["state"], "done", "{pull:#}");
    assert_eq!(pull["bytes_done"], pull["bytes_total"], "{pull:#}");
}

#[track_caller]
fn check_failed(pull: &serde_json::Value, code: &str, words: &str) {
    assert_eq!(pull["state"], "failed", "{pull:#}");
    assert_eq!(pull["error"]["code"], code, "{pull:#}");
    let message = pull["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(words), "{message}");
}

#[test]
fn pulls_from_a_folder_and_from_http_serve_the_same_records() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 500, "v1");
    let server = TestServer::start();
    check_done(&server.pull_from("pymk", versions.path().to_str().unwrap()));
    server.check_value("pymk", "k0", "v1");
    let source = Source::serve(versions.path());
    let pull = server.pull_from("pymk", source.url());
    check_done(&pull);
    assert_eq!(pull["version"], 2);
    server.check_value("pymk", "k499", "v1");
    let (_, status) = server.get("/v1/stores/pymk");
    assert_eq!(
        (&status["live"], &status["previous"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(status["versions"][0]["record_count"], 500);
    assert!(status["pull"].is_null());
}

/// The pull resumes at the same byte after every fault that does not corrupt data.
#[test]
fn an_interrupted_transfer_resumes_at_the_last_byte() {
    for fault in [Fault::StallAfter(1000), Fault::CutAfter(1000)] {
        let versions = tempfile::tempdir().unwrap();
        build(versions.path(), "pymk", 2000, "v1");
        let source = Source::serve(versions.path());
        source.break_next(SEGMENT, fault);
        source.break_next(SEGMENT, Fault::Status(500));
        source.break_next(SEGMENT, Fault::Redirect);
        let server = TestServer::start();
        check_done(&server.pull_from("pymk", source.url()));
        let requests = source.requests(SEGMENT);
        assert_eq!(requests[0], 0);
        assert!(
            requests[1..].iter().all(|from| (1..=1000).contains(from)),
            "{fault:?}: {requests:?}"
        );
        server.check_value("pymk", "k1999", "v1");
    }
}

#[test]
fn corrupt_bytes_are_fetched_again_once_and_then_rejected() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 100, "v1");
    let source = Source::serve(versions.path());
    let server = TestServer::start();
    source.break_next(SEGMENT, Fault::WrongByte);
    check_done(&server.pull_from("pymk", source.url()));
    assert_eq!(source.requests(SEGMENT), [0, 0]);

    // A second version, because the server would not fetch the first one again.
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 100, "v2");
    let source = Source::serve(versions.path());
    source.break_next(SEGMENT, Fault::WrongByte);
    source.break_next(SEGMENT, Fault::WrongByte);
    check_failed(
        &server.pull_from("pymk", source.url()),
        "SOURCE",
        "had a digest other than the manifest's",
    );
    let (_, status) = server.get("/v1/stores/pymk");
    assert_eq!(status["live"], 1, "the old version stays live");
    server.check_value("pymk", "k0", "v1");
}

#[test]
fn the_next_pull_resumes_a_failed_one_even_after_a_restart() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 2000, "v1");
    let source = Source::serve(versions.path());
    let mut server = TestServer::with(|config| {
        config.fetch.parallel = 1;
        config.fetch.retries = 0;
    });
    source.break_next("p00002.segment", Fault::CutAfter(500));
    check_failed(
        &server.pull_from("pymk", source.url()),
        "SOURCE",
        "p00002.segment",
    );
    assert_eq!(server.files("pymk"), ["v0000000001.pull"]);
    server.restart(|_| {});
    let (status, error) = server.get("/v1/stores/pymk/keys/k0");
    assert_eq!(
        (status, &error["error"]["code"]),
        (503, &json!("NO_LIVE_VERSION"))
    );
    let pull = server.pull_from("pymk", source.url());
    check_done(&pull);
    assert_eq!(
        source.requests(SEGMENT),
        [0],
        "complete segments are not fetched again"
    );
    let resumed = source.requests("p00002.segment");
    assert!(resumed.len() == 2 && resumed[1] > 0, "{resumed:?}");
    assert_eq!(
        server.files("pymk"),
        ["LIVE", "history.json", "v0000000001"]
    );
}

#[test]
fn an_interrupted_pull_of_another_source_is_removed() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 2000, "v1");
    let (broken, whole) = (
        Source::serve(versions.path()),
        Source::serve(versions.path()),
    );
    let server = TestServer::with(|config| config.fetch.retries = 0);
    broken.break_next(SEGMENT, Fault::CutAfter(100));
    check_failed(&server.pull_from("pymk", broken.url()), "SOURCE", SEGMENT);
    let pull = server.pull_from("pymk", whole.url());
    check_done(&pull);
    assert_eq!(whole.requests(SEGMENT), [0]);
    assert!(
        !server
            .files("pymk")
            .iter()
            .any(|name| name.ends_with(".pull"))
    );
}

#[test]
fn a_version_of_another_store_is_rejected_and_its_files_are_removed() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "other", 10, "v1");
    let server = TestServer::start();
    let pull = server.pull_from("pymk", versions.path().to_str().unwrap());
    check_failed(
        &pull,
        "SOURCE",
        "is of store other and was pulled into pymk",
    );
    assert_eq!(server.get("/v1/stores/pymk").0, 404);
    assert!(!server.store_folder("pymk").exists());
}

#[test]
fn inconsistent_manifests_are_rejected() {
    let server = TestServer::start();
    type Lie = fn(&mut Manifest);
    let lies: [(&str, Lie); 4] = [
        ("a name outside", |manifest| {
            manifest.segments[0].file = "../x".to_owned()
        }),
        ("an absolute name", |manifest| {
            manifest.segments[0].file = "/etc/passwd".to_owned()
        }),
        ("another format", |manifest| manifest.format = 9),
        ("sums", |manifest| manifest.record_count += 1),
    ];
    for (what, lie) in lies {
        let versions = tempfile::tempdir().unwrap();
        let mut manifest = build(versions.path(), "pymk", 10, "v1");
        lie(&mut manifest);
        std::fs::write(versions.path().join(Manifest::FILE), manifest.encode()).unwrap();
        let pull = server.pull_from("pymk", versions.path().to_str().unwrap());
        check_failed(&pull, "SOURCE", "manifest");
        assert_eq!(server.get("/v1/stores/pymk").0, 404, "{what}");
    }
    let empty = tempfile::tempdir().unwrap();
    check_failed(
        &server.pull_from("pymk", empty.path().to_str().unwrap()),
        "SOURCE",
        "manifest.json",
    );
    let (status, error) = server.post("/v1/stores/pymk/pull", json!({"source": "gopher://x"}));
    assert_eq!(
        (status, &error["error"]["code"]),
        (400, &json!("BAD_REQUEST"))
    );
    let (status, _) = server.post("/v1/stores/..%2fx/pull", json!({"source": "/x"}));
    assert_eq!(status, 400);
}

#[test]
fn a_store_has_one_pull_at_a_time_and_a_cancelled_pull_leaves_no_files() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 1000, "v1");
    let source = Source::serve(versions.path());
    source.break_next(SEGMENT, Fault::StallAfter(100));
    let server = TestServer::with(|config| config.fetch.stall_timeout_seconds = 60);
    let (_, first) = server.post("/v1/stores/pymk/pull", json!({"source": source.url()}));
    source.wait_for(SEGMENT, 1);

    let (status, same) = server.post("/v1/stores/pymk/pull", json!({"source": source.url()}));
    assert_eq!((status, &same["id"]), (202, &first["id"]));
    // A request with other gates or another target does not join the running pull.
    let asked = [
        json!({"source": source.url(), "gates": {"min_records": 1}}),
        json!({"source": source.url(), "activate": false}),
    ];
    for asked in asked {
        let (status, other) = server.post("/v1/stores/pymk/pull", asked);
        let message = other["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 409 && message.contains("with other gates"),
            "{other}"
        );
    }
    let (status, other) = server.post("/v1/stores/pymk/pull", json!({"source": "/elsewhere"}));
    assert_eq!((status, &other["error"]["code"]), (409, &json!("CONFLICT")));
    let (status, refused) = server.delete("/v1/stores/pymk");
    assert_eq!(status, 409, "{refused}");

    let id = first["id"].as_str().unwrap();
    let (status, reply) = server.delete(&format!("/v1/pulls/{id}"));
    let state = reply["state"].as_str().expect("a word");
    assert!(
        status == 200 && ["cancelling", "cancelled"].contains(&state),
        "{reply}"
    );
    assert_eq!(server.wait_for_pull(&first)["state"], "cancelled");
    assert!(!server.store_folder("pymk").exists());
}

#[test]
fn pulls_of_different_stores_run_concurrently() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    build(one.path(), "one", 100, "v1");
    build(two.path(), "two", 100, "v1");
    let (held, free) = (Source::serve(one.path()), Source::serve(two.path()));
    held.break_next(SEGMENT, Fault::Hold);
    let server = TestServer::with(|config| config.fetch.stall_timeout_seconds = 60);
    let (_, first) = server.post("/v1/stores/one/pull", json!({"source": held.url()}));
    held.wait_for(SEGMENT, 1);
    check_done(&server.pull_from("two", free.url()));
    held.release_held();
    check_done(&server.wait_for_pull(&first));
}

#[test]
fn a_version_that_fails_a_gate_does_not_replace_the_live_one() {
    let folder = tempfile::tempdir().unwrap();
    let (large, small) = (folder.path().join("large"), folder.path().join("small"));
    build(&large, "pymk", 1000, "old");
    build(&small, "pymk", 700, "new");
    let server = TestServer::start();
    check_done(&server.pull_from("pymk", large.to_str().unwrap()));
    let gates = [
        (
            json!({"min_records": 701}),
            "holds 700 records and min_records requires 701",
        ),
        (
            json!({"max_shrink_percent": 20.0}),
            "30.0 % fewer than live version 1 with 1000",
        ),
        (
            json!({"canary": [{"key": "k1", "value": "old"}]}),
            "canary key \"k1\" is \"new\" and should be \"old\"",
        ),
        (
            json!({"canary": [{"key": "k999"}]}),
            "canary key \"k999\" is absent",
        ),
    ];
    for (gate, words) in gates {
        let pull = server.pull("pymk", json!({"source": small, "gates": gate}));
        check_failed(&pull, "REFUSED", words);
        assert_eq!(
            server.files("pymk"),
            ["LIVE", "history.json", "v0000000001"]
        );
        server.check_value("pymk", "k1", "old");
    }
    let passed = json!({"min_records": 700, "max_shrink_percent": 30.0,
        "canary": [{"key": "k1", "value": "new"}, {"key": "k2"}]});
    check_done(&server.pull("pymk", json!({"source": small, "gates": passed})));
    server.check_value("pymk", "k1", "new");
}

#[test]
fn the_configured_gates_apply_to_pulls_without_gates() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "pymk", 10, "v");
    let server = TestServer::with(|config| config.stores.min_records = 11);
    let source = folder.path().to_str().unwrap();
    check_failed(&server.pull_from("pymk", source), "REFUSED", "min_records");
    assert!(!server.store_folder("pymk").exists());
    check_done(&server.pull(
        "pymk",
        json!({"source": source, "gates": {"min_records": 10}}),
    ));
}

/// A unit test checks the throttle with a simulated clock. This test checks that fetches pass through it, and that a
/// change of the limit affects fetches that already wait.
#[test]
fn a_throttled_pull_speeds_up_when_the_limit_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let rows = (0..2000).map(|i| (format!("k{i}"), format!("{i:0>1000}")));
    let manifest = build_rows(folder.path(), "pymk", rows, 8);
    let server = TestServer::with(|config| config.fetch.bytes_per_second = 1000);
    let source = Source::serve(folder.path());
    let (_, pull) = server.post("/v1/stores/pymk/pull", json!({"source": source.url()}));
    source.wait_for(SEGMENT, 1);
    let id = pull["id"].as_str().unwrap();
    let (_, creeping) = server.get(&format!("/v1/pulls/{id}?wait=1"));
    assert_eq!(creeping["state"], "fetching");
    let done = creeping["bytes_done"].as_u64().unwrap();
    assert!(
        done < manifest.size_bytes / 2,
        "{done} of {}",
        manifest.size_bytes
    );
    let (_, settings) = server.patch("/v1/settings", json!({"fetch_bytes_per_second": 0}));
    assert_eq!(settings["fetch_bytes_per_second"], 0);
    check_done(&server.wait_for_pull(&pull));
}

/// Mounts a small file system, which requires root.
#[test]
fn a_full_disk_is_reported_before_the_transfer_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
        .arg(&disk)
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    }
    let versions = tempfile::tempdir().unwrap();
    let rows = (0..8000).map(|i| (format!("k{i}"), format!("{i:0>1000}")));
    build_rows(&versions.path().join("large"), "pymk", rows, 4);
    build(&versions.path().join("small"), "pymk", 10, "v1");
    {
        let server = TestServer::with(|config| config.server.data = disk.join("data"));
        check_done(&server.pull_from("pymk", versions.path().join("small").to_str().unwrap()));
        let pull = server.pull_from("pymk", versions.path().join("large").to_str().unwrap());
        check_failed(&pull, "DISK_FULL", "are free");
        assert_eq!(
            server.files("pymk"),
            ["LIVE", "history.json", "v0000000001"]
        );
        server.check_value("pymk", "k0", "v1");
    }
    let unmounted = std::process::Command::new("umount")
        .arg("--lazy")
        .arg(&disk)
        .status();
    assert!(unmounted.unwrap().success());
}

#[test]
fn a_pull_may_stage_a_version_for_a_later_swap() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "pymk", 10, "v1");
    let server = TestServer::start();
    let body = json!({"source": folder.path(), "activate": false});
    check_done(&server.pull("pymk", body));
    assert_eq!(server.get("/v1/stores/pymk/keys/k0").0, 503);
    assert_eq!(
        server.post("/v1/stores/pymk/swap", json!({"version": 1})).0,
        200
    );
    server.check_value("pymk", "k0", "v1");
}

#[test]
fn a_kept_version_survives_a_rejected_push_of_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    build(&old, "pymk", 10, "old");
    build(&new, "pymk", 10, "new");
    let server = TestServer::start();
    check_done(&server.pull_from("pymk", old.to_str().unwrap()));
    check_done(&server.pull("pymk", json!({"source": new, "activate": false})));
    for _ in 0..2 {
        let asked = json!({"source": new, "gates": {"min_records": 100}});
        check_failed(&server.pull("pymk", asked), "REFUSED", "min_records");
        let (_, status) = server.get("/v1/stores/pymk");
        assert_eq!(status["versions"].as_array().map(Vec::len), Some(2));
        server.check_value("pymk", "k1", "old");
    }
    let swapped = server.post("/v1/stores/pymk/swap", json!({"version": 2}));
    assert_eq!(swapped.0, 200);
    server.check_value("pymk", "k1", "new");
}

/// A node of a cluster pulls from another node in this way when the source is gone.
#[test]
fn a_version_is_pulled_from_another_server() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 2000, "v1");
    let mut first = TestServer::start();
    check_done(&first.pull_from("pymk", versions.path().to_str().unwrap()));
    versions.close().unwrap();
    first.restart_with(|config| config.server.password = "open sesame".to_owned());
    let files = "/v1/stores/pymk/versions/1/files";
    let second = TestServer::start();
    check_failed(
        &second.pull_from("pymk", &first.url(files)),
        "SOURCE",
        "401",
    );
    let source = first
        .url(files)
        .replace("http://", "http://larder:open%20sesame@");
    let pull = second.pull_from("pymk", &source);
    check_done(&pull);
    assert!(!pull.to_string().contains("sesame"), "{pull}");
    second.check_value("pymk", "k1999", "v1");

    let open = second.url(files);
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let get = |file: &str, range: &str| {
        let answer = agent.get(format!("{open}/{file}")).header("Range", range);
        let mut answer = answer.call().unwrap();
        let status = answer.status().as_u16();
        (status, answer.body_mut().read_to_vec().unwrap())
    };
    let whole = std::fs::read(second.store_folder("pymk").join("LIVE").join(SEGMENT)).unwrap();
    assert_eq!(get(SEGMENT, "bytes=0-"), (200, whole.clone()));
    assert_eq!(get(SEGMENT, "bytes=100-"), (206, whole[100..].to_vec()));
    assert_eq!(get(SEGMENT, "bytes=1-2").0, 400);
    assert_eq!(get(SEGMENT, &format!("bytes={}-", whole.len())).0, 416);
    for absent in ["p00099.segment", "pull.json", "..%2F..%2FLIVE"] {
        assert_eq!(get(absent, "bytes=0-").0, 404, "{absent}");
    }
}
