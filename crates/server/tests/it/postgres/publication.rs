//! Changes that PostgreSQL did not send, because they were temporarily not published. Rows that may lack such changes
//! are loaded again.

use larder_protocol::config::SlotLife;

use super::cluster::{Cluster, Sql};
use super::proxy::Proxy;
use super::random::{answer, ask, model};
use super::{SCHEMA, TABLES, TIMELINE, server, server_with, unique_name};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    rows_of_a_table_that_briefly_left_the_publication_are_reloaded,
    a_recreated_publication_is_detected,
    rows_that_a_publication_briefly_omitted_are_reloaded,
    rows_of_a_transaction_before_a_table_was_published_are_loaded,
    an_update_without_the_old_key_leaves_no_stale_row,
    a_table_that_is_swapped_by_rename_is_another_table,
    rows_written_while_a_table_was_unlogged_are_reloaded,
    row_security_never_makes_rows_look_absent,
    a_permanent_slot_does_not_resume_after_a_gap,
    unrelated_publication_changes_reload_nothing,
}

/// Creates a database with rows, and a server that has read them and computed outputs from them.
fn begin(cluster: &Cluster, name: &str) -> (Sql, TestServer, Client) {
    let mut sql = cluster.database(name);
    sql.run(SCHEMA);
    let (server, client) = begin_on(&mut sql);
    (sql, server, client)
}

fn begin_on(sql: &mut Sql) -> (TestServer, Client) {
    prepare(sql);
    let server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    wait_until_current(&mut client, sql);
    (server, client)
}

fn prepare(sql: &mut Sql) {
    sql.run(
        "INSERT INTO posts (author, time, body) SELECT 'bob', n, 'old' FROM generate_series(1, 5) n;
         INSERT INTO subs VALUES ('ann', 'bob')",
    );
}

/// Waits until all reads match PostgreSQL.
#[track_caller]
fn wait_until_current(client: &mut Client, sql: &mut Sql) {
    let digits = "lpad(time::text, 10, '0')";
    let posts = format!("SELECT 'post|' || author || '|' || {digits}, body FROM posts");
    let timeline = format!(
        "SELECT 'tline|' || follower || '|' || {digits} || '|' || author, body FROM posts JOIN subs USING (author)"
    );
    let [posts, timeline] = [posts, timeline].map(|query| answer(&model(sql, &query)));
    client.wait_until(&format!("{posts} and {timeline}"), |client| {
        ask(client, "RANGE post| post}") == posts && ask(client, "RANGE tline| tline}") == timeline
    });
}

/// Inserts one row, changes one and deletes one.
const CHANGES: &str = "INSERT INTO posts (author, time, body) VALUES ('bob', 9, 'new');
    UPDATE posts SET body = 'changed' WHERE time = 1; DELETE FROM posts WHERE time = 2;";

fn revert(sql: &mut Sql) {
    sql.run("DELETE FROM posts WHERE time = 9; UPDATE posts SET body = 'old'; INSERT INTO posts (author, time, body) VALUES ('bob', 2, 'old')");
}

/// The table is dropped from the publication, written, and added again before larder compares the catalogs.
fn rows_of_a_table_that_briefly_left_the_publication_are_reloaded() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "out_for_a_moment");
    sql.run("ALTER PUBLICATION larder DROP TABLE posts");
    sql.run(CHANGES);
    sql.run("ALTER PUBLICATION larder ADD TABLE posts");
    wait_until_current(&mut client, &mut sql);
    // The same in one transaction.
    revert(&mut sql);
    client.wait_until("streaming", |client| {
        client.postgres_info("state") == "streaming"
    });
    sql.run(&format!(
        "BEGIN; ALTER PUBLICATION larder DROP TABLE posts; {CHANGES} ALTER PUBLICATION larder ADD TABLE posts; COMMIT"
    ));
    wait_until_current(&mut client, &mut sql);
}

fn a_recreated_publication_is_detected() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "made_anew");
    sql.run("DROP PUBLICATION larder");
    sql.run(CHANGES);
    sql.run("CREATE PUBLICATION larder FOR TABLE posts, subs");
    wait_until_current(&mut client, &mut sql);
    // The same with a publication of a schema.
    revert(&mut sql);
    sql.run("DROP PUBLICATION larder; CREATE PUBLICATION larder FOR TABLES IN SCHEMA public");
    client.wait_until("published", |client| {
        !client.call("GET post|zoe|0000000001").starts_with('-')
    });
    wait_until_current(&mut client, &mut sql);
    sql.run("ALTER PUBLICATION larder DROP TABLES IN SCHEMA public");
    sql.run(CHANGES);
    sql.run("ALTER PUBLICATION larder ADD TABLES IN SCHEMA public");
    wait_until_current(&mut client, &mut sql);
}

