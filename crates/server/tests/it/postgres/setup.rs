//! Missing prerequisites in PostgreSQL are reported with the SQL that fixes them, and the fix is detected without a
//! restart.

use larder_protocol::config::Fsync;

use super::cluster::{Cluster, Sql};
use super::{CORES, SCHEMA, TABLES, server, server_with, unique_name};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    missing_prerequisites_are_reported_with_a_remedy,
    missing_privileges_are_reported_with_a_grant_statement,
    a_server_without_logical_replication_is_rejected,
    reads_report_rows_that_cannot_be_keys,
    an_altered_table_is_checked_again,
    a_table_with_its_own_rows_is_not_mapped,
    no_row_of_postgres_is_in_the_journal,
}

/// Prepares a database with `prepare`. A read of the table `t` must fail with `expected`, and succeed after `remedy`.
#[track_caller]
fn check(cluster: &Cluster, name: &str, prepare: &str, tables: &str, expected: &str, remedy: &str) {
    let mut sql = cluster.database(name);
    sql.run(prepare);
    check_on(&mut sql, tables, expected, remedy);
}

#[track_caller]
fn check_on(sql: &mut Sql, tables: &str, expected: &str, remedy: &str) {
    let server = server(&sql.url(), tables);
    let mut client = Client::connect(&server);
    assert_eq!(
        client.call("RANGECOUNT t| t}"),
        format!("-SOURCE {expected}")
    );
    assert!(client.postgres_info("state").contains(expected));
    if !remedy.is_empty() {
        sql.run(remedy);
        client.wait_until("the remedy works", |client| {
            client.call("RANGECOUNT t| t}") == ":0"
        });
    }
}

fn missing_prerequisites_are_reported_with_a_remedy() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let table = "[tables.t]\npattern = 't|<id>'\nvalue = 'v'\n";
    let made = "CREATE TABLE t (id int PRIMARY KEY, v text);";
    let published =
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION larder FOR TABLE t;";
    check(
        cluster,
        "no_table",
        "",
        table,
        "there is no table t in PostgreSQL; create it, or correct tables.t.table",
        published,
    );
    check(
        cluster,
        "no_column",
        "CREATE TABLE t (id int PRIMARY KEY, w text); CREATE PUBLICATION larder FOR TABLE t",
        table,
        "t has no column v; it has id, w; correct tables.t.value",
        "ALTER TABLE t RENAME COLUMN w TO v",
    );
    check(
        cluster,
        "no_publication",
        made,
        table,
        "there is no publication larder; run CREATE PUBLICATION larder FOR TABLE t",
        "CREATE PUBLICATION larder FOR TABLE t",
    );
    check(
        cluster,
        "not_published",
        &format!(
            "{made} CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION larder FOR TABLE u"
        ),
        table,
        "the publication larder does not have the table t; run ALTER PUBLICATION larder ADD TABLE t",
        "ALTER PUBLICATION larder ADD TABLE t",
    );
    check(
        cluster,
        "inserts_only",
        &format!("{made} CREATE PUBLICATION larder FOR TABLE t WITH (publish = 'insert')"),
        table,
        "the publication larder does not publish all changes; run ALTER PUBLICATION larder SET (publish = 'insert, update, delete, truncate')",
        "ALTER PUBLICATION larder SET (publish = 'insert, update, delete, truncate')",
    );
    check(
        cluster,
        "some_rows",
        &format!("{made} CREATE PUBLICATION larder FOR TABLE t WHERE (id > 5)"),
        table,
        "the publication larder publishes only some rows of t; add the table again without WHERE: ALTER PUBLICATION larder SET TABLE ...",
        "ALTER PUBLICATION larder SET TABLE t",
    );
    check(
        cluster,
        "some_columns",
        &format!("{made} CREATE PUBLICATION larder FOR TABLE t (id)"),
        table,
        "the publication larder does not publish the column v of t; add the table again without a list of columns: ALTER PUBLICATION larder SET TABLE ...",
        "ALTER PUBLICATION larder SET TABLE t",
    );
    check(
        cluster,
        "no_key",
        "CREATE TABLE t (id int NOT NULL, v text); CREATE PUBLICATION larder FOR TABLE t",
        table,
        "rows of t may have the same id, and then the same key; run CREATE UNIQUE INDEX ON t (id), or put more columns into tables.t.pattern",
        "CREATE UNIQUE INDEX ON t (id); ALTER TABLE t REPLICA IDENTITY FULL",
    );
    check(
        cluster,
        "no_identity",
        "CREATE TABLE t (id int NOT NULL, v text); CREATE UNIQUE INDEX ON t (id); CREATE PUBLICATION larder FOR TABLE t",
        table,
        "updates and deletes of t do not include the old value of column id; run ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    );
    check(
        cluster,
        "a_time",
        "CREATE TABLE t (id timestamptz PRIMARY KEY, v text); CREATE PUBLICATION larder FOR TABLE t",
        table,
        "the column id of t is of type timestamp with time zone, which cannot be a slot of a key; text, varchar, smallint, integer, bigint and uuid can: for a time, use a bigint such as microseconds since 1970",
        "",
    );
    check(
        cluster,
        "generated",
        "CREATE TABLE t (id int PRIMARY KEY, v text GENERATED ALWAYS AS ('x' || 'y') STORED); CREATE PUBLICATION larder FOR TABLE t",
        table,
        "the column v of t is generated, and PostgreSQL does not replicate such columns; make it a plain one, filled by a trigger",
        "",
    );
    check(
        cluster,
        "a_view",
        "CREATE VIEW t AS SELECT 1 AS id, 'x' AS v; CREATE PUBLICATION larder",
        table,
        "t is not a table, and only tables can be followed; correct tables.t.table",
        "",
    );
    check(
        cluster,
        "partitioned",
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY HASH (id); CREATE PUBLICATION larder FOR TABLE t",
        table,
        "t is partitioned, which larder cannot follow yet; map its partitions one by one",
        "",
    );
    check(
        cluster,
        "unlogged",
        "CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION larder FOR ALL TABLES",
        table,
        "t is unlogged or temporary, so its changes are not replicated; run ALTER TABLE t SET LOGGED",
        "ALTER TABLE t SET LOGGED",
    );
}

