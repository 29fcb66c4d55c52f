//! Signed versions: which versions can go live if `stores.signed_by` lists keys.

use std::path::Path;

use larder_batch::{BuildOptions, Builder, Manifest, SecretKey};
use serde_json::json;

use crate::support::{TestServer, build};

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed([number; 32])
}

fn build_signed(folder: &Path, value: &str, number: u8) -> Manifest {
    let options = BuildOptions {
        sign: Some(key(number)),
        partitions: 2,
        ..BuildOptions::new("pymk".parse().expect("a name"))
    };
    let builder = Builder::new(options, folder).expect("a builder");
    let mut writer = builder.writer();
    for i in 0..50u64 {
        writer
            .push(i, format!("k{i}").as_bytes(), value.as_bytes())
            .expect("pushed");
    }
    writer.close().expect("closed");
    builder.finish(&|_| {}).expect("built")
}

fn require_keys(config: &mut larder_protocol::config::ServerConfig, numbers: &[u8]) {
    let keys = numbers
        .iter()
        .map(|number| key(*number).public().to_string());
    config.stores.signed_by = keys.collect();
}

/// Checks that a pull of `folder` fails, and returns the error message.
#[track_caller]
fn check_rejected(server: &TestServer, folder: &Path) -> String {
    let pull = server.pull_from("pymk", folder.to_str().expect("UTF-8"));
    assert_eq!(pull["state"], json!("failed"), "{pull}");
    pull["error"]["message"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[track_caller]
fn check_live(server: &TestServer, folder: &Path) {
    let pull = server.pull_from("pymk", folder.to_str().expect("UTF-8"));
    assert_eq!(pull["state"], json!("done"), "{pull}");
}

#[test]
fn only_versions_signed_by_a_configured_key_go_live() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("temp dir");
    let at = |name: &str| folder.path().join(name);
    build(&at("plain"), "pymk", 50, "plain");
    build(&at("other-plain"), "pymk", 50, "other");
    build_signed(&at("one"), "one", 1);
    build_signed(&at("two"), "two", 2);
    check_live(&server, &at("plain"));

    server.restart_with(|config| require_keys(config, &[1]));
    server.check_value("pymk", "k7", "plain");
    assert!(check_rejected(&server, &at("other-plain")).contains("is not signed"));
    let pull = server.pull_from("pymk", at("other-plain").to_str().expect("UTF-8"));
    assert_eq!(pull["error"]["code"], json!("REFUSED"), "{pull}");
    let message = check_rejected(&server, &at("two"));
    assert!(
        message.contains("not one of the keys") && message.contains(&key(2).public().to_string()),
        "{message}"
    );
    server.check_value("pymk", "k7", "plain");
    check_live(&server, &at("one"));
    server.check_value("pymk", "k7", "one");
    let (status, answer) = server.post("/v1/stores/pymk/rollback", json!({}));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status != 200 && message.contains("is not signed"),
        "{answer}"
    );
    server.check_value("pymk", "k7", "one");

    // During a key rotation, both keys are valid.
    server.restart_with(|config| require_keys(config, &[1, 2]));
    check_live(&server, &at("two"));
    server.check_value("pymk", "k7", "two");
}

#[test]
fn a_modified_signed_version_is_rejected() {
    let server = TestServer::with(|config| require_keys(config, &[1]));
    let folder = tempfile::tempdir().expect("temp dir");
    let mut manifest = build_signed(folder.path(), "one", 1);
    // An attacker who changes data can adjust all digests, but cannot create a signature.
    manifest.segments[0].digest = "0".repeat(64);
    std::fs::write(folder.path().join(Manifest::FILE), manifest.encode()).expect("written");
    assert!(check_rejected(&server, folder.path()).contains("does not fit"));
    let pull = server.pull_from("pymk", folder.path().to_str().expect("UTF-8"));
    assert_eq!(pull["error"]["code"], json!("REFUSED"), "{pull}");
}

#[test]
fn data_pulled_unsigned_can_be_pulled_again_with_a_signature() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("temp dir");
    let mut manifest = build_signed(&folder.path().join("v"), "one", 1);
    let signature = manifest.signature.take();
    let path = folder.path().join("v").join(Manifest::FILE);
    std::fs::write(&path, manifest.encode()).expect("written");
    let source = folder.path().join("v");
    let kept = server.pull("pymk", json!({ "source": source, "activate": false }));
    assert_eq!(kept["error"], json!(null), "{kept}");

    server.restart_with(|config| require_keys(config, &[1]));
    manifest.signature = signature;
    std::fs::write(&path, manifest.encode()).expect("written");
    check_live(&server, &source);
    server.check_value("pymk", "k7", "one");
}

#[test]
fn invalid_keys_are_rejected_at_startup() {
    let mut server = TestServer::start();
    let said = server.start_refused(|config| config.stores.signed_by = vec!["ed25519:00".into()]);
    assert!(
        said.contains("stores.signed_by") && said.contains("larder keygen"),
        "{said}"
    );
}
