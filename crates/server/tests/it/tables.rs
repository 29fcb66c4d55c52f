//! Tables and joins over the Redis protocol and HTTP.

use std::io::BufRead;

use larder_protocol::config::Fsync;
use larder_types::ByteSize;
use serde_json::json;

use crate::resp::{Client, TIMELINE, request, server_with};
use crate::support::TestServer;

/// Maximum number of rows that a core may visit for joins before it serves others: those of one read or of one step
/// of each of four kinds of work, plus the overrun of the last step.
pub const VISITED_MAX: u64 = 12_000;

/// Like [`VISITED_MAX`], for a reply that is computed in one turn and not stored: the rows of up to eight reads in
/// addition to those of the read itself.
const VISITED_IN_ONE_GO_MAX: u64 = 75_000;

/// Checks that no turn of a core visited more rows than this.
#[track_caller]
pub fn check_visits(client: &mut Client, visited_max: u64, what: &str) {
    let visited = client.info_number("tables", "tables_visited_at_once");
    assert!(
        (1..=visited_max).contains(&visited),
        "{what}: {visited} rows in one turn"
    );
}

#[test]
fn an_acknowledged_post_is_on_the_timelines_of_all_followers() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    client.check("SET sub|ann|bob 1", "+OK");
    client.check("SET post|bob|0000000100 hello", "+OK");
    client.check(
        "RANGE tline|ann| tline|ann}",
        "*2|$24|tline|ann|0000000100|bob|$5|hello",
    );
    client.check("SET post|bob|0000000200 again", "+OK");
    client.check(
        "RANGE tline|ann| tline|ann} REV LIMIT 1",
        "*2|$24|tline|ann|0000000200|bob|$5|again",
    );
    client.check("GET tline|ann|0000000100|bob", "$5|hello");
    client.check("RANGECOUNT tline|ann| tline|ann}", ":2");
    client.check("DEL sub|ann|bob", ":1");
    client.check("RANGE tline|ann| tline|ann}", "*0");
    client.check(
        "SET tline|ann|1|bob x",
        "-NOWRITE table tline is computed by join timeline: write to its sources",
    );
    assert!(
        client
            .call("JOIN.EXPLAIN timeline")
            .contains("sub|<user>|<author>")
    );
    assert!(client.call("JOIN.LIST").contains("timeline"));
    assert!(client.call("JOIN.INFO timeline").contains("updaters"));
    client.check("JOIN.DROP timeline", "+OK");
    client.check(
        "JOIN.DROP timeline",
        "-NOJOIN no join is named \"timeline\"; JOIN.LIST lists the existing joins",
    );
    client.check("RANGE tline|ann| tline|ann}", "*0");
}

