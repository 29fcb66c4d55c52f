//! Loads on demand, the stream of changes, and their interaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::cluster::{Cluster, Sql};
use super::proxy::Proxy;
use super::{SCHEMA, TABLES, TIMELINE, posts, server, server_with};
use crate::resp::Client;

on_one_and_on_several_cores! {
    rows_are_loaded_on_first_read_and_follow_changes,
    a_timeline_over_tables_of_postgres_stays_fresh,
    a_commit_during_a_load_is_applied_once,
    a_commit_that_a_load_has_seen_is_not_applied_again,
    a_load_with_a_snapshot_behind_the_stream_is_repeated,
    large_transactions_and_large_values_arrive_completely,
    values_match_the_text_of_postgres_for_loads_and_changes,
    loaded_rows_obey_the_limits,
    a_transaction_reads_one_snapshot,
}

fn rows_are_loaded_on_first_read_and_follow_changes() {
    let Some((mut sql, server)) = posts("follow") else {
        return;
    };
    sql.run(
        "INSERT INTO posts VALUES ('bob', 100, 'hello'), ('bob', 200, 'again'), ('eve', 1, 'x')",
    );
    let mut client = Client::connect(&server);
    client.check("GET post|bob|0000000100", "$5|hello");
    client.check("GET post|bob|0000000101", "$-1");
    client.check("GET post|bob|7", "$-1");
    client.check(
        "RANGE post|bob| post|bob}",
        "*4|$19|post|bob|0000000100|$5|hello|$19|post|bob|0000000200|$5|again",
    );
    client.check(
        "MGET post|eve|0000000001 post|eve|0000000002",
        "*2|$1|x|$-1",
    );
    client.check("RANGECOUNT post| post}", ":3");
    client.check("EXISTS post|bob|0000000100", ":1");
    let loads = client.count("loads");
    // Rows in memory are not loaded again.
    client.check("RANGECOUNT post| post}", ":3");
    assert_eq!(client.count("loads"), loads);

    sql.run("INSERT INTO posts VALUES ('bob', 300, 'new'); UPDATE posts SET body = 'HELLO' WHERE time = 100; DELETE FROM posts WHERE time = 200");
    client.catch_up(&mut sql);
    client.check(
        "RANGE post|bob| post|bob}",
        "*4|$19|post|bob|0000000100|$5|HELLO|$19|post|bob|0000000300|$3|new",
    );
    // When a row's key changes, the row moves.
    sql.run("UPDATE posts SET author = 'eve', time = 2 WHERE time = 300");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT post|bob| post|bob}", ":1");
    client.check("GET post|eve|0000000002", "$3|new");
    assert_eq!(client.count("loads"), loads);
    sql.run("TRUNCATE posts; INSERT INTO posts VALUES ('zoe', 1, 'first')");
    client.catch_up(&mut sql);
    client.check("RANGE post| post}", "*2|$19|post|zoe|0000000001|$5|first");
    assert!(client.postgres_info("state") == "streaming");
}

fn a_timeline_over_tables_of_postgres_stays_fresh() {
    let Some((mut sql, server)) = posts("timeline") else {
        return;
    };
    sql.run("INSERT INTO subs VALUES ('ann', 'bob'), ('ann', 'eve'); INSERT INTO posts VALUES ('bob', 1, 'one'), ('eve', 2, 'two'), ('zoe', 3, 'three')");
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    let range = "RANGE tline|ann| tline|ann}";
    let row = |time: u32, author: &str, body: &str| {
        let key = format!("tline|ann|{time:010}|{author}");
        format!("|${}|{key}|${}|{body}", key.len(), body.len())
    };
    client.check(
        range,
        &format!("*4{}{}", row(1, "bob", "one"), row(2, "eve", "two")),
    );
    sql.run("INSERT INTO posts VALUES ('bob', 4, 'four')");
    client.catch_up(&mut sql);
    client.check(
        range,
        &format!(
            "*6{}{}{}",
            row(1, "bob", "one"),
            row(2, "eve", "two"),
            row(4, "bob", "four")
        ),
    );
    sql.run("INSERT INTO subs VALUES ('ann', 'zoe'); DELETE FROM subs WHERE author = 'bob'; UPDATE posts SET body = 'TWO' WHERE time = 2");
    client.catch_up(&mut sql);
    client.check(
        range,
        &format!("*4{}{}", row(2, "eve", "TWO"), row(3, "zoe", "three")),
    );
    sql.run("TRUNCATE posts");
    client.catch_up(&mut sql);
    client.check(range, "*0");
    client.check("JOIN.CREATE x post|<a> = copy tline|<a>|<t:10>|<b>", "-ERR column 1: table post contains base rows: give the output another table, or remove the rows");
}

