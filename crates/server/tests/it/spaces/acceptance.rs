//! Acceptance tests of a searchable object store, by its users' requirements: objects are read and written; found by
//! equality, ranges, lengths and patterns; sorted and counted. They are changed one by one, in several fields together,
//! and in groups. Also covers known errors of earlier systems of this kind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use larder_types::Random;

use super::{call, check, search_keys, server};
use crate::resp::Client;
use crate::support::TestServer;

const NUMBERS: [i64; 6] = [0, 1, -1, i64::MAX, i64::MIN, i64::MAX - 1];

fn each_server(walk: impl Fn(&TestServer, &mut Client)) {
    for threads in [1, 3] {
        let server = server(threads);
        walk(&server, &mut Client::connect(&server));
    }
}

fn total(client: &mut Client, space: &str, query: &str) -> u64 {
    let reply = call(client, &["FT.SEARCH", space, query, "LIMIT", "0", "0"]);
    let total = reply.strip_prefix("*1|:").map(str::parse);
    total
        .and_then(Result::ok)
        .unwrap_or_else(|| panic!("{query}: {reply}"))
}

/// Returns the keys of a search in the order of its reply.
fn in_order(client: &mut Client, words: &[&str]) -> Vec<String> {
    let reply = call(client, words);
    assert!(reply.starts_with('*'), "{words:?}: {reply}");
    let parts = reply.split('|').skip(2);
    parts
        .filter(|part| !part.starts_with('$'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn an_object_is_put_read_overwritten_and_removed() {
    each_server(|_, client| {
        check(client, "HGETALL kv:k", "*0");
        check(client, "HSET kv:k v v1", ":1");
        check(client, "HGETALL kv:k", "*2|$1|v|$2|v1");
        check(client, "HSET kv:k v v2", ":0");
        check(client, "HGET kv:k v", "$2|v2");
        // Writing some fields keeps the others, and reading some fields returns only these.
        check(client, "HSET kv:k v1 ABC", ":1");
        check(client, "HSET kv:k v2 123", ":1");
        check(client, "HMGET kv:k v v2", "*2|$2|v2|$3|123");
        check(client, "DEL kv:k", ":1");
        check(client, "HGET kv:k v", "$-1");
        check(client, "DEL kv:k", ":0");
    });
}

#[test]
fn an_equality_search_finds_none_one_and_two() {
    each_server(|_, client| {
        check(client, "FT.CREATE kv PREFIX 1 kv: SCHEMA v TAG", "+OK");
        assert_eq!(search_keys(client, "kv", "@v:{v1}"), "");
        check(client, "HSET kv:k1 v v1", ":1");
        assert_eq!(search_keys(client, "kv", "@v:{v1}"), "kv:k1");
        check(client, "HSET kv:k2 v v1", ":1");
        assert_eq!(search_keys(client, "kv", "@v:{v1}"), "kv:k1 kv:k2");
    });
}

#[test]
fn integers_of_the_complete_range_are_exact() {
    each_server(|_, client| {
        check(
            client,
            "FT.CREATE kv PREFIX 1 kv: SCHEMA v NUMERIC SORTABLE",
            "+OK",
        );
        for (at, number) in NUMBERS.iter().enumerate() {
            check(client, &format!("HSET kv:{at} v {number}"), ":1");
            assert_eq!(
                search_keys(client, "kv", &format!("@v=={number}")),
                format!("kv:{at}")
            );
        }
        let sorted = in_order(
            client,
            &["FT.SEARCH", "kv", "*", "NOCONTENT", "SORTBY", "v"],
        );
        assert_eq!(sorted, ["kv:4", "kv:2", "kv:0", "kv:1", "kv:5", "kv:3"]);
        for (change, text) in [
            ("ADD v 1", "overflow"),
            ("SUB v -1", "overflow"),
            ("DIV v 0", "divided by zero"),
            ("MOD v 0", "divided by zero"),
        ] {
            let reply = client.call(&format!("OBJ.CHANGE kv:3 DO {change}"));
            assert!(reply.contains(text), "{change}: {reply}");
        }
        check(client, "HGET kv:3 v", "$19|9223372036854775807");
    });
}

#[test]
fn doubles_and_binary_texts_are_stored_exactly() {
    each_server(|_, client| {
        check(
            client,
            "FT.CREATE kv PREFIX 1 kv: SCHEMA f NUMERIC t TAG CASESENSITIVE",
            "+OK",
        );
        for (key, number) in [
            ("kv:1", "1.0"),
            ("kv:2", "-1.5e-7"),
            ("kv:3", "1e300"),
            ("kv:4", "inf"),
        ] {
            check(client, &format!("HSET {key} f {number}"), ":1");
        }
        assert_eq!(search_keys(client, "kv", "@f:[-1 0]"), "kv:2");
        assert_eq!(search_keys(client, "kv", "@f>1e299"), "kv:3 kv:4");
        check(
            client,
            "OBJ.CHANGE kv:1 DO ADD f 0.5 MUL f 4 SUB f 1 DIV f 2",
            ":1",
        );
        check(client, "HGET kv:1 f", "$3|2.5");
        let bytes: Vec<u8> = (0..=255).collect();
        let head = b"*4\r\n$4\r\nHSET\r\n$4\r\nkv:5\r\n$1\r\nt\r\n$256\r\n";
        client.send(&[head, &bytes[..], b"\r\n"].concat());
        assert_eq!(client.reply(), ":1");
        check(client, "HSTRLEN kv:5 t", ":256");
        let reply = call(client, &["HSET", "kv:6", "f", "nan"]);
        assert_eq!(reply, ":1");
        assert_eq!(
            total(client, "kv", "@f:[-inf inf]"),
            4,
            "a text is not found as a number"
        );
    });
}

/// For a change that adds to it, an absent field is an empty list, set or map.
#[test]
fn lists_sets_and_maps_start_empty_and_can_be_emptied() {
    each_server(|_, client| {
        for (one, other) in [("1", "-7"), ("2.5", "3.25"), ("\"a\"", "\"b\"")] {
            check(
                client,
                &format!("OBJ.CHANGE kv:l DO PUT n 1 RPUSH l {one} LPUSH l {other}"),
                ":1",
            );
            check(client, "HGET kv:l l", &sized(&format!("[{other},{one}]")));
            check(
                client,
                &format!(
                    "OBJ.CHANGE kv:l DO SADD s {one} SADD s {one} SADD s {other} SREM s {other}"
                ),
                ":1",
            );
            check(client, "HGET kv:l s", &sized(&format!("[{one}]")));
            check(
                client,
                &format!("OBJ.CHANGE kv:l DO SUNION s [{one},{other}] SINTER s [{other}]"),
                ":1",
            );
            check(client, "HGET kv:l s", &sized(&format!("[{other}]")));
            for name in ["k", "7", "1.5"] {
                check(
                    client,
                    &format!("OBJ.CHANGE kv:l DO MADD m {name} {one} MADD m {name} {other}"),
                    ":1",
                );
                check(
                    client,
                    "HGET kv:l m",
                    &sized(&format!("{{\"{name}\":{other}}}")),
                );
                check(client, &format!("OBJ.CHANGE kv:l DO MREM m {name}"), ":1");
                check(client, "HGET kv:l m", "$2|{}");
            }
            check(
                client,
                "OBJ.CHANGE kv:l DO PUT l [] PUT s [] PUT m {}",
                ":1",
            );
            check(client, "HMGET kv:l l s m", "*3|$2|[]|$2|[]|$2|{}");
            check(client, "DEL kv:l", ":1");
        }
    });
}

fn sized(text: &str) -> String {
    format!("${}|{text}", text.len())
}

#[test]
fn keys_and_values_are_found_by_length_range_and_pattern() {
    each_server(|_, client| {
        check(
            client,
            "FT.CREATE kv PREFIX 1 kv: SCHEMA n NUMERIC t TAG",
            "+OK",
        );
        for (key, n, t) in [
            ("A", -2, "a"),
            ("AB", -1, "ab"),
            ("ABC", 0, "abc"),
            ("ABCD", 1, "abcd"),
            ("ABCDE", 2, "abcde"),
        ] {
            check(client, &format!("HSET kv:{key} n {n} t {t}"), ":2");
        }
        let pages = |client: &mut Client, filter: &str| {
            let words = [
                "FT.AGGREGATE",
                "kv",
                "*",
                "LOAD",
                "1",
                "@__key",
                "FILTER",
                filter,
            ];
            call(client, &words).matches("kv:").count()
        };
        for length in 1..=5 {
            let pattern = format!("@t:{{w'{}'}}", "?".repeat(length));
            assert_eq!(total(client, "kv", &pattern), 1);
            assert_eq!(
                pages(client, &format!("strlen(@__key) == {}", length + 3)),
                1
            );
        }
        assert_eq!(pages(client, "strlen(@__key) <= 6"), 3);
        assert_eq!(pages(client, "strlen(@__key) >= 6"), 3);
        for (query, count) in [
            ("@n<=0", 3),
            ("@n>=0", 3),
            ("@n<0", 2),
            ("@n>0", 2),
            ("@n:[-1 1]", 3),
            ("@n:[(-1 (1]", 1),
            ("@n:[5 9]", 0),
            ("@t<=\"abc\"", 3),
            ("@t>=\"abc\"", 3),
            ("@t<\"abc\"", 2),
            ("@t:[\"ab\" \"abcd\"]", 3),
            ("@t:[(\"ab\" (\"abcd\"]", 1),
            ("@t:{ab*}", 4),
            ("@t:{*d}", 1),
            ("@t:{*bc*}", 3),
            ("@t:{w'?b*e'}", 1),
            ("@t:{xy*}", 0),
        ] {
            assert_eq!(total(client, "kv", query), count, "{query}");
        }
        for (filter, count) in [
            ("@__key <= 'kv:ABC'", 3),
            ("@__key > 'kv:AB' && @__key < 'kv:ABCDE'", 2),
            ("startswith(@__key, 'kv:ABC')", 3),
        ] {
            assert_eq!(pages(client, filter), count, "{filter}");
        }
    });
}

#[test]
fn a_document_is_changed_and_sorted_by_paths_created_on_demand() {
    each_server(|_, client| {
        let create = "FT.CREATE docs ON JSON PREFIX 1 doc: SCHEMA $.a.b AS b NUMERIC SORTABLE $.name AS name TAG";
        check(client, create, "+OK");
        for number in 0..6 {
            check(
                client,
                &format!(
                    "OBJ.CHANGE doc:{number} AS JSON DO PUT $ {{}} PUT $.a.b {} PUT $.name \"n{number}\"",
                    (number * 5) % 6
                ),
                ":1",
            );
        }
        let sorted = in_order(
            client,
            &[
                "FT.SEARCH",
                "docs",
                "*",
                "NOCONTENT",
                "SORTBY",
                "b",
                "DESC",
                "LIMIT",
                "0",
                "3",
            ],
        );
        assert_eq!(sorted, ["doc:1", "doc:2", "doc:3"]);
        check(
            client,
            "OBJ.CHANGE doc:0 DO ADD $.a.c.d 1.5 ADD $.a.b 100 APPEND $.name x PREPEND $.name y",
            ":1",
        );
        check(
            client,
            "JSON.GET doc:0",
            &sized(r#"{"a":{"b":100,"c":{"d":1.5}},"name":"yn0x"}"#),
        );
        let reply = client.call("OBJ.CHANGE doc:0 DO ADD $.a.b 1 ADD $.name 1");
        assert!(
            reply.contains("is not a number: nothing was changed"),
            "{reply}"
        );
        check(client, "JSON.GET doc:0 .a.b", "$3|100");
        check(
            client,
            "OBJ.CHANGE doc:0 DO RENAME $.a.c e UNSET $.name",
            ":1",
        );
        check(
            client,
            "JSON.GET doc:0",
            &sized(r#"{"a":{"b":100,"e":{"d":1.5}}}"#),
        );
        assert_eq!(search_keys(client, "docs", "@b:[100 100]"), "doc:0");
        // A group change whose target is a path.
        assert_eq!(
            call(
                client,
                &[
                    "FT.CHANGE",
                    "docs",
                    "@b:[0 5]",
                    "DO",
                    "MUL",
                    "$.a.b",
                    "2",
                    "ADD",
                    "$.seen",
                    "1"
                ]
            ),
            ":5"
        );
        assert_eq!(search_keys(client, "docs", "@b:[10 10]"), "doc:1");
    });
}

/// Every kind of change can be applied to a group.
#[test]
fn every_kind_of_change_applies_to_a_group() {
    each_server(|_, client| {
        check(client, "FT.CREATE kv PREFIX 1 kv: SCHEMA n NUMERIC", "+OK");
        for (change, field, expected) in [
            ("ADD n 5", "n", "15"),
            ("SUB n 3", "n", "7"),
            ("MUL n 2", "n", "20"),
            ("DIV n 4", "n", "2"),
            ("MOD n 4", "n", "2"),
            ("AND n 6", "n", "2"),
            ("OR n 5", "n", "15"),
            ("XOR n 3", "n", "9"),
            ("MIN n 3", "n", "3"),
            ("MAX n 33", "n", "33"),
            ("PUT t x", "t", "x"),
            ("APPEND t z", "t", "textz"),
            ("PREPEND t z", "t", "ztext"),
            ("TRIMLEFT t 1", "t", "ext"),
            ("TRIMRIGHT t 3", "t", "t"),
            ("LPUSH l 0", "l", "[0,1,2]"),
            ("RPUSH l 3", "l", "[1,2,3]"),
            ("SADD l 2", "l", "[1,2]"),
            ("SREM l 1", "l", "[2]"),
            ("SINTER l [2,9]", "l", "[2]"),
            ("SUNION l [2,9]", "l", "[1,2,9]"),
            ("MADD m b 2", "m", "{\"a\":1,\"b\":2}"),
            ("MREM m a", "m", "{}"),
            ("ADD m->$.a 4", "m", "{\"a\":5}"),
            ("MAX m->$.a 7", "m", "{\"a\":7}"),
            ("RENAME t u", "u", "text"),
        ] {
            for key in ["kv:1", "kv:2"] {
                let words = [
                    "HSET",
                    key,
                    "n",
                    "10",
                    "t",
                    "text",
                    "l",
                    "[1,2]",
                    "m",
                    "{\"a\":1}",
                ];
                assert_eq!(call(client, &words), ":4");
            }
            let line = format!("FT.CHANGE kv @n==10 DO {change}");
            assert_eq!(
                call(client, &line.split(' ').collect::<Vec<_>>()),
                ":2",
                "{line}"
            );
            for key in ["kv:1", "kv:2"] {
                check(client, &format!("HGET {key} {field}"), &sized(expected));
                check(client, &format!("DEL {key}"), ":1");
            }
        }
    });
}

/// The owner checks the condition again, so that two concurrent clients do not both take from the same object.
#[test]
fn concurrent_group_changes_change_each_object_once() {
    let server = server(3);
    let client = &mut Client::connect(&server);
    check(
        client,
        "FT.CREATE rooms PREFIX 1 room: SCHEMA free NUMERIC",
        "+OK",
    );
    for number in 0..700 {
        check(client, &format!("HSET room:{number} free 1"), ":1");
    }
    let taken: u64 = thread::scope(|scope| {
        let clients = (0..3).map(|_| {
            scope.spawn(|| {
                let client = &mut Client::connect(&server);
                let reply = call(
                    client,
                    &[
                        "FT.CHANGE",
                        "rooms",
                        "@free:[1 +inf]",
                        "DO",
                        "SUB",
                        "free",
                        "1",
                    ],
                );
                let count = reply.strip_prefix(':').map(str::parse::<u64>);
                count
                    .and_then(Result::ok)
                    .unwrap_or_else(|| panic!("{reply}"))
            })
        });
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("it ends"))
            .sum()
    });
    assert_eq!(taken, 700);
    assert_eq!(total(client, "rooms", "@free:[0 0]"), 700);
}

/// Searches over objects of 32 bits, sorted in both directions, counted and deleted by group, compared with a model.
#[test]
fn searches_of_bits_match_a_model_after_each_deletion() {
    let mut random = Random::new(32);
    for (threads, subspaces) in [
        (1, ""),
        (3, ""),
        (2, "SUBSPACES 4 b0,b1 b2,b3 b4,b5 b6,b7 REGIONS 16"),
    ] {
        let server = server(threads);
        let client = &mut Client::connect(&server);
        let attributes: String = (0..32).map(|bit| format!(" b{bit} TAG")).collect();
        let line =
            format!("FT.CREATE bits PREFIX 1 bits: {subspaces} SCHEMA n NUMERIC{attributes}");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(call(client, &words), "+OK");
        let mut model: BTreeMap<String, u32> = BTreeMap::new();
        for number in 0..256_u32 {
            // The lower 8 bits enumerate all values, the others are random.
            let bits = number | (random.below(1 << 24) as u32) << 8;
            let key = format!("bits:{number:03}");
            let fields: String = (0..32)
                .map(|bit| format!(" b{bit} {}", bits >> bit & 1))
                .collect();
            check(client, &format!("HSET {key} n {number}{fields}"), ":33");
            model.insert(key, bits);
        }
        for _ in 0..12 {
            let asked: Vec<(u32, u32)> = (0..1 + random.below(3))
                .map(|_| (random.below(32) as u32, random.below(2) as u32))
                .collect();
            let query: Vec<String> = asked
                .iter()
                .map(|(bit, value)| format!("@b{bit}:{{{value}}}"))
                .collect();
            let query = query.join(" ");
            let fits = |bits: u32| asked.iter().all(|(bit, value)| bits >> bit & 1 == *value);
            let expected: Vec<String> = model
                .iter()
                .filter(|(_, bits)| fits(**bits))
                .map(|(key, _)| key.clone())
                .collect();
            assert_eq!(
                search_keys(client, "bits", &query),
                expected.join(" "),
                "{query}"
            );
            assert_eq!(
                total(client, "bits", &query),
                expected.len() as u64,
                "{query}"
            );
            // The same with more matches than returned rows.
            for (order, reversed) in [("ASC", false), ("DESC", true)] {
                let mut first = expected.clone();
                if reversed {
                    first.reverse();
                }
                first.truncate(10);
                let words = [
                    "FT.SEARCH",
                    "bits",
                    &query,
                    "NOCONTENT",
                    "SORTBY",
                    "n",
                    order,
                    "LIMIT",
                    "0",
                    "10",
                ];
                assert_eq!(in_order(client, &words), first, "{query} {order}");
            }
            if asked.len() > 1 {
                let reply = call(client, &["FT.CHANGE", "bits", &query, "DO", "DELETE"]);
                assert_eq!(reply, format!(":{}", expected.len()), "{query}");
                model.retain(|_, bits| !fits(*bits));
                assert_eq!(total(client, "bits", &query), 0, "{query}");
                assert_eq!(total(client, "bits", "*"), model.len() as u64);
            }
        }
    }
}

/// One client writes objects in a fixed order, round after round. A client that reads them in the opposite order
/// never sees an object of an older round than the object it read before.
#[test]
fn reads_in_reverse_order_of_writes_see_no_older_object() {
    const OBJECTS: usize = 24;
    const ROUNDS: usize = 60;
    let server = server(3);
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let server = &server;
        for _ in 0..3 {
            scope.spawn(move || {
                let client = &mut Client::connect(server);
                while !is_over.load(Ordering::Relaxed) {
                    let mut before = 0;
                    for at in (0..OBJECTS).rev() {
                        let reply = client.call(&format!("HGET w:{at} round"));
                        let round: usize = reply
                            .split('|')
                            .nth(1)
                            .map_or(0, |text| text.parse().expect("a number"));
                        assert!(
                            round >= before,
                            "object {at} has round {round} after one of {before}"
                        );
                        before = round;
                    }
                }
            });
        }
        let client = &mut Client::connect(server);
        for round in 1..=ROUNDS {
            for at in 0..OBJECTS {
                client.call(&format!("HSET w:{at} round {round}"));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn spaces_subspaces_and_indexes_are_listed_added_and_dropped() {
    each_server(|_, client| {
        check(client, "FT._LIST", "*0");
        let create = "FT.CREATE hotels PREFIX 1 hotel: SUBSPACES 2 city city,stars REGIONS 64 SCHEMA city TAG stars NUMERIC";
        check(client, create, "+OK");
        check(
            client,
            "FT.CREATE bars PREFIX 1 bar: SCHEMA city TAG",
            "+OK",
        );
        check(client, "FT._LIST", "*2|$4|bars|$6|hotels");
        let reply = call(client, &["FT.INFO", "hotels"]);
        assert!(reply.contains("subspaces"), "{reply}");
        check(client, "FT.ALTER bars SCHEMA ADD stars NUMERIC", "+OK");
        check(client, "HSET bar:1 city Rome stars 3", ":2");
        assert_eq!(search_keys(client, "bars", "@stars:[3 3]"), "bar:1");
        check(client, "FT.ALTER bars SCHEMA DROP stars", "+OK");
        let reply = call(client, &["FT.SEARCH", "bars", "@stars:[3 3]"]);
        assert!(reply.starts_with("-ERR Unknown field"), "{reply}");
        check(client, "FT.DROPINDEX hotels", "+OK");
        check(client, "FT._LIST", "*1|$4|bars");
        // A command on an absent space returns an error immediately.
        for line in [
            "FT.INFO hotels",
            "FT.SEARCH hotels *",
            "FT.DROPINDEX hotels",
            "FT.ALTER hotels SCHEMA ADD x TAG",
            "FT.TAGVALS hotels city",
            "FT.AGGREGATE hotels *",
            "FT.PROFILE hotels SEARCH QUERY *",
            "FT.CHANGE hotels * DO DELETE",
            "FT.CURSOR READ hotels 1",
        ] {
            let reply = client.call(line);
            assert!(reply.starts_with('-'), "{line}: {reply}");
        }
    });
}

/// If a password is set, searches are rejected before AUTH and executed after it.
#[test]
fn searches_without_authentication_are_rejected_immediately() {
    let server = TestServer::with(|config| {
        config.server.threads = 2;
        config.server.password = "open sesame".to_owned();
    });
    let client = &mut Client::connect(&server);
    for line in [
        "FT.SEARCH hotels *",
        "FT.AGGREGATE hotels *",
        "FT.CHANGE hotels * DO DELETE",
        "FT._LIST",
        "HGET hotel:1 city",
    ] {
        let reply = client.call(line);
        assert!(reply.starts_with("-NOAUTH"), "{line}: {reply}");
    }
    assert_eq!(call(client, &["AUTH", "open sesame"]), "+OK");
    check(client, "FT.CREATE hotels SCHEMA city TAG", "+OK");
    check(client, "FT.SEARCH hotels *", "*1|:0");
}

/// After many objects were loaded, all are found and counted, immediately and after a restart.
#[test]
fn all_objects_of_a_large_load_are_counted() {
    let mut server = server(3);
    let client = &mut Client::connect(&server);
    check(
        client,
        "FT.CREATE things PREFIX 1 thing: SCHEMA n NUMERIC",
        "+OK",
    );
    let mut lines = String::new();
    for number in 0..20_000 {
        lines += &format!("HSET thing:{number} n {}\r\n", number % 7);
    }
    client.send(lines.as_bytes());
    for _ in 0..20_000 {
        assert_eq!(client.reply(), ":1");
    }
    assert_eq!(total(client, "things", "*"), 20_000);
    assert_eq!(total(client, "things", "@n:[3 3]"), 2857);
    server.restart(|_| {});
    let client = &mut Client::connect(&server);
    assert_eq!(total(client, "things", "*"), 20_000);
    assert_eq!(total(client, "things", "@n:[0 0]"), 2858);
}
