//! Changes that PostgreSQL did not send, because they were temporarily not published. Rows that may lack such changes
//! are loaded again.

use larder_protocol::config::SlotLife;

use super::cluster::{Cluster, Sql};
use super::proxy::Proxy;
use super::random::{answer, ask, model};
use super::{SCHEMA, TABLES, TIMELINE, named, server, server_with};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    rows_of_a_table_that_was_out_of_the_publication_for_a_moment_are_found,
    a_publication_that_was_made_anew_is_not_taken_for_the_one_before,
    rows_that_a_publication_left_out_for_a_moment_are_found,
    rows_of_a_transaction_from_before_a_table_was_published_are_found,
    an_update_that_did_not_tell_the_key_before_it_leaves_no_row_behind,
    a_table_that_is_swapped_by_rename_is_another_table,
    rows_that_were_written_without_a_log_are_found,
    row_security_never_makes_rows_look_absent,
    a_permanent_slot_does_not_go_on_behind_a_gap,
    what_does_not_concern_a_table_loads_nothing_anew,
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
    becomes_as_it_is(&mut client, sql);
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
fn becomes_as_it_is(client: &mut Client, sql: &mut Sql) {
    let digits = "lpad(time::text, 10, '0')";
    let posts = format!("SELECT 'post|' || author || '|' || {digits}, body FROM posts");
    let timeline = format!(
        "SELECT 'tline|' || follower || '|' || {digits} || '|' || author, body FROM posts JOIN subs USING (author)"
    );
    let [posts, timeline] = [posts, timeline].map(|query| answer(&model(sql, &query)));
    client.until(&format!("{posts} and {timeline}"), |client| {
        ask(client, "RANGE post| post}") == posts && ask(client, "RANGE tline| tline}") == timeline
    });
}

/// Inserts one row, changes one and deletes one.
const CHANGES: &str = "INSERT INTO posts (author, time, body) VALUES ('bob', 9, 'new');
    UPDATE posts SET body = 'changed' WHERE time = 1; DELETE FROM posts WHERE time = 2;";

fn undone(sql: &mut Sql) {
    sql.run("DELETE FROM posts WHERE time = 9; UPDATE posts SET body = 'old'; INSERT INTO posts (author, time, body) VALUES ('bob', 2, 'old')");
}

/// The table is dropped from the publication, written, and added again before larder compares the catalogs.
fn rows_of_a_table_that_was_out_of_the_publication_for_a_moment_are_found() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "out_for_a_moment");
    sql.run("ALTER PUBLICATION larder DROP TABLE posts");
    sql.run(CHANGES);
    sql.run("ALTER PUBLICATION larder ADD TABLE posts");
    becomes_as_it_is(&mut client, &mut sql);
    // The same in one transaction.
    undone(&mut sql);
    client.until("streaming", |client| {
        client.of_postgres("state") == "streaming"
    });
    sql.run(&format!(
        "BEGIN; ALTER PUBLICATION larder DROP TABLE posts; {CHANGES} ALTER PUBLICATION larder ADD TABLE posts; COMMIT"
    ));
    becomes_as_it_is(&mut client, &mut sql);
}

fn a_publication_that_was_made_anew_is_not_taken_for_the_one_before() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "made_anew");
    sql.run("DROP PUBLICATION larder");
    sql.run(CHANGES);
    sql.run("CREATE PUBLICATION larder FOR TABLE posts, subs");
    becomes_as_it_is(&mut client, &mut sql);
    // The same with a publication of a schema.
    undone(&mut sql);
    sql.run("DROP PUBLICATION larder; CREATE PUBLICATION larder FOR TABLES IN SCHEMA public");
    client.until("published", |client| {
        !client.ask("GET post|zoe|0000000001").starts_with('-')
    });
    becomes_as_it_is(&mut client, &mut sql);
    sql.run("ALTER PUBLICATION larder DROP TABLES IN SCHEMA public");
    sql.run(CHANGES);
    sql.run("ALTER PUBLICATION larder ADD TABLES IN SCHEMA public");
    becomes_as_it_is(&mut client, &mut sql);
}

fn rows_that_a_publication_left_out_for_a_moment_are_found() {
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
        client.until("streaming", |client| {
            client.of_postgres("state") == "streaming"
        });
        becomes_as_it_is(&mut client, &mut sql);
        sql.run(away);
        sql.run(CHANGES);
        sql.run(back);
        becomes_as_it_is(&mut client, &mut sql);
        undone(&mut sql);
    }
}

/// Adding a table to a publication does not wait for its writers. Changes made before are not sent, although they are
/// committed later.
fn rows_of_a_transaction_from_before_a_table_was_published_are_found() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let (mut sql, _server, mut client) = begin(cluster, "from_before");
    let mut writer = sql.another();
    sql.run("ALTER PUBLICATION larder DROP TABLE posts");
    writer.run("BEGIN");
    writer.run(CHANGES);
    sql.run("ALTER PUBLICATION larder ADD TABLE posts");
    client.until("seen", |client| client.of_postgres("table_post") != "ok");
    // The other table does not wait for the transaction.
    client.check("RANGECOUNT sub|ann| sub|ann}", ":1");
    client.until("published", |client| {
        client.of_postgres("table_post").contains(
            "it is read when the transactions that write in PostgreSQL at present have ended",
        )
    });
    sql.run("INSERT INTO subs VALUES ('ann', 'zoe')");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT sub|ann| sub|ann}", ":2");
    assert_eq!(client.count("forgotten"), 0);
    writer.run("COMMIT");
    becomes_as_it_is(&mut client, &mut sql);
}