/// The load takes its snapshot and then waits for a lock on the table, which is written and unlocked meanwhile. The
/// rows that it reads are therefore older than the changes that the stream has delivered.
fn a_commit_during_a_load_is_applied_once() {
    let Some((mut sql, server)) = posts("race") else {
        return;
    };
    sql.run(
        "CREATE TABLE log (n int); INSERT INTO posts VALUES ('bob', 1, 'one'), ('bob', 2, 'two')",
    );
    let mut writer = sql.another();
    let mut client = Client::connect(&server);
    // The first read starts the stream.
    client.check("GET post|none|0000000001", "$-1");
    writer.run("BEGIN; LOCK TABLE posts IN ACCESS EXCLUSIVE MODE; UPDATE posts SET body = 'TWO' WHERE time = 2; DELETE FROM posts WHERE time = 1; INSERT INTO posts VALUES ('bob', 3, 'three')");
    client.send(b"RANGE post|bob| post|bob}\r\n");
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'posts'::regclass";
    while sql.one(waiting) == "0" {
        std::thread::yield_now();
    }
    writer.run("COMMIT");
    let expected = "*4|$19|post|bob|0000000002|$3|TWO|$19|post|bob|0000000003|$5|three";
    assert_eq!(client.reply(), expected);
    client.catch_up(&mut sql);
    client.check("RANGE post|bob| post|bob}", expected);
}

/// The stream delivers a change later that a load has already read. The change must not be applied twice, and no read
/// may return an older value in between.
fn a_commit_that_a_load_has_seen_is_not_applied_again() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("behind");
    sql.run(SCHEMA);
    let proxy = Proxy::to(cluster.port());
    let server = server(&sql.url_at(proxy.port()), TABLES);
    let mut client = Client::connect(&server);
    client.check("RANGE post|eve| post|eve}", "*0");
    proxy.hold(true);
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one'), ('eve', 1, 'e')");
    sql.run("UPDATE posts SET body = 'two'");
    let mut other = Client::connect(&server);
    client.send(b"GET post|bob|0000000001\r\n");
    // The rows in memory stay unchanged and of one moment, because the load waits for the stream.
    for _ in 0..300 {
        other.check("RANGE post|eve| post|eve}", "*0");
    }
    proxy.hold(false);
    assert_eq!(client.reply(), "$3|two");
    client.check("GET post|eve|0000000001", "$3|two");
    client.check("GET post|bob|0000000001", "$3|two");
}

