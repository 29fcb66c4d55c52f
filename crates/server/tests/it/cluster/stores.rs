//! Stores in a cluster: a version becomes live on all nodes or on none, whatever fails in between.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use crate::full_disk::SmallDisk;
use crate::source::{Fault, Source};
use crate::support::build_rows;

pub const KEYS: usize = 300;
const PARTITIONS: u32 = 16;

/// Builds a version of store `s` in which all keys have this value.
pub fn version(value: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = (0..KEYS).map(|i| (format!("k{i}"), value.to_owned()));
    build_rows(folder.path(), "s", rows, PARTITIONS);
    folder
}

/// Returns a request for all keys.
pub fn mget() -> String {
    let keys: Vec<String> = (0..KEYS).map(|i| format!("s:k{i}")).collect();
    format!("MGET {}", keys.join(" "))
}

pub fn text(folder: &Path) -> &str {
    folder.to_str().expect("UTF-8")
}

/// A cluster, with operations on its store `s`.
struct Stores(Cluster);

impl Stores {
    /// Starts three nodes with this number of copies of each slot.
    fn of(replicas: usize) -> Option<Stores> {
        Options::new(3)
            .set("tables.replicas", replicas)
            .set("fetch.allow", "/,http://127.0.0.1/")
            .start()
            .map(Stores)
    }

