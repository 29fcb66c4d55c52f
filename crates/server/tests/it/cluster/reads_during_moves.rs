//! Reads of rows of many nodes while slots move: they return all rows or an error.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;

use super::harness::Options;
use super::rows::wait_until_settled;

const COLUMNS: usize = 60;

/// No reply lacks a row or contains one twice. With two cores, the parts of one node must also be based on the same
/// map.
#[test]
fn reads_over_nodes_return_every_row_once_while_slots_move() {
    for threads in [1, 2] {
        let options = Options::new(3).set("tables.replicas", 2);
        let Some(cluster) = options.set("server.threads", threads).start() else {
            return;
        };
        wait_until_settled(&cluster);
        let key = |column: usize| format!("t|c{column}|k");
        for column in 0..COLUMNS {
            cluster
                .client(0)
                .check(&format!("SET {} v", key(column)), "+OK");
        }
        let keys: Vec<String> = (0..COLUMNS).map(key).collect();
        let keys = keys.join(" ");
        let reads = [
            (format!("MGET {keys}"), format!("*{COLUMNS}|")),
            (format!("EXISTS {keys}"), format!(":{COLUMNS}")),
            ("RANGE t| t}".to_owned(), format!("*{}|", 2 * COLUMNS)),
            ("RANGECOUNT t| t}".to_owned(), format!(":{COLUMNS}")),
            ("DBSIZE".to_owned(), format!(":{COLUMNS}")),
            ("KEYS t|*".to_owned(), format!("*{COLUMNS}|")),
            (
                "SCAN 0 MATCH t|* COUNT 100".to_owned(),
                format!("*2|$1|0|*{COLUMNS}|"),
            ),
            ("RANGE t|c7| t|c7}".to_owned(), "*2|".to_owned()),
            ("GET t|c8|k".to_owned(), "$1|v".to_owned()),
        ];
        let (is_over, replies) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for node in 0..3 {
                let (cluster, reads, is_over, replies) = (&cluster, &reads, &is_over, &replies);
                scope.spawn(move || {
                    let mut client = cluster.client(node);
                    while !is_over.load(Ordering::Relaxed) {
                        for (read, begins) in reads {
                            let reply = client.call(read);
                            // These errors occur if moves take longer than such a read waits, or if a node has lost
                            // its lease.
                            if reply.starts_with("-TRYAGAIN ") || reply.starts_with("-CLUSTERDOWN ")
                            {
                                continue;
                            }
                            assert!(
                                reply.starts_with(begins.as_str()),
                                "{}: {read}: {reply}\n{}",
                                cluster.name(node),
                                cluster.logs()
                            );
                            replies.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for action in ["drain", "keep"] {
                let ask = json!({"action": action, "node": cluster.name(1)});
                let (status, answer) = cluster.post(1, "/v1/cluster/asks", &ask);
                assert_eq!(status, 200, "{answer}");
                let is_drained = action == "drain";
                cluster.wait_for("the slots have moved", || {
                    (cluster.info(1, "cluster_slots_owned") == "0") == is_drained
                });
            }
            wait_until_settled(&cluster);
            is_over.store(true, Ordering::Relaxed);
        });
        let all = 3 * reads.len() as u64;
        assert!(replies.into_inner() >= all);
    }
}
