//! Losses and recovery of connections, of PostgreSQL, of its replication slot, and of larder.

use std::time::{Duration, Instant};

use larder_protocol::config::SlotLife;

use super::cluster::{Cluster, Sql};
use super::proxy::Proxy;
use super::{POSTS_WRITE_THROUGH, SCHEMA, TABLES, server, server_with, unique_name};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    a_temporary_slot_reloads_rows_after_a_lost_connection,
    a_permanent_slot_resumes_after_a_lost_connection,
    a_dropped_permanent_slot_reloads_all_rows,
    reads_recover_after_postgres_is_killed_and_stopped,
    reads_recover_after_postgres_is_killed_and_stopped_with_a_permanent_slot,
    rows_that_are_too_old_are_not_served,
    a_silent_stream_is_treated_as_lost,
    larder_starts_without_postgres_and_reloads_all_rows_after_a_restart,
    a_write_whose_connection_breaks_has_an_unknown_outcome,
}

/// Changes the row while no stream delivers changes.
fn change(sql: &mut Sql, to: &str) {
    sql.run(&format!(
        "UPDATE posts SET body = '{to}' WHERE author = 'bob'"
    ));
}

#[track_caller]
fn wait_for_value(client: &mut Client, value: &str) {
    let expected = format!("${}|{value}", value.len());
    client.wait_until(&expected, |client| {
        client.call("GET post|bob|0000000001") == expected
    });
}

fn prepare_database(cluster: &Cluster, name: &str) -> Sql {
    let mut sql = cluster.database(name);
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one'), ('eve', 1, 'e')");
    sql
}

fn start_behind_proxy(sql: &Sql, proxy: &Proxy, slot: SlotLife, name: &str) -> TestServer {
    server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.slot = slot;
        config.postgres.slot_name = unique_name(name);
    })
}

fn a_temporary_slot_reloads_rows_after_a_lost_connection() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepare_database(cluster, "cut");
    let proxy = Proxy::to(cluster.port());
    let server = start_behind_proxy(&sql, &proxy, SlotLife::Temporary, "");
    let mut client = Client::connect(&server);
    wait_for_value(&mut client, "one");
    for round in 0..3 {
        proxy.refuse(true);
        let value = format!("round {round}");
        change(&mut sql, &value);
        proxy.refuse(false);
        wait_for_value(&mut client, &value);
        // The stream delivers changes again.
        client.wait_until("the stream is connected", |client| {
            client.postgres_info("state") == "streaming"
        });
        change(&mut sql, "followed");
        client.catch_up(&mut sql);
        client.check("GET post|bob|0000000001", "$8|followed");
    }
    assert!(client.count("forgotten") >= 3);
}

fn a_permanent_slot_resumes_after_a_lost_connection() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepare_database(cluster, "kept");
    let proxy = Proxy::to(cluster.port());
    let server = start_behind_proxy(&sql, &proxy, SlotLife::Permanent, "larder_kept");
    let mut client = Client::connect(&server);
    wait_for_value(&mut client, "one");
    client.check("GET post|eve|0000000001", "$1|e");
    let loads = client.count("loads");
    for round in 0..3 {
        proxy.refuse(true);
        client.wait_until("the connection is lost", |client| {
            client.postgres_info("state") != "streaming"
        });
        let value = format!("round {round}");
        change(&mut sql, &value);
        sql.run(
            "INSERT INTO posts SELECT 'eve', max(time) + 1, 'more' FROM posts WHERE author = 'eve'",
        );
        // Rows in memory are still served.
        client.check("GET post|eve|0000000001", "$1|e");
        proxy.refuse(false);
        wait_for_value(&mut client, &value);
    }
    assert_eq!(
        (client.count("loads"), client.count("forgotten")),
        (loads, 0),
        "no row was loaded again"
    );
    client.check("RANGECOUNT post|eve| post|eve}", ":4");
    // The server drops the slot when it stops.
    let slot = unique_name("larder_kept");
    let slots = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'");
    assert_eq!(sql.one(&slots), "1");
    drop(server);
    assert_eq!(sql.one(&slots), "0");
}

fn a_dropped_permanent_slot_reloads_all_rows() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepare_database(cluster, "dropped");
    let proxy = Proxy::to(cluster.port());
    let server = start_behind_proxy(&sql, &proxy, SlotLife::Permanent, "larder_dropped");
    let mut client = Client::connect(&server);
    wait_for_value(&mut client, "one");
    proxy.refuse(true);
    client.wait_until("the connection is lost", |client| {
        client.postgres_info("state") != "streaming"
    });
    let slot = unique_name("larder_dropped");
    sql.run(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
    ));
    let began = Instant::now();
    while sql
        .try_run(&format!("SELECT pg_drop_replication_slot('{slot}')"))
        .is_err()
    {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    change(&mut sql, "unseen");
    proxy.refuse(false);
    wait_for_value(&mut client, "unseen");
    assert_eq!(client.count("forgotten"), 1);
    // A slot that a previous server left behind is recreated, and a slot in use is not taken over.
    let other = start_behind_proxy(&sql, &proxy, SlotLife::Permanent, "larder_dropped");
    let mut other = Client::connect(&other);
    let answer = other.call("GET post|bob|0000000001");
    assert!(
        answer.starts_with(&format!(
            "-SOURCE the replication slot {slot} cannot be created again"
        )) && answer.ends_with("give each its own postgres.slot_name"),
        "{answer}"
    );
    wait_for_value(&mut client, "unseen");
}