#[test]
fn commands_on_rows_match_redis() {
    let server = server_with(|_| {});
    let mut client = Client::connect(&server);
    for (line, expected) in [
        ("GET t|a", "$-1"),
        // A table exists from its first row on. Until then, its keys are absent in every notation.
        ("GET x:k", "$-1"),
        ("MGET x:k t|none", "*2|$-1|$-1"),
        ("EXISTS x:k", ":0"),
        ("TTL x:k", ":-2"),
        ("SCAN 0 MATCH x:*", "*2|$1|0|*0"),
        ("SET t|a 1", "+OK"),
        ("SET t|a 2 NX", "$-1"),
        ("SET t|b 2 XX", "$-1"),
        ("SET t|a 2 XX GET", "$1|1"),
        ("SET t|a 2 NX XX", "-ERR syntax error"),
        (
            "SET t|a 2 EX 0",
            "-ERR invalid expire time in 'set' command",
        ),
        ("SET plain 1", "+OK"),
        ("DEL plain", ":1"),
        (
            "SET s:k1 v",
            "-NOWRITE stores are read-only, SET is refused; build a version and push it: larder push FILE --store s",
        ),
        ("SETNX t|a 9", ":0"),
        ("SETNX t|b 9", ":1"),
        ("MGET t|a t|none t|b", "*3|$1|2|$-1|$1|9"),
        ("MGET t|a s:k1", "*2|$1|2|$1|v"),
        ("EXISTS t|a t|a t|none", ":2"),
        ("STRLEN t|a", ":1"),
        ("GETRANGE t|a 0 0", "$1|2"),
        ("TYPE t|a", "+string"),
        ("TYPE t|none", "+none"),
        ("INCR t|a", ":3"),
        ("INCRBY t|n 40", ":40"),
        ("DECRBY t|n 2", ":38"),
        ("DECR t|n", ":37"),
        (
            "INCRBY t|n x",
            "-ERR value is not an integer or out of range",
        ),
        ("SET t|w word", "+OK"),
        ("INCR t|w", "-ERR value is not an integer or out of range"),
        ("TTL t|a", ":-1"),
        ("TTL t|none", ":-2"),
        ("EXPIRE t|none 10", ":0"),
        ("EXPIRE t|a 100 XX", ":0"),
        ("EXPIRE t|a 100 NX", ":1"),
        ("TTL t|a", ":100"),
        ("INCR t|a", ":4"),
        ("TTL t|a", ":100"),
        ("PERSIST t|a", ":1"),
        ("PERSIST t|a", ":0"),
        ("SET t|a 1 EX 100", "+OK"),
        ("SET t|a 2 KEEPTTL", "+OK"),
        ("TTL t|a", ":100"),
        ("SET t|a 3", "+OK"),
        ("TTL t|a", ":-1"),
        ("EXPIRE t|a -1", ":1"),
        ("EXISTS t|a", ":0"),
        ("MSET t|x 1 t|y 2", "+OK"),
        (
            "MSET t|x 1 t|y",
            "-ERR wrong number of arguments for 'mset' command",
        ),
        ("RANGE t|x t|z", "*4|$3|t|x|$1|1|$3|t|y|$1|2"),
        ("RANGE t|x t|y", "*2|$3|t|x|$1|1"),
        ("RANGE t|x t|z REV KEYSONLY", "*2|$3|t|y|$3|t|x"),
        ("RANGE t|x t|z LIMIT 0", "*0"),
        ("RANGE t|x t|z LIMIT", "-ERR syntax error"),
        ("RANGE t|z t|x", "*0"),
        ("RANGE none|a none|b", "*0"),
        (
            "RANGE s:a s:b",
            "-ERR s is a store, which has no order of keys; RANGE reads tables and join outputs",
        ),
        ("RANGECOUNT t|x t|z", ":2"),
        ("RANGEDEL t|x t|z", ":2"),
        ("DEL t|b t|n t|w t|none", ":3"),
        ("RANGECOUNT t| t}", ":0"),
        ("SET c:1 v", "+OK"),
        ("GET c:1", "$1|v"),
        ("GET s:k1", "$1|v"),
        ("SCAN 0 MATCH c:*", "*2|$1|0|*1|$3|c:1"),
    ] {
        client.check(line, expected);
    }
    assert!(client.call("RANGE t|x u|x").starts_with("-ERR range"));
    client.check("HELLO 3", &client_hello(&server));
    client.check("MSET t|x 1 t|y 2", "+OK");
    client.check("RANGE t|x t|z", "*2|*2|$3|t|x|$1|1|*2|$3|t|y|$1|2");
}

fn client_hello(server: &TestServer) -> String {
    let mut client = Client::connect(server);
    let hello = client.call("HELLO 3");
    // This connection's id is one higher than that of the first connection.
    let (before, after) = hello.split_once("$2|id|:").expect("an id");
    let (id, rest) = after.split_once('|').expect("more");
    let id: u64 = id.parse().expect("a number");
    format!("{before}$2|id|:{}|{rest}", id - 1)
}

#[test]
fn scan_iterates_over_tables_with_cursors() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    for row in 0..25 {
        client.check(&format!("SET {}|{row:02} v", ["a", "b"][row % 2]), "+OK");
    }
    let (mut cursor, mut seen) = ("0".to_owned(), 0);
    loop {
        let reply = client.call(&format!("SCAN {cursor} COUNT 4"));
        let mut words = reply.split('|').skip(2);
        cursor = words.next().expect("a cursor").to_owned();
        seen += reply.matches("$4|").count();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, 25);
    assert!(client.call("SCAN 999").starts_with("-ERR cursor 999"));
    client.check("DBSIZE", ":25");
}

