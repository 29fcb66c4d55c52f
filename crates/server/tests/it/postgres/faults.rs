//! Faults in PostgreSQL are reported immediately, and only by the reads that they affect.

use super::cluster::{Cluster, Sql};
use super::{SCHEMA, TABLES, TIMELINE, posts, server, unique_name};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    a_dropped_publication_ends_reads_of_rows_in_memory,
    a_role_that_may_no_longer_log_in_ends_reads_of_rows_in_memory,
    other_tables_stay_followed_when_one_is_dropped_or_renamed,
    a_column_of_another_type_is_read_as_its_new_type,
    a_renamed_label_of_an_enum_is_read,
}

const COPY: &str = "copy|<author>|<time:10> = copy post|<author>|<time>";

/// The stream breaks at the next change, before the catalogs are compared. The rows in memory must not be served
/// after that.
fn a_dropped_publication_ends_reads_of_rows_in_memory() {
    let Some((mut sql, server)) = posts("no_publication_left") else {
        return;
    };
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one')");
    let mut client = Client::connect(&server);
    let created = client.call_words(&["JOIN.CREATE", "copied", COPY]);
    assert_eq!(created, "+OK");
    client.check("GET copy|bob|0000000001", "$3|one");
    client.check("GET post|bob|0000000002", "$-1");
    sql.run("DROP PUBLICATION larder; INSERT INTO posts VALUES ('bob', 2, 'two')");
    let refused = "-SOURCE there is no publication larder; run CREATE PUBLICATION larder FOR TABLE posts, subs";
    for read in [
        "post|bob|0000000001",
        "post|bob|0000000002",
        "copy|bob|0000000001",
    ] {
        client.wait_until(read, |client| {
            client.call(&format!("GET {read}")) == refused
        });
    }
    sql.run("CREATE PUBLICATION larder FOR TABLE posts, subs");
    client.wait_until("back", |client| {
        client.call("GET post|bob|0000000002") == "$3|two"
    });
    client.check("GET copy|bob|0000000001", "$3|one");
}

fn a_role_that_may_no_longer_log_in_ends_reads_of_rows_in_memory() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("no_login");
    sql.run(SCHEMA);
    let reader = unique_name("one_who_leaves");
    sql.run(&format!(
        "INSERT INTO posts VALUES ('bob', 1, 'one'); CREATE ROLE {reader} LOGIN REPLICATION; GRANT SELECT ON posts, subs TO {reader}"
    ));
    let server = server(
        &sql.url().replace("postgres@", &format!("{reader}@")),
        TABLES,
    );
    let mut client = Client::connect(&server);
    client.check("GET post|bob|0000000001", "$3|one");
    sql.run(&format!(
        "ALTER ROLE {reader} NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{reader}'"
    ));
    client.wait_until("refused", |client| {
        let answer = client.call("GET post|bob|0000000001");
        answer.starts_with("-SOURCE ") && answer.contains("is not permitted to log in")
    });
    sql.run(&format!("ALTER ROLE {reader} LOGIN"));
    client.wait_until("back", |client| {
        client.call("GET post|bob|0000000001") == "$3|one"
    });
}

/// Checks that posts are still read and followed while subscriptions have a fault.
fn check_posts_are_followed(
    sql: &mut Sql,
    server: &TestServer,
    client: &mut Client,
    next: &mut u32,
    fault: &str,
) {
    let refused = format!("-SOURCE {fault}");
    for read in ["RANGE sub|ann| sub|ann}", "RANGE tline|ann| tline|ann}"] {
        client.wait_until(&refused, |client| client.call(read) == refused);
    }
    assert_eq!(client.postgres_info("table_sub"), fault);
    assert_eq!(client.postgres_info("table_post"), "ok");
    assert_eq!(client.postgres_info("state"), "streaming");
    let (status, ready) = server.get("/readyz");
    assert_eq!(status, 200);
    let noted = format!("ready\ntable sub of PostgreSQL: {fault}\n");
    assert_eq!(ready.as_str(), Some(&*noted));
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("larder_postgres_table_up{table=\"post\"} 1"));
    assert!(metrics.contains("larder_postgres_table_up{table=\"sub\"} 0"));
    // Rows in memory are followed, and other rows can be loaded.
    let (loads, forgotten) = (client.count("loads"), client.count("forgotten"));
    *next += 1;
    sql.run(&format!("INSERT INTO posts VALUES ('bob', {next}, 'new')"));
    client.catch_up(sql);
    client.check(&format!("GET post|bob|{next:010}"), "$3|new");
    client.check(&format!("GET copy|bob|{next:010}"), "$3|new");
    assert_eq!(client.count("loads"), loads, "posts were loaded again");
    client.check(&format!("GET post|eve{next}|0000000001"), "$-1");
    assert_eq!(client.count("forgotten"), forgotten);
}

