//! Keys that hold objects or strings: the effect of Redis's key commands on both, on one serving thread and on
//! several.

use larder_protocol::config::Fsync;
use larder_protocol::dump::{DumpValue, DumpedField};
use larder_types::ByteSize;

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, TIMELINE, request};
use crate::support::TestServer;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn a_key_stores_either_a_string_or_an_object() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[("HSET h|1 f v", ":1"), ("SET s|1 text", "+OK")],
        );
        for line in [
            "GET h|1",
            "STRLEN h|1",
            "GETRANGE h|1 0 1",
            "SUBSTR h|1 0 1",
            "INCR h|1",
            "DECR h|1",
            "INCRBY h|1 2",
            "DECRBY h|1 2",
            "INCRBYFLOAT h|1 2",
            "APPEND h|1 x",
            "SETRANGE h|1 1 x",
            "GETSET h|1 x",
            "GETDEL h|1",
            "GETEX h|1",
            "SET h|1 x GET",
            "HGET s|1 f",
            "HGETALL s|1",
            "HSET s|1 f v",
            "HDEL s|1 f",
            "HLEN s|1",
            "HMGET s|1 f",
            "HINCRBY s|1 f 1",
            "HSCAN s|1 0",
            "HRANDFIELD s|1",
            "HGET s:k1 f",
        ] {
            client.check(line, WRONG);
        }
        check_all(
            &mut client,
            &[
                ("HGETALL h|1", "*2|$1|f|$1|v"),
                ("GET s|1", "$4|text"),
                ("TYPE h|1", "+hash"),
                ("TYPE s|1", "+string"),
                ("MGET s|1 h|1", "*2|$4|text|$-1"),
                ("SET h|1 x NX", "$-1"),
                ("SETNX h|1 x", ":0"),
                ("MSETNX h|1 x s|2 y", ":0"),
                ("EXISTS h|1 s|1 s|2 h|1", ":3"),
                ("TOUCH h|1 s|2", ":1"),
                ("DBSIZE", ":102"),
                // A string replaces the object.
                ("EXPIRE h|1 100", ":1"),
                ("SET h|1 text", "+OK"),
                ("TTL h|1", ":-1"),
                ("HGET h|1 f", WRONG),
                ("GET h|1", "$4|text"),
                ("DBSIZE", ":102"),
                ("DEL h|1", ":1"),
                ("HSET h|1 f v", ":1"),
                ("EXPIRE h|1 100", ":1"),
                ("SET h|1 text XX KEEPTTL", "+OK"),
                ("TTL h|1", ":100"),
                ("DEL h|1", ":1"),
                ("HSET h|1 f v", ":1"),
                ("SETEX h|1 50 text", "+OK"),
                ("TTL h|1", ":50"),
                ("DEL h|1", ":1"),
                ("HSET h|1 f v", ":1"),
                ("HSET h|2 f v", ":1"),
                ("MSET h|1 one s|1 two h|2 three", "+OK"),
                ("MGET h|1 s|1 h|2", "*3|$3|one|$3|two|$5|three"),
                ("DBSIZE", ":103"),
                ("DEL h|1 h|2", ":2"),
                // A rejected command leaves the object unchanged.
                ("HSET h|1 f v", ":1"),
                (
                    "SET h|1 text EX 0",
                    "-ERR invalid expire time in 'set' command",
                ),
                ("SET h|1 text NOSUCH", "-ERR syntax error"),
                (
                    "SETEX h|1 0 text",
                    "-ERR invalid expire time in 'setex' command",
                ),
                ("HGET h|1 f", "$1|v"),
                ("UNLINK h|1 s|1", ":2"),
                ("DBSIZE", ":100"),
            ],
        );
    }
}

#[test]
fn objects_expire_and_persist_like_other_keys() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET h|1 f v", ":1"),
                ("TTL h|1", ":-1"),
                ("EXPIRE h|1 100", ":1"),
                ("TTL h|1", ":100"),
                ("HSET h|1 g v", ":1"),
                ("TTL h|1", ":100"),
                ("PEXPIREAT h|1 33177117421500 GT", ":1"),
                ("PEXPIRETIME h|1", ":33177117421500"),
                ("PERSIST h|1", ":1"),
                ("PERSIST h|1", ":0"),
                ("TTL h|1", ":-1"),
                ("MEMORY USAGE h|1", ":13"),
                ("PEXPIREAT h|1 1", ":1"),
                ("EXISTS h|1", ":0"),
                ("TTL h|1", ":-2"),
                ("HGET h|1 f", "$-1"),
                ("HSET h|1 f v", ":1"),
                ("PEXPIRE h|1 1", ":1"),
            ],
        );
        while client.call("EXISTS h|1") != ":0" {}
        client.check("HGETALL h|1", "*0");
        client.check("SETNX h|1 text", ":1");
    }
}