fn rows_that_a_publication_briefly_omitted_are_reloaded() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "left_out");
    for (away, back) in [
        (
            "ALTER PUBLICATION larder SET (publish = 'truncate')",
            "ALTER PUBLICATION larder SET (publish = 'insert, update, delete, truncate')",
        ),
        (
            "ALTER PUBLICATION larder SET TABLE posts WHERE (time > 100), subs",
            "ALTER PUBLICATION larder SET TABLE posts, subs",
        ),
        (
            "ALTER PUBLICATION larder SET TABLE posts (author, time), subs",
            "ALTER PUBLICATION larder SET TABLE posts, subs",
        ),
    ] {
        client.wait_until("streaming", |client| {
            client.postgres_info("state") == "streaming"
        });
        wait_until_current(&mut client, &mut sql);
        sql.run(away);
        sql.run(CHANGES);
        sql.run(back);
        wait_until_current(&mut client, &mut sql);
        revert(&mut sql);
    }
}

/// Adding a table to a publication does not wait for its writers. Changes made before are not sent, although they are
/// committed later.
fn rows_of_a_transaction_before_a_table_was_published_are_loaded() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "from_before");
    let mut writer = sql.another();
    sql.run("ALTER PUBLICATION larder DROP TABLE posts");
    writer.run("BEGIN");
    writer.run(CHANGES);
    sql.run("ALTER PUBLICATION larder ADD TABLE posts");
    client.wait_until("seen", |client| client.postgres_info("table_post") != "ok");
    // The other table does not wait for the transaction.
    client.check("RANGECOUNT sub|ann| sub|ann}", ":1");
    client.wait_until("published", |client| {
        client.postgres_info("table_post").contains(
            "it is read when the transactions that write in PostgreSQL at present have ended",
        )
    });
    sql.run("INSERT INTO subs VALUES ('ann', 'zoe')");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT sub|ann| sub|ann}", ":2");
    assert_eq!(client.count("forgotten"), 0);
    writer.run("COMMIT");
    wait_until_current(&mut client, &mut sql);
}

/// While the replica identity was another index, an update of the key sent only the new key.
fn an_update_without_the_old_key_leaves_no_stale_row() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("identity_for_a_moment");
    sql.run("CREATE TABLE posts (id serial UNIQUE, author text, time bigint, body text, PRIMARY KEY (author, time));
        CREATE TABLE subs (follower text, author text, PRIMARY KEY (follower, author));
        CREATE PUBLICATION larder FOR TABLE posts, subs");
    let (_server, mut client) = begin_on(&mut sql);
    sql.run("ALTER TABLE posts REPLICA IDENTITY USING INDEX posts_id_key");
    sql.run("UPDATE posts SET time = 17 WHERE time = 3");
    sql.run("ALTER TABLE posts REPLICA IDENTITY DEFAULT");
    wait_until_current(&mut client, &mut sql);
    // A column temporarily had another column's name.
    client.wait_until("streaming", |client| {
        client.postgres_info("state") == "streaming"
    });
    sql.run("ALTER TABLE posts ADD COLUMN other text; BEGIN; ALTER TABLE posts RENAME body TO kept; ALTER TABLE posts RENAME other TO body; COMMIT");
    sql.run("UPDATE posts SET body = 'of the other' WHERE time = 4");
    sql.run("BEGIN; ALTER TABLE posts RENAME body TO other; ALTER TABLE posts RENAME kept TO body; COMMIT");
    wait_until_current(&mut client, &mut sql);
}

fn a_table_that_is_swapped_by_rename_is_another_table() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "swapped");
    sql.run("CREATE TABLE next (LIKE posts INCLUDING ALL); INSERT INTO next VALUES ('bob', 7, 'next'); ALTER PUBLICATION larder ADD TABLE next");
    let swap = |from: &str, to: &str| {
        format!(
            "BEGIN; ALTER TABLE posts RENAME TO {from}; ALTER TABLE {to} RENAME TO posts; COMMIT"
        )
    };
    sql.run(&swap("before", "next"));
    sql.run("INSERT INTO posts VALUES ('bob', 8, 'into the next')");
    wait_until_current(&mut client, &mut sql);
    // The tables are swapped and swapped back between two comparisons of the catalogs.
    client.wait_until("streaming", |client| {
        client.postgres_info("state") == "streaming"
    });
    sql.run(&swap("next", "before"));
    sql.run("INSERT INTO posts VALUES ('bob', 9, 'into the one before')");
    sql.run(&swap("before", "next"));
    wait_until_current(&mut client, &mut sql);
}

