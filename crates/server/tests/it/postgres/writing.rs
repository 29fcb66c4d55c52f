//! Writes to tables of PostgreSQL: rejected, or written through.

use super::cluster::{Cluster, Sql};
use super::{SCHEMA, TIMELINE, posts, server};
use crate::resp::Client;
use crate::support::TestServer;

on_one_and_on_several_cores! {
    writes_are_rejected_unless_the_table_is_written_through,
    a_client_reads_its_own_writes_through,
    a_timeline_includes_the_readers_own_write_through,
    counters_and_objects_are_written_in_their_columns,
    concurrent_increments_add_up,
}

const WRITE_THROUGH_TABLES: &str = "
[tables.post]
pattern = 'post|<author>|<time:10>'
table = 'posts'
value = 'body'
write = 'through'
[tables.sub]
pattern = 'sub|<follower>|<author>'
table = 'subs'
write = 'through'
[tables.karma]
pattern = 'karma|<name>'
value = 'points'
write = 'through'
[tables.page]
pattern = 'page:<id>'
table = 'pages'
columns = { id = 'number' }
value = ['title', 'likes']
write = 'through'
";

fn start_write_through(name: &str) -> Option<(Sql, TestServer)> {
    let cluster = Cluster::shared()?;
    let mut sql = cluster.database(name);
    sql.run(SCHEMA);
    sql.run(
        "CREATE TABLE karma (name text PRIMARY KEY, points int);
         CREATE TABLE pages (number int PRIMARY KEY, title text, likes bigint, note text DEFAULT 'kept');
         ALTER PUBLICATION larder ADD TABLE karma, pages",
    );
    let server = server(&sql.url(), WRITE_THROUGH_TABLES);
    Some((sql, server))
}

fn writes_are_rejected_unless_the_table_is_written_through() {
    let Some((mut sql, server)) = posts("refused") else {
        return;
    };
    let mut client = Client::connect(&server);
    let refused = "-NOWRITE table post is stored in PostgreSQL (posts); write there, or set tables.post.write = \"through\"";
    for write in [
        "SET post|bob|0000000001 x",
        "SETNX post|bob|0000000001 x",
        "DEL post|bob|0000000001",
        "INCR post|bob|0000000001",
        "MSET post|bob|0000000001 x",
        "EXPIRE post|bob|0000000001 10",
        "RANGEDEL post|bob| post|bob}",
    ] {
        client.check(write, refused);
    }
    assert_eq!(sql.one("SELECT count(*) FROM posts"), "0");
}

fn a_client_reads_its_own_writes_through() {
    let Some((mut sql, server)) = start_write_through("through") else {
        return;
    };
    let mut client = Client::connect(&server);
    client.check("RANGECOUNT post| post}", ":0");
    for round in 1..50 {
        let key = format!("post|bob|{round:010}");
        client.check(&format!("SET {key} v{round}"), "+OK");
        client.check(
            &format!("GET {key}"),
            &format!("${}|v{round}", 1 + round.to_string().len()),
        );
        client.check("RANGECOUNT post|bob| post|bob}", &format!(":{round}"));
    }
    assert_eq!(sql.one("SELECT count(*), max(body) FROM posts"), "49,v9");
    client.check("SET post|bob|0000000001 new", "+OK");
    client.check("GET post|bob|0000000001", "$3|new");
    client.check("SET post|bob|0000000001 x NX", "$-1");
    client.check("SET post|bob|0000000001 x XX", "+OK");
    client.check("SET post|eve|0000000001 x XX", "$-1");
    client.check("SETNX post|eve|0000000001 y", ":1");
    client.check("SETNX post|eve|0000000001 z", ":0");
    client.check(
        "MGET post|bob|0000000001 post|eve|0000000001",
        "*2|$1|x|$1|y",
    );
    client.check(
        "DEL post|bob|0000000001 post|eve|0000000001 post|eve|0000000002 post|x",
        ":2",
    );
    client.check("MGET post|bob|0000000001 post|eve|0000000001", "*2|$-1|$-1");
    client.check("MSET post|zoe|0000000001 a post|zoe|0000000002 b", "+OK");
    client.check("RANGECOUNT post|zoe| post|zoe}", ":2");
    assert_eq!(sql.one("SELECT count(*) FROM posts"), "50");
    // A command that finds no row to delete reflects the commit of the client that deleted it.
    sql.run("DELETE FROM posts WHERE author = 'zoe'");
    client.check("DEL post|zoe|0000000001", ":0");
    client.check("RANGECOUNT post|zoe| post|zoe}", ":0");
}

