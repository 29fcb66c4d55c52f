//! State of connections that refers to rows which move to another node: subscriptions end with a message, and a
//! watched key counts as changed.

use serde_json::json;

use super::harness::Cluster;
use super::rows::{owned_keys, wait_until_settled};

/// Drains a node, and waits until the node owns no slots.
fn drain(cluster: &Cluster, node: usize) {
    let drain = json!({"action": "drain", "node": cluster.name(node)});
    let (status, answer) = cluster.post(node, "/v1/cluster/asks", &drain);
    assert_eq!(status, 200, "{answer}");
    cluster.wait_for("the node owns no slots", || {
        cluster.info(node, "cluster_slots_owned") == "0"
    });
    cluster.wait_until_served();
}

fn channel(key: &str) -> String {
    format!("__keyspace@0__:{key}")
}

#[test]
fn a_subscription_ends_with_an_unsubscribe_message_when_its_slot_moves() {
    for threads in ["1", "2"] {
        let Some(cluster) = Cluster::start(2, &[("server.threads", threads)]) else {
            return;
        };
        wait_until_settled(&cluster);
        let (moved, stays) = (owned_keys(&cluster, 0, 3), owned_keys(&cluster, 1, 1));
        let (mut feed, mut other) = (cluster.client(0), cluster.client(1));
        for key in &moved[..2] {
            feed.call(&format!("SUBSCRIBE {}", channel(key)));
        }
        let column = moved[2].rsplit_once('|').expect("a column").0;
        let pattern = channel(&format!("{column}|*"));
        feed.call(&format!("PSUBSCRIBE {pattern}"));
        other.call(&format!("SUBSCRIBE {}", channel(&stays[0])));
        cluster
            .client(1)
            .check(&format!("SET {} 1", moved[2]), "+OK");
        assert!(feed.reply().ends_with("|$3|set"));
        drain(&cluster, 0);
        let mut ended: Vec<String> = (0..3).map(|_| feed.reply()).collect();
        // The last element is the number of remaining subscriptions.
        assert!(ended[2].ends_with("|:0"), "{ended:?}");
        ended
            .iter_mut()
            .for_each(|it| it.truncate(it.rfind("|:").expect("a number")));
        ended.sort();
        let unsubscribed =
            |word: &str, name: &str| format!("*3|${}|{word}|${}|{name}", word.len(), name.len());
        let mut expected = vec![unsubscribed("punsubscribe", &pattern)];
        expected.extend(
            moved[..2]
                .iter()
                .map(|key| unsubscribed("unsubscribe", &channel(key))),
        );
        expected.sort();
        assert_eq!(ended, expected);
        feed.check("GET t|absent", "$-1");
        cluster
            .client(0)
            .check(&format!("SET {} 1", stays[0]), "+OK");
        assert!(other.reply().ends_with("|$3|set"));
    }
}

#[test]
fn every_node_rejects_a_pattern_over_many_columns_with_the_same_error() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    let refusals: Vec<String> = (0..2)
        .map(|node| cluster.ask(node, "PSUBSCRIBE __keyspace@0__:post|*"))
        .collect();
    let why = "-CROSSSLOT several nodes of the cluster own the rows of '__keyspace@0__:post|*'";
    assert!(refusals[0].starts_with(why), "{refusals:?}");
    assert_eq!(refusals[0], refusals[1]);
}

#[test]
fn exec_is_a_no_op_after_a_watched_key_moved() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    wait_until_settled(&cluster);
    let key = owned_keys(&cluster, 0, 1).remove(0);
    let (mut first, mut second) = (cluster.client(0), cluster.client(0));
    for client in [&mut first, &mut second] {
        client.check(&format!("WATCH {key}"), "+OK");
        client.check("MULTI", "+OK");
        client.check(&format!("SET {key} mine"), "+QUEUED");
    }
    drain(&cluster, 0);
    first.check("EXEC", "*-1");
    cluster.client(1).check(&format!("SET {key} theirs"), "+OK");
    let keep = json!({"action": "keep", "node": cluster.name(0)});
    assert_eq!(cluster.post(0, "/v1/cluster/asks", &keep).0, 200);
    cluster.wait_for("the node owns slots again", || {
        cluster.info(0, "cluster_slots_owned") != "0"
    });
    wait_until_settled(&cluster);
    // The key was written in between, wherever it is now.
    second.check("EXEC", "*-1");
    cluster.client(0).check(&format!("GET {key}"), "$6|theirs");
}

/// The slot's next owner may change the row without notifying this node.
#[test]
fn cached_keys_are_invalidated_when_slots_move() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    wait_until_settled(&cluster);
    let (own, foreign) = (owned_keys(&cluster, 0, 1), owned_keys(&cluster, 1, 1));
    let mut client = cluster.client(0);
    client.call("HELLO 3");
    client.check("CLIENT TRACKING ON", "+OK");
    // Another node serves the key and does not send invalidations to this one. The key is therefore invalidated
    // immediately.
    client.check(&format!("GET {}", foreign[0]), "_");
    let key = &foreign[0];
    let reported = format!(">2|$10|invalidate|*1|${}|{key}", key.len());
    assert_eq!(client.reply(), reported);
    client.check(&format!("GET {}", own[0]), "_");
    client.check("PING", "+PONG");
    drain(&cluster, 0);
    let frames = client.frames_before_pong();
    assert!(
        frames.contains(&">2|$10|invalidate|_".to_owned()),
        "{frames:?}"
    );
}

#[test]
fn a_pattern_over_part_of_a_computed_column_survives_map_changes() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    wait_until_settled(&cluster);
    let mut writer = cluster.client(0);
    writer.create("timeline", crate::resp::TIMELINE);
    writer.check("SET sub|ann|bob 1", "+OK");
    for pattern in ["__keyspace@0__:tline|a*", "__keyspace@0__:tline|an*"] {
        let mut feeds = [cluster.client(0), cluster.client(1)];
        let replies = feeds
            .each_mut()
            .map(|feed| feed.call(&format!("PSUBSCRIBE {pattern}")));
        let [at] = [0, 1]
            .into_iter()
            .filter(|at| replies[*at].starts_with("*3|$10|psubscribe"))
            .collect::<Vec<_>>()[..]
        else {
            panic!("one node computes the rows: {replies:?}");
        };
        let name = format!("other{}", pattern.len());
        let definition = format!("{name}|<author> = count post|<author>|<time>");
        writer.create(&name, &definition);
        writer.check(&format!("SET post|bob|{} x", pattern.len()), "+OK");
        let event = feeds[at].reply();
        assert!(event.ends_with("|$3|set"), "{event}");
    }
}