/// A commit that waits for a synchronous standby is in the stream, but not in any snapshot.
fn a_load_with_a_snapshot_behind_the_stream_is_repeated() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let mut sql = cluster.database("standby");
    sql.run(SCHEMA);
    let server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    client.check("RANGE post|eve| post|eve}", "*0");
    sql.run("CREATE TABLE probes (n int)");
    sql.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    sql.run("SELECT pg_reload_conf()");
    let prober = commit_until_one_waits(&mut sql);
    let mut writer = sql.another();
    let stuck = std::thread::spawn(move || {
        writer.run("INSERT INTO posts VALUES ('bob', 1, 'one'), ('eve', 1, 'e')");
    });
    // Replication has delivered the row, and a query does not return it yet.
    client.wait_until("the row is here", |client| {
        client.call("RANGECOUNT post|eve| post|eve}") == ":1"
    });
    assert_eq!(sql.one("SELECT count(*) FROM posts"), "0");
    client.send(b"GET post|bob|0000000001\r\n");
    let mut other = Client::connect(&server);
    other.wait_until("the load is done again", |client| {
        client.count("loads_repeated") > 2
    });
    sql.run("ALTER SYSTEM RESET synchronous_standby_names");
    sql.run("SELECT pg_reload_conf()");
    assert_eq!(client.reply(), "$3|one");
    stuck.join().unwrap();
    prober.join().unwrap();
}

/// Commits transactions until one waits for a standby. Commits do so once the checkpointer has read the configuration, which no
/// query shows. The thread ends with that commit. It needs the table `probes`.
fn commit_until_one_waits(sql: &mut Sql) -> JoinHandle<()> {
    let mut prober = sql.another();
    let is_over = Arc::new(AtomicBool::new(false));
    let is_seen = is_over.clone();
    let thread = std::thread::spawn(move || {
        while !is_seen.load(Ordering::Relaxed) {
            prober.run("INSERT INTO probes VALUES (1)");
        }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    while sql.one(waiting) != "1" {
        std::thread::yield_now();
    }
    is_over.store(true, Ordering::Relaxed);
    thread
}

fn large_transactions_and_large_values_arrive_completely() {
    let Some((mut sql, server)) = posts("large") else {
        return;
    };
    let mut client = Client::connect(&server);
    client.check("RANGECOUNT post| post}", ":0");
    sql.run("INSERT INTO posts SELECT 'a' || (n % 10), n, 'body ' || n FROM generate_series(1, 20000) n");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT post| post}", ":20000");
    client.check("RANGECOUNT post|a3| post|a3}", ":2000");
    sql.run("DELETE FROM posts WHERE time % 2 = 0");
    client.catch_up(&mut sql);
    client.check("RANGECOUNT post| post}", ":10000");
    // Random text does not compress and is stored out of line (TOAST).
    sql.run("INSERT INTO posts SELECT 'big', 1, string_agg(md5(n::text), '') FROM generate_series(1, 100000) n");
    client.catch_up(&mut sql);
    client.check("STRLEN post|big|0000000001", ":3200000");
    // An update that does not change the value does not send it.
    sql.run("UPDATE posts SET author = 'big' WHERE author = 'big'");
    client.catch_up(&mut sql);
    client.check("STRLEN post|big|0000000001", ":3200000");
    // The same applies to an update that moves the row.
    sql.run("UPDATE posts SET time = 2 WHERE author = 'big'");
    client.catch_up(&mut sql);
    client.check("STRLEN post|big|0000000002", ":3200000");
    client.check("EXISTS post|big|0000000001", ":0");
}

fn values_match_the_text_of_postgres_for_loads_and_changes() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("kinds");
    sql.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad');
         CREATE TABLE things (id int PRIMARY KEY, a float8, b timestamptz, c boolean, d bytea, e inet, f numeric, g jsonb, h mood, i interval, j text);
         CREATE TABLE blobs (id uuid PRIMARY KEY, data bytea);
         CREATE PUBLICATION larder FOR ALL TABLES",
    );
    let server = server(
        &sql.url(),
        "[tables.thing]\npattern = 'thing:<id:4>'\ntable = 'things'\nvalue = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j']\n\
         [tables.blob]\npattern = 'blob|<id>'\ntable = 'public.blobs'\nvalue = 'data'\n",
    );
    let row = "0.1::float8 + 0.2, '2024-02-29 12:00:00.5+02', true, '\\x00ff', '10.0.0.1', 1.50, '{\"k\": [1]}', 'glad', '1 day 2 hours', NULL";
    sql.run(&format!("INSERT INTO things VALUES (1, {row})"));
    let mut client = Client::connect(&server);
    let expected = r#"{"a":0.30000000000000004,"b":"2024-02-29 10:00:00.5+00","c":true,"d":"\\x00ff","e":"10.0.0.1","f":1.50,"g":{"k": [1]},"h":"glad","i":"1 day 02:00:00","j":null}"#;
    client.check("GET thing:0001", &format!("${}|{expected}", expected.len()));
    client.check("GET thing:0002", "$-1");
    sql.run(&format!("INSERT INTO things VALUES (2, {row})"));
    client.catch_up(&mut sql);
    client.check("GET thing:0002", &format!("${}|{expected}", expected.len()));
    // Updates one column of a row whose other column is large and unchanged.
    sql.run("UPDATE things SET j = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n) WHERE id = 2; UPDATE things SET c = false WHERE id = 2");
    client.catch_up(&mut sql);
    let value = client.call("GET thing:0002");
    assert!(
        value.contains(r#""c":false"#) && value.len() > 32_000,
        "{}",
        &value[..200]
    );
    assert_eq!(client.count("loads"), 2);
    let id = "0a0b0c0d-0000-4000-8000-00000000000f";
    sql.run(&format!("INSERT INTO blobs VALUES ('{id}', '\\x616263')"));
    client.check(&format!("GET blob|{id}"), "$3|abc");
    client.check(&format!("GET blob|{}", id.to_uppercase()), "$-1");
}

