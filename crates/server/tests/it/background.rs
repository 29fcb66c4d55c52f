//! Background work on stores: it shares one budget, and the hottest keys are read in a new version before it goes
//! live.

use serde_json::json;

use crate::resp::Client;
use crate::support::{TestServer, build_rows};

#[test]
fn pulls_and_verification_share_one_budget() {
    let folder = tempfile::tempdir().expect("temp dir");
    let rows = (0..3000).map(|i| (format!("k{i}"), format!("{i:0>500}")));
    let manifest = build_rows(folder.path(), "pymk", rows, 4);
    let server = TestServer::with(|config| config.fetch.warm = false);
    let mut client = Client::connect(&server);
    assert_eq!(client.info_number("background", "background_bytes"), 0);
    assert_eq!(
        client.info_number("background", "background_share_percent"),
        100
    );
    let source = folder.path().to_str().expect("UTF-8");
    assert_eq!(server.pull_from("pymk", source)["state"], "done");
    // The rate limit of pulls counts each byte once, when it is fetched. Verification is counted separately.
    for name in ["background_fetched_bytes", "background_verified_bytes"] {
        assert_eq!(
            client.info_number("background", name),
            manifest.size_bytes,
            "{name}"
        );
    }
    assert_eq!(
        client.info_number("background", "background_bytes"),
        2 * manifest.size_bytes
    );
    assert_eq!(client.info_number("background", "background_waiting"), 0);
    let (_, _) = server.patch("/v1/settings", json!({"fetch_bytes_per_second": 5_000_000}));
    assert_eq!(
        client.info_number("background", "background_bytes_per_second"),
        5_000_000
    );
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    let reply = format!("larder_background_bytes_total {}", 2 * manifest.size_bytes);
    assert!(metrics.contains(&reply), "{metrics}");
    assert!(metrics.contains("larder_background_share "), "{metrics}");
}

#[test]
fn the_hottest_keys_warm_a_new_version() {
    let folder = tempfile::tempdir().expect("temp dir");
    let version = |name: &str, first: usize| {
        let rows = (first..first + 2000).map(|i| (format!("k{i}"), format!("{name}-{i}")));
        let folder = folder.path().join(name);
        build_rows(&folder, "pymk", rows, 4);
        folder.to_str().expect("UTF-8").to_owned()
    };
    let (one, two) = (version("one", 0), version("two", 1990));
    for (asked, found) in [(0, 0), (50, 10)] {
        let server = TestServer::with(|config| {
            config.fetch.warm_keys = asked;
            config.fetch.warm = false;
        });
        assert_eq!(server.pull_from("pymk", &one)["state"], "done");
        let mut client = Client::connect(&server);
        assert_eq!(client.info_number("background", "background_hot_keys"), 0);
        // Of these twenty keys, the next version has ten.
        let keys: Vec<String> = (1980..2000).map(|i| format!("pymk:k{i}")).collect();
        for _ in 0..200 {
            client.call(&format!("MGET {}", keys.join(" ")));
        }
        assert_eq!(server.pull_from("pymk", &two)["state"], "done");
        assert_eq!(
            client.info_number("background", "background_hot_keys"),
            found
        );
        client.check("GET pymk:k1995", "$8|two-1995");
    }
}