fn other_tables_stay_followed_when_one_is_dropped_or_renamed() {
    let Some((mut sql, server)) = posts("one_fault") else {
        return;
    };
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one'); INSERT INTO subs VALUES ('ann', 'bob')");
    let mut client = Client::connect(&server);
    for (name, join) in [("timeline", TIMELINE), ("copied", COPY)] {
        assert_eq!(client.call_words(&["JOIN.CREATE", name, join]), "+OK");
    }
    let missing = "there is no table subs in PostgreSQL; create it, or correct tables.sub.table";
    let unpublished = "the publication larder does not have the table subs; run ALTER PUBLICATION larder ADD TABLE subs";
    let mut next = 1;
    for (away, fault, back) in [
        (
            "ALTER TABLE subs RENAME TO others; INSERT INTO others VALUES ('ann', 'zoe')",
            missing,
            "DELETE FROM others WHERE author = 'zoe'; ALTER TABLE others RENAME TO subs",
        ),
        (
            "ALTER PUBLICATION larder DROP TABLE subs; INSERT INTO subs VALUES ('ann', 'eve')",
            unpublished,
            "DELETE FROM subs WHERE author = 'eve'; ALTER PUBLICATION larder ADD TABLE subs",
        ),
        (
            "ALTER TABLE subs RENAME COLUMN author TO writer; INSERT INTO subs VALUES ('ann', 'joe')",
            "subs has no column author; it has follower, writer; correct tables.sub.pattern or .columns",
            "DELETE FROM subs WHERE writer = 'joe'; ALTER TABLE subs RENAME COLUMN writer TO author",
        ),
        (
            "DROP TABLE subs",
            missing,
            "CREATE TABLE subs (follower text, author text, PRIMARY KEY (follower, author));
             INSERT INTO subs VALUES ('ann', 'bob'); ALTER PUBLICATION larder ADD TABLE subs",
        ),
    ] {
        client.wait_until("reads work again", |client| {
            client.call("RANGECOUNT tline|ann| tline|ann}") == format!(":{next}")
        });
        client.check("RANGECOUNT sub|ann| sub|ann}", ":1");
        client.check("RANGECOUNT post|bob| post|bob}", &format!(":{next}"));
        client.check("RANGECOUNT copy|bob| copy|bob}", &format!(":{next}"));
        sql.run(away);
        check_posts_are_followed(&mut sql, &server, &mut client, &mut next, fault);
        sql.run(back);
    }
    client.wait_until("well again", |client| {
        client.postgres_info("table_sub") == "ok"
    });
    client.wait_until("reads work again", |client| {
        client.call("RANGECOUNT tline|ann| tline|ann}") == format!(":{next}")
    });
}

fn a_column_of_another_type_is_read_as_its_new_type() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("another_type");
    sql.run(
        "CREATE TABLE things (id int PRIMARY KEY, a int, b text); INSERT INTO things VALUES (1, 1, 'x');
         CREATE PUBLICATION larder FOR TABLE things",
    );
    let server = server(
        &sql.url(),
        "[tables.thing]\npattern = 'thing|<id>'\ntable = 'things'\nvalue = ['a', 'b']\n",
    );
    let mut client = Client::connect(&server);
    client.check("GET thing|1", "$15|{\"a\":1,\"b\":\"x\"}");
    // A row with the new type is never returned in the old type's form.
    sql.run(
        "ALTER TABLE things ALTER a TYPE text USING 'no. ' || a; UPDATE things SET a = 'no. 2'",
    );
    let new = "$21|{\"a\":\"no. 2\",\"b\":\"x\"}";
    client.wait_until(new, |client| {
        let answer = client.call("GET thing|1");
        assert!(!answer.contains(":no."), "{answer}");
        answer == new
    });
}

fn a_renamed_label_of_an_enum_is_read() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("labels");
    sql.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN moods AS mood[];
         CREATE TABLE things (id int PRIMARY KEY, m mood); CREATE TABLE days (id int PRIMARY KEY, m moods);
         INSERT INTO things VALUES (1, 'sad'); INSERT INTO days VALUES (1, '{sad}');
         CREATE PUBLICATION larder FOR TABLE things, days",
    );
    let server = server(
        &sql.url(),
        "[tables.thing]\npattern = 'thing|<id>'\ntable = 'things'\nvalue = 'm'\n
         [tables.day]\npattern = 'day|<id>'\ntable = 'days'\nvalue = 'm'\n",
    );
    let mut client = Client::connect(&server);
    client.check("GET thing|1", "$3|sad");
    client.check("GET day|1", "$7|[\"sad\"]");
    sql.run("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'");
    client.wait_until("blue", |client| client.call("GET thing|1") == "$4|blue");
    // An array of labels of a domain over the enum.
    client.wait_until("blue", |client| client.call("GET day|1") == "$8|[\"blue\"]");
}