#[test]
fn objects_are_renamed_copied_and_found() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        // With two threads, both keys of a pair are on one core for some names, and on two cores for others.
        for name in ["a", "b", "c", "d", "e"] {
            for (line, expected) in [
                ("HSET t|x f v", ":1"),
                ("EXPIRE t|x 100", ":1"),
                ("SET u|# text", "+OK"),
                ("RENAMENX t|x u|#", ":0"),
                ("COPY t|x u|#", ":0"),
                ("COPY t|x u|# REPLACE", ":1"),
                ("HGETALL u|#", "*2|$1|f|$1|v"),
                ("TTL u|#", ":100"),
                ("SET t|y text", "+OK"),
                ("RENAME t|y u|#", "+OK"),
                ("GET u|#", "$4|text"),
                ("TTL u|#", ":-1"),
                ("RENAME t|x u|#", "+OK"),
                ("TYPE u|#", "+hash"),
                ("EXISTS t|x t|y u|#", ":1"),
                ("RENAMENX t|x u|#", "-ERR no such key"),
                ("HSET u|# f w", ":0"),
                ("RENAME u|# u|#", "+OK"),
                ("COPY u|# w|#", ":1"),
                ("RENAMENX u|# w|#", ":0"),
                ("MSETNX w|# 1 v|# 2", ":0"),
                ("EXISTS v|#", ":0"),
                ("DEL u|# w|#", ":2"),
            ] {
                client.check(&line.replace('#', name), expected);
            }
        }
        for line in [
            "HSET tline|ann|1|bob f v",
            "RENAME h|1 tline|ann|1|bob",
            "COPY h|1 tline|ann|1|bob",
        ] {
            client.call("HSET h|1 f v");
            let reply = client.call(line);
            assert!(reply.starts_with("-NOWRITE "), "{line}: {reply}");
        }
        check_all(
            &mut client,
            &[
                ("HSET w|2 f v", ":1"),
                ("SET w|1 text", "+OK"),
                ("SET w|3 text", "+OK"),
                ("SCAN 0 MATCH w|*", "*2|$1|0|*3|$3|w|1|$3|w|2|$3|w|3"),
                ("SCAN 0 MATCH w|* TYPE hash", "*2|$1|0|*1|$3|w|2"),
                ("SCAN 0 MATCH w|* TYPE HASH", "*2|$1|0|*1|$3|w|2"),
                ("SCAN 0 MATCH w|* TYPE ReJSON-RL", "*2|$1|0|*0"),
                ("SCAN 0 MATCH w|* TYPE string", "*2|$1|0|*2|$3|w|1|$3|w|3"),
                ("SCAN 0 MATCH w|* TYPE zset", "*2|$1|0|*0"),
                ("KEYS w|*", "*3|$3|w|1|$3|w|2|$3|w|3"),
                ("KEYS *", "*4|$3|h|1|$3|w|1|$3|w|2|$3|w|3"),
                ("RANGE w| w} KEYSONLY", "*2|$3|w|1|$3|w|3"),
                ("RANGEDEL w| w}", ":2"),
                ("KEYS w|*", "*1|$3|w|2"),
                ("FLUSHALL", "+OK"),
                ("KEYS *", "*0"),
            ],
        );
        // Many keys of both kinds, read in small parts.
        let mut expected = Vec::new();
        for number in 0..100 {
            let key = format!("many:{number:03}");
            match number % 3 {
                0 => client.check(&format!("SET {key} x"), "+OK"),
                _ => client.check(&format!("HSET {key} f x"), ":1"),
            }
            expected.push(key);
        }
        let mut found = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let reply = client.call(&format!("SCAN {cursor} MATCH many:* COUNT 7"));
            let words: Vec<&str> = reply.split('|').collect();
            cursor = words[2].to_owned();
            found.extend(
                words[3..]
                    .iter()
                    .filter(|word| word.starts_with("many:"))
                    .map(|&w| w.to_owned()),
            );
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn keys_that_resemble_object_rows_do_not_access_them() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.check("HSET h|1 f v", ":1");
        client.check("HSET plain f v", ":1");
        client.check("SET text v", "+OK");
        for (words, reply) in [
            (&["EXISTS", "\0h|1", "\0\0|plain", "\0\0:text"][..], ":0"),
            (&["DEL", "\0h|1", "\0\0|plain", "\0\0:text"], ":0"),
            (&["SET", "\0h|1", "x"], "+OK"),
            (&["HSET", "\0\0|plain", "g", "w"], ":1"),
            (&["APPEND", "\0\0:text", "x"], ":1"),
            (&["HGETALL", "h|1"], "*2|$1|f|$1|v"),
            (&["HGETALL", "plain"], "*2|$1|f|$1|v"),
            (&["GET", "text"], "$1|v"),
            (&["SCAN", "0", "MATCH", "\0h|*"], "*2|$1|0|*1|$4|\0h|1"),
            (&["KEYS", "\0h|*"], "*1|$4|\0h|1"),
            (&["KEYS", "h|*"], "*1|$3|h|1"),
            (&["RANGECOUNT", "h|", "h}"], ":0"),
            (&["DEL", "h|1", "plain", "text"], ":3"),
            (&["GET", "\0h|1"], "$1|x"),
            (&["HGET", "\0\0|plain", "g"], "$1|w"),
            (&["GET", "\0\0:text"], "$1|x"),
        ] {
            assert_eq!(client.call_words(words), reply, "{words:?}");
        }
        for words in [
            &["RANGE", "\0h|", "\0h}"][..],
            &["RANGEDEL", "\0h|", "\0h}"],
            &["RANGEDEL", "\0\0:", "\0\0;"],
            &["RANGECOUNT", "\0h|", "\0h}"],
        ] {
            assert_eq!(
                client.call_words(words),
                "-ERR a range must lie in one table, and no table's name begins with a zero byte",
                "{words:?}"
            );
        }
        let members = client.call_words(&["SMEMBERS", "\0h|1"]);
        assert!(members.contains("is not the key of a set"), "{members}");
        let join = client.call_words(&["JOIN.CREATE", "j", "a|x = copy \0h|x"]);
        assert!(join.starts_with("-ERR "), "{join}");
    }
}