fn a_timeline_includes_the_readers_own_write_through() {
    let Some((_sql, server)) = start_write_through("own") else {
        return;
    };
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    client.check("RANGECOUNT tline|ann| tline|ann}", ":0");
    assert_eq!(client.call_words(&["SET", "sub|ann|bob", ""]), "+OK");
    for round in 1..20 {
        client.check(&format!("SET post|bob|{round:010} x"), "+OK");
        client.check("RANGECOUNT tline|ann| tline|ann}", &format!(":{round}"));
    }
    client.check("DEL sub|ann|bob", ":1");
    client.check("RANGECOUNT tline|ann| tline|ann}", ":0");
    client.check(
        "SET sub|ann|bob 1",
        "-ERR table sub has no value column (tables.sub.value), so its values are empty: set ''",
    );
}

fn counters_and_objects_are_written_in_their_columns() {
    let Some((mut sql, server)) = start_write_through("columns") else {
        return;
    };
    let mut client = Client::connect(&server);
    client.check("INCRBY karma|bob 5", ":5");
    client.check("DECR karma|bob", ":4");
    client.check("GET karma|bob", "$1|4");
    client.check(
        "INCRBY karma|bob 2147483647",
        "-ERR value is not an integer or out of range",
    );
    client.check(
        "INCRBY karma|bob x",
        "-ERR value is not an integer or out of range",
    );
    client.check(
        "SET karma|bob x",
        "-ERR PostgreSQL refused the write: invalid input syntax for type integer: \"x\"",
    );
    client.check("GET karma|bob", "$1|4");
    client.check(
        "INCR post|bob|0000000001",
        "-ERR the value of table post is not one column of integers, so nothing can be added to it",
    );
    let value = r#"{"title":"a 'b' \\ c","likes":3}"#;
    assert_eq!(client.call_words(&["SET", "page:7", value]), "+OK");
    client.check("GET page:7", &format!("${}|{value}", value.len()));
    assert_eq!(
        sql.one("SELECT number, title, likes, note FROM pages"),
        r"7,a 'b' \ c,3,kept"
    );
    client.check(
        "SET page:7 x",
        "-ERR the value must be a JSON object of title, likes",
    );
    client.check(
        "SET page:x {}",
        "-ERR the key 'page:x' is not of the pattern page:<id>",
    );
    client.check("GET page:x", "$-1");
    client.check(
        "SET post|bob|1 x",
        "-ERR the key 'post|bob|1' is not of the pattern post|<author>|<time:10>",
    );
    for (write, expected) in [
        (
            "SET karma|bob 1 EX 10",
            "-ERR SET on a table that is stored in PostgreSQL accepts only one option, NX or XX",
        ),
        (
            "EXPIRE karma|bob 10",
            "-ERR table karma is stored in PostgreSQL and does not support EXPIRE; change the table karma there",
        ),
        (
            "RANGEDEL post|a post|b",
            "-ERR table post is stored in PostgreSQL and does not support RANGEDEL; change the table posts there",
        ),
        (
            "MSET own|1 x karma|bob 1",
            "-ERR table karma is stored in PostgreSQL; write its keys and keys of other tables in separate commands",
        ),
    ] {
        client.check(write, expected);
    }
    client.check("MULTI", "+OK");
    client.check("SET karma|bob 1", "+QUEUED");
    assert!(
        client
            .call("EXEC")
            .contains("so a transaction cannot write to it")
    );
}

fn concurrent_increments_add_up() {
    let Some((mut sql, server)) = start_write_through("adding") else {
        return;
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = Client::connect(&server);
            scope.spawn(move || {
                for _ in 0..50 {
                    assert!(client.call("INCR karma|all").starts_with(':'));
                }
            });
        }
    });
    Client::connect(&server).check("GET karma|all", "$3|200");
    assert_eq!(sql.one("SELECT points FROM karma"), "200");
}