fn rows_written_while_a_table_was_unlogged_are_reloaded() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("without_a_log");
    let tables = SCHEMA.split("CREATE PUBLICATION").next();
    sql.run(tables.expect("the statements before CREATE PUBLICATION"));
    sql.run("CREATE PUBLICATION larder FOR ALL TABLES");
    let (_server, mut client) = begin_on(&mut sql);
    sql.run("ALTER TABLE posts SET UNLOGGED");
    sql.run(CHANGES);
    sql.run("ALTER TABLE posts SET LOGGED");
    wait_until_current(&mut client, &mut sql);
}

/// A load may run while the policies hide rows.
fn row_security_never_makes_rows_look_absent() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("hidden");
    sql.run(SCHEMA);
    prepare(&mut sql);
    let reader = unique_name("one_who_may_not");
    sql.run(&format!(
        "CREATE ROLE {reader} LOGIN REPLICATION; GRANT SELECT ON posts, subs TO {reader}"
    ));
    let url = sql.url().replace("postgres@", &format!("{reader}@"));
    let server = server(&url, TABLES);
    let mut client = Client::connect(&server);
    client.check("GET post|zoe|0000000001", "$-1");
    sql.run("ALTER TABLE posts ENABLE ROW LEVEL SECURITY");
    let answer = client.call("GET post|bob|0000000001");
    assert!(answer.starts_with("-SOURCE "), "{answer}");
    sql.run("ALTER TABLE posts DISABLE ROW LEVEL SECURITY");
    client.wait_until("to be seen", |client| {
        let answer = client.call("GET post|bob|0000000001");
        assert_ne!(answer, "$-1");
        answer == "$3|old"
    });
}

/// While the connection was lost, the table was not in the publication. The slot has all other changes.
fn a_permanent_slot_does_not_resume_after_a_gap() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("behind_a_gap");
    sql.run(SCHEMA);
    prepare(&mut sql);
    let proxy = Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.slot = SlotLife::Permanent;
        config.postgres.slot_name = unique_name("behind_a_gap");
    });
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    for away in [
        "DROP PUBLICATION larder",
        "ALTER PUBLICATION larder DROP TABLE posts",
    ] {
        wait_until_current(&mut client, &mut sql);
        proxy.refuse(true);
        client.wait_until("lost", |client| {
            client.postgres_info("state") != "streaming"
        });
        sql.run(away);
        sql.run(CHANGES);
        sql.run(if away.starts_with("DROP") {
            "CREATE PUBLICATION larder FOR TABLE posts, subs"
        } else {
            "ALTER PUBLICATION larder ADD TABLE posts"
        });
        proxy.refuse(false);
        client.wait_until("streaming", |client| {
            client.postgres_info("state") == "streaming"
        });
        wait_until_current(&mut client, &mut sql);
        revert(&mut sql);
    }
    assert_eq!(client.count("forgotten"), 2);
}

fn unrelated_publication_changes_reload_nothing() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "no_concern");
    let loads = client.count("loads");
    sql.run("CREATE TABLE other (id int PRIMARY KEY); ALTER PUBLICATION larder ADD TABLE other");
    sql.run("ALTER PUBLICATION larder DROP TABLE other; CREATE INDEX ON posts (time)");
    sql.run("INSERT INTO posts VALUES ('bob', 6, 'six')");
    sql.run("VACUUM posts");
    sql.run("ANALYZE");
    wait_until_current(&mut client, &mut sql);
    assert_eq!(client.count("loads"), loads);
    // This change concerns the other table, so that larder compares the catalogs after all previous changes.
    sql.run("ALTER TABLE subs SET (fillfactor = 90)");
    client.wait_until("the catalog was compared", |client| {
        client.check("GET post|bob|0000000006", "$3|six");
        client.call("RANGECOUNT sub|ann| sub|ann}");
        client.count("loads") > loads
    });
    client.check("RANGECOUNT post| post}", ":6");
    assert_eq!(client.count("loads"), loads + 1, "posts were loaded again");
    assert_eq!(client.count("forgotten"), 0);
}