#[test]
fn a_transaction_is_atomic() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    let mut other = Client::connect(&server);
    client.check("MULTI", "+OK");
    client.check("SET t|a 1", "+QUEUED");
    client.check("INCR t|a", "+QUEUED");
    client.check("RANGE t|a t|b", "+QUEUED");
    other.check("GET t|a", "$-1");
    client.check("EXEC", "*3|+OK|:2|*2|$3|t|a|$1|2");
    client.check("MULTI", "+OK");
    client.check("MULTI", "-ERR MULTI calls can not be nested");
    client.check("SET t|a 5", "+QUEUED");
    client.check("EXEC", "*1|+OK");
    client.check("GET t|a", "$1|5");
    client.check("MULTI", "+OK");
    client.check(
        "NOSUCH plain",
        "-ERR unknown command 'NOSUCH', with args beginning with: 'plain' ",
    );
    client.check("SET t|a 6", "+QUEUED");
    client.check(
        "EXEC",
        "-EXECABORT Transaction discarded because of previous errors.",
    );
    client.check("GET t|a", "$1|5");
    client.check("MULTI", "+OK");
    client.check("SET t|w word", "+QUEUED");
    client.check("INCR t|w", "+QUEUED");
    client.check("SET t|a 7", "+QUEUED");
    client.check(
        "EXEC",
        "*3|+OK|-ERR value is not an integer or out of range|+OK",
    );
    client.check("MULTI", "+OK");
    client.check("DEL t|a", "+QUEUED");
    client.check("DISCARD", "+OK");
    client.check("GET t|a", "$1|7");
    client.check("EXEC", "-ERR EXEC without MULTI");
    client.check("MULTI", "+OK");
    assert!(client.call("NOSUCH x").starts_with("-ERR unknown command"));
    assert!(client.call("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn an_invalid_definition_returns_an_error_with_its_column() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    client.send(&request(&["JOIN.CREATE", "bad", "out|<a> = copyy src|<a>"]));
    let reply = client.reply();
    assert!(reply.starts_with("-ERR column 11:"), "{reply}");
    client.send(&request(&[
        "JOIN.CREATE",
        "bad",
        "out|<a>|<b> = copy src|<a>",
    ]));
    let reply = client.reply();
    assert!(reply.starts_with("-ERR column "), "{reply}");
}

#[test]
fn rows_and_joins_survive_a_restart() {
    for &fsync in Fsync::ALL {
        let mut server = TestServer::with(|config| config.tables.fsync = fsync);
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        client.check("SET sub|ann|bob 1", "+OK");
        client.check("SET post|bob|0000000100 hello", "+OK");
        client.check("SET t|soon gone PX 1", "+OK");
        client.check("SET t|later here EX 1000", "+OK");
        client.check("SET t|removed x", "+OK");
        client.check("DEL t|removed", ":1");
        client.check(
            "RANGE tline|ann| tline|ann} KEYSONLY",
            "*1|$24|tline|ann|0000000100|bob",
        );
        drop(client);
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        client.check(
            "RANGE tline|ann| tline|ann} KEYSONLY",
            "*1|$24|tline|ann|0000000100|bob",
        );
        client.check("RANGE t| t} KEYSONLY", "*1|$7|t|later");
        client.check("TTL t|later", ":1000");
    }
}

#[test]
fn connections_on_other_threads_access_the_tables() {
    let server = server_with(|config| config.server.threads = 3);
    let mut clients: Vec<Client> = (0..24).map(|_| Client::connect(&server)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        // The requests of one pipeline are answered in order, whatever they access.
        let lines = [
            "PING",
            "GET s:k1",
            &format!("SET t|{number:02} v"),
            "GET s:k2",
            "GET t|00",
        ];
        let bytes = lines.map(|line| request(&line.split(' ').collect::<Vec<_>>()));
        client.send(&bytes.concat());
        let replies: Vec<String> = lines.iter().map(|_| client.reply()).collect();
        assert_eq!(replies, ["+PONG", "$1|v", "+OK", "$1|v", "$1|v"]);
    }
    for client in &mut clients {
        client.check("RANGECOUNT t| t}", ":24");
    }
}

#[test]
fn a_long_reply_reads_one_point_in_time_even_for_a_slow_client() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    const ROWS: usize = 100_000;
    let filler = "x".repeat(80);
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(1000) {
        let words: Vec<String> = chunk
            .iter()
            .flat_map(|row| [format!("t|{row:08}"), filler.clone()])
            .collect();
        let mut all = vec!["MSET"];
        all.extend(words.iter().map(String::as_str));
        client.send(&request(&all));
        assert_eq!(client.reply(), "+OK");
    }
    for reverse in [false, true] {
        let mut slow = Client::connect(&server);
        let words = ["RANGE", "t|", "t}", "REV"];
        slow.send(&request(&words[..if reverse { 4 } else { 3 }]));
        slow.send(&request(&["PING"]));
        // The start of the reply has arrived. Meanwhile, other clients are served and change the rows.
        let begun = slow.stream.fill_buf().expect("a beginning").len();
        assert!(begun > 0);
        client.check("DEL t|00000000 t|00050000 t|00099999", ":3");
        client.check("SET t|00050000x new", "+OK");
        let rows = slow.reply();
        assert!(
            rows.starts_with(&format!("*{}|", 2 * ROWS)),
            "{}",
            &rows[..20]
        );
        for row in ["00000000", "00050000", "00099999"] {
            assert!(rows.contains(&format!("|t|{row}|$80|x")), "{row}");
        }
        assert!(!rows.contains("00050000x"));
        assert_eq!(slow.reply(), "+PONG");
        client.check("DEL t|00050000x", ":1");
        for row in ["00000000", "00050000", "00099999"] {
            client.check(&format!("SET t|{row} {filler}"), "+OK");
        }
    }
    client.check("RANGEDEL t| t}", &format!(":{ROWS}"));
}

