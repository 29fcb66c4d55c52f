//! `cluster.min_copies`: a slot accepts writes only while it has at least this number of in-sync copies.

use serde_json::json;

use super::harness::Options;
use super::replication::Caller;
use super::rows::wait_until_settled;

#[test]
fn writes_are_rejected_while_a_slot_has_fewer_copies_than_min_copies() {
    let options = Options::new(2).set("tables.replicas", 2);
    let Some(mut cluster) = options.set("cluster.min_copies", 2).start() else {
        return;
    };
    wait_until_settled(&cluster);
    cluster.client(0).check("SET post|bob|1 a", "+OK");
    cluster.kill(1);
    for words in [
        &["SET", "post|bob|1", "b"][..],
        &["MSET", "post|bob|1", "b", "post|ann|1", "b"],
    ] {
        cluster.wait_for("writes are rejected with the reason", || {
            // When the owner gives up the replica, requests in progress end with their connections.
            let reply = Caller::to(cluster.resp(0)).and_then(|mut it| it.ask(words));
            reply.is_some_and(|reply| {
                assert!(reply.starts_with('-'), "{reply}");
                reply.starts_with("-NOREPLICAS ") && reply.contains("cluster.min_copies")
            })
        });
    }
    let read = cluster.ask(0, "GET post|bob|1");
    assert!(read == "$1|a" || read == "$1|b", "{read}");
    cluster.restart(1);
    wait_until_settled(&cluster);
    cluster.client(0).check("SET post|bob|1 d", "+OK");
    let wrong = json!({"action": "set", "settings": {"min_copies": 3}});
    let (status, reply) = cluster.post(0, "/v1/cluster/asks", &wrong);
    assert_eq!(status, 400, "{reply}");
}