#[test]
fn objects_support_watch_and_subscriptions() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        let mut feed = Client::connect(&server);
        assert_eq!(
            feed.call("SUBSCRIBE __keyspace@0__:h|1"),
            "*3|$9|subscribe|$18|__keyspace@0__:h|1|:1"
        );
        assert!(
            feed.call("PSUBSCRIBE __keyspace@0__:g|*")
                .starts_with("*3|$10|psubscribe|")
        );
        for (line, reply) in [
            ("HSET h|1 f v", ":1"),
            ("HINCRBY h|1 n 1", ":1"),
            ("EXPIRE h|1 100", ":1"),
            ("SET h|1 text", "+OK"),
            ("DEL h|1", ":1"),
        ] {
            client.check("WATCH h|1", "+OK");
            other.check(line, reply);
            client.check("MULTI", "+OK");
            client.check("HGET h|1 f", "+QUEUED");
            client.check("EXEC", "*-1");
        }
        client.check("WATCH h|1", "+OK");
        other.check("HSET h|2 f v", ":1");
        other.check("HSET g|1 f v", ":1");
        client.check("MULTI", "+OK");
        client.check("HSET h|1 f v", "+QUEUED");
        client.check("HGET h|1 f", "+QUEUED");
        client.check("EXEC", "*2|:1|$1|v");
        let mut reply = Vec::new();
        for _ in 0..7 {
            let note = feed.reply();
            let key = if note.contains(":g|1") { "g|1" } else { "h|1" };
            let what = note.rsplit('|').next().unwrap_or_default();
            reply.push(format!("{key} {what}"));
        }
        assert!(reply.contains(&"g|1 set".to_owned()), "{reply:?}");
        let of_h: Vec<&str> = reply
            .iter()
            .filter_map(|note| note.strip_prefix("h|1 "))
            .collect();
        // The string replaces the object.
        assert_eq!(
            of_h,
            ["set", "set", "del", "set", "del", "set"],
            "{reply:?}"
        );
    }
}