fn loaded_rows_obey_the_limits() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("limits");
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts SELECT 'a' || n % 100, n, repeat('x', 100) FROM generate_series(1, 10000) n");
    let server = server_with(&sql.url(), TABLES, |config| {
        config.postgres.load_rows_max = 5000;
        config.tables.memory = larder_types::ByteSize(200 << 10);
    });
    let mut client = Client::connect(&server);
    client.check(
        "RANGECOUNT post| post}",
        "-ERR the range holds more than 5000 rows of posts, which postgres.load_rows_max allows; read a narrower one",
    );
    for round in 0..3 {
        for author in 0..100 {
            let read = format!("RANGECOUNT post|a{author}| post|a{author}}}");
            client.check(&read, ":100");
        }
        assert!(
            client.count("loads") > round * 50,
            "evicted ranges are loaded again"
        );
    }
    // Rows that one read needs stay in memory until it ends, regardless of the limit.
    client.check("RANGECOUNT post|a post|a5", ":4500");
    client.check("GET own|1", "$-1");
    // With several cores, the limit is continuously redistributed.
    client.wait_until("no more than allowed", |client| {
        let info = client.call("INFO tables");
        let memory = info
            .lines()
            .find_map(|line| line.strip_prefix("tables_memory_bytes:"));
        memory.expect("there").parse::<u64>().expect("a number") <= 200 << 10
    });
}

fn a_transaction_reads_one_snapshot() {
    let Some((mut sql, server)) = posts("multi") else {
        return;
    };
    sql.run("INSERT INTO posts VALUES ('bob', 1, 'one')");
    let mut client = Client::connect(&server);
    client.check("MULTI", "+OK");
    client.check("GET post|bob|0000000001", "+QUEUED");
    client.check("RANGECOUNT post|eve| post|eve}", "+QUEUED");
    client.check("SET own|1 x", "+QUEUED");
    client.check("EXEC", "*3|$3|one|:0|+OK");
    // Replies stay in order, whatever each of them waits for.
    client.send(b"GET own|1\r\nGET post|zoe|0000000001\r\nGET own|1\r\n");
    assert_eq!(
        [client.reply(), client.reply(), client.reply()],
        ["$1|x", "$-1", "$1|x"]
    );
    client.check("SCAN 0 MATCH post|*", "*2|$1|0|*1|$19|post|bob|0000000001");
    client.check("SCAN 0", "*2|$1|0|*1|$5|own|1");
}
