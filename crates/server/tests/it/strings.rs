//! Commands that edit values, rename and copy rows, or watch them, with the results that Redis's own tests expect, on
//! one serving thread and on several.

use larder_protocol::config::Fsync;

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, TIMELINE, request};
use crate::support::TestServer;

#[test]
fn edits_of_values_match_redis() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("APPEND t|a bar", ":3"),
                ("EXPIRE t|a 100", ":1"),
                ("APPEND t|a 100", ":6"),
                ("GET t|a", "$6|bar100"),
                ("TTL t|a", ":100"),
                ("SETRANGE t|r 3 x", ":4"),
                ("GET t|r", "$4|\0\0\0x"),
                ("SETRANGE t|r 0 abc", ":4"),
                ("SUBSTR t|r 1 2", "$2|bc"),
                ("GETRANGE t|r -2 -1", "$2|cx"),
                ("SETRANGE t|r -1 x", "-ERR offset is out of range"),
                (
                    "SETRANGE t|r x x",
                    "-ERR value is not an integer or out of range",
                ),
                (
                    "SETRANGE t|r 999999999999 x",
                    "-ERR string exceeds maximum allowed size (server.max_argument_bytes, 536870912 bytes)",
                ),
                ("GETSET t|g one", "$-1"),
                ("EXPIRE t|g 100", ":1"),
                ("GETSET t|g two", "$3|one"),
                ("TTL t|g", ":-1"),
                ("GETDEL t|g", "$3|two"),
                ("GETDEL t|g", "$-1"),
                ("EXISTS t|g", ":0"),
                ("SETEX t|e 100 v", "+OK"),
                ("TTL t|e", ":100"),
                ("PSETEX t|e 200000 w", "+OK"),
                ("TTL t|e", ":200"),
                (
                    "SETEX t|e 0 v",
                    "-ERR invalid expire time in 'setex' command",
                ),
                (
                    "SETEX t|e -10 v",
                    "-ERR invalid expire time in 'setex' command",
                ),
                (
                    "SETEX t|e 9223372036854775807 v",
                    "-ERR invalid expire time in 'setex' command",
                ),
                (
                    "PSETEX t|e 0 v",
                    "-ERR invalid expire time in 'psetex' command",
                ),
                (
                    "SETEX t|e ten v",
                    "-ERR value is not an integer or out of range",
                ),
                ("GETEX t|e", "$1|w"),
                ("GETEX t|e EX 300", "$1|w"),
                ("TTL t|e", ":300"),
                ("GETEX t|e PERSIST", "$1|w"),
                ("TTL t|e", ":-1"),
                (
                    "GETEX t|e EX 0",
                    "-ERR invalid expire time in 'getex' command",
                ),
                ("GETEX t|e EX", "-ERR syntax error"),
                ("GETEX t|e EX 1 PERSIST", "-ERR syntax error"),
                ("GETEX t|e PXAT 1", "$1|w"),
                ("EXISTS t|e", ":0"),
                ("GETEX t|none EX 10", "$-1"),
                ("INCRBYFLOAT t|f 1", "$1|1"),
                ("INCRBYFLOAT t|f 0.25", "$4|1.25"),
                ("INCRBYFLOAT t|f -1.35", "$4|-0.1"),
                ("INCRBYFLOAT t|f x", "-ERR value is not a valid float"),
                (
                    "INCRBYFLOAT t|f +inf",
                    "-ERR increment would produce NaN or Infinity",
                ),
                ("EXPIRE t|f 100", ":1"),
                ("INCRBYFLOAT t|f 1", "$3|0.9"),
                ("TTL t|f", ":100"),
                ("UNLINK t|f t|r t|none", ":2"),
            ],
        );
        client.send(&request(&["SETRANGE", "t|none", "5", ""]));
        assert_eq!(client.reply(), ":0");
        client.check("EXISTS t|none", ":0");
    }
}

