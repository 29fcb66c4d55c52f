//! Plain keys, which contain no `:` or `|`, and keys that begin with a zero byte hold strings and objects like all
//! others.

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, TIMELINE};
use crate::support::TestServer;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn a_plain_key_stores_text() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("GET hotel", "$-1"),
                ("MGET hotel s:k1 t|none none", "*4|$-1|$1|v|$-1|$-1"),
                ("SET hotel Rome", "+OK"),
                ("SET hotel Oslo NX", "$-1"),
                ("SET hotel Oslo XX GET EX 100", "$4|Rome"),
                ("GET hotel", "$4|Oslo"),
                ("TTL hotel", ":100"),
                ("SET hotel Bergen KEEPTTL", "+OK"),
                ("TTL hotel", ":100"),
                ("PERSIST hotel", ":1"),
                ("EXPIRE hotel 50", ":1"),
                ("TYPE hotel", "+string"),
                ("STRLEN hotel", ":6"),
                ("GETRANGE hotel 0 2", "$3|Ber"),
                ("SETRANGE hotel 0 X", ":6"),
                ("APPEND hotel !", ":7"),
                ("EXISTS hotel hotel none s:k1", ":3"),
                ("MGET hotel s:k1 none", "*3|$7|Xergen!|$1|v|$-1"),
                ("SETNX hotel x", ":0"),
                ("SETNX inn x", ":1"),
                ("MSET a 1 b 2 c:1 3 d 4", "+OK"),
                ("MSETNX e 1 b 2", ":0"),
                ("MSETNX e 1 f 2", ":1"),
                ("INCR a", ":2"),
                ("DECRBY count 5", ":-5"),
                ("INCRBYFLOAT half 0.5", "$3|0.5"),
                ("GETSET b new", "$1|2"),
                ("GETEX b EX 100", "$3|new"),
                ("GETDEL b", "$3|new"),
                ("SETEX b 100 v", "+OK"),
                ("RENAME b t|b", "+OK"),
                ("TTL t|b", ":100"),
                ("COPY t|b b", ":1"),
                ("TTL b", ":100"),
                ("RENAMENX b a", ":0"),
                ("DEL a b none", ":2"),
                ("UNLINK d", ":1"),
                ("TOUCH hotel none", ":1"),
                ("DBSIZE", ":108"),
                ("FLUSHALL", "+OK"),
                ("DBSIZE", ":100"),
            ],
        );
        assert!(client.call("RANGE hotel inn").contains("names no table"));
    }
}

#[test]
fn keys_may_contain_any_bytes() {
    let long = "k".repeat(60_000);
    for server in servers() {
        let mut client = Client::connect(&server);
        let keys = [
            "", " ", "{", "}", "{}", "{rome}", "a{rome}b", "\r\n", "é", ":", "|", ":a", "|b:c",
            "a\0b", "\0", "\0\0", "\0a", "\0a:b", "\0:", "\0\0|", "\0\0:", "\0\0:a", &long,
        ];
        for (number, key) in keys.iter().enumerate() {
            let value = number.to_string();
            assert_eq!(client.call_words(&["SET", key, &value]), "+OK", "{key:?}");
        }
        for (number, key) in keys.iter().enumerate() {
            let value = number.to_string();
            let reply = format!("${}|{value}", value.len());
            assert_eq!(client.call_words(&["GET", key]), reply, "{key:?}");
            assert_eq!(client.call_words(&["EXISTS", key]), ":1", "{key:?}");
        }
        let mut all = vec!["MGET"];
        all.extend(keys);
        assert!(!client.call_words(&all).contains("$-1"));
        for key in keys {
            assert_eq!(client.call_words(&["DEL", key]), ":1", "{key:?}");
        }
    }
}

