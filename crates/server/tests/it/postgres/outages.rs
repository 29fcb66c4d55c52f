//! Losses and recovery of connections, of PostgreSQL, of its replication slot, and of larder.

use std::time::{Duration, Instant};

use larder_protocol::config::SlotLife;

use super::cluster::{Cluster, Sql};
use super::proxy::Proxy;
use super::{POSTS_THROUGH, SCHEMA, TABLES, named, server, server_with};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    after_a_lost_connection_a_temporary_slot_loads_anew,
    after_a_lost_connection_a_permanent_slot_goes_on,
    a_permanent_slot_that_is_gone_makes_all_be_loaded_anew,
    postgres_may_be_killed_and_stopped,
    postgres_may_be_killed_and_stopped_with_a_permanent_slot,
    rows_that_are_too_old_are_not_served,
    a_stream_that_falls_silent_is_lost,
    larder_starts_without_postgres_and_loads_all_anew_after_a_restart,
    a_write_whose_connection_breaks_is_not_said_to_have_failed,
}

/// Changes the row while no stream delivers changes.
fn change(sql: &mut Sql, to: &str) {
    sql.run(&format!(
        "UPDATE posts SET body = '{to}' WHERE author = 'bob'"
    ));
}

#[track_caller]
fn becomes(client: &mut Client, value: &str) {
    let expected = format!("${}|{value}", value.len());
    client.until(&expected, |client| {
        client.ask("GET post|bob|0000000001") == expected
    });
}

fn prepared(cluster: &Cluster, name: &str) -> Sql {
    let mut sql = cluster.database(name);
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one'), ('eve', 1, 'e')");
    sql
}

fn behind(sql: &Sql, proxy: &Proxy, slot: SlotLife, name: &str) -> TestServer {
    server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.slot = slot;
        config.postgres.slot_name = named(name);
    })
}

fn after_a_lost_connection_a_temporary_slot_loads_anew() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepared(cluster, "cut");
    let proxy = Proxy::to(cluster.port());
    let server = behind(&sql, &proxy, SlotLife::Temporary, "");
    let mut client = Client::connect(&server);
    becomes(&mut client, "one");
    for round in 0..3 {
        proxy.refuse(true);
        let value = format!("round {round}");
        change(&mut sql, &value);
        proxy.refuse(false);
        becomes(&mut client, &value);
        // The stream delivers changes again.
        client.until("streaming", |client| {
            client.of_postgres("state") == "streaming"
        });
        change(&mut sql, "followed");
        client.catch_up(&mut sql);
        client.check("GET post|bob|0000000001", "$8|followed");
    }
    assert!(client.count("forgotten") >= 3);
}

fn after_a_lost_connection_a_permanent_slot_goes_on() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepared(cluster, "kept");
    let proxy = Proxy::to(cluster.port());
    let server = behind(&sql, &proxy, SlotLife::Permanent, "larder_kept");
    let mut client = Client::connect(&server);
    becomes(&mut client, "one");
    client.check("GET post|eve|0000000001", "$1|e");
    let loads = client.count("loads");
    for round in 0..3 {
        proxy.refuse(true);
        client.until("lost", |client| client.of_postgres("state") != "streaming");
        let value = format!("round {round}");
        change(&mut sql, &value);
        sql.run(
            "INSERT INTO posts SELECT 'eve', max(time) + 1, 'more' FROM posts WHERE author = 'eve'",
        );
        // Rows in memory are still served.
        client.check("GET post|eve|0000000001", "$1|e");
        proxy.refuse(false);
        becomes(&mut client, &value);
    }
    assert_eq!(
        (client.count("loads"), client.count("forgotten")),
        (loads, 0),
        "nothing was loaded anew"
    );
    client.check("RANGECOUNT post|eve| post|eve}", ":4");
    // The server drops the slot when it stops.
    let slot = named("larder_kept");
    let slots = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'");
    assert_eq!(sql.one(&slots), "1");
    drop(server);
    assert_eq!(sql.one(&slots), "0");
}

fn a_permanent_slot_that_is_gone_makes_all_be_loaded_anew() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepared(cluster, "dropped");
    let proxy = Proxy::to(cluster.port());
    let server = behind(&sql, &proxy, SlotLife::Permanent, "larder_dropped");
    let mut client = Client::connect(&server);
    becomes(&mut client, "one");
    proxy.refuse(true);
    client.until("lost", |client| client.of_postgres("state") != "streaming");
    let slot = named("larder_dropped");
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
    becomes(&mut client, "unseen");
    assert_eq!(client.count("forgotten"), 1);
    // A slot that a previous server left behind is recreated, and a slot in use is not taken over.
    let other = behind(&sql, &proxy, SlotLife::Permanent, "larder_dropped");
    let mut other = Client::connect(&other);
    let answer = other.ask("GET post|bob|0000000001");
    assert!(
        answer.starts_with(&format!(
            "-SOURCE the replication slot {slot} cannot be made anew"
        )) && answer.ends_with("give each its own postgres.slot_name"),
        "{answer}"
    );
    becomes(&mut client, "unseen");
}