#[test]
fn expiry_times_are_set_and_returned_as_unix_times() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("SET t|a 1", "+OK"),
                ("EXPIRETIME t|a", ":-1"),
                ("PEXPIRETIME t|none", ":-2"),
                ("EXPIREAT t|a 33177117420", ":1"),
                ("EXPIRETIME t|a", ":33177117420"),
                ("PEXPIRETIME t|a", ":33177117420000"),
                ("PEXPIREAT t|a 33177117421500 GT", ":1"),
                ("PEXPIRETIME t|a", ":33177117421500"),
                (
                    "EXPIREAT t|a 9223372036854775807",
                    "-ERR invalid expire time in 'expireat' command",
                ),
                ("PEXPIREAT t|a 1", ":1"),
                ("EXISTS t|a", ":0"),
                ("PEXPIREAT t|a 33177117421500", ":0"),
            ],
        );
    }
}

#[test]
fn rows_are_copied_and_renamed_within_tables() {
    for server in servers() {
        let mut client = Client::connect(&server);
        // With two threads, both keys of a pair are on one core for some names, and on two cores for others.
        for name in ["a", "b", "c", "d", "e"] {
            let lines = [
                ("SET t|x v", "+OK"),
                ("EXPIRE t|x 100", ":1"),
                ("RENAME t|x u|#", "+OK"),
                ("TTL u|#", ":100"),
                ("EXISTS t|x", ":0"),
                ("RENAME t|x u|#", "-ERR no such key"),
                ("RENAMENX t|x u|#", "-ERR no such key"),
                ("RENAME u|# u|#", "+OK"),
                ("RENAMENX u|# u|#", ":0"),
                ("SET t|x w", "+OK"),
                ("RENAMENX t|x u|#", ":0"),
                ("COPY t|x u|#", ":0"),
                ("COPY t|x u|# REPLACE", ":1"),
                ("GET u|#", "$1|w"),
                ("TTL u|#", ":-1"),
                (
                    "COPY t|x t|x",
                    "-ERR source and destination objects are the same",
                ),
                ("COPY t|x u|# DB 1", "-ERR DB index is out of range"),
                ("COPY t|none u|#", ":0"),
                ("RENAME t|x u|#", "+OK"),
                ("RENAMENX u|# t|x", ":1"),
                ("MSETNX t|x 1 u|# 2", ":0"),
                ("EXISTS u|#", ":0"),
                ("MSETNX t|y 1 u|# 2", ":1"),
                ("MGET t|y u|#", "*2|$1|1|$1|2"),
                ("TOUCH t|y u|# t|none", ":2"),
                (
                    "MSETNX t|y 1 u|#",
                    "-ERR wrong number of arguments for 'msetnx' command",
                ),
                ("DEL t|x t|y u|#", ":3"),
            ];
            for (line, expected) in lines {
                client.check(&line.replace('#', name), expected);
            }
        }
        // An output row of a join can be copied but not moved.
        client.create("timeline", TIMELINE);
        check_all(
            &mut client,
            &[
                ("MSET sub|ann|bob 1 post|bob|0000000100 hello", "+OK"),
                ("COPY tline|ann|0000000100|bob kept|1", ":1"),
                ("GET kept|1", "$5|hello"),
            ],
        );
        for line in [
            "RENAME tline|ann|0000000100|bob kept|1",
            "RENAME kept|1 tline|ann|1|bob",
            "COPY kept|1 tline|ann|1|bob",
            "GETDEL tline|ann|0000000100|bob",
            "APPEND tline|ann|0000000100|bob x",
            "SETEX tline|ann|0000000100|bob 10 x",
            "RENAME s:k1 kept|1",
            "COPY kept|1 s:k1",
            "GETDEL s:k1",
        ] {
            let reply = client.call(line);
            assert!(reply.starts_with("-NOWRITE "), "{line}: {reply}");
        }
        client.check("GET kept|1", "$5|hello");
    }
}

