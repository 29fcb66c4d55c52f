//! Large transactions, and transactions that stay open.

use super::cluster::Cluster;
use super::{SCHEMA, TABLES, posts, server, server_with, unique_name};
use crate::resp::Client;

on_one_and_on_several_cores! {
    a_transaction_that_is_applied_in_parts_is_settling_until_joins_show_all_of_it,
    a_transaction_within_atomic_changes_max_is_visible_atomically,
    a_slot_that_waits_for_an_open_transaction_is_reported_and_stops,
    a_slot_that_waits_for_a_prepared_transaction_is_reported,
}

/// While a transaction is partially applied, `settling` is not 0. When it is 0, the joins show complete transactions.
fn a_transaction_that_is_applied_in_parts_is_settling_until_joins_show_all_of_it() {
    let Some((mut sql, server)) = posts("parts") else {
        return;
    };
    let mut client = Client::connect(&server);
    let created = client.call_words(&["JOIN.CREATE", "total", "total|<a> = count post|<a>|<t:10>"]);
    assert_eq!(created, "+OK");
    sql.run("INSERT INTO posts VALUES ('bob', 0, 'x')");
    client.check("GET total|bob", "$1|1");
    assert_eq!(client.postgres_info("settling"), "0");
    for round in 1..4 {
        sql.run(&format!(
            "INSERT INTO posts SELECT 'bob', n + {round} * 10000, 'x' FROM generate_series(1, 5000) n"
        ));
        client.wait_until("in parts", |client| {
            client.count("transactions_in_parts") == round
        });
        client.wait_until("settled", |client| client.postgres_info("settling") == "0");
        let total = (1 + round * 5000).to_string();
        client.check("GET total|bob", &format!("${}|{total}", total.len()));
    }
    // A small transaction is applied in one step.
    sql.run("INSERT INTO posts SELECT 'bob', n, 'x' FROM generate_series(1, 500) n");
    client.wait_until("seen", |client| client.call("GET total|bob") == "$5|15501");
    assert_eq!(client.count("transactions_in_parts"), 3);
}

fn a_transaction_within_atomic_changes_max_is_visible_atomically() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("atomic");
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts VALUES ('bob', 0, 'x')");
    let server = server_with(&sql.url(), TABLES, |config| {
        config.postgres.atomic_changes_max = 5000;
    });
    let mut client = Client::connect(&server);
    let created = client.call_words(&["JOIN.CREATE", "total", "total|<a> = count post|<a>|<t:10>"]);
    assert_eq!(created, "+OK");
    client.check("GET total|bob", "$1|1");
    let rows = |from: u32, to: u32| {
        format!("INSERT INTO posts SELECT 'bob', n, 'x' FROM generate_series({from}, {to}) n")
    };
    sql.run(&rows(1, 5000));
    client.wait_until("seen", |client| {
        let total = client.call("GET total|bob");
        assert!(total == "$1|1" || total == "$4|5001", "{total}");
        total == "$4|5001"
    });
    assert_eq!(client.count("transactions_in_parts"), 0);
    // One change more is too many.
    sql.run(&rows(5001, 10_001));
    client.wait_until("in parts", |client| {
        client.count("transactions_in_parts") == 1
    });
    client.wait_until("settled", |client| client.postgres_info("settling") == "0");
    client.check("GET total|bob", "$5|10002");
}

fn a_slot_that_waits_for_an_open_transaction_is_reported_and_stops() {
    // The instance is separate, because other tests would wait for the transaction, too.
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let mut sql = cluster.database("open_for_long");
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one')");
    let mut writer = sql.another();
    writer.run(
        "SET application_name = 'nightly job'; BEGIN; INSERT INTO posts VALUES ('bob', 2, 'two')",
    );
    let pid = writer.one("SELECT pg_backend_pid()");
    let mut server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    let database = unique_name("open_for_long");
    let blocker = format!(
        "a slot that waits for the transaction of pid {pid} (database {database}, user postgres, application nightly job, open for "
    );
    client.wait_until(&blocker, |client| {
        client.postgres_info("state").starts_with(&blocker)
    });
    let (status, ready) = server.get("/readyz");
    let ready = ready.as_str().expect("text").to_owned();
    assert_eq!(status, 200);
    assert!(
        ready.contains(&format!("tables of PostgreSQL: {blocker}")),
        "{ready}"
    );
    let answer = client.call("GET post|bob|0000000001");
    let refused = format!("-SOURCE PostgreSQL is not followed yet: {blocker}");
    assert!(answer.starts_with(&refused), "{answer}");
    client.check("GET own|1", "$-1");
    // The server stops, and leaves no waiting process in PostgreSQL.
    server.restart(|_| {});
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'";
    let mut client = Client::connect(&server);
    client.wait_until(&blocker, |client| {
        client.postgres_info("state").starts_with(&blocker)
    });
    assert_eq!(sql.one(waiting), "1");
    writer.run("COMMIT");
    client.wait_until("streaming", |client| {
        client.postgres_info("state") == "streaming"
    });
    client.check("GET post|bob|0000000002", "$3|two");
}

fn a_slot_that_waits_for_a_prepared_transaction_is_reported() {
    let Some(cluster) = Cluster::start(&["max_prepared_transactions=5"]) else {
        return;
    };
    let mut sql = cluster.database("prepared");
    sql.run(SCHEMA);
    sql.run(
        "BEGIN; INSERT INTO posts VALUES ('bob', 1, 'one'); PREPARE TRANSACTION 'forgotten one'",
    );
    let server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    let blocker = "a slot that waits for the prepared transaction 'forgotten one' (open for ";
    client.wait_until(blocker, |client| {
        client.postgres_info("state").starts_with(blocker)
    });
    sql.run("COMMIT PREPARED 'forgotten one'");
    client.wait_until("streaming", |client| {
        client.postgres_info("state") == "streaming"
    });
    client.check("GET post|bob|0000000001", "$3|one");
}