    fn json(&self, node: usize, path: &str) -> Value {
        let (status, answer) = self.0.get(node, path);
        assert_eq!(status, 200, "{path}: {answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    /// Starts a push through a node, and returns the pull's first status.
    fn begin(&self, node: usize, request: &Value) -> Value {
        let (status, answer) = self.0.post(node, "/v1/stores/s/pull", request);
        assert_eq!(status, 202, "{answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    fn wait_for_end(&self, node: usize, pull: &Value) -> Value {
        let id = pull["id"].as_str().expect("an id");
        let ended = self.json(node, &format!("/v1/pulls/{id}?wait=60"));
        let logs = || self.0.logs();
        assert!(
            ended["ended_at"].is_u64(),
            "the pull is still in progress: {ended:#}\n{}",
            logs()
        );
        ended
    }

    fn push(&self, node: usize, request: &Value) -> Value {
        self.wait_for_end(node, &self.begin(node, request))
    }

    #[track_caller]
    fn push_live(&self, node: usize, source: &str, number: u64) {
        let pull = self.push(node, &json!({ "source": source }));
        assert_eq!(pull["state"], "done", "{pull:#}\n{}", self.0.logs());
        assert_eq!(pull["version"], number);
    }

    #[track_caller]
    fn check_failed(&self, pull: &Value, code: &str, words: &[&str]) {
        assert_eq!(pull["state"], "failed", "{pull:#}");
        let error = &pull["error"];
        assert_eq!(error["code"], code, "{pull:#}");
        let message = error["message"].as_str().unwrap_or_default();
        for word in words {
            assert!(message.contains(word), "no {word} in: {message}");
        }
    }

    /// Checks that all running nodes have this version live, and that each returns its value for the keys.
    #[track_caller]
    fn check_live(&self, number: u64, value: &str) {
        for node in self.0.running() {
            let store = self.json(node, "/v1/stores/s");
            assert_eq!(store["live"], number, "{store:#}");
            for key in (0..KEYS).step_by(7) {
                let path = format!("/v1/stores/s/keys/k{key}");
                let answer = self.0.get(node, &path);
                assert_eq!(answer, (200, value.to_owned()), "k{key} of node {node}");
            }
            assert_eq!(self.0.get(node, "/v1/stores/s/keys/absent").0, 404);
            self.check_mget(node, value);
            let mut client = self.0.client(node);
            client.check("GET s:k1", &format!("${}|{value}", value.len()));
            client.check("GET s:absent", "$-1");
            client.check("EXISTS s:k1 s:k2 s:k3 s:k4 s:absent", ":4");
            client.check("STRLEN s:k5", &format!(":{}", value.len()));
            client.check("GETRANGE s:k6 0 0", &format!("$1|{}", &value[..1]));
            client.check("STORE.VERSION s", &format!(":{number}"));
        }
    }

    /// Checks a read of all keys, which gathers values from all nodes.
    #[track_caller]
    fn check_mget(&self, node: usize, value: &str) {
        let one = format!("|${}|{value}", value.len());
        let all = format!("*{KEYS}{}", one.repeat(KEYS));
        self.0.client(node).check(&mget(), &all);
    }

    /// Sends a DELETE, and returns the status.
    fn remove(&self, node: usize, path: &str) -> u16 {
        let url = format!("http://{}{path}", self.0.http(node));
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        let answer = agent.delete(url).header("X-Larder", "1").call();
        answer.expect("the node answers").status().as_u16()
    }

    /// Returns the number of keys that a node has locally.
    fn count_local_keys(&self, node: usize) -> usize {
        let here = |key: &usize| {
            let path = format!("/v1/stores/s/keys/k{key}?here=true");
            self.0.get(node, &path).0 == 200
        };
        (0..KEYS).filter(here).count()
    }
}

#[test]
fn a_pushed_version_is_live_on_all_nodes_and_each_has_its_part() {
    let Some(stores) = Stores::of(1) else { return };
    let (first, second) = (version("one"), version("two"));
    let pull = stores.push(0, &json!({ "source": text(first.path()) }));
    assert_eq!(pull["state"], "done", "{pull:#}\n{}", stores.0.logs());
    let nodes = pull["nodes"].as_array().expect("the pull lists its nodes");
    assert_eq!(nodes.len(), 3, "{pull:#}");
    stores.check_live(1, "one");
    let here: Vec<usize> = (0..3).map(|node| stores.count_local_keys(node)).collect();
    assert!(here.iter().all(|&keys| keys > 0 && keys < KEYS), "{here:?}");
    assert!(here.iter().sum::<usize>() >= KEYS, "{here:?}");

    stores.push_live(1, text(second.path()), 2);
    stores.check_live(2, "two");
    let (status, answer) = stores.0.post(2, "/v1/stores/s/rollback", &json!({}));
    assert_eq!(status, 200, "{answer}");
    stores.check_live(1, "one");
    let (status, answer) = stores
        .0
        .post(0, "/v1/stores/s/rollback", &json!({ "version": 7 }));
    assert_eq!(status, 404, "{answer}");
}

/// Returns the keys of a complete SCAN. Calls `between` once, after the fourth page.
fn scan_all(cluster: &Cluster, pattern: &str, between: &mut dyn FnMut()) -> Vec<String> {
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    for call in 0..1_000 {
        // A cursor is valid on every node.
        let running = cluster.running();
        let line = format!("SCAN {cursor} MATCH {pattern} COUNT 20");
        let answer = cluster.ask(running[call % running.len()], &line);
        assert!(answer.starts_with("*2|"), "{answer}");
        let words: Vec<&str> = answer.split('|').collect();
        keys.extend(
            words
                .iter()
                .filter(|it| it.starts_with("s:"))
                .map(|it| (*it).to_owned()),
        );
        cursor = words[2].to_owned();
        if cursor == "0" {
            keys.sort();
            return keys;
        }
        if call == 3 {
            between();
        }
    }
    panic!("the scan does not end");
}

impl Stores {
    fn dump(&self, node: usize, path: &str) -> Vec<(String, String)> {
        let (status, answer) = self.0.get(node, path);
        assert_eq!(status, 200, "{path}: {answer}");
        let lines = answer.lines().map(|line| {
            let record: Value = serde_json::from_str(line).expect("JSON");
            let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
            (text("key"), text("value"))
        });
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        lines
    }
}

fn all_keys() -> Vec<String> {
    let mut keys: Vec<String> = (0..KEYS).map(|i| format!("k{i}")).collect();
    keys.sort();
    keys
}

#[test]
fn a_complete_version_is_scanned_dumped_and_compared_through_any_node() {
    let Some(stores) = Stores::of(1) else { return };
    let (first, second) = (version("one"), tempfile::tempdir().expect("a folder"));
    // The second version removes one key, adds two, changes every fifth, and has other partitions.
    let rows = (1..KEYS + 2).map(|i| {
        (
            format!("k{i}"),
            if i % 5 == 0 { "two" } else { "one" }.to_owned(),
        )
    });
    build_rows(second.path(), "s", rows, 7);
    stores.push_live(0, text(first.path()), 1);
    let keys = all_keys();
    let expected: Vec<String> = keys.iter().map(|key| format!("s:{key}")).collect();
    let mut swap = || stores.push_live(1, text(second.path()), 2);
    // The scan continues in the version in which it began.
    assert_eq!(scan_all(&stores.0, "s:*", &mut swap), expected);
    let ones = scan_all(&stores.0, "s:k1*", &mut || {});
    assert!(
        ones.iter().all(|key| key.starts_with("s:k1")) && ones.len() == 111,
        "{ones:?}"
    );
    for node in 0..3 {
        let dump = stores.dump(node, "/v1/stores/s/dump?version=1");
        let one = |key: &String| (key.clone(), "one".to_owned());
        assert_eq!(dump, keys.iter().map(one).collect::<Vec<_>>());
        let diff = stores.json(node, "/v1/stores/s/diff?limit=70");
        let metrics =
            ["from", "to", "added", "removed", "changed", "unchanged"].map(|it| &diff[it]);
        assert_eq!(
            metrics,
            [1, 2, 2, 1, 59, 240].map(Value::from).each_ref(),
            "{diff}"
        );
        assert_eq!(diff["changes"].as_array().map(Vec::len), Some(62), "{diff}");
    }
    // If the cursor's version no longer exists anywhere, the scan fails instead of returning a result that appears
    // complete.
    let cursor = (9_u64 << 48) | 1;
    let expired = stores.0.ask(0, &format!("SCAN {cursor} MATCH s:*"));
    assert!(
        expired.starts_with("-ERR cursor") && expired.contains("no longer exists"),
        "{expired}"
    );
}

#[test]
fn commands_on_a_complete_version_report_an_unavailable_part() {
    let Some(mut stores) = Stores::of(1) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let rows = (0..KEYS).map(|i| (format!("k{i}"), "one".to_owned()));
    // With this many partitions, each node has some that no other node has.
    build_rows(folder.path(), "s", rows, 128);
    stores.push_live(0, text(folder.path()), 1);
    stores.push_live(0, text(folder.path()), 2);
    stores.0.kill(2);
    stores.0.wait_for_state(2, "down");
    let (status, diff) = stores.0.get(0, "/v1/stores/s/diff");
    assert!(
        status == 503 && diff.contains("no node that is up holds it"),
        "{status} {diff}"
    );
    let url = format!("http://{}/v1/stores/s/dump", stores.0.http(0));
    let mut dump = ureq::get(url).call().expect("the dump starts");
    assert!(
        dump.body_mut().read_to_string().is_err(),
        "the dump must be aborted"
    );
    let mut cursor = "0".to_owned();
    let refused = loop {
        let answer = stores
            .0
            .ask(1, &format!("SCAN {cursor} MATCH s:* COUNT 100"));
        match answer.split('|').nth(2) {
            Some("0") => panic!("the scan ended: {answer}"),
            Some(next) => cursor = next.to_owned(),
            None => break answer,
        }
    };
    assert!(
        refused.starts_with("-CLUSTERDOWN cannot scan partition"),
        "{refused}"
    );
}

#[test]
fn removed_stores_and_versions_disappear_from_all_nodes() {
    let Some(stores) = Stores::of(1) else { return };
    let (first, second) = (version("one"), version("two"));
    stores.push_live(0, text(first.path()), 1);
    stores.push_live(1, text(second.path()), 2);
    assert_eq!(
        stores.remove(1, "/v1/stores/s/versions/2"),
        409,
        "a live version must not be removed"
    );
    assert_eq!(stores.remove(2, "/v1/stores/s/versions/1"), 204);
    for node in 0..3 {
        let store = stores.json(node, "/v1/stores/s");
        assert_eq!(
            store["versions"].as_array().map(Vec::len),
            Some(1),
            "{store:#}"
        );
    }
    stores.check_live(2, "two");
    assert_eq!(stores.remove(0, "/v1/stores/s"), 204);
    for node in 0..3 {
        assert_eq!(stores.0.get(node, "/v1/stores/s").0, 404);
        assert_eq!(stores.0.ask(node, "STORE.LIST"), "*0");
        let folder = stores.0.data(node).join("stores/s");
        stores
            .0
            .wait_for("its folder is removed", || !folder.exists());
    }
    stores.push_live(2, text(first.path()), 1);
    stores.check_live(1, "one");
}

/// All values of one reply are of one version, and the replies of one node never return to an older version.
#[test]
fn each_reply_is_from_one_version_during_swaps() {
    let Some(stores) = Stores::of(1) else { return };
    let folders: Vec<_> = (1..=8).map(|n| version(&format!("v{n}"))).collect();
    stores.push_live(0, text(folders[0].path()), 1);
    let is_over = AtomicBool::new(false);
    let may_go_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|node| {
                let (stores, is_over, may_go_back) = (&stores, &is_over, &may_go_back);
                scope.spawn(move || {
                    let (mut client, line) = (stores.0.client(node), mget());
                    let (mut last, mut seen) = (0, 0);
                    while !is_over.load(Relaxed) {
                        let answer = client.call(&line);
                        let mut values = answer.split('|').skip(2).step_by(2);
                        let first = values.next().unwrap_or_default();
                        let is_of_one = values.filter(|it| !it.is_empty()).all(|it| it == first);
                        assert!(is_of_one && answer.starts_with("*300|$2|v"), "{answer}");
                        let number: u64 = first[1..].parse().expect("a number");
                        assert!(
                            number >= last || may_go_back.load(Relaxed),
                            "{number} after {last}"
                        );
                        seen += usize::from(number != last);
                        last = number;
                    }
                    seen
                })
            })
            .collect();
        for (number, folder) in (2..).zip(&folders[1..]) {
            stores.push_live(number as usize % 3, text(folder.path()), number);
        }
        may_go_back.store(true, Relaxed);
        for n in 0..13 {
            let (status, answer) = stores.0.post(n % 3, "/v1/stores/s/rollback", &json!({}));
            assert_eq!(status, 200, "{answer}");
        }
        is_over.store(true, Relaxed);
        let seen = readers
            .into_iter()
            .map(|it| it.join().expect("the reader saw complete versions"));
        assert!(seen.min() > Some(4), "few versions were seen");
    });
    stores.check_live(7, "v7");
}