fn missing_privileges_are_reported_with_a_grant_statement() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("rights");
    // Roles are global in PostgreSQL.
    let reader = unique_name("reader");
    sql.run(&format!("CREATE ROLE {reader} LOGIN; CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION larder FOR TABLE t"));
    let url = sql.url().replace("postgres@", &format!("{reader}@"));
    let server = server(
        &url,
        "[tables.t]\npattern = 't|<id>'\nvalue = 'v'\nwrite = 'through'\n",
    );
    let mut client = Client::connect(&server);
    let mut step = |expected: &str, remedy: &str| {
        let [expected, remedy] = [expected, remedy].map(|text| text.replace("reader", &reader));
        client.wait_until(&expected, |client| {
            client.call("GET t|1") == format!("-SOURCE {expected}")
        });
        sql.run(&remedy);
    };
    step(
        "the role reader may not follow changes; run ALTER ROLE reader REPLICATION",
        "ALTER ROLE reader REPLICATION",
    );
    step(
        "the role reader may not read t; run GRANT SELECT ON t TO reader",
        "GRANT SELECT ON t TO reader; ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    );
    step(
        "row security hides rows of t from the role reader, while replication includes all; run ALTER ROLE reader BYPASSRLS",
        "ALTER ROLE reader BYPASSRLS",
    );
    step(
        "the role reader may not write t, which tables.t.write = \"through\" needs; run GRANT INSERT, UPDATE, DELETE ON t TO reader",
        "GRANT INSERT, UPDATE, DELETE ON t TO reader",
    );
    client.wait_until("granted", |client| client.call("SET t|1 x") == "+OK");
    client.check("GET t|1", "$1|x");
}

fn a_server_without_logical_replication_is_rejected() {
    let Some(cluster) = Cluster::start(&["wal_level=replica"]) else {
        return;
    };
    let mut sql = cluster.database("replica");
    check_on(
        &mut sql,
        "[tables.t]\npattern = 't|<id>'\n",
        "PostgreSQL's wal_level is replica, so changes cannot be followed; run ALTER SYSTEM SET wal_level = 'logical' and restart PostgreSQL",
        "",
    );
}

