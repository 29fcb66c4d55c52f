//! The contents of `/v1/cluster`, and the operations that an operator requests there.

use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use crate::support::TestServer;

fn status(cluster: &Cluster, node: usize) -> Value {
    let (code, text) = cluster.get(node, "/v1/cluster");
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn ask(cluster: &Cluster, node: usize, ask: &Value) -> (u16, Value) {
    let (code, text) = cluster.post(node, "/v1/cluster/asks", ask);
    (code, serde_json::from_str(&text).expect("JSON"))
}

#[test]
fn every_node_reports_the_same_status() {
    let Some(cluster) = Options::new(3)
        .set("tables.replicas", 2)
        .set_on(0, "cluster.zone", "a")
        .set_on(1, "cluster.zone", "b")
        .set_on(1, "cluster.weight", 2)
        .set_on(2, "cluster.zone", "c")
        .start()
    else {
        return;
    };
    let statuses: Vec<Value> = (0..3).map(|node| status(&cluster, node)).collect();
    for (node, it) in statuses.iter().enumerate() {
        assert_eq!(it["node"], cluster.name(node));
        for same in [
            "name",
            "epoch",
            "controller",
            "settings",
            "members",
            "slots",
        ] {
            assert_eq!(it[same], statuses[0][same], "{same}");
        }
    }
    let it = &statuses[0];
    assert_eq!(
        (&it["mode"], &it["slots_served"]),
        (&json!("etcd"), &json!(16_384))
    );
    assert_eq!(
        (&it["missing"], &it["trouble"]),
        (&Value::Null, &Value::Null)
    );
    let members = it["members"].as_array().expect("a list");
    let count = |of: &str| {
        members
            .iter()
            .map(|it| it[of].as_u64().expect("a count"))
            .sum::<u64>()
    };
    assert_eq!(
        (members.len(), count("slots_owned"), count("slots_in_sync")),
        (3, 16_384, 16_384)
    );
    let n2 = members.iter().find(|it| it["name"] == "n2").expect("n2");
    assert_eq!(
        (&n2["zone"], &n2["weight"], &n2["state"]),
        (&json!("b"), &json!(2), &json!("up"))
    );
    assert_eq!(n2["resp"], cluster.resp(1).to_string());
    let (owned, share) = (
        n2["slots_owned"].as_f64().unwrap(),
        n2["slots_share"].as_f64().unwrap(),
    );
    assert!((owned / share - 1.0).abs() < 0.06, "{owned} of {share}");
    assert_eq!(it["moves"]["copied_slots"], 0);
}

#[test]
fn a_plan_shows_the_slots_of_a_new_node_and_moves_nothing() {
    let Some(cluster) = Cluster::start(3, &[]) else {
        return;
    };
    let before = status(&cluster, 0);
    let plan = |query: &str| -> (u16, Value) {
        let (code, text) = cluster.get(0, &format!("/v1/cluster/plan?{query}"));
        (code, serde_json::from_str(&text).expect("JSON"))
    };
    let (code, more) = plan("add=n4:z:1");
    assert_eq!(code, 200, "{more}");
    let moved = more["moves"]["copied_slots"].as_u64().expect("a count");
    assert!((3_600..=4_500).contains(&moved), "{moved} slots move");
    let flow = &more["moves"]["nodes"].as_array().expect("a list")[0];
    assert!(flow["node"].is_string(), "{flow}");
    let n4 = more["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["node"] == "n4");
    assert_eq!(n4.expect("n4")["slots_owned"].as_u64(), Some(moved));
    let (_, less) = plan("remove=n3");
    let members = before["members"].as_array().expect("a list");
    let n3 = members.iter().find(|it| it["name"] == "n3").expect("n3");
    let owned = n3["slots_owned"].as_u64();
    assert_eq!(less["moves"]["copied_slots"].as_u64(), owned);
    let (_, copies) = plan("replicas=2");
    assert_eq!(copies["moves"]["copied_slots"], 16_384);
    for (query, word) in [
        ("remove=n9", "there is no node n9"),
        ("add=n1", "n1 is a node already"),
        ("add=n4:z:none", "NAME[:ZONE[:WEIGHT]]"),
        ("replicas=0", "from 1 to 16"),
    ] {
        let (code, answer) = plan(query);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(code == 400 && message.contains(word), "{query}: {answer}");
    }
    assert_eq!(status(&cluster, 0), before);
}

#[test]
fn an_operator_adds_and_drains_a_node_through_any_node() {
    let Some(mut cluster) = Cluster::start(2, &[]) else {
        return;
    };
    let set = json!({"action": "set", "settings": {"admit_new_nodes": false, "replace_after_ms": 60_000}});
    assert_eq!(ask(&cluster, 1, &set).0, 200);
    cluster.wait_for("all nodes have the settings", || {
        (0..2).all(|node| status(&cluster, node)["settings"]["replace_after_ms"] == 60_000)
    });
    let third = cluster.add("n3", Vec::new(), false);
    cluster.restart(third);
    cluster.wait_for("the node reports what it waits for", || {
        cluster
            .get(third, "/readyz")
            .1
            .contains("larder cluster join n3")
    });
    cluster.wait_for("the other nodes list the new node", || {
        cluster.state(0, "n3") == "joining"
    });
    let answer = ask(&cluster, third, &json!({"action": "join", "node": "n3"}));
    assert_eq!(answer, (200, json!({"answer": "n3 is a member"})));
    cluster.wait_for("the third node is up", || {
        cluster.info(third, "cluster_state") == "up"
    });
    let answer = ask(&cluster, 0, &json!({"action": "remove", "node": "n3"}));
    assert_eq!(answer.0, 200, "{}", answer.1);
    assert_eq!(cluster.state(0, "n3"), "draining");
    cluster.shut_down(third);
    cluster.wait_for("the node is removed from the map", || {
        cluster.state(0, "n3") == "absent"
    });
    cluster.wait_until_served();
}

#[test]
fn impossible_requests_are_rejected_with_a_reason() {
    let Some(cluster) = Cluster::start(1, &[]) else {
        return;
    };
    for (wish, code, word) in [
        (
            json!({"action": "drain", "node": "n9"}),
            409,
            "n9 is not a member",
        ),
        (
            json!({"action": "join", "node": "n9"}),
            409,
            "start it first",
        ),
        (
            json!({"action": "drain", "node": "a b"}),
            400,
            "is not allowed",
        ),
        (
            json!({"action": "set", "settings": {"replicas": 0}}),
            400,
            "replicas must be 1 to 16",
        ),
        (
            json!({"action": "set", "settings": {"colour": 1}}),
            400,
            "colour",
        ),
        (json!({"action": "paint"}), 400, "paint"),
    ] {
        let (status, answer) = ask(&cluster, 0, &wish);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == code && message.contains(word),
            "{wish}: {status} {answer}"
        );
    }
}

#[test]
fn a_one_node_cluster_reports_its_status_and_a_single_server_reports_none() {
    let server = TestServer::with(|config| {
        config.cluster.mode = larder_protocol::config::ClusterMode::One;
    });
    let (code, it) = server.get("/v1/cluster");
    assert_eq!(
        (code, &it["mode"], &it["slots_served"]),
        (200, &json!("one"), &json!(16_384))
    );
    assert_eq!(
        (&it["controller"], &it["members"][0]["slots_owned"]),
        (&json!("node-1"), &json!(16_384))
    );
    assert_eq!(server.get("/v1/cluster/plan?add=b").0, 200);
    let (code, refused) = server.post(
        "/v1/cluster/asks",
        json!({"action": "drain", "node": "node-1"}),
    );
    assert_eq!(code, 409, "{refused}");
    let (code, refused) = TestServer::start().get("/v1/cluster");
    assert!(
        code == 400 && refused.to_string().contains("not in a cluster"),
        "{refused}"
    );
}

#[test]
fn clocks_that_differ_are_measured_between_nodes() {
    let Some(cluster) = Options::new(2).clocks(&[0, 30]).start() else {
        return;
    };
    cluster.wait_for("the clocks are compared", || {
        let (_, status) = cluster.get(0, "/v1/cluster");
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let Some(clock) = status["clocks"].get(0) else {
            return false;
        };
        let number = |of: &str| clock[of].as_i64().expect("a number");
        let is_right = (number("ahead_ms") - 30_000).abs() <= number("within_ms");
        assert!(is_right, "{clock}");
        true
    });
}
