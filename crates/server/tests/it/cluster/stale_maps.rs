//! A node that reads rows of other nodes and receives a change of their owner late. Meanwhile, its replies must not
//! be stale.

use larder_types::slot_of;
use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use crate::resp::request;

/// The requests by which a node receives changes from etcd: the watch, and the comparison that detects changes that a
/// watch has missed.
const MAP_UPDATES: [&str; 2] = ["/v3/watch", "min_mod_revision"];

/// Three nodes with two copies of each row, and a join whose source row and output row are on different nodes.
struct Scenario {
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
pub(super) fn find_slot_entry(status: &Value, column: &str) -> Value {
    let slot = u64::from(slot_of(column.as_bytes()));
    let runs = status["slots"].as_array().expect("a list");
    let has = |run: &&Value| {
        let at = |of: &str| run[of].as_u64().expect("a slot");
        (at("from")..=at("to")).contains(&slot)
    };
    runs.iter()
        .find(has)
        .expect("every slot has an entry")
        .clone()
}

impl Scenario {
    fn begin() -> Option<Scenario> {
        let cluster = Options::new(3)
            .set("tables.replicas", 2)
            .proxied()
            .peers_proxied()
            .start()?;
        let mut client = cluster.client(0);
        client.create("by", "by|<voter>|<thing> = copy vote|<thing>|<voter>");
        for node in 0..3 {
            cluster.wait_for("all nodes have the join", || {
                cluster.ask(node, "JOIN.LIST").contains("by|")
            });
        }
        let (_, status) = cluster.get(0, "/v1/cluster");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        // The controller must receive changes, and its own actions must not affect the test. It is therefore neither
        // the owner nor the reader.
        let controller = cluster.index_of(&cluster.info(0, "cluster_controller"));
        let name = |of: &Value| cluster.index_of(of.as_str().expect("a name"));
        let reader = (controller + 1) % 3;
        let owner = (controller + 2) % 3;
        let column = |holds: &dyn Fn(&Value) -> bool| {
            let mut all = (0..).map(|number| format!("c{number}"));
            all.find(|column| holds(&find_slot_entry(&status, column)))
                .expect("a matching column")
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
        Some(Scenario {
            cluster,
            owner,
            replica: controller,
            reader,
            base,
            output,
        })
    }

    /// From here on, the reader receives no changes of the map, and keeps its lease.
    fn hold_map_updates(&self) {
        self.cluster
            .etcd_proxy(self.reader, 0)
            .stall_requests(&MAP_UPDATES);
    }

    /// Writes the row through its new owner, and then returns the reader's reply for the output.
    fn write_at_new_owner(&self) -> String {
        let cluster = &self.cluster;
        let epoch = cluster.info(self.reader, "cluster_epoch");
        let column = self.base.split('|').nth(1).expect("a column");
        cluster.wait_for("another node owns the row", || {
            let (_, status) = cluster.get(self.replica, "/v1/cluster");
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            find_slot_entry(&status, column)["owner"] != cluster.name(self.owner)
        });
        cluster.wait_for("the replica accepts writes", || {
            // The node closes the connection if the outcome of the write is unknown.
            let mut client = cluster.client(self.replica);
            client.send(&request(&["SET", &self.base, "new"]));
            client.reply_or_end().as_deref() == Some("+OK")
        });
        let mut client = cluster.client(self.reader);
        client.send(&request(&["GET", &self.output]));
        let read = client.reply_or_end();
        let read = read.unwrap_or_else(|| panic!("no reply\n{}", cluster.logs()));
        assert_eq!(
            cluster.info(self.reader, "cluster_epoch"),
            epoch,
            "the reader received a map update"
        );
        read
    }

    /// Restores all connections.
    fn end(self) {
        let Scenario {
            cluster,
            reader,
            owner,
            ..
        } = &self;
        for node in 0..3 {
            cluster.heal(node);
        }
        for node in [*reader, *owner] {
            cluster.wait_for("the reader and the owner serve the new value", || {
                cluster.ask(node, &format!("GET {}", self.output)) == "$3|new"
            });
        }
    }
}

#[track_caller]
fn assert_not_stale(scenario: &Scenario, read: &str) {
    assert!(
        read == "$3|new" || read.starts_with("-CLUSTERDOWN"),
        "{read}\n{}",
        scenario.cluster.logs()
    );
}

#[test]
fn a_node_with_a_stale_map_rejects_rows_of_an_owner_whose_lease_expired() {
    let Some(scenario) = Scenario::begin() else {
        return;
    };
    scenario.hold_map_updates();
    scenario.cluster.etcd_proxy(scenario.owner, 0).cut();
    let read = scenario.write_at_new_owner();
    assert_not_stale(&scenario, &read);
    scenario.end();
}

#[test]
fn a_node_with_a_stale_map_rejects_rows_that_moved_to_another_owner() {
    let Some(scenario) = Scenario::begin() else {
        return;
    };
    scenario.hold_map_updates();
    let name = scenario.cluster.name(scenario.owner);
    let drain = json!({"action": "drain", "node": name});
    let (status, answer) = scenario
        .cluster
        .post(scenario.replica, "/v1/cluster/asks", &drain);
    assert_eq!(status, 200, "{answer}");
    let read = scenario.write_at_new_owner();
    assert_not_stale(&scenario, &read);
    scenario.end();
}

#[test]
fn a_node_with_a_stale_map_rejects_rows_of_a_restarted_owner() {
    let Some(mut scenario) = Scenario::begin() else {
        return;
    };
    scenario.hold_map_updates();
    // The connections stay open, so that nodes do not notice the owner's restart.
    for node in [scenario.owner, scenario.reader] {
        scenario.cluster.peer_proxy(node).stall();
    }
    scenario.cluster.kill(scenario.owner);
    scenario.cluster.restart(scenario.owner);
    let read = scenario.write_at_new_owner();
    assert_not_stale(&scenario, &read);
    scenario.end();
}

/// The new process has the node's rows before it has declared the joins of the map. Until then, it must not report
/// their outputs as absent.
#[test]
fn a_restarted_node_serves_no_outputs_before_it_has_its_joins() {
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
    for round in 0..3 {
        let node = (round + 1) % 3;
        cluster.kill(node);
        cluster.wait_until_served();
        cluster.restart(node);
        let mut client = cluster.client(node);
        let mut served = 0;
        cluster.wait_for("the restarted node serves the outputs", || {
            for thing in 0..30 {
                let reply = client.call(&format!("GET votes|{thing}"));
                if reply.starts_with('-') {
                    assert!(
                        reply.starts_with("-CLUSTERDOWN") || reply.starts_with("-TRYAGAIN"),
                        "{reply}"
                    )
                } else {
                    assert_eq!(reply, "$1|1", "votes|{thing}");
                    served += 1;
                }
            }
            served > 3_000
        });
        wait_until_settled(&cluster);
    }
}