/// Stops or kills PostgreSQL, and starts it again.
fn check_restarts(slot: SlotLife) {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let mut sql = prepare_database(&cluster, "restarts");
    let server = server_with(&sql.url(), TABLES, |config| {
        config.postgres.slot = slot;
    });
    let mut client = Client::connect(&server);
    wait_for_value(&mut client, "one");
    for (round, at_once) in [true, false, true].into_iter().enumerate() {
        change(&mut sql, "before");
        cluster.kill(at_once);
        client.wait_until("the connection is lost", |client| {
            client.postgres_info("state") != "streaming"
        });
        let answer = client.call(&format!("GET post|zoe|{round:010}"));
        assert!(answer.starts_with("-SOURCE "), "{answer}");
        // Rows in memory are served for a limited time.
        assert!(client.call("GET post|bob|0000000001").starts_with('$'));
        cluster.begin();
        sql = Sql::to(cluster.port(), &unique_name("restarts"));
        let value = format!("after {round}");
        change(&mut sql, &value);
        wait_for_value(&mut client, &value);
        client.wait_until("the stream is connected", |client| {
            client.postgres_info("state") == "streaming"
        });
        client.check(&format!("GET post|zoe|{round:010}"), "$-1");
        change(&mut sql, "followed");
        client.catch_up(&mut sql);
        client.check("GET post|bob|0000000001", "$8|followed");
    }
}

fn reads_recover_after_postgres_is_killed_and_stopped() {
    check_restarts(SlotLife::Temporary);
}

fn reads_recover_after_postgres_is_killed_and_stopped_with_a_permanent_slot() {
    check_restarts(SlotLife::Permanent);
}

fn rows_that_are_too_old_are_not_served() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let sql = prepare_database(cluster, "stale");
    let proxy = Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.stale_seconds = 1;
    });
    // A server with a high limit serves rows of any age.
    let patient = server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.stale_seconds = 3600;
    });
    let mut client = Client::connect(&server);
    let mut patient = Client::connect(&patient);
    wait_for_value(&mut patient, "one");
    let definition = "copy|<a>|<t:10> = copy post|<a>|<t>";
    assert_eq!(
        client.call_words(&["JOIN.CREATE", "copied", definition]),
        "+OK"
    );
    wait_for_value(&mut client, "one");
    client.check("GET copy|bob|0000000001", "$3|one");
    proxy.refuse(true);
    client.wait_until("rows are rejected as stale", |client| {
        client
            .call("GET post|bob|0000000001")
            .starts_with("-SOURCE ")
    });
    patient.wait_until("the connection is lost", |client| {
        client.count("connections_lost") > 0
    });
    patient.check("GET post|bob|0000000001", "$3|one");
    // Outputs computed from the row are no longer served either.
    assert!(
        client
            .call("GET copy|bob|0000000001")
            .starts_with("-SOURCE ")
    );
    proxy.refuse(false);
    wait_for_value(&mut client, "one");
    client.check("GET copy|bob|0000000001", "$3|one");
}

fn a_silent_stream_is_treated_as_lost() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepare_database(cluster, "silent");
    let proxy = Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.silence_timeout_seconds = 3;
    });
    let mut client = Client::connect(&server);
    wait_for_value(&mut client, "one");
    // While PostgreSQL is reachable, it responds to keepalives even without changes.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        client.check("GET post|bob|0000000001", "$3|one");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.count("connections_lost"), 0);
    proxy.hold(true);
    change(&mut sql, "unheard");
    client.wait_until("the connection is lost", |client| {
        client.count("connections_lost") > 0
    });
    proxy.hold(false);
    wait_for_value(&mut client, "unheard");
}

fn larder_starts_without_postgres_and_reloads_all_rows_after_a_restart() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepare_database(cluster, "again");
    let proxy = Proxy::to(cluster.port());
    proxy.refuse(true);
    let mut server = server(&sql.url_at(proxy.port()), TABLES);
    let mut client = Client::connect(&server);
    let answer = client.call("GET post|bob|0000000001");
    assert!(
        answer.starts_with("-SOURCE PostgreSQL at 127.0.0.1:"),
        "{answer}"
    );
    client.check("SET own|1 x", "+OK");
    proxy.refuse(false);
    wait_for_value(&mut client, "one");
    for round in 0..3 {
        let value = format!("round {round}");
        server.restart(|_| change(&mut sql, &value));
        let mut client = Client::connect(&server);
        client.check(
            "GET post|bob|0000000001",
            &format!("${}|{value}", value.len()),
        );
        client.check("GET own|1", "$1|x");
    }
    // No replication slot remains that would retain PostgreSQL's log.
    drop(server);
    let database = unique_name("again");
    let left = format!("SELECT count(*) FROM pg_replication_slots WHERE database = '{database}'");
    let began = Instant::now();
    while sql.one(&left) != "0" {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

fn a_write_whose_connection_breaks_has_an_unknown_outcome() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepare_database(cluster, "unknown");
    let proxy = Proxy::to(cluster.port());
    let server = server(&sql.url_at(proxy.port()), POSTS_WRITE_THROUGH);
    let mut client = Client::connect(&server);
    wait_for_value(&mut client, "one");
    sql.run("BEGIN; UPDATE posts SET body = 'mine'");
    client.send(b"SET post|bob|0000000001 theirs\r\n");
    let mut other = sql.another();
    while other.one("SELECT count(*) FROM pg_locks WHERE NOT granted") == "0" {
        std::thread::yield_now();
    }
    proxy.cut();
    let answer = client.reply();
    assert!(
        answer.starts_with("-IOERR ") && answer.contains("the write may have been executed"),
        "{answer}"
    );
    sql.run("COMMIT");
    client.wait_until("the old or the new value is read", |client| {
        ["$4|mine", "$6|theirs"].contains(&&*client.call("GET post|bob|0000000001"))
    });
}