#[test]
fn objects_survive_a_restart_from_the_log_and_from_a_snapshot() {
    for threads in [1, 2] {
        let mut server = TestServer::with(|config| {
            config.server.threads = threads;
            config.tables.fsync = Fsync::No;
        });
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET h|1 f v g w", ":2"),
                ("EXPIREAT h|1 33177117420", ":1"),
                ("HSET h|2 f v", ":1"),
                ("SET h|2 text", "+OK"),
                ("SET h|3 text", "+OK"),
                ("DEL h|3", ":1"),
                ("HSET h|3 f v", ":1"),
                ("RENAME h|3 h|4", "+OK"),
                ("MULTI", "+OK"),
                ("HSET h|5 f v", "+QUEUED"),
                ("HDEL h|5 f", "+QUEUED"),
                ("HSET h|6 f v", "+QUEUED"),
                ("EXEC", "*3|:1|:1|:1"),
            ],
        );
        for _ in 0..2 {
            server.restart(|_| {});
            let mut client = Client::connect(&server);
            check_all(
                &mut client,
                &[
                    ("HGETALL h|1", "*4|$1|f|$1|v|$1|g|$1|w"),
                    ("EXPIRETIME h|1", ":33177117420"),
                    ("GET h|2", "$4|text"),
                    ("EXISTS h|1 h|2 h|3 h|4 h|5 h|6", ":4"),
                    ("TYPE h|4", "+hash"),
                    ("DBSIZE", ":4"),
                ],
            );
        }
    }
}

/// Keys of objects need not begin with a table's name. Object mappers write a colon first, or none at all.
#[test]
fn objects_are_stored_under_plain_keys() {
    for mut server in servers() {
        let mut client = Client::connect(&server);
        let keys = [
            "plain",
            "{x}plain",
            ":shop.Hotel:01",
            ":",
            "|",
            "|bar",
            "plainer",
            "a:1",
        ];
        for key in keys {
            client.check(&format!("HSET {key} f {key}"), ":1");
            client.check(&format!("TYPE {key}"), "+hash");
        }
        client.send(&request(&["HSET", "", "f", "v"]));
        assert_eq!(client.reply(), ":1");
        client.check("FT.CREATE all SCHEMA f TAG", "+OK");
        client.check("FT.CREATE plains PREFIX 1 plain SCHEMA f TAG", "+OK");
        client.check("FT.CREATE models PREFIX 1 :shop. SCHEMA f TAG", "+OK");
        check_all(
            &mut client,
            &[
                ("HGET plain f", "$5|plain"),
                ("HGET |bar f", "$4||bar"),
                ("HGET bar f", "$-1"),
                ("EXISTS plain |bar bar : plain", ":4"),
                (
                    "APPEND plain x",
                    "-WRONGTYPE Operation against a key holding the wrong kind of value",
                ),
                ("HSET plain g 1", ":1"),
                ("EXPIRE plain 100", ":1"),
                ("TTL plain", ":100"),
                ("PERSIST plain", ":1"),
                ("TTL none", ":-2"),
                ("TYPE none", "+none"),
                ("DEL none", ":0"),
                ("RENAME plain renamed", "+OK"),
                ("RENAME renamed a:2", "+OK"),
                ("COPY a:2 plain", ":1"),
                ("DEL a:2", ":1"),
                ("HGETALL plain", "*4|$1|f|$5|plain|$1|g|$1|1"),
                ("JSON.SET doc $ {}", "+OK"),
                ("TYPE doc", "+ReJSON-RL"),
                ("DEL doc", ":1"),
                ("DBSIZE", ":109"),
                ("KEYS plain*", "*2|$5|plain|$7|plainer"),
                ("KEYS :*", "*2|$1|:|$14|:shop.Hotel:01"),
                (
                    "SCAN 0 COUNT 1000 MATCH plain* TYPE hash",
                    "*2|$1|0|*2|$5|plain|$7|plainer",
                ),
                ("FT.SEARCH all * LIMIT 0 0", "*1|:9"),
                ("FT.SEARCH plains * NOCONTENT", "*3|:2|$5|plain|$7|plainer"),
                ("FT.SEARCH models * NOCONTENT", "*2|:1|$14|:shop.Hotel:01"),
                ("WATCH plain", "+OK"),
                ("MULTI", "+OK"),
                ("HGET plain g", "+QUEUED"),
                ("EXEC", "*1|$1|1"),
            ],
        );
        assert!(client.call("INFO tables").contains("tables_rows:"));
        // All keys in small parts, each once and in order.
        let (mut cursor, mut scanned) = ("0".to_owned(), Vec::new());
        loop {
            let part = client.call(&format!("SCAN {cursor} COUNT 2 TYPE hash"));
            let parts: Vec<&str> = part.split("|$").collect();
            cursor = parts[1].split('|').nth(1).expect("a cursor").to_owned();
            scanned.extend(parts[2..].iter().map(|part| {
                let (_, key) = part.split_once('|').expect("a size");
                key.to_owned()
            }));
            if cursor == "0" {
                break;
            }
        }
        let mut sorted = keys.to_vec();
        sorted.push("");
        sorted.sort_unstable();
        assert_eq!(scanned, sorted);
        drop(client);
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        client.check("HGET plain g", "$1|1");
        client.check("FT.SEARCH plains * NOCONTENT", "*3|:2|$5|plain|$7|plainer");
        client.check("UNLINK plain plainer {x}plain", ":3");
        client.check("FLUSHALL", "+OK");
        client.check("FT.SEARCH all * LIMIT 0 0", "*1|:0");
        client.check("EXISTS :shop.Hotel:01 | plainer", ":0");
    }
}