#[test]
fn an_invalid_version_is_rejected_before_it_is_live_on_any_node() {
    let Some(stores) = Stores::of(1) else { return };
    let (first, second) = (version("one"), version("two"));
    stores.push_live(0, text(first.path()), 1);

    let gates = json!({ "min_records": KEYS + 1 });
    let few = json!({ "source": text(second.path()), "gates": gates });
    stores.check_failed(&stores.push(1, &few), "REFUSED", &["min_records"]);
    let canary =
        json!({ "canary": [{ "key": "k1", "value": "two" }, { "key": "k2", "value": "three" }] });
    let canary = json!({ "source": text(second.path()), "gates": canary });
    stores.check_failed(
        &stores.push(1, &canary),
        "REFUSED",
        &["canary key \"k2\"", "n"],
    );
    stores.check_live(1, "one");

    let source = Source::serve(second.path());
    for _ in 0..8 {
        source.break_next("p00005.segment", Fault::WrongByte);
    }
    let pull = stores.push(2, &json!({ "source": source.url() }));
    stores.check_failed(&pull, "SOURCE", &["p00005.segment had a digest other than"]);
    let message = pull["error"]["message"]
        .as_str()
        .expect("the pull reports the reason");
    assert!(
        message.contains("n1: ") || message.contains("n2: ") || message.contains("n3: "),
        "{message}"
    );
    stores.check_live(1, "one");
    let elsewhere = json!({ "source": "/nowhere/at/all" });
    stores.check_failed(&stores.push(1, &elsewhere), "SOURCE", &["/nowhere/at/all"]);
    stores.check_live(1, "one");
}

