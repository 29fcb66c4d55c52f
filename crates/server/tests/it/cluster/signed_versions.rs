//! Clusters that accept only signed versions (`stores.signed_by`).

use std::path::Path;

use larder_batch::{BuildOptions, Builder, SecretKey};
use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::stores::{KEYS, mget, text, version};

fn write_signed_version(folder: &Path, value: &str, number: u8) {
    let options = BuildOptions {
        sign: Some(SecretKey::from_seed([number; 32])),
        partitions: 16,
        ..BuildOptions::new("s".parse().expect("a name"))
    };
    let builder = Builder::new(options, folder).expect("a builder");
    let mut writer = builder.writer();
    for (seq, key) in (0..KEYS).enumerate() {
        let key = format!("k{key}");
        let pushed = writer.push(seq as u64, key.as_bytes(), value.as_bytes());
        pushed.expect("pushed");
    }
    writer.close().expect("closed");
    builder.finish(&|_| {}).expect("built");
}

fn push(cluster: &Cluster, node: usize, source: &Path) -> Value {
    let request = json!({ "source": text(source) });
    let (status, answer) = cluster.post(node, "/v1/stores/s/pull", &request);
    assert_eq!(status, 202, "{answer}");
    let started: Value = serde_json::from_str(&answer).expect("JSON");
    let id = started["id"].as_str().expect("an id");
    let (status, answer) = cluster.get(node, &format!("/v1/pulls/{id}?wait=60"));
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).expect("JSON")
}

/// Checks that the pull failed with this reason, so that no node has made the version live.
#[track_caller]
fn check_refused(pull: &Value, why: &str) {
    assert_eq!(pull["state"], "failed", "{pull:#}");
    let message = pull["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(why), "no {why:?} in: {message}");
}

#[track_caller]
fn check_live(cluster: &Cluster, value: &str) {
    let one = format!("|${}|{value}", value.len());
    for node in cluster.running() {
        let all = format!("*{KEYS}{}", one.repeat(KEYS));
        cluster.client(node).check(&mget(), &all);
    }
}

#[test]
fn only_versions_signed_by_a_configured_key_go_live() {
    let key = SecretKey::from_seed([1; 32]).public();
    let options = Options::new(3).set("tables.replicas", 2);
    let options = options.set("fetch.allow", "/");
    let Some(cluster) = options.set("stores.signed_by", key).start() else {
        return;
    };
    let plain = version("plain");
    check_refused(&push(&cluster, 0, plain.path()), "is not signed");
    for node in cluster.running() {
        let (status, answer) = cluster.get(node, "/v1/stores/s");
        let store: Value = serde_json::from_str(&answer).expect("JSON");
        let is_live = status == 200 && !store["live"].is_null();
        assert!(!is_live, "node {node}: {answer}");
        assert_ne!(cluster.get(node, "/v1/stores/s/keys/k1").0, 200);
    }

    let (ours, others) = (tempfile::tempdir(), tempfile::tempdir());
    let (ours, others) = (ours.expect("a folder"), others.expect("a folder"));
    write_signed_version(ours.path(), "ours", 1);
    write_signed_version(others.path(), "others", 2);
    let pull = push(&cluster, 1, ours.path());
    assert_eq!(pull["state"], "done", "{pull:#}\n{}", cluster.logs());
    check_live(&cluster, "ours");

    // Every node rejects these pushes, and the live version stays.
    for node in cluster.running() {
        check_refused(&push(&cluster, node, others.path()), "not one of the keys");
        check_refused(&push(&cluster, node, plain.path()), "is not signed");
    }
    check_live(&cluster, "ours");
}
