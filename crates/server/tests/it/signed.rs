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

fn asking_for(config: &mut larder_protocol::config::ServerConfig, numbers: &[u8]) {
    let keys = numbers
        .iter()
        .map(|number| key(*number).public().to_string());
    config.stores.signed_by = keys.collect();
}

/// Checks that a pull of `folder` fails, and returns the error message.
#[track_caller]
fn refused(server: &TestServer, folder: &Path) -> String {
    let pull = server.pull_from("pymk", folder.to_str().expect("UTF-8"));
    assert_eq!(pull["state"], json!("failed"), "{pull}");
    pull["error"]["message"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[track_caller]
fn live(server: &TestServer, folder: &Path) {
    let pull = server.pull_from("pymk", folder.to_str().expect("UTF-8"));
    assert_eq!(pull["state"], json!("done"), "{pull}");
}

#[test]
fn only_versions_signed_by_a_named_key_go_live() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("temp dir");
    let at = |name: &str| folder.path().join(name);
    build(&at("plain"), "pymk", 50, "plain");
    build(&at("other-plain"), "pymk", 50, "other");
    build_signed(&at("one"), "one", 1);
    build_signed(&at("two"), "two", 2);
    live(&server, &at("plain"));

    server.restart_with(|config| asking_for(config, &[1]));
    server.check_value("pymk", "k7", "plain");
    assert!(refused(&server, &at("other-plain")).contains("is not signed"));
    let pull = server.pull_from("pymk", at("other-plain").to_str().expect("UTF-8"));
    assert_eq!(pull["error"]["code"], json!("REFUSED"), "{pull}");
    let message = refused(&server, &at("two"));
    assert!(
        message.contains("none of the keys") && message.contains(&key(2).public().to_string()),
        "{message}"
    );
    server.check_value("pymk", "k7", "plain");
    live(&server, &at("one"));
    server.check_value("pymk", "k7", "one");
    let (status, answer) = server.post("/v1/stores/pymk/rollback", json!({}));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status != 200 && message.contains("is not signed"),
        "{answer}"
    );
    server.check_value("pymk", "k7", "one");

    // During a key rotation, both keys are valid.
    server.restart_with(|config| asking_for(config, &[1, 2]));
    live(&server, &at("two"));
    server.check_value("pymk", "k7", "two");
}

#[test]
fn a_signed_version_that_was_changed_is_refused() {
    let server = TestServer::with(|config| asking_for(config, &[1]));
    let folder = tempfile::tempdir().expect("temp dir");
    let mut manifest = build_signed(folder.path(), "one", 1);
    // An attacker who changes data can adjust all digests, but cannot create a signature.
    manifest.segments[0].digest = "0".repeat(64);
    std::fs::write(folder.path().join(Manifest::FILE), manifest.encode()).expect("written");
    assert!(refused(&server, folder.path()).contains("does not fit"));
    let pull = server.pull_from("pymk", folder.path().to_str().expect("UTF-8"));
    assert_eq!(pull["error"]["code"], json!("REFUSED"), "{pull}");
}

#[test]
fn the_same_data_can_be_signed_after_it_was_pulled_unsigned() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("temp dir");
    let mut manifest = build_signed(&folder.path().join("v"), "one", 1);
    let signature = manifest.signature.take();
    let path = folder.path().join("v").join(Manifest::FILE);
    std::fs::write(&path, manifest.encode()).expect("written");
    let source = folder.path().join("v");
    let kept = server.pull("pymk", json!({ "source": source, "activate": false }));
    assert_eq!(kept["error"], json!(null), "{kept}");

    server.restart_with(|config| asking_for(config, &[1]));
    manifest.signature = signature;
    std::fs::write(&path, manifest.encode()).expect("written");
    live(&server, &source);
    server.check_value("pymk", "k7", "one");
}

#[test]
fn what_is_no_key_is_refused_at_the_start() {
    let mut server = TestServer::start();
    let said = server.start_refused(|config| config.stores.signed_by = vec!["ed25519:00".into()]);
    assert!(
        said.contains("stores.signed_by") && said.contains("larder keygen"),
        "{said}"
    );
}