#[test]
fn a_source_that_disappears_during_a_pull_leaves_the_previous_version_live() {
    let Some(stores) = Stores::of(1) else { return };
    let (first, second) = (version("one"), version("two"));
    stores.push_live(0, text(first.path()), 1);
    let source = Source::serve(second.path());
    for partition in 3..PARTITIONS {
        let file = format!("p{partition:05}.segment");
        for _ in 0..20 {
            source.break_next(&file, Fault::Status(404));
        }
    }
    let pull = stores.push(0, &json!({ "source": source.url() }));
    stores.check_failed(&pull, "SOURCE", &["n"]);
    stores.check_live(1, "one");
}

#[test]
fn a_second_push_is_rejected_while_the_first_is_in_progress() {
    let Some(stores) = Stores::of(1) else { return };
    let (first, second) = (version("one"), version("two"));
    let source = Source::serve(first.path());
    source.break_next("p00003.segment", Fault::Hold);
    let started = stores.begin(0, &json!({ "source": source.url() }));
    source.wait_for("p00003.segment", 1);
    let other = stores.push(1, &json!({ "source": text(second.path()) }));
    stores.check_failed(
        &other,
        "CONFLICT",
        &["version 1 of store s is being pushed"],
    );
    source.release_held();
    let ended = stores.wait_for_end(0, &started);
    assert_eq!(ended["state"], "done", "{ended:#}");
    stores.check_live(1, "one");
}

