//! A node that reads rows of other nodes and receives a change of their owner late. Meanwhile, its replies must not
//! be stale.

use larder_types::slot_of;
use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use crate::resp::request;

/// The requests by which a node receives changes from etcd: the watch, and the comparison that detects changes that a
/// watch has missed.
const NEWS: [&str; 2] = ["/v3/watch", "min_mod_revision"];

/// Three nodes with two copies of each row, and a join whose source row and output row are on different nodes.
struct Story {
    cluster: Cluster,
    /// The owner of the source row.
    owner: usize,
    /// The replica of the source row.
    replica: usize,
    /// The node that computes the output.
    reader: usize,
    base: String,
    output: String,
}

/// Returns the entry of the cluster map for a column's slot.
pub(super) fn placed(status: &Value, column: &str) -> Value {
    let slot = u64::from(slot_of(column.as_bytes()));
    let runs = status["slots"].as_array().expect("a list");
    let has = |run: &&Value| {
        let at = |of: &str| run[of].as_u64().expect("a slot");
        (at("from")..=at("to")).contains(&slot)
    };
    runs.iter()
        .find(has)
        .expect("every slot is somewhere")
        .clone()
}

impl Story {
    fn begin() -> Option<Story> {
        let cluster = Options::new(3)
            .set("tables.replicas", 2)
            .proxied()
            .peers_proxied()
            .start()?;
        let mut client = cluster.client(0);
        client.create("by", "by|<voter>|<thing> = copy vote|<thing>|<voter>");
        for node in 0..3 {
            cluster.wait_for("the join is everywhere", || {
                cluster.ask(node, "JOIN.LIST").contains("by|")
            });
        }
        let (_, status) = cluster.get(0, "/v1/cluster");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        // The controller must receive changes, and its own actions must not affect the test. It is therefore neither
        // the owner nor the reader.
        let controller = cluster.named(&cluster.info(0, "cluster_controller"));
        let name = |of: &Value| cluster.named(of.as_str().expect("a name"));
        let reader = (controller + 1) % 3;
        let owner = (controller + 2) % 3;
        let column = |holds: &dyn Fn(&Value) -> bool| {
            let mut all = (0..).map(|number| format!("c{number}"));
            all.find(|column| holds(&placed(&status, column)))
                .expect("one of them")
        };
        let thing = column(&|it| {
            name(&it["owner"]) == owner
                && it["in_sync"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|it| name(it) == controller))
        });
        let voter = column(&|it| name(&it["owner"]) == reader);
        let (base, output) = (
            format!("vote|{thing}|{voter}"),
            format!("by|{voter}|{thing}"),
        );
        assert_eq!(cluster.ask(reader, &format!("SET {base} old")), "+OK");
        assert_eq!(cluster.ask(reader, &format!("GET {output}")), "$3|old");
        Some(Story {
            cluster,
            owner,
            replica: controller,
            reader,
            base,
            output,
        })
    }

    /// From here on, the reader receives no changes of the map, and keeps its lease.
    fn hold_news(&self) {
        self.cluster.etcd_proxy(self.reader, 0).hold(&NEWS);
    }

    /// Writes the row through its new owner, and then returns the reader's reply for the output.
    fn written_elsewhere(&self) -> String {
        let cluster = &self.cluster;
        let epoch = cluster.info(self.reader, "cluster_epoch");
        let column = self.base.split('|').nth(1).expect("a column");
        cluster.wait_for("the row is another's", || {
            let (_, status) = cluster.get(self.replica, "/v1/cluster");
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            placed(&status, column)["owner"] != cluster.name(self.owner)
        });
        cluster.wait_for("the replica takes writes", || {
            // The node closes the connection if the outcome of the write is unknown.
            let mut client = cluster.client(self.replica);
            client.send(&request(&["SET", &self.base, "new"]));
            client.reply_or_end().as_deref() == Some("+OK")
        });
        let mut client = cluster.client(self.reader);
        client.send(&request(&["GET", &self.output]));
        let read = client.reply_or_end();
        let read = read.unwrap_or_else(|| panic!("no answer\n{}", cluster.logs()));
        assert_eq!(
            cluster.info(self.reader, "cluster_epoch"),
            epoch,
            "it was late"
        );
        read
    }

    /// Restores all connections.
    fn end(self) {
        let Story {
            cluster,
            reader,
            owner,
            ..
        } = &self;
        for node in 0..3 {
            cluster.heal(node);
        }
        for node in [*reader, *owner] {
            cluster.wait_for("all is as it should be", || {
                cluster.ask(node, &format!("GET {}", self.output)) == "$3|new"
            });
        }
    }
}

#[track_caller]
fn is_not_old(story: &Story, read: &str) {
    assert!(
        read == "$3|new" || read.starts_with("-CLUSTERDOWN"),
        "{read}\n{}",
        story.cluster.logs()
    );
}

#[test]
fn rows_of_an_owner_whose_lease_has_ended_are_not_trusted_by_who_does_not_know_it() {
    let Some(story) = Story::begin() else { return };
    story.hold_news();
    story.cluster.etcd_proxy(story.owner, 0).cut();
    let read = story.written_elsewhere();
    is_not_old(&story, &read);
    story.end();
}

#[test]
fn rows_that_move_to_another_owner_are_not_trusted_by_who_does_not_know_it() {
    let Some(story) = Story::begin() else { return };
    story.hold_news();
    let name = story.cluster.name(story.owner);
    let drain = json!({"action": "drain", "node": name});
    let (status, answer) = story
        .cluster
        .post(story.replica, "/v1/cluster/asks", &drain);
    assert_eq!(status, 200, "{answer}");
    let read = story.written_elsewhere();
    is_not_old(&story, &read);
    story.end();
}

#[test]
fn rows_of_an_owner_that_is_started_again_are_not_trusted_by_who_does_not_know_it() {
    let Some(mut story) = Story::begin() else {
        return;
    };
    story.hold_news();
    // The connections stay open, so that nodes do not notice the owner's restart.
    for node in [story.owner, story.reader] {
        story.cluster.peer_proxy(node).stall();
    }
    story.cluster.kill(story.owner);
    story.cluster.restart(story.owner);
    let read = story.written_elsewhere();
    is_not_old(&story, &read);
    story.end();
}

/// The new process has the node's rows before it has declared the joins of the map. Until then, it must not report
/// their outputs as absent.
#[test]
fn a_node_that_is_started_again_answers_of_no_output_before_it_has_its_joins() {
    let options = Options::new(3).set("tables.replicas", 2);
    let Some(mut cluster) = options.set("server.threads", 2).start() else {
        return;
    };
    let mut client = cluster.client(0);
    client.create("votes", "votes|<thing> = count vote|<thing>|<voter>");
    for thing in 0..30 {
        client.check(&format!("SET vote|{thing}|a 1"), "+OK");
    }
    wait_until_settled(&cluster);
    for again in 0..3 {
        let node = (again + 1) % 3;
        cluster.kill(node);
        cluster.wait_until_served();
        cluster.restart(node);
        let mut client = cluster.client(node);
        let mut answered = 0;
        cluster.wait_for("it answers all the time", || {
            for thing in 0..30 {
                let reply = client.ask(&format!("GET votes|{thing}"));
                if reply.starts_with('-') {
                    assert!(
                        reply.starts_with("-CLUSTERDOWN") || reply.starts_with("-TRYAGAIN"),
                        "{reply}"
                    )
                } else {
                    assert_eq!(reply, "$1|1", "votes|{thing}");
                    answered += 1;
                }
            }
            answered > 3_000
        });
        wait_until_settled(&cluster);
    }
}