#[test]
fn a_key_that_begins_with_a_zero_byte_stores_any_value() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        for (words, reply) in [
            // These keys are on several cores.
            (&["MSET", "\0a", "1", "\0b", "2", "\0\0:c", "3"][..], "+OK"),
            (&["MGET", "\0a", "a", "\0\0:c"], "*3|$1|1|$-1|$1|3"),
            (&["MSETNX", "\0d", "1", "\0b", "2"], ":0"),
            (&["INCR", "\0a"], ":2"),
            (&["EXPIRE", "\0a", "100"], ":1"),
            (&["RENAME", "\0a", "\0e:f"], "+OK"),
            (&["TTL", "\0e:f"], ":100"),
            (&["COPY", "\0e:f", "t|1"], ":1"),
            (&["RENAME", "t|1", "\0a"], "+OK"),
            (&["GET", "\0a"], "$1|2"),
            (&["HSET", "\0h", "f", "v", "g", "w"], ":2"),
            (&["HEXPIRE", "\0h", "100", "FIELDS", "1", "g"], "*1|:1"),
            (&["EXPIRE", "\0h", "200"], ":1"),
            (&["RENAME", "\0h", "\0\0|h:2"], "+OK"),
            (&["COPY", "\0\0|h:2", "\0a", "REPLACE"], ":1"),
            (&["HGETALL", "\0a"], "*4|$1|f|$1|v|$1|g|$1|w"),
            (&["HTTL", "\0a", "FIELDS", "2", "f", "g"], "*2|:-1|:100"),
            (&["TTL", "\0a"], ":200"),
            (&["TYPE", "\0a"], "+hash"),
            (&["GET", "\0a"], WRONG_TYPE),
            (&["JSON.SET", "\0j", "$", "{\"n\":[1,2.50]}"], "+OK"),
            (&["EXPIRE", "\0j", "300"], ":1"),
            (&["RENAME", "\0j", "\0\0:j"], "+OK"),
            (
                &["JSON.MSET", "\0\0:j", "$.m", "1", "\0k", "$", "{}"],
                "+OK",
            ),
            (&["JSON.GET", "\0\0:j"], "$19|{\"n\":[1,2.5],\"m\":1}"),
            (&["TTL", "\0\0:j"], ":300"),
            (
                &["JSON.MSET", "\0k", "$", "[]", "\0a", "$", "{}"],
                WRONG_TYPE,
            ),
            (&["JSON.GET", "\0k"], "$2|{}"),
            (&["KEYS", "\0\0*"], "*3|$4|\0\0:c|$4|\0\0:j|$6|\0\0|h:2"),
            (
                &["SCAN", "0", "MATCH", "\0*", "COUNT", "100", "TYPE", "hash"],
                "*2|$1|0|*2|$6|\0\0|h:2|$2|\0a",
            ),
            (&["DEL", "\0a", "\0\0:j", "\0none"], ":2"),
        ] {
            assert_eq!(client.call_words(words), reply, "{words:?}");
        }
        // A change of the watched key by another client aborts EXEC. A change of the key without the zero byte does
        // not.
        for (key, reply) in [("\0b", "*-1"), ("b", "*1|$1|5")] {
            client.call_words(&["SET", "\0b", "5"]);
            assert_eq!(client.call_words(&["WATCH", "\0b"]), "+OK");
            assert_eq!(other.call_words(&["SET", key, "6"]), "+OK");
            client.check("MULTI", "+OK");
            assert_eq!(client.call_words(&["GET", "\0b"]), "+QUEUED");
            assert_eq!(client.call("EXEC"), reply);
        }
        let mut feed = Client::connect(&server);
        feed.call_words(&["SUBSCRIBE", "__keyspace@0__:\0b"]);
        client.call_words(&["SET", "b", "7"]);
        client.call_words(&["SET", "\0b", "7"]);
        let message = "*3|$7|message|$17|__keyspace@0__:\0b|$3|set";
        assert_eq!(feed.reply(), message);
        client.check("CONFIG SET notify-keyspace-events KEA", "+OK");
        let mut events = Client::connect(&server);
        let subscribed = events.call_words(&["PSUBSCRIBE", "__keyevent@0__:del", "*:\0b"]);
        assert!(subscribed.starts_with("*3|$10|psubscribe|"), "{subscribed}");
        events.reply();
        client.call_words(&["DEL", "\0b"]);
        let mut text = [events.reply(), events.reply()];
        text.sort_unstable();
        assert!(
            text[1].ends_with("|$17|__keyspace@0__:\0b|$3|del"),
            "{text:?}"
        );
        assert!(
            text[0].ends_with("|$18|__keyevent@0__:del|$2|\0b"),
            "{text:?}"
        );
        let mut caching = Client::resp3(server.server().resp_addr());
        caching.check("CLIENT TRACKING ON", "+OK");
        assert_eq!(caching.call_words(&["GET", "\0b"]), "_");
        client.call_words(&["SET", "\0b", "8"]);
        assert_eq!(caching.reply(), ">2|$10|invalidate|*1|$2|\0b");
    }
}