/// After a restart, a renamed row exists under its new name only.
#[test]
fn renamed_and_edited_rows_survive_a_restart() {
    for threads in [1, 2] {
        let mut server = TestServer::with(|config| {
            config.server.threads = threads;
            config.tables.fsync = Fsync::Always;
        });
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("SET t|a v EX 1000", "+OK"),
                ("RENAME t|a u|bob", "+OK"),
                ("APPEND u|bob w", ":2"),
                ("SETEX u|c 1000 x", "+OK"),
                ("GETEX u|c PERSIST", "$1|x"),
                ("MSETNX u|d 1 u|e 2", ":1"),
            ],
        );
        drop(client);
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("MGET t|a u|bob u|c u|d u|e", "*5|$-1|$2|vw|$1|x|$1|1|$1|2"),
                ("TTL u|c", ":-1"),
            ],
        );
        let left: u64 = client.call("TTL u|bob")[1..].parse().expect("seconds");
        assert!((900..=1000).contains(&left), "{left}");
    }
}

#[test]
fn keys_returns_matching_keys_up_to_a_limit() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        let mut many = Vec::new();
        for row in 0..10_001 {
            many.extend(request(&["SET", &format!("many|{row}"), "v"]));
        }
        client.send(&many);
        (0..10_001).for_each(|_| assert_eq!(client.reply(), "+OK"));
        check_all(
            &mut client,
            &[
                (
                    "MSET t|a 1 t|b 2 u|a 3 sub|ann|bob 1 post|bob|0000000100 hello",
                    "+OK",
                ),
                ("KEYS t|*", "*2|$3|t|a|$3|t|b"),
                ("KEYS t|[b-z]", "*1|$3|t|b"),
                ("KEYS t|a", "*1|$3|t|a"),
                ("KEYS t|none*", "*0"),
                ("KEYS tline|ann|*", "*1|$24|tline|ann|0000000100|bob"),
                (
                    "KEYS s:*",
                    "-ERR s is a store; use SCAN 0 MATCH s:* to list its keys",
                ),
                (
                    "KEYS many|77*1",
                    "*11|$9|many|7701|$8|many|771|$9|many|7711|$9|many|7721|$9|many|7731|$9|many|7741|$9|many|7751|$9|many|7761|$9|many|7771|$9|many|7781|$9|many|7791",
                ),
            ],
        );
        for pattern in ["many|*", "*"] {
            let reply = client.call(&format!("KEYS {pattern}"));
            assert!(
                reply.starts_with("-ERR more than 10000 keys begin with '"),
                "{reply}"
            );
        }
    }
}

#[test]
fn exec_aborts_if_a_watched_row_was_written_even_with_the_same_value() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        client.check("SET t|a 1", "+OK");
        // Commands of other clients, and whether EXEC succeeds after them.
        for (line, goes_on) in [
            ("GET t|a", true),
            ("SET t|b 1", true),
            ("SET t|a 1", false),
            ("EXPIRE t|a 1000", false),
            ("PERSIST t|a", false),
            ("DEL t|a", false),
            ("DEL t|a", true),
            ("SET t|a 1", false),
            ("FLUSHALL", false),
            ("MSET t|a 1 u|c 1", false),
            ("RANGEDEL u| u}", true),
            ("RANGEDEL t| t}", false),
            ("SETEX t|a 1000 1", false),
            ("RENAME t|a u|x", false),
            ("COPY u|x t|a", false),
            ("APPEND t|a x", false),
        ] {
            client.check("WATCH t|a other|row", "+OK");
            other.call(line);
            client.check("MULTI", "+OK");
            client.check("SET z|z 1", "+QUEUED");
            client.check("PING", "+QUEUED");
            let expected = if goes_on { "*2|+OK|+PONG" } else { "*-1" };
            assert_eq!(client.call("EXEC"), expected, "{line}");
        }
        // WATCH applies to one EXEC, and ends with UNWATCH, DISCARD or RESET.
        check_all(&mut client, &[("MULTI", "+OK"), ("EXEC", "*0")]);
        for line in ["UNWATCH", "DISCARD", "RESET"] {
            client.check("WATCH t|a", "+OK");
            if line == "DISCARD" {
                client.check("MULTI", "+OK");
            }
            other.check("SET t|a 5", "+OK");
            client.call(line);
            check_all(
                &mut client,
                &[
                    ("MULTI", "+OK"),
                    ("GET t|a", "+QUEUED"),
                    ("EXEC", "*1|$1|5"),
                ],
            );
        }
        check_all(
            &mut client,
            &[
                ("WATCH t|a", "+OK"),
                ("SET t|a 6", "+OK"),
                ("MULTI", "+OK"),
                ("WATCH t|a", "-ERR WATCH inside MULTI is not allowed"),
                ("UNWATCH", "+QUEUED"),
                ("EXEC", "*-1"),
                ("GET t|a", "$1|6"),
                (
                    "WATCH",
                    "-ERR wrong number of arguments for 'watch' command",
                ),
            ],
        );
        // The key may hold an object.
        client.check("WATCH plain", "+OK");
    }
}