#[test]
fn a_push_that_is_cancelled_is_cancelled_on_all_nodes() {
    let Some(stores) = Stores::of(1) else { return };
    let folder = version("one");
    let source = Source::serve(folder.path());
    source.break_next("p00003.segment", Fault::Hold);
    let started = stores.begin(0, &json!({ "source": source.url() }));
    source.wait_for("p00003.segment", 1);
    let id = started["id"].as_str().expect("an id");
    assert_eq!(stores.remove(0, &format!("/v1/pulls/{id}")), 200);
    assert_eq!(stores.wait_for_end(0, &started)["state"], "cancelled");
    source.release_held();
    stores.push_live(2, text(folder.path()), 2);
    stores.check_live(2, "one");
}

#[test]
fn any_node_can_cancel_a_push_whose_coordinator_died() {
    let Some(mut stores) = Stores::of(2) else {
        return;
    };
    let folder = version("one");
    let source = Source::serve(folder.path());
    source.break_next("p00003.segment", Fault::Hold);
    source.break_next("p00003.segment", Fault::Hold);
    stores.begin(2, &json!({ "source": source.url() }));
    source.wait_for("p00003.segment", 1);
    stores.0.kill(2);
    let other = stores.push(1, &json!({ "source": text(folder.path()) }));
    let words = ["is being pushed", "larder cluster abort-push s"];
    stores.check_failed(&other, "CONFLICT", &words);
    let ask = json!({"action": "abort_push", "store": "s"});
    let (status, answer) = stores.0.post(1, "/v1/cluster/asks", &ask);
    assert_eq!(status, 200, "{answer}");
    source.release_held();
    stores.push_live(1, text(folder.path()), 2);
    stores.check_live(2, "one");
    let (_, answer) = stores.0.post(0, "/v1/cluster/asks", &ask);
    assert!(
        answer.contains("no version of store s is being pushed"),
        "{answer}"
    );
}

#[test]
fn a_node_killed_during_a_pull_resumes_it_after_a_restart() {
    let Some(mut stores) = Stores::of(1) else {
        return;
    };
    let folder = version("one");
    let source = Source::serve(folder.path());
    for partition in 0..PARTITIONS {
        source.break_next(&format!("p{partition:05}.segment"), Fault::Hold);
    }
    let started = stores.begin(0, &json!({ "source": source.url() }));
    stores.0.wait_for("a node pulls", || {
        let (_, status) = stores.0.get(1, "/v1/stores/s");
        status.contains("pulling")
    });
    stores.0.kill(2);
    stores.0.restart(2);
    let id = started["id"].as_str().expect("an id");
    stores.0.wait_for("all nodes have the version", || {
        source.release_held();
        !stores.json(0, &format!("/v1/pulls/{id}"))["ended_at"].is_null()
    });
    let ended = stores.wait_for_end(0, &started);
    assert_eq!(ended["state"], "done", "{ended:#}\n{}", stores.0.logs());
    stores.0.wait_until_served();
    stores.check_live(1, "one");
}

#[test]
fn a_returning_node_fetches_missed_versions_from_other_nodes() {
    let Some(mut stores) = Stores::of(2) else {
        return;
    };
    let (first, second) = (version("one"), version("two"));
    stores.push_live(0, text(first.path()), 1);
    stores.0.kill(2);
    // The replicas serve the reads before the node has been declared down.
    stores.check_mget(0, "one");
    stores.check_mget(1, "one");
    stores.0.wait_for("the other nodes list the version", || {
        stores.0.ask(0, "CLUSTER NODES").contains("fail")
    });
    let request = json!({ "source": text(second.path()), "allow_missing_replicas": 1 });
    let pull = stores.push(0, &request);
    assert_eq!(pull["state"], "done", "{pull:#}\n{}", stores.0.logs());
    stores.check_live(2, "two");
    first.close().expect("gone");
    second.close().expect("gone");
    stores.0.restart(2);
    stores.0.wait_until_served();
    stores.0.wait_for("the node has some of the version", || {
        stores.count_local_keys(2) > 0
    });
    stores.check_live(2, "two");
}

/// No reply lacks values while partitions move to the new node.
#[test]
fn a_joining_node_pulls_its_partitions_from_other_nodes() {
    let Some(mut stores) = Stores::of(1) else {
        return;
    };
    let (first, second) = (version("one"), version("two"));
    stores.push_live(0, text(first.path()), 1);
    first.close().expect("gone");
    let node = stores.0.add("n4", Vec::new(), false);
    stores.0.restart(node);
    stores
        .0
        .wait_for("the joining node has its share of the version", || {
            (0..3).for_each(|node| stores.check_mget(node, "one"));
            stores.count_local_keys(node) > KEYS / 10
        });
    stores.check_live(1, "one");
    stores.push_live(node, text(second.path()), 2);
    stores.check_live(2, "two");
}