/// Stops or kills PostgreSQL, and starts it again.
fn restarts(slot: SlotLife) {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let mut sql = prepared(&cluster, "restarts");
    let server = server_with(&sql.url(), TABLES, |config| {
        config.postgres.slot = slot;
    });
    let mut client = Client::connect(&server);
    becomes(&mut client, "one");
    for (round, at_once) in [true, false, true].into_iter().enumerate() {
        change(&mut sql, "before");
        cluster.kill(at_once);
        client.until("lost", |client| client.of_postgres("state") != "streaming");
        let answer = client.ask(&format!("GET post|zoe|{round:010}"));
        assert!(answer.starts_with("-SOURCE "), "{answer}");
        // Rows in memory are served for a limited time.
        assert!(client.ask("GET post|bob|0000000001").starts_with('$'));
        cluster.begin();
        sql = Sql::to(cluster.port(), &named("restarts"));
        let value = format!("after {round}");
        change(&mut sql, &value);
        becomes(&mut client, &value);
        client.until("streaming", |client| {
            client.of_postgres("state") == "streaming"
        });
        client.check(&format!("GET post|zoe|{round:010}"), "$-1");
        change(&mut sql, "followed");
        client.catch_up(&mut sql);
        client.check("GET post|bob|0000000001", "$8|followed");
    }
}

fn postgres_may_be_killed_and_stopped() {
    restarts(SlotLife::Temporary);
}

fn postgres_may_be_killed_and_stopped_with_a_permanent_slot() {
    restarts(SlotLife::Permanent);
}

fn rows_that_are_too_old_are_not_served() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let sql = prepared(cluster, "stale");
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
    becomes(&mut patient, "one");
    let definition = "copy|<a>|<t:10> = copy post|<a>|<t>";
    assert_eq!(
        client.ask_words(&["JOIN.CREATE", "copied", definition]),
        "+OK"
    );
    becomes(&mut client, "one");
    client.check("GET copy|bob|0000000001", "$3|one");
    proxy.refuse(true);
    client.until("too old", |client| {
        client
            .ask("GET post|bob|0000000001")
            .starts_with("-SOURCE ")
    });
    patient.until("lost", |client| client.count("connections_lost") > 0);
    patient.check("GET post|bob|0000000001", "$3|one");
    // Outputs computed from the row are no longer served either.
    assert!(
        client
            .ask("GET copy|bob|0000000001")
            .starts_with("-SOURCE ")
    );
    proxy.refuse(false);
    becomes(&mut client, "one");
    client.check("GET copy|bob|0000000001", "$3|one");
}

fn a_stream_that_falls_silent_is_lost() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepared(cluster, "silent");
    let proxy = Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.silence_timeout_seconds = 3;
    });
    let mut client = Client::connect(&server);
    becomes(&mut client, "one");
    // While PostgreSQL is reachable, it responds to keepalives even without changes.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        client.check("GET post|bob|0000000001", "$3|one");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.count("connections_lost"), 0);
    proxy.hold(true);
    change(&mut sql, "unheard");
    client.until("lost", |client| client.count("connections_lost") > 0);
    proxy.hold(false);
    becomes(&mut client, "unheard");
}

fn larder_starts_without_postgres_and_loads_all_anew_after_a_restart() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepared(cluster, "again");
    let proxy = Proxy::to(cluster.port());
    proxy.refuse(true);
    let mut server = server(&sql.url_at(proxy.port()), TABLES);
    let mut client = Client::connect(&server);
    let answer = client.ask("GET post|bob|0000000001");
    assert!(
        answer.starts_with("-SOURCE PostgreSQL at 127.0.0.1:"),
        "{answer}"
    );
    client.check("SET own|1 x", "+OK");
    proxy.refuse(false);
    becomes(&mut client, "one");
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
    let database = named("again");
    let left = format!("SELECT count(*) FROM pg_replication_slots WHERE database = '{database}'");
    let began = Instant::now();
    while sql.one(&left) != "0" {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

fn a_write_whose_connection_breaks_is_not_said_to_have_failed() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = prepared(cluster, "unknown");
    let proxy = Proxy::to(cluster.port());
    let server = server(&sql.url_at(proxy.port()), POSTS_THROUGH);
    let mut client = Client::connect(&server);
    becomes(&mut client, "one");
    sql.run("BEGIN; UPDATE posts SET body = 'mine'");
    client.send(b"SET post|bob|0000000001 theirs\r\n");
    let mut other = sql.another();
    while other.one("SELECT count(*) FROM pg_locks WHERE NOT granted") == "0" {
        std::thread::yield_now();
    }
    proxy.cut();
    let answer = client.reply();
    assert!(
        answer.starts_with("-IOERR ") && answer.contains("whether the write was made is unknown"),
        "{answer}"
    );
    sql.run("COMMIT");
    client.until("one of both", |client| {
        ["$4|mine", "$6|theirs"].contains(&&*client.ask("GET post|bob|0000000001"))
    });
}