/// A rejected command leaves every key unchanged, including the one that it would have replaced.
#[test]
fn a_rejected_command_on_several_keys_changes_none() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.create("copied", "o|<b>|<a> = copy c|<a>|<b>");
        check_all(
            &mut client,
            &[
                ("SET c|a|b value", "+OK"),
                ("SET text precious EX 1000", "+OK"),
                ("HSET hash f 1", ":1"),
            ],
        );
        let computed = "table o is computed by join copied: write to its sources";
        for line in [
            "RENAME o|b|a text",
            "RENAME o|b|a hash",
            "RENAMENX o|b|a absent",
            "RENAME hash o|b|a",
            "COPY hash o|b|x",
            "COPY text o|b|x",
            "MSET absent 1 o|b|z 2 text 3",
            "MSETNX absent 1 o|b|z 2",
            "DEL text o|b|a hash",
            "UNLINK text o|b|a",
        ] {
            let reply = client.call(line);
            assert_eq!(reply, format!("-NOWRITE {computed}"), "{line}");
        }
        check_all(
            &mut client,
            &[
                ("GET text", "$8|precious"),
                ("HGET hash f", "$1|1"),
                ("GET o|b|a", "$5|value"),
                ("EXISTS absent", ":0"),
            ],
        );
        assert_ne!(client.call("TTL text"), ":-1");
    }
}

#[test]
fn a_value_above_the_memory_limit_leaves_the_current_value() {
    for threads in [1, 2] {
        let server = TestServer::with(|config| {
            config.server.threads = threads;
            config.tables.memory = ByteSize(300 << 10);
        });
        let mut client = Client::connect(&server);
        let large = "x".repeat(20_000);
        assert_eq!(client.call(&format!("HSET h f {large}")), ":1");
        client.check("SET text precious EX 1000", "+OK");
        for n in 0..20 {
            assert_eq!(client.call(&format!("HSET hash{n} f {n}")), ":1");
        }
        let filler = "y".repeat(200);
        let full = (0..10_000).find(|n| {
            let reply = client.call(&format!("SET filler{n} {filler}"));
            assert!(reply == "+OK" || reply.starts_with("-OOM "), "{reply}");
            reply != "+OK"
        });
        assert!(full.is_some(), "the memory is full");
        for line in ["RENAME h text", "COPY h text REPLACE"] {
            let reply = client.call(line);
            assert!(reply.starts_with("-OOM "), "{line}: {reply}");
            client.check("GET text", "$8|precious");
            assert_ne!(client.call("TTL text"), ":-1");
            client.check("HLEN h", ":1");
        }
        let mut refused = 0;
        for n in 0..20 {
            let reply = client.call(&format!("SET hash{n} {large}"));
            if reply == "+OK" {
                // A core with free memory accepts the value.
                continue;
            }
            assert!(reply.starts_with("-OOM "), "{reply}");
            refused += 1;
            let kept = n.to_string();
            client.check(
                &format!("HGET hash{n} f"),
                &format!("${}|{kept}", kept.len()),
            );
        }
        assert!(refused > 0, "{threads} threads");
    }
}

#[test]
fn a_restored_hash_replaces_a_text_with_del_before_set() {
    let field = DumpedField {
        name: b"f".to_vec(),
        value: b"v".to_vec(),
        expires_at_ms: None,
    };
    let payload = DumpValue::Hash(vec![field]).encode();
    let words: [&[u8]; 5] = [b"RESTORE", b"key", b"0", &payload, b"REPLACE"];
    let mut restore = Vec::new();
    larder_protocol::resp::client::request(&mut restore, &words);
    for server in servers() {
        let (mut client, mut feed) = (Client::connect(&server), Client::connect(&server));
        client.check("SET key text", "+OK");
        feed.call("SUBSCRIBE __keyspace@0__:key");
        client.send(&restore);
        assert_eq!(client.reply(), "+OK");
        for event in ["del", "set"] {
            let message = format!("*3|$7|message|$18|__keyspace@0__:key|$3|{event}");
            assert_eq!(feed.reply(), message);
        }
        client.check("HGET key f", "$1|v");
    }
}