/// A row that expires between WATCH and EXEC counts as changed.
#[test]
fn an_expired_watched_row_aborts_exec() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.check("SET t|a 1 PX 20", "+OK");
        client.check("WATCH t|a", "+OK");
        while client.call("EXISTS t|a") == ":1" {}
        client.check("MULTI", "+OK");
        client.check("SET t|b 1", "+QUEUED");
        client.check("EXEC", "*-1");
    }
}

#[test]
fn rows_of_joins_and_keys_of_stores_can_be_watched() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        client.create("votes", "votes|<id> = count vote|<id>|<user>");
        client.check("SET vote|7|ann 1", "+OK");
        for (line, goes_on) in [
            ("SET vote|8|ann 1", true),
            ("SET vote|7|bob 1", false),
            ("DEL vote|7|bob", false),
            // A count whose value did not change does not count as changed.
            ("SET vote|7|ann 2", true),
        ] {
            client.check("WATCH votes|7 s:k1", "+OK");
            other.call(line);
            client.check("MULTI", "+OK");
            client.check("GET votes|7", "+QUEUED");
            let reply = client.call("EXEC");
            assert_eq!(reply != "*-1", goes_on, "{line}: {reply}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        crate::support::build(folder.path(), "s", 10, "w");
        client.check("WATCH s:k1", "+OK");
        let pull = server.pull_from("s", folder.path().to_str().expect("UTF-8"));
        assert_eq!(pull["state"], "done", "{pull}");
        client.check("MULTI", "+OK");
        client.check("SET t|a 1", "+QUEUED");
        client.check("EXEC", "*-1");
    }
}

/// Optimistic locking as client libraries implement counters: watch and read, and retry if another client wrote
/// before EXEC.
#[test]
fn concurrent_watch_and_exec_lose_no_increments() {
    for server in servers() {
        const CLIENTS: usize = 4;
        const ADDED: usize = 25;
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = Client::connect(&server);
                    for _ in 0..ADDED {
                        loop {
                            client.check("WATCH n|{x}1 n|{y}2", "+OK");
                            let sum = |reply: &str| match reply {
                                "$-1" => 1,
                                text => {
                                    text.rsplit('|')
                                        .next()
                                        .map_or(0, |n| n.parse::<u64>().expect("a number"))
                                        + 1
                                }
                            };
                            let (a, b) = (client.call("GET n|{x}1"), client.call("GET n|{y}2"));
                            let (a, b) = (sum(&a), sum(&b));
                            client.check("MULTI", "+OK");
                            client.check(&format!("SET n|{{x}}1 {a}"), "+QUEUED");
                            client.check(&format!("SET n|{{y}}2 {b}"), "+QUEUED");
                            if client.call("EXEC") != "*-1" {
                                break;
                            }
                        }
                    }
                });
            }
        });
        let all = CLIENTS * ADDED;
        let mut client = Client::connect(&server);
        client.check("MGET n|{x}1 n|{y}2", &format!("*2|$3|{all}|$3|{all}"));
    }
}

#[test]
fn a_write_above_the_memory_limit_returns_an_error_with_the_limit() {
    let server = TestServer::with(|config| {
        config.tables.memory = larder_types::ByteSize(1 << 20);
        config.server.threads = 2;
    });
    let mut client = Client::connect(&server);
    let value = "x".repeat(400 << 10);
    let mut reply = String::new();
    for row in 0..8 {
        client.send(&request(&["SET", &format!("t|{row}"), &value]));
        reply = client.reply();
        if reply != "+OK" {
            break;
        }
    }
    assert!(
        reply.starts_with("-OOM base rows fill tables.memory (1MiB)"),
        "{reply}"
    );
}
