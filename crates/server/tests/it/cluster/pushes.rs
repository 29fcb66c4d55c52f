//! Repeated pushes while a node is killed, suspended and partitioned. After a push was reported as done, every later
//! read uses that version, and no reply mixes two versions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use larder_testing::SetOnDrop;
use serde_json::{Value, json};

use super::harness::{Cluster, Options, agent};
use super::rows::wait_until_settled;
use super::stores::{KEYS, mget, text, version};
use crate::resp::Client;

/// Returns the version of all values in a reply, or `None` if the reply is an error.
fn version_read(answer: &str) -> Option<u64> {
    if answer.starts_with('-') {
        let words = ["-CLUSTERDOWN ", "-TRYAGAIN ", "-LOADING "];
        assert!(
            words.iter().any(|word| answer.starts_with(word)),
            "{answer}"
        );
        return None;
    }
    let mut values = answer.split('|').skip(2).step_by(2);
    let first = values.next().unwrap_or_default();
    let is_of_one = values
        .by_ref()
        .filter(|it| !it.is_empty())
        .all(|it| it == first);
    assert!(
        is_of_one && answer.starts_with(&format!("*{KEYS}|$5|")),
        "{answer}"
    );
    Some(first.parse().expect("a number"))
}

/// Pushes one version after another. `done` is the last one that was reported live; `ended` counts all pushes,
/// including failed ones.
fn push(
    nodes: &[SocketAddr],
    stop: &AtomicBool,
    done: &AtomicU64,
    ended: &AtomicU64,
) -> Vec<Value> {
    let mut failed = Vec::new();
    for number in 2_u64.. {
        if stop.load(SeqCst) {
            break;
        }
        let folder = version(&format!("{number:05}"));
        let http = nodes[number as usize % nodes.len()];
        let url = format!("http://{http}/v1/stores/s/pull");
        let started = agent()
            .post(url)
            .send_json(json!({ "source": text(folder.path()) }));
        let started: Value = started
            .expect("the node replies")
            .body_mut()
            .read_json()
            .expect("JSON");
        let id = started["id"]
            .as_str()
            .unwrap_or_else(|| panic!("{started}"));
        let url = format!("http://{http}/v1/pulls/{id}?wait=60");
        let pull = agent()
            .get(url)
            .call()
            .expect("the node replies")
            .body_mut()
            .read_json();
        let pull: Value = pull.expect("JSON");
        match pull["state"].as_str() {
            Some("done") => done.store(number, SeqCst),
            _ => failed.push(pull["error"].clone()),
        }
        ended.fetch_add(1, SeqCst);
    }
    failed
}

#[test]
fn pushes_continue_while_a_node_is_killed_suspended_and_partitioned() {
    let options = Options::new(3)
        .set("tables.replicas", 2)
        .set("fetch.allow", "/");
    let Some(mut cluster) = options.proxied().peers_proxied().start() else {
        return;
    };
    wait_until_settled(&cluster);
    let (stop, done, ended) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let http = [cluster.http(0), cluster.http(1)];
    std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let pusher = scope.spawn(|| push(&http, &stop, &done, &ended));
        let pushed = |cluster: &Cluster, more: u64| {
            let before = done.load(SeqCst);
            cluster.wait_for("versions go live", || done.load(SeqCst) >= before + more);
        };
        cluster.wait_for("a version is live", || done.load(SeqCst) > 0);
        let readers: Vec<_> = [0, 1]
            .map(|node| {
                let (resp, stop, done) = (cluster.resp(node), &stop, &done);
                scope.spawn(move || {
                    let (mut client, line, mut last) = (Client::to(resp), mget(), 0);
                    while !stop.load(SeqCst) {
                        let before = done.load(SeqCst).max(last);
                        if let Some(read) = version_read(&client.call(&line)) {
                            assert!(read >= before, "{read} after {before}");
                            last = read;
                        }
                    }
                    last
                })
            })
            .into();
        pushed(&cluster, 2);
        cluster.kill(2);
        cluster.wait_until_down(0, 2);
        pushed(&cluster, 2);
        cluster.restart(2);
        wait_until_settled(&cluster);
        cluster.suspend(2);
        cluster.wait_until_down(0, 2);
        cluster.resume(2);
        pushed(&cluster, 2);
        cluster.etcd_proxy(2, 0).cut();
        cluster.wait_until_down(0, 2);
        pushed(&cluster, 2);
        cluster.peer_proxy(2).cut();
        pushed(&cluster, 1);
        cluster.heal(2);
        wait_until_settled(&cluster);
        pushed(&cluster, 2);
        drop(stopping);
        let failed = pusher.join().expect("the pushing thread succeeds");
        let why = |it: &Value| it["message"].as_str().unwrap_or_default().contains("n3");
        assert!(failed.iter().all(why), "{failed:#?}");
        for reader in readers {
            assert!(reader.join().expect("the client thread succeeds") > 0);
        }
    });
    wait_until_settled(&cluster);
    let last = done.load(SeqCst);
    for node in 0..3 {
        cluster.wait_for("all nodes have the last version", || {
            version_read(&cluster.ask(node, &mget())).is_some_and(|read| read >= last)
        });
    }
}