fn reads_report_rows_that_cannot_be_keys() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("misfits");
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts VALUES ('a|b', 1, 'x'), ('bob', 1, 'y')");
    let server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    client.check("GET post|bob|0000000001", "$1|y");
    let refused = "-ERR a row of posts cannot be a key of post|<author>|<time:10>: author is 'a|b', which holds '|'; correct or remove it (author = a|b, time = 1), and keep such rows out with a CHECK constraint";
    client.check("RANGECOUNT post| post}", refused);
    sql.run("DELETE FROM posts WHERE author = 'a|b'");
    client.check("RANGECOUNT post| post}", ":1");
    // The same for a row that is inserted later.
    sql.run("INSERT INTO posts VALUES ('a|b', 1, 'x')");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT post| post}", refused);
    assert_eq!(client.count("misfits"), 1);
    client.check("GET post|bob|0000000001", "$1|y");
    sql.run("UPDATE posts SET author = 'ab' WHERE author = 'a|b'");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT post| post}", ":2");
}

fn an_altered_table_is_checked_again() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("altered");
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one')");
    let server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    client.check("GET post|bob|0000000001", "$3|one");
    sql.run("ALTER TABLE posts ADD COLUMN more int; INSERT INTO posts VALUES ('bob', 2, 'two', 5)");
    client.catch_up(&mut sql);
    client.check("GET post|bob|0000000002", "$3|two");
    sql.run("ALTER TABLE posts RENAME COLUMN body TO text; UPDATE posts SET text = 'x'");
    let expected = "-SOURCE posts has no column body; it has author, more, text, time; correct tables.post.value";
    client.wait_until(expected, |client| {
        client.call("GET post|bob|0000000001") == expected
    });
    sql.run("ALTER TABLE posts RENAME COLUMN text TO body");
    client.wait_until("back", |client| {
        client.call("GET post|bob|0000000001") == "$1|x"
    });
    // Another table with the same name.
    sql.run("DROP TABLE posts; CREATE TABLE posts (author text, time bigint, body text, PRIMARY KEY (author, time))");
    let expected = "-SOURCE the publication larder does not have the table posts; run ALTER PUBLICATION larder ADD TABLE posts";
    client.wait_until(expected, |client| {
        client.call("GET post|eve|0000000001") == expected
    });
    client.wait_until("forgotten", |client| {
        client.call("GET post|bob|0000000001") == expected
    });
    sql.run("ALTER PUBLICATION larder ADD TABLE posts");
    client.wait_until("back", |client| {
        client.call("GET post|bob|0000000001") == "$-1"
    });
}

fn a_table_with_its_own_rows_is_not_mapped() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("occupied");
    sql.run(SCHEMA);
    let url = sql.url();
    let mut server = TestServer::with(|config| config.server.threads = CORES.get());
    Client::connect(&server).check("SET post|bob|0000000001 mine", "+OK");
    server.restart(|_| {});
    let mut config = larder_protocol::config::ServerConfig::default();
    config.postgres.url = url;
    config.apply_toml(TABLES, "the test").unwrap();
    let error = server.start_refused(|ours| {
        ours.postgres = config.postgres;
        ours.mapped = config.mapped;
    });
    assert_eq!(
        error,
        "table post cannot be stored in PostgreSQL: it has rows in the data folder; remove them (without [tables.post]: RANGEDEL), or choose another name"
    );
}

fn no_row_of_postgres_is_in_the_journal() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("journal");
    sql.run(SCHEMA);
    let mut server = server_with(&sql.url(), TABLES, |config| {
        config.tables.fsync = Fsync::Always;
    });
    let mut client = Client::connect(&server);
    client.check("RANGECOUNT post| post}", ":0");
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'a body to look for')");
    client.catch_up(&mut sql);
    client.check("GET post|bob|0000000001", "$18|a body to look for");
    client.check("SET own|1 a row of its own", "-ERR syntax error");
    assert_eq!(
        client.call_words(&["SET", "own|1", "a row of its own"]),
        "+OK"
    );
    let holds = |folder: &std::path::Path, text: &str| {
        let files = std::fs::read_dir(folder.join("tables")).expect("there");
        files.into_iter().any(|file| {
            let bytes = std::fs::read(file.expect("there").path()).unwrap_or_default();
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        })
    };
    server.restart(|folder| {
        assert!(holds(folder, "a row of its own"));
        assert!(!holds(folder, "a body to look for"));
    });
    // After a restart, all rows are loaded again.
    let mut client = Client::connect(&server);
    client.check("GET post|bob|0000000001", "$18|a body to look for");
    client.check("GET own|1", "$16|a row of its own");
}