#[test]
fn a_long_reply_with_outputs_reads_one_point_in_time_and_delays_no_other_client() {
    // More rows than are computed in one turn.
    const ROWS: usize = 90_000;
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(1000) {
        let mut words = vec!["MSET".to_owned()];
        words.extend(
            chunk
                .iter()
                .flat_map(|row| [format!("v|{row:08}"), "0".into()]),
        );
        client.send(&request(
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
        assert_eq!(client.reply(), "+OK");
    }
    let last = format!("v|{:08}", ROWS - 1);
    let cases: [(&str, &[&str]); 5] = [
        ("copied", &["copied|<row:8> = copy v|<row:8>"]),
        ("summed", &["summed|<row:8> = sum v|<row:8>"]),
        ("auto", &["auto|<row:8> = auto copy v|<row:8>"]),
        ("pulled", &["pulled|<row:8> = pull copy v|<row:8>"]),
        // Two joins whose rows are merged.
        (
            "both",
            &[
                "both|<row:8>|a = copy v|<row:8>",
                "both|<row:8>|b = sum v|<row:8>",
            ],
        ),
    ];
    let mut written = 0;
    for (table, joins) in cases {
        for (number, join) in joins.iter().enumerate() {
            client.create(&format!("{table}{number}"), join);
        }
        let rows = ROWS * joins.len();
        for reverse in [false, true] {
            let mut reader = Client::connect(&server);
            reader.check(
                &format!("RANGECOUNT {table}| {table}}}"),
                &format!(":{rows}"),
            );
            let words = ["RANGE", &format!("{table}|"), &format!("{table}}}"), "REV"];
            reader.send(&request(&words[..if reverse { 4 } else { 3 }]));
            reader.stream.get_ref().set_nonblocking(true).expect("set");
            let mut rounds = 0;
            while rounds < 20 || reader.stream.get_ref().peek(&mut [0]).is_err() {
                rounds += 1;
                written += 1;
                // The first row has the same number as the last row, or the next one.
                client.check(&format!("SET v|00000000 {written}"), "+OK");
                client.check(&format!("SET {last} {written}"), "+OK");
                assert!(rounds < 100_000, "{table} is never read");
            }
            check_visits(&mut client, VISITED_IN_ONE_GO_MAX, table);
            reader.stream.get_ref().set_nonblocking(false).expect("set");
            let reply = reader.reply();
            assert!(reply.starts_with(&format!("*{}|", 2 * rows)), "{table}");
            let value_of = |row: usize| -> u64 {
                let key = format!("{table}|{row:08}");
                let at = reply.find(&key).expect("the row is there");
                let value = reply[at..].split('|').find(|part| part.starts_with('$'));
                let rest = &reply[at..][reply[at..].find(value.expect("a value")).unwrap()..];
                rest.split('|').nth(1).unwrap().parse().expect("a number")
            };
            let (first, last) = (value_of(0), value_of(ROWS - 1));
            assert!(
                first == last || first == last + 1,
                "{table}: {first}, {last}"
            );
        }
    }
    // A row that cannot be computed is omitted, wherever it is in the range. A read of that row returns the error.
    client.check(&format!("SET {last} text"), "+OK");
    let (first, summed) = ("summed|00000000", format!("summed|{:08}", ROWS - 1));
    let reply = client.call("RANGE summed| summed}");
    assert!(reply.starts_with(&format!("*{}|", 2 * (ROWS - 1))) && !reply.contains(&summed));
    let reply = client.call(&format!("GET {summed}"));
    let why =
        format!("-ERR row \"{summed}\" of join summed0 has 1 source value that is not a number");
    assert!(reply.starts_with(&why), "{reply}");
    let reply = client.call(&format!("MGET {first} {summed}"));
    assert!(
        reply.starts_with("*2|$") && reply.ends_with("|$-1"),
        "{reply}"
    );
    client.check(&format!("EXISTS {first}"), ":1");
    assert!(client.call("INFO joins").contains(",left_out="));
    client.check("PING", "+PONG");
}

#[test]
fn a_long_fan_out_delays_only_its_writer() {
    const FOLLOWERS: usize = 50_000;
    let server = TestServer::start();
    let mut writer = Client::connect(&server);
    writer.create("timeline", TIMELINE);
    for chunk in (0..FOLLOWERS).collect::<Vec<_>>().chunks(500) {
        let mut bytes = Vec::new();
        for user in chunk {
            bytes.extend(request(&["SET", &format!("sub|{user:06}|star"), "1"]));
            let (lo, hi) = (format!("tline|{user:06}|"), format!("tline|{user:06}}}"));
            bytes.extend(request(&["RANGE", &lo, &hi]));
        }
        writer.send(&bytes);
        for _ in chunk {
            assert_eq!(
                (writer.reply(), writer.reply()),
                ("+OK".into(), "*0".into())
            );
        }
    }
    let mut other = Client::connect(&server);
    other.check("PING", "+PONG");
    writer.send(&request(&["SET", "post|star|0000000001", "hello"]));
    writer.stream.get_ref().set_nonblocking(true).expect("set");
    let mut meanwhile = 0;
    while writer.stream.get_ref().peek(&mut [0]).is_err() {
        other.check("PING", "+PONG");
        meanwhile += 1;
    }
    writer.stream.get_ref().set_nonblocking(false).expect("set");
    assert_eq!(writer.reply(), "+OK");
    assert!(meanwhile > 1, "no other client was served");
    check_visits(&mut other, VISITED_MAX, "the fan-out");
    for user in [0, FOLLOWERS / 2, FOLLOWERS - 1] {
        other.check(&format!("GET tline|{user:06}|0000000001|star"), "$5|hello");
    }
}

#[test]
fn a_large_fill_delays_no_other_client_and_reflects_concurrent_writes() {
    let is_slow = std::env::var_os("LARDER_SLOW_TESTS").is_some();
    let rows = if is_slow { 1_000_000 } else { 100_000 };
    let server = TestServer::start();
    let mut reader = Client::connect(&server);
    reader.create("karma", "karma|<author:4> = count vote|<row:7>|<author>");
    for chunk in (0..rows).collect::<Vec<_>>().chunks(500) {
        let mut bytes = Vec::new();
        for row in chunk {
            let key = format!("vote|{row:07}|{:04}", row % 1000);
            bytes.extend(request(&["SET", &key, "1"]));
        }
        reader.send(&bytes);
        chunk.iter().for_each(|_| assert_eq!(reader.reply(), "+OK"));
    }
    let mut other = Client::connect(&server);
    other.check("PING", "+PONG");
    let mut waiting = Client::connect(&server);
    for reader in [&mut reader, &mut waiting] {
        reader.send(&request(&["RANGE", "karma|", "karma}", "LIMIT", "1"]));
        reader.stream.get_ref().set_nonblocking(true).expect("set");
    }
    let mut written = 0;
    while reader.stream.get_ref().peek(&mut [0]).is_err() {
        // A row that the fill has counted, or one that it has not reached yet.
        let row = written * 7919 % rows / 1000 * 1000;
        match written % 2 {
            0 => other.check(&format!("SET vote|{:07}|0000 1", rows + written), "+OK"),
            _ => other.check(&format!("DEL vote|{row:07}|0000"), ":1"),
        }
        other.check("GET vote|0000001|0001", "$1|1");
        written += 1;
    }
    for reader in [&mut reader, &mut waiting] {
        reader.stream.get_ref().set_nonblocking(false).expect("set");
        let reply = reader.reply();
        assert!(reply.starts_with("*2|$10|karma|0000|$"), "{reply}");
    }
    assert!(written >= 4, "the fill went on while {written} writes came");
    check_visits(&mut other, VISITED_MAX, "the fill");
    let left = other.call("RANGECOUNT vote| vote}");
    let all: i64 = left[1..].parse().expect("a number");
    let others = rows as i64 * 999 / 1000;
    let count = (all - others).to_string();
    other.check("GET karma|0000", &format!("${}|{count}", count.len()));
    other.check("RANGECOUNT karma| karma}", ":1000");
}

#[test]
fn base_rows_above_the_memory_limit_are_rejected() {
    let server = TestServer::with(|config| config.tables.memory = ByteSize(1 << 20));
    let mut client = Client::connect(&server);
    let value = "x".repeat(1000);
    let refused = (0..2000).find_map(|row| {
        let reply = client.call(&format!("SET t|{row} {value}"));
        (reply != "+OK").then_some(reply)
    });
    let refused = refused.expect("refused");
    assert!(refused.starts_with("-OOM base rows"), "{refused}");
    client.check("GET t|0", &format!("$1000|{value}"));
    assert!(client.call("RANGEDEL t| t}").starts_with(':'));
    client.check("SET t|0 v", "+OK");
}

#[test]
fn joins_are_managed_over_http() {
    let server = TestServer::start();
    let body = json!({ "name": "timeline", "definition": TIMELINE });
    let (status, join) = server.post("/v1/joins", body.clone());
    assert_eq!((status, &join["name"]), (201, &json!("timeline")), "{join}");
    let (status, reply) = server.post("/v1/joins", body);
    assert_eq!(status, 201, "the same again changes nothing: {reply}");
    let other = json!({ "name": "timeline", "definition": "out|<a> = copy src|<a>" });
    let (status, reply) = server.post("/v1/joins", other);
    assert_eq!(status, 400, "{reply}");
    let bad = json!({ "name": "b", "definition": "out|<a> = copyy src|<a>" });
    let (_, reply) = server.post("/v1/joins", bad);
    let message = reply["error"]["message"].as_str().expect("a message");
    assert!(message.starts_with("column 11:"), "{message}");
    let mut client = Client::connect(&server);
    client.check("SET sub|ann|bob 1", "+OK");
    client.check("SET post|bob|1 hello", "+OK");
    client.check("RANGECOUNT tline|ann| tline|ann}", ":1");
    let (_, joins) = server.get("/v1/joins");
    assert_eq!(joins["joins"][0]["rows"], 1, "{joins}");
    let (_, plan) = server.get("/v1/joins/timeline/explain?lo=tline%7Cann%7C&hi=tline%7Cann%7D");
    assert!(
        plan["plan"].as_str().expect("a plan").contains("is filled"),
        "{plan}"
    );
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("a text");
    for line in [
        "larder_table_rows{table=\"post|\"} 1",
        "larder_join_rows{join=\"timeline\"} 1",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(client.call("INFO joins").contains("join_timeline:rows=1"));
    assert_eq!(server.delete("/v1/joins/timeline").0, 204);
    assert_eq!(server.delete("/v1/joins/timeline").0, 404);
}