#[test]
fn a_full_disk_on_one_node_fails_the_push_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 24) else {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    };
    let options = Options::new(3).set_on(1, "server.data", disk.0.join("data").display());
    let Some(stores) = options.start().map(Stores) else {
        return;
    };
    let first = version("one");
    stores.push_live(0, text(first.path()), 1);
    let large = tempfile::tempdir().expect("a folder");
    let rows = (0..KEYS).map(|i| (format!("k{i}"), noise(i, 400 << 10)));
    build_rows(large.path(), "s", rows, PARTITIONS);
    let pull = stores.push(0, &json!({ "source": text(large.path()) }));
    stores.check_failed(&pull, "DISK_FULL", &["n2: ", "the version needs"]);
    stores.check_live(1, "one");
}

/// Returns text that does not compress.
fn noise(seed: usize, bytes: usize) -> String {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'!' + (state % 90) as u8)
    };
    (0..bytes).map(|_| next()).collect()
}

/// Builds a version with a profile, whose values are numbers around `center`.
fn profiled(center: usize) -> tempfile::TempDir {
    use larder_batch::{BuildOptions, Builder, Built};
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = BuildOptions::new("s".parse().expect("a name"));
    options.partitions = PARTITIONS;
    options.profile = true;
    options.built = Some(Built {
        value: "column".to_owned(),
        value_column: Some("price".to_owned()),
        key: vec!["sku".to_owned()],
        ..Built::default()
    });
    let builder = Builder::new(options, folder.path()).expect("a builder");
    let mut writer = builder.writer();
    for row in 0..KEYS {
        let value = (center + row * 7 % KEYS).to_string();
        let pushed = writer.push(row as u64, format!("k{row}").as_bytes(), value.as_bytes());
        pushed.expect("pushed");
    }
    writer.close().expect("closed");
    builder.finish(&|_| {}).expect("built");
    folder
}

#[test]
fn the_first_node_rejects_a_distribution_shift_before_any_node_pulls() {
    let Some(stores) = Stores::of(2) else { return };
    let (first, moved) = (profiled(0), profiled(10 * KEYS));
    stores.push_live(0, text(first.path()), 1);
    let live = || -> Vec<Value> {
        let nodes = stores.0.running().into_iter();
        nodes
            .map(|node| stores.json(node, "/v1/stores/s")["live"].clone())
            .collect()
    };
    for gates in [
        json!({ "max_shift": [{"column": "price", "limit": 0.25}] }),
        json!({ "max_nulls": [{"column": "prize", "limit": 1}] }),
    ] {
        let push = json!({ "source": text(moved.path()), "gates": gates });
        let gate = gates
            .as_object()
            .expect("an object")
            .keys()
            .next()
            .expect("one");
        stores.check_failed(
            &stores.push(1, &push),
            "REFUSED",
            &[gate, "live version is unchanged"],
        );
        assert_eq!(live(), [1, 1, 1]);
    }
    let far = json!({ "max_shift": [{"column": "*", "limit": 100}], "max_nulls": [{"column": "price", "limit": 0}] });
    let push = json!({ "source": text(moved.path()), "gates": far });
    assert_eq!(stores.push(2, &push)["state"], "done");
    assert_eq!(live(), [2, 2, 2]);
}

/// Each node runs the program on its part of the version, and the rejection of one node suffices.
#[test]
fn a_gate_program_that_rejects_on_one_node_keeps_the_version_off_all_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let veto = folder.path().join("veto");
    let script = format!("/bin/sh,-c,test ! -e {}", text(&veto));
    let options = Options::new(3).set("tables.replicas", 2);
    let Some(stores) = options
        .set("stores.gate_program", script)
        .start()
        .map(Stores)
    else {
        return;
    };
    stores.push_live(0, text(version("first").path()), 1);
    std::fs::write(&veto, "").expect("written");
    let refused = version("other");
    let push = json!({ "source": text(refused.path()) });
    stores.check_failed(
        &stores.push(1, &push),
        "REFUSED",
        &["/bin/sh refuses the version"],
    );
    stores.check_live(1, "first");
}
