//! EXEC on several cores of a node in a cluster: its reads, its completion while slots move, and outputs over rows
//! that no node has.

use larder_types::{SLOTS, slot_of};
use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use super::stale_maps::find_slot_entry;
use crate::resp::{Client, request};

fn status(cluster: &Cluster, node: usize) -> Value {
    let (_, status) = cluster.get(node, "/v1/cluster");
    serde_json::from_str(&status).unwrap_or_default()
}

/// Returns a column whose rows are on this core of a node with two cores.
fn column(cluster: &Cluster, node: usize, core: u16) -> String {
    let status = status(cluster, node);
    let is_owned = |column: &String| {
        let slot = slot_of(column.as_bytes());
        slot / (SLOTS / 2) == core
            && find_slot_entry(&status, column)["owner"] == cluster.name(node)
    };
    let mut columns = (0..).map(|number| format!("c{number}"));
    columns.find(is_owned).expect("a matching column")
}

/// Creates a join whose source and output are on different cores.
fn declare(cluster: &Cluster) {
    let definition = "by|<voter>|<thing> = copy vote|<thing>|<voter>";
    cluster.client(0).create("by", definition);
    for node in 0..3 {
        cluster.wait_for("the join is everywhere", || {
            cluster.ask(node, "JOIN.LIST").contains("by|")
        });
    }
}

fn send_exec(client: &mut Client, commands: &[&[&str]]) {
    let mut bytes = request(&["MULTI"]);
    commands
        .iter()
        .for_each(|words| bytes.extend(request(words)));
    bytes.extend(request(&["EXEC"]));
    client.send(&bytes);
}

/// Returns the reply to the EXEC of this number of commands, or `None` if the connection was closed.
fn exec_reply(client: &mut Client, commands: usize) -> Option<String> {
    for _ in 0..=commands {
        client.reply_or_end()?;
    }
    client.reply_or_end()
}

/// Executes commands as a transaction. Returns the reply to EXEC, or `None` if the connection was closed.
fn exec(client: &mut Client, commands: &[&[&str]]) -> Option<String> {
    send_exec(client, commands);
    exec_reply(client, commands.len())
}

#[test]
fn a_transaction_reads_join_outputs_of_its_own_writes() {
    let options = Options::new(3).set("tables.replicas", 2);
    let Some(cluster) = options.set("server.threads", 2).start() else {
        return;
    };
    declare(&cluster);
    wait_until_settled(&cluster);
    let (thing, voter) = (column(&cluster, 0, 0), column(&cluster, 0, 1));
    let (base, output) = (
        format!("vote|{thing}|{voter}"),
        format!("by|{voter}|{thing}"),
    );
    let mut busy = cluster.client(0);
    for round in 0..60 {
        // Unreplicated changes of the same core, for which the core withholds its exchange messages.
        let other = format!("vote|{thing}|x{round}");
        busy.send(&request(&["SET", &other, "x"]).repeat(20));
        let mut client = cluster.client(round % 3);
        let value = round.to_string();
        let reply = exec(
            &mut client,
            &[
                &["SET", &base, &value],
                &["GET", &output],
                &["DEL", &base],
                &["GET", &output],
            ],
        );
        let expected = format!("*4|+OK|${}|{value}|:1|$-1", value.len());
        assert_eq!(reply.as_deref(), Some(&*expected), "{}", cluster.logs());
        (0..20).for_each(|_| assert_eq!(busy.reply(), "+OK"));
    }
}

/// A transaction over both cores of node 0 changes a row whose replica is suspended. An output shows the row only
/// after the owner no longer waits for that replica.
fn check_output_waits_for_the_replica(reads_at_owner: bool) {
    let options = Options::new(3).set("tables.replicas", 2);
    let Some(cluster) = options.set("server.threads", 2).start() else {
        return;
    };
    declare(&cluster);
    wait_until_settled(&cluster);
    let thing = column(&cluster, 0, 0);
    let copies = || {
        let in_sync = find_slot_entry(&status(&cluster, 0), &thing)["in_sync"].clone();
        let names = in_sync.as_array().expect("a list").iter();
        names
            .map(|name| cluster.index_of(name.as_str().expect("a name")))
            .collect::<Vec<usize>>()
    };
    let replica = copies().into_iter().find(|node| *node != 0);
    let replica = replica.expect("there is a replica");
    let reader = if reads_at_owner { 0 } else { 3 - replica };
    let (voter, other) = (column(&cluster, reader, 1), column(&cluster, 0, 1));
    let get = format!("GET by|{voter}|{thing}");
    let mut at_reader = cluster.client(reader);
    at_reader.check(&get, "$-1");

    cluster.suspend(replica);
    let mut writer = cluster.client(0);
    let (base, unchanged) = (format!("vote|{thing}|{voter}"), format!("t|{other}|k"));
    send_exec(&mut writer, &[&["SET", &base, "x"], &["GET", &unchanged]]);
    cluster.wait_for("the output shows the row", || {
        at_reader.call(&get) == "$1|x"
    });
    let copies = copies();
    cluster.resume(replica);
    assert!(
        !copies.contains(&replica),
        "the output shows the row while the owner waits for {replica}: {copies:?}\n{}",
        cluster.logs()
    );
    let reply = exec_reply(&mut writer, 2);
    assert_eq!(reply.as_deref(), Some("*2|+OK|$-1"), "{}", cluster.logs());
}

