//! Several nodes of a cluster with tables in one PostgreSQL database. Each node follows the database independently.

use super::cluster::{Cluster, Sql};
use super::{POSTS_WRITE_THROUGH, SCHEMA};
use crate::cluster::harness::{Cluster as Nodes, Options, TOML};
use crate::resp::TIMELINE;

fn nodes(name: &str, threads: u32) -> Option<(Sql, Nodes)> {
    let mut sql = Cluster::shared()?.database(name);
    sql.run(SCHEMA);
    sql.run(
        "INSERT INTO subs SELECT 'u' || number, 'a' || author FROM generate_series(0, 5) number, generate_series(0, 9) author;
         INSERT INTO posts SELECT 'a' || author, 1, 'first' FROM generate_series(0, 9) author;",
    );
    let options = Options::new(3)
        .set("server.threads", threads)
        .set("tables.replicas", 2)
        .set("postgres.url", sql.url())
        .set("postgres.slot", "permanent")
        // Replication slots are global in PostgreSQL, so that each database needs another name.
        .set("postgres.slot_name", name)
        .set(TOML, POSTS_WRITE_THROUGH);
    let nodes = options.start()?;
    nodes.client(0).create("tline", TIMELINE);
    for node in 0..3 {
        nodes.wait_for("the join is everywhere", || {
            nodes.ask(node, "JOIN.LIST").contains("tline")
        });
    }
    Some((sql, nodes))
}

fn slots(sql: &mut Sql, name: &str) -> Vec<String> {
    sql.rows(&format!(
        "SELECT slot_name, active FROM pg_replication_slots WHERE slot_name LIKE '{name}%' ORDER BY 1"
    ))
}

#[test]
fn rows_of_postgresql_are_read_and_written_through_every_node() {
    for threads in [1, 2] {
        let name = format!("of_nodes_{threads}");
        let Some((mut sql, cluster)) = nodes(&name, threads) else {
            return;
        };
        let own = ["n1", "n2", "n3"].map(|node| format!("{name}_{node},t"));
        cluster.wait_for("each node has a slot of its own", || {
            slots(&mut sql, &name) == own
        });
        // The owner of a row's slot answers reads of it. A node that computes an output loads its source rows from
        // PostgreSQL itself.
        for node in 0..3 {
            let mut client = cluster.client(node);
            for author in 0..10 {
                client.check(&format!("GET post|a{author}|0000000001"), "$5|first");
            }
            client.check(
                "MGET post|a1|0000000001 post|a2|0000000001 post|a3|0000000002",
                "*3|$5|first|$5|first|$-1",
            );
            client.check("RANGECOUNT post| post}", ":10");
            for user in 0..6 {
                client.check(&format!("RANGECOUNT tline|u{user}| tline|u{user}}}"), ":10");
            }
        }
        // A write through one node is immediately visible at every node, and soon in the outputs computed from it.
        for round in 2..20 {
            let (by, author) = (round % 3, round % 10);
            let key = format!("post|a{author}|{round:010}");
            cluster
                .client(by)
                .check(&format!("SET {key} v{round}"), "+OK");
            let shown = format!("${}|v{round}", 1 + round.to_string().len());
            for node in 0..3 {
                cluster.client(node).check(&format!("GET {key}"), &shown);
                let output = format!("GET tline|u{}|{round:010}|a{author}", round % 6);
                cluster.wait_for("the timeline shows it", || {
                    cluster.ask(node, &output) == shown
                });
            }
        }
        assert_eq!(sql.one("SELECT count(*) FROM posts"), "28");
        // A change in PostgreSQL reaches all nodes.
        sql.run(
            "DELETE FROM posts WHERE time > 1; UPDATE posts SET body = 'again' WHERE author = 'a4'",
        );
        for node in 0..3 {
            for user in 0..6 {
                let row = format!("GET tline|u{user}|0000000001|a4");
                cluster.wait_for("the timelines reflect the changes", || {
                    cluster.ask(node, &format!("RANGECOUNT tline|u{user}| tline|u{user}}}"))
                        == ":10"
                        && cluster.ask(node, &row) == "$5|again"
                });
            }
        }
    }
}

#[test]
fn rows_of_postgresql_survive_the_node_that_served_them() {
    let name = "node_killed";
    let Some((mut sql, mut cluster)) = nodes(name, 1) else {
        return;
    };
    let read_all = |cluster: &Nodes, node: usize, body: &str| {
        for author in 0..10 {
            let row = format!("GET post|a{author}|0000000001");
            cluster.wait_for("a row is read", || cluster.ask(node, &row) == body);
        }
        for user in 0..6 {
            let range = format!("RANGECOUNT tline|u{user}| tline|u{user}}}");
            cluster.wait_for("a timeline is read", || cluster.ask(node, &range) == ":10");
        }
    };
    read_all(&cluster, 0, "$5|first");
    cluster.kill(2);
    cluster.wait_until_served();
    sql.run("UPDATE posts SET body = 'later'");
    read_all(&cluster, 1, "$5|later");
    // The replication slot of the killed node retains PostgreSQL's log until the node returns.
    cluster.wait_for("PostgreSQL has noticed", || {
        slots(&mut sql, name)[2] == format!("{name}_n3,f")
    });
    cluster.restart(2);
    cluster.wait_until_served();
    read_all(&cluster, 2, "$5|later");
    (0..3).for_each(|node| cluster.shut_down(node));
    assert_eq!(slots(&mut sql, name), [""; 0], "each drops its own");
}