/// While the replica identity was another index, an update of the key sent only the new key.
fn an_update_that_did_not_tell_the_key_before_it_leaves_no_row_behind() {
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
    becomes_as_it_is(&mut client, &mut sql);
    // A column temporarily had another column's name.
    client.until("streaming", |client| {
        client.of_postgres("state") == "streaming"
    });
    sql.run("ALTER TABLE posts ADD COLUMN other text; BEGIN; ALTER TABLE posts RENAME body TO kept; ALTER TABLE posts RENAME other TO body; COMMIT");
    sql.run("UPDATE posts SET body = 'of the other' WHERE time = 4");
    sql.run("BEGIN; ALTER TABLE posts RENAME body TO other; ALTER TABLE posts RENAME kept TO body; COMMIT");
    becomes_as_it_is(&mut client, &mut sql);
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
    becomes_as_it_is(&mut client, &mut sql);
    // The tables are swapped and swapped back between two comparisons of the catalogs.
    client.until("streaming", |client| {
        client.of_postgres("state") == "streaming"
    });
    sql.run(&swap("next", "before"));
    sql.run("INSERT INTO posts VALUES ('bob', 9, 'into the one before')");
    sql.run(&swap("before", "next"));
    becomes_as_it_is(&mut client, &mut sql);
}

fn rows_that_were_written_without_a_log_are_found() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("without_a_log");
    let tables = SCHEMA.split("CREATE PUBLICATION").next();
    sql.run(tables.expect("what comes before"));
    sql.run("CREATE PUBLICATION larder FOR ALL TABLES");
    let (_server, mut client) = begin_on(&mut sql);
    sql.run("ALTER TABLE posts SET UNLOGGED");
    sql.run(CHANGES);
    sql.run("ALTER TABLE posts SET LOGGED");
    becomes_as_it_is(&mut client, &mut sql);
}

/// A load may run while the policies hide rows.
fn row_security_never_makes_rows_look_absent() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("hidden");
    sql.run(SCHEMA);
    prepare(&mut sql);
    let reader = named("one_who_may_not");
    sql.run(&format!(
        "CREATE ROLE {reader} LOGIN REPLICATION; GRANT SELECT ON posts, subs TO {reader}"
    ));
    let url = sql.url().replace("postgres@", &format!("{reader}@"));
    let server = server(&url, TABLES);
    let mut client = Client::connect(&server);
    client.check("GET post|zoe|0000000001", "$-1");
    sql.run("ALTER TABLE posts ENABLE ROW LEVEL SECURITY");
    let answer = client.ask("GET post|bob|0000000001");
    assert!(answer.starts_with("-SOURCE "), "{answer}");
    sql.run("ALTER TABLE posts DISABLE ROW LEVEL SECURITY");
    client.until("to be seen", |client| {
        let answer = client.ask("GET post|bob|0000000001");
        assert_ne!(answer, "$-1");
        answer == "$3|old"
    });
}

/// While the connection was lost, the table was not in the publication. The slot has all other changes.
fn a_permanent_slot_does_not_go_on_behind_a_gap() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("behind_a_gap");
    sql.run(SCHEMA);
    prepare(&mut sql);
    let proxy = Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), TABLES, |config| {
        config.postgres.slot = SlotLife::Permanent;
        config.postgres.slot_name = named("behind_a_gap");
    });
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    for away in [
        "DROP PUBLICATION larder",
        "ALTER PUBLICATION larder DROP TABLE posts",
    ] {
        becomes_as_it_is(&mut client, &mut sql);
        proxy.refuse(true);
        client.until("lost", |client| client.of_postgres("state") != "streaming");
        sql.run(away);
        sql.run(CHANGES);
        sql.run(if away.starts_with("DROP") {
            "CREATE PUBLICATION larder FOR TABLE posts, subs"
        } else {
            "ALTER PUBLICATION larder ADD TABLE posts"
        });
        proxy.refuse(false);
        client.until("streaming", |client| {
            client.of_postgres("state") == "streaming"
        });
        becomes_as_it_is(&mut client, &mut sql);
        undone(&mut sql);
    }
    assert_eq!(client.count("forgotten"), 2);
}

fn what_does_not_concern_a_table_loads_nothing_anew() {
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
    becomes_as_it_is(&mut client, &mut sql);
    assert_eq!(client.count("loads"), loads);
    // This change concerns the other table, so that larder compares the catalogs after all previous changes.
    sql.run("ALTER TABLE subs SET (fillfactor = 90)");
    client.until("looked at", |client| {
        client.check("GET post|bob|0000000006", "$3|six");
        client.ask("RANGECOUNT sub|ann| sub|ann}");
        client.count("loads") > loads
    });
    client.check("RANGECOUNT post| post}", ":6");
    assert_eq!(client.count("loads"), loads + 1, "posts were loaded anew");
    assert_eq!(client.count("forgotten"), 0);
}