#[test]
fn outputs_on_other_nodes_include_a_transaction_once_it_is_replicated() {
    check_output_waits_for_the_replica(false);
}

#[test]
fn outputs_on_other_cores_include_a_transaction_once_it_is_replicated() {
    check_output_waits_for_the_replica(true);
}

/// Reads are rejected as soon as the map shows that no node has the rows. They do not wait for a node that cannot
/// answer.
#[test]
fn outputs_of_unowned_rows_are_rejected_immediately() {
    let Some(mut cluster) = Cluster::start(3, &[("server.threads", "2")]) else {
        return;
    };
    declare(&cluster);
    let (thing, voter) = (column(&cluster, 2, 0), column(&cluster, 1, 1));
    let (base, output) = (
        format!("vote|{thing}|{voter}"),
        format!("by|{voter}|{thing}"),
    );
    assert_eq!(cluster.ask(1, &format!("SET {base} x")), "+OK");
    assert_eq!(cluster.ask(1, &format!("GET {output}")), "$1|x");
    cluster.kill(2);
    cluster.wait_until_down(1, 2);
    let mut refused = 0;
    cluster.wait_for("all reads are rejected", || {
        let reply = cluster.ask(1, &format!("GET {output}"));
        assert!(reply.starts_with("-CLUSTERDOWN "), "{reply}");
        refused += 1;
        refused == 20
    });
}

#[test]
fn transactions_complete_while_their_slots_move_and_read_nothing_stale() {
    let options = Options::new(3).set("tables.replicas", 2);
    let Some(cluster) = options.set("server.threads", 2).start() else {
        return;
    };
    let (first, second) = (column(&cluster, 0, 0), column(&cluster, 0, 1));
    let (one, two) = (format!("t|{first}|k"), format!("t|{second}|k"));
    let (mut writer, mut client) = (cluster.client(1), cluster.client(0));
    let (mut acknowledged, mut number, mut done) = (0, 0, 0);
    cluster.wait_for("both have moved", || {
        number += 1;
        if number == 20 {
            let drain = json!({"action": "drain", "node": cluster.name(0)});
            let (code, answer) = cluster.post(1, "/v1/cluster/asks", &drain);
            assert_eq!(code, 200, "{answer}");
        }
        let value = number.to_string();
        writer.send(&request(&["SET", &two, &value]));
        match writer.reply_or_end().as_deref() {
            Some("+OK") => acknowledged = number,
            Some(_) => {}
            None => writer = cluster.client(1),
        }
        let reply = exec(&mut client, &[&["SET", &one, &value], &["GET", &two]]);
        match reply.as_deref().map(|reply| reply.strip_prefix("*2|+OK|$")) {
            Some(Some(read)) => {
                let read = read.split_once('|').map_or("0", |(_, value)| value);
                let read: u64 = read.parse().unwrap_or(0);
                assert!(
                    (acknowledged..=number).contains(&read),
                    "{read} was read after {acknowledged} was acknowledged"
                );
                done += 1;
            }
            Some(None) => {}
            None => client = cluster.client(0),
        }
        // The map is checked rarely, so that most transactions run during the moves.
        number > 20 && number % 10 == 0 && {
            let status = status(&cluster, 1);
            let owner = |column: &str| find_slot_entry(&status, column)["owner"].clone();
            let has_moved = |column: &&String| owner(column) != cluster.name(0);
            [&first, &second].iter().all(has_moved)
        }
    });
    assert!(done >= 10, "{done} were executed");
}