/// The longest key can hold a value of each kind, although its row's key may be three bytes longer.
#[test]
fn a_key_of_maximum_length_stores_a_value_of_each_kind() {
    for server in servers() {
        let mut client = Client::connect(&server);
        for separator in ["", ":"] {
            let longest = format!("k{separator}").repeat(65_533)[..65_533].to_owned();
            let longer = format!("{longest}x");
            assert_eq!(client.call_words(&["SET", &longest, "text"]), "+OK");
            assert_eq!(client.call_words(&["HSET", "hash", "f", "v"]), ":1");
            for words in [
                &["SET", &longer, "v"][..],
                &["HSET", &longer, "f", "v"],
                &["RENAME", "hash", &longer],
                &["COPY", "hash", &longer, "REPLACE"],
                &["COPY", &longest, &longer],
            ] {
                let reply = client.call_words(words);
                assert_eq!(reply, "-ERR the key has 65534 bytes; 65533 are allowed");
            }
            assert_eq!(client.call_words(&["GET", &longest]), "$4|text");
            assert_eq!(client.call_words(&["RENAME", "hash", &longest]), "+OK");
            assert_eq!(client.call_words(&["HGET", &longest, "f"]), "$1|v");
            for (words, reply) in [
                (&["MGET", "none", &longer][..], "*2|$-1|$-1"),
                (&["EXISTS", &longest, &longer], ":1"),
                (&["EXPIRE", &longer, "100"], ":0"),
                (&["GETDEL", &longer], "$-1"),
                (&["HDEL", &longer, "f"], ":0"),
                (&["DEL", &longer, &longest], ":1"),
            ] {
                assert_eq!(client.call_words(words), reply, "{}", words[0]);
            }
        }
    }
}

#[test]
fn a_plain_key_stores_either_text_or_an_object() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET one f v", ":1"),
                ("SET two v", "+OK"),
                ("GET one", WRONG_TYPE),
                ("INCR one", WRONG_TYPE),
                ("HGET two f", WRONG_TYPE),
                ("HSET two f v", WRONG_TYPE),
                ("JSON.SET two $ 1", WRONG_TYPE),
                ("MGET one two", "*2|$-1|$1|v"),
                ("FT.CREATE space PREFIX 1 o SCHEMA f TAG", "+OK"),
                ("FT.SEARCH space * NOCONTENT", "*2|:1|$3|one"),
                ("SET one text", "+OK"),
                ("FT.SEARCH space * NOCONTENT", "*1|:0"),
                ("GET one", "$4|text"),
                ("RENAME one owl", "+OK"),
                ("FT.SEARCH space * NOCONTENT", "*1|:0"),
                ("DEL owl", ":1"),
                ("HSET owl f v", ":1"),
                ("FT.SEARCH space * NOCONTENT", "*2|:1|$3|owl"),
                ("RENAME owl two", "+OK"),
                ("TYPE two", "+hash"),
                ("FT.SEARCH space * NOCONTENT", "*1|:0"),
                ("DBSIZE", ":101"),
            ],
        );
    }
}

#[test]
fn a_plain_key_is_distinct_from_a_store_or_table_of_the_same_name() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        check_all(
            &mut client,
            &[
                ("GET s", "$-1"),
                ("SET s text", "+OK"),
                ("GET s", "$4|text"),
                ("GET s:k1", "$1|v"),
                ("MGET s s:k1", "*2|$4|text|$1|v"),
                ("DEL s", ":1"),
                ("GET s:k1", "$1|v"),
                ("SET tline 1", "+OK"),
                ("SET sub 1", "+OK"),
                ("SET sub|ann|bob 1", "+OK"),
                ("SET post|bob|1 hello", "+OK"),
                ("RANGE tline| tline}", "*2|$15|tline|ann|1|bob|$5|hello"),
                ("INCR tline", ":2"),
                ("RANGEDEL sub| sub}", ":1"),
                ("MGET sub tline", "*2|$1|1|$1|2"),
                ("RANGECOUNT tline| tline}", ":0"),
            ],
        );
    }
}

#[test]
fn plain_keys_are_scanned_in_order_with_other_keys() {
    for threads in [1, 2] {
        let server = TestServer::with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("MSET b 1 a|1 1 a 1 c:1 1", "+OK"),
                ("HSET ab f v", ":1"),
                ("KEYS *", "*5|$1|a|$2|ab|$3|a|1|$1|b|$3|c:1"),
                ("KEYS a*", "*3|$1|a|$2|ab|$3|a|1"),
                (
                    "SCAN 0 MATCH a* COUNT 100 TYPE string",
                    "*2|$1|0|*2|$1|a|$3|a|1",
                ),
                ("SCAN 0 MATCH a* COUNT 100 TYPE hash", "*2|$1|0|*1|$2|ab"),
            ],
        );
        for number in 0..50 {
            client.check(&format!("SET page{number:02} v"), "+OK");
        }
        let (mut cursor, mut found) = ("0".to_owned(), 0);
        loop {
            let page = client.call(&format!("SCAN {cursor} MATCH page* COUNT 7"));
            found += page.matches("$6|page").count();
            cursor = page.split('|').nth(2).expect("a cursor").to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, 50);
    }
}

