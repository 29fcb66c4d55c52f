//! The routing client with a cluster of one node, a server without a cluster, and a cluster of three nodes of which
//! one is killed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_client::{ClusterClient, Reply};
use larder_types::Random;

use crate::cluster_local::{Local, folder};
use crate::support::{run_ok, spawn_server_with, write_csv};

#[test]
fn a_client_of_a_cluster_reads_stores_and_writes_rows() {
    let folder = tempfile::tempdir().unwrap();
    let rows = (0..500).map(|n| (n.to_string(), format!("value-{n}")));
    let input = write_csv(folder.path(), "rows.csv", rows);
    for mode in ["one", "off"] {
        let data = folder.path().join(mode);
        let server = spawn_server_with(&data, |command| {
            command.env("LARDER_CLUSTER_MODE", mode);
        });
        let input = input.to_str().unwrap();
        let push = [
            "push", input, "--store", "s", "--key", "key", "--value", "value",
        ];
        run_ok(push.into_iter().chain(["--server", &server.http]));

        let client = ClusterClient::new([server.resp.clone()]);
        assert_eq!(client.get("s:7").unwrap().as_deref(), Some(&b"value-7"[..]));
        let keys: Vec<String> = (490..510).map(|n| format!("s:{n}")).collect();
        let values = client.mget(&keys).unwrap();
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(at, value)| value.is_some() == (at < 10))
        );
        for n in 0..50 {
            let key = format!("post|user{n}|1");
            client.command(&[b"SET", key.as_bytes(), b"hello"]).unwrap();
            assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"hello"[..]));
            let own = client.command(&[b"CLUSTER", b"KEYSLOT", format!("user{n}").as_bytes()]);
            if mode == "one" {
                let slot = i64::from(client.slot_of(&key).unwrap());
                assert_eq!(
                    own.unwrap(),
                    Reply::Integer(slot),
                    "a row goes by its leading column"
                );
            }
        }
        let range = client
            .command(&[b"RANGE", b"post|", b"post}", b"KEYSONLY"])
            .unwrap();
        assert!(matches!(range, Reply::Array(rows) if rows.len() == 50));
        let nodes = client.nodes().unwrap();
        assert_eq!((nodes.len(), nodes[0].slots), (1, 16_384));
        assert_eq!(client.counts().redirections, 0);
    }
}

/// Number of keys of a store, and number of rows.
const KEYS: u64 = 200;

/// Sets the flag on drop, also if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_read_fails_when_a_node_dies() {
    let data = folder();
    let Some(local) = Local::start_with(data.path(), 3, &["--replicas", "2"]) else {
        return;
    };
    let rows = (0..KEYS).map(|n| (n.to_string(), format!("value-{n}")));
    let input = write_csv(data.path(), "rows.csv", rows);
    let http = local.http(0);
    let push = ["push", input.to_str().unwrap(), "--store", "s"];
    let columns = ["--key", "key", "--value", "value", "--server", http];
    run_ok(push.into_iter().chain(columns));
    let nodes = local.nodes().iter();
    let client = ClusterClient::new(nodes.map(|node| node["resp"].as_str().unwrap()));
    for n in 0..KEYS {
        let (key, value) = (format!("post|user{n}|1"), format!("value-{n}"));
        client
            .command(&[b"SET", key.as_bytes(), value.as_bytes()])
            .unwrap();
    }

    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader = |seed: u64| {
        let mut random = Random::new(seed);
        while !stop.load(Ordering::Relaxed) {
            let n = random.below(KEYS);
            let key = match random.below(2) {
                0 => format!("s:{n}"),
                _ => format!("post|user{n}|1"),
            };
            let value = format!("value-{n}");
            assert_eq!(client.get(&key), Ok(Some(value.into_bytes())), "{key}");
            read.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let readers = [1, 2, 3].map(|seed| scope.spawn(move || reader(seed)));
        let should_continue = |reads: u64| {
            let before = read.load(Ordering::Relaxed);
            while read.load(Ordering::Relaxed) < before + reads {
                assert!(!readers.iter().any(|it| it.is_finished()), "a read failed");
                std::thread::yield_now();
            }
        };
        should_continue(KEYS);
        local.signal("-KILL", local.nodes()[1]["pid"].as_u64().unwrap());
        let has_changed = || {
            let status = run_ok(["cluster", "status", "--server", http]);
            status.contains("down") && status.contains("16,384 of 16,384 slots are served")
        };
        while !has_changed() {
            should_continue(1);
        }
        should_continue(10 * KEYS);
        drop(stopping);
    });
    let counts = client.counts();
    assert!(counts.retries > 0, "somebody met the dead node: {counts:?}");
    assert_eq!(local.end("-TERM"), Some(0));
}