#[test]
fn plain_keys_support_watch_and_subscriptions() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        for (line, reply) in [
            ("SET hotel v", "+OK"),
            ("EXPIRE hotel 100", ":1"),
            ("DEL hotel", ":1"),
            ("MSET inn 1 hotel 2", "+OK"),
            ("FLUSHALL", "+OK"),
        ] {
            client.check("WATCH hotel", "+OK");
            other.check(line, reply);
            check_all(
                &mut client,
                &[("MULTI", "+OK"), ("GET hotel", "+QUEUED"), ("EXEC", "*-1")],
            );
        }
        client.check("WATCH hotel", "+OK");
        other.check("SET inn v", "+OK");
        check_all(
            &mut client,
            &[
                ("MULTI", "+OK"),
                ("SET hotel 1", "+QUEUED"),
                ("INCR hotel", "+QUEUED"),
                ("EXEC", "*2|+OK|:2"),
            ],
        );
        let mut feed = Client::connect(&server);
        feed.check(
            "SUBSCRIBE __keyspace@0__:hotel",
            "*3|$9|subscribe|$20|__keyspace@0__:hotel|:1",
        );
        client.check("SET hotel:1 v", "+OK");
        client.check("SET hotel v", "+OK");
        assert_eq!(
            feed.reply(),
            "*3|$7|message|$20|__keyspace@0__:hotel|$3|set"
        );
        client.check("DEL hotel", ":1");
        assert_eq!(
            feed.reply(),
            "*3|$7|message|$20|__keyspace@0__:hotel|$3|del"
        );
    }
}

#[test]
fn plain_keys_survive_a_restart_with_another_number_of_threads() {
    let [server, _] = servers();
    let mut server = server;
    let mut client = Client::connect(&server);
    for number in 0..40 {
        client.check(&format!("SET key{number} {number} EX 1000"), "+OK");
        client.check(&format!("HSET hash{number} f {number}"), ":1");
        client.check(&format!("SET \0zero:{number} {number}"), "+OK");
    }
    for threads in [2, 3] {
        server.restart_with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        for number in 0..40 {
            let text = number.to_string();
            let reply = format!("${}|{text}", text.len());
            client.check(&format!("GET key{number}"), &reply);
            client.check(&format!("HGET hash{number} f"), &reply);
            client.check(&format!("GET \0zero:{number}"), &reply);
            assert_ne!(client.call(&format!("TTL key{number}")), ":-1");
        }
        client.check("DBSIZE", ":220");
    }
}

/// A command that is rejected or has no effect changes nothing and aborts no transaction.
#[test]
fn rejected_writes_leave_an_object_unchanged_and_unmarked() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        client.check("HSET h f v", ":1");
        for (line, reply) in [
            ("SET h x EX 100 KEEPTTL", "-ERR syntax error"),
            ("SET h v NX XX", "-ERR syntax error"),
            ("SET h v EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET h v NX", "$-1"),
            ("SET h v GET", WRONG_TYPE),
            ("SET h v IFEQ v", WRONG_TYPE),
            ("SET h v IFEQ", "-ERR syntax error"),
            (
                "SET h v IFDEQ v",
                "-ERR a digest is 16 hexadecimal digits, as returned by DIGEST",
            ),
            ("SETEX h 0 v", "-ERR invalid expire time in 'setex' command"),
            (
                "SETEX h ten v",
                "-ERR value is not an integer or out of range",
            ),
            (
                "PSETEX h -1 v",
                "-ERR invalid expire time in 'psetex' command",
            ),
            ("SETNX h v", ":0"),
            (
                "MSETNX h 1 k2",
                "-ERR wrong number of arguments for 'msetnx' command",
            ),
            ("MSETNX h 1 k2 2", ":0"),
            (
                "MSET h 1 k2",
                "-ERR wrong number of arguments for 'mset' command",
            ),
            ("SETRANGE h -1 x", "-ERR offset is out of range"),
            ("SETRANGE h 1 x", WRONG_TYPE),
            (
                "INCRBY h ten",
                "-ERR value is not an integer or out of range",
            ),
            ("INCR h", WRONG_TYPE),
            ("GETEX h EX 1 PX 1", "-ERR syntax error"),
            ("GETEX h EX 1", WRONG_TYPE),
            (
                "HSET h f",
                "-ERR wrong number of arguments for 'hset' command",
            ),
            (
                "HINCRBY h f x",
                "-ERR value is not an integer or out of range",
            ),
            ("HSETNX h f w", ":0"),
            (
                "EXPIRE h 100 NX XX",
                "-ERR NX and XX, GT or LT options at the same time are not compatible",
            ),
        ] {
            client.check("WATCH h", "+OK");
            other.check(line, reply);
            client.check("MULTI", "+OK");
            client.check("HGETALL h", "+QUEUED");
            assert_eq!(client.call("EXEC"), "*1|*2|$1|f|$1|v", "{line}");
        }
    }
}
