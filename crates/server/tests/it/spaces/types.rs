//! Attributes of every type as documented in docs/guide/spaces.md: matches, values of a wrong type, missing values,
//! and attributes that are added and dropped while objects exist.

use super::{call, check, search_keys, server, wait_until_indexed};
use crate::resp::Client;

fn each_server(walk: impl Fn(&mut Client)) {
    for threads in [1, 2] {
        let server = server(threads);
        walk(&mut Client::connect(&server));
    }
}

#[track_caller]
fn check_finds(client: &mut Client, space: &str, queries: &[(&str, &str)]) {
    for (query, expected) in queries {
        assert_eq!(search_keys(client, space, query), *expected, "{query}");
    }
}

#[test]
fn timestamps_and_booleans_are_attribute_types() {
    each_server(|client| {
        check(
            client,
            "FT.CREATE events PREFIX 1 event: SCHEMA at TIMESTAMP SORTABLE open BOOLEAN",
            "+OK",
        );
        for (key, at, open) in [
            ("event:1", "2024-05-06T07:08:09Z", "true"),
            ("event:2", "1714979290", "0"),
            ("event:3", "2024-05-07", "false"),
            ("event:4", "1970-01-01T00:00:00.5Z", "1"),
            ("event:5", "some day", "perhaps"),
        ] {
            check(client, &format!("HDEL {key} at"), ":0");
            assert_eq!(call(client, &["HSET", key, "at", at, "open", open]), ":2");
        }
        check_finds(
            client,
            "events",
            &[
                ("@open:{true}", "event:1 event:4"),
                ("@open:{0}", "event:2 event:3"),
                ("@at:[1714979289 1714979289]", "event:1"),
                (
                    "@at:[\"2024-05-06\" \"2024-05-06T23:59:59Z\"]",
                    "event:1 event:2",
                ),
                ("@at>=\"2024-05-07\"", "event:3"),
                ("@at:[0 (1]", "event:4"),
                // A value of a wrong type counts as missing, and the object's other attributes are found.
                ("*", "event:1 event:2 event:3 event:4 event:5"),
                ("-@at:[-inf inf]", "event:5"),
            ],
        );
        let sorted = call(
            client,
            &[
                "FT.SEARCH",
                "events",
                "*",
                "NOCONTENT",
                "SORTBY",
                "at",
                "DESC",
            ],
        );
        let keys: Vec<&str> = sorted
            .split('|')
            .filter(|part| part.starts_with("event"))
            .collect();
        assert_eq!(
            keys,
            ["event:3", "event:2", "event:1", "event:4", "event:5"]
        );
        let info = call(client, &["FT.INFO", "events"]);
        assert!(info.contains("hash_indexing_failures|:2|"), "{info}");
    });
}

#[test]
fn lists_sets_and_maps_are_found_by_their_elements() {
    each_server(|client| {
        let create = "FT.CREATE docs ON JSON PREFIX 1 doc: SCHEMA $.words[*] AS words TAG $.numbers[*] AS numbers NUMERIC $.flags[*] AS flags BOOLEAN $.stock.* AS stocks NUMERIC $.stock.rome AS rome NUMERIC $.days[*] AS days TIMESTAMP $.deep.list[0].name AS first TAG";
        check(client, create, "+OK");
        for (key, text) in [
            (
                "doc:1",
                r#"{"words":["a","b"],"numbers":[1,2.5],"flags":[true],"stock":{"rome":5,"oslo":7},"days":["2024-05-06"],"deep":{"list":[{"name":"x"}]}}"#,
            ),
            (
                "doc:2",
                r#"{"words":["b"],"numbers":[9223372036854775807],"flags":[true,false],"stock":{"rome":7},"days":[0],"deep":{"list":[{"name":"y"},{"name":"x"}]}}"#,
            ),
            (
                "doc:3",
                r#"{"words":[],"numbers":[],"flags":[],"stock":{},"days":[],"deep":null}"#,
            ),
        ] {
            assert_eq!(call(client, &["JSON.SET", key, "$", text]), "+OK");
        }
        check_finds(
            client,
            "docs",
            &[
                ("@words:{b}", "doc:1 doc:2"),
                ("@words:{a}", "doc:1"),
                ("@numbers:[2 3]", "doc:1"),
                ("@numbers==9223372036854775807", "doc:2"),
                ("@numbers==9223372036854775806", ""),
                ("@flags:{false}", "doc:2"),
                ("@stocks:[7 7]", "doc:1 doc:2"),
                ("@rome:[7 7]", "doc:2"),
                ("@days:[\"2024-05-06\" \"2024-05-07\"]", "doc:1"),
                ("@first:{x}", "doc:1"),
                ("-@words:{b}", "doc:3"),
            ],
        );
        // Several changes of one command.
        check(
            client,
            "OBJ.CHANGE doc:3 DO SADD $.words \"c\" SADD $.words \"c\" RPUSH $.numbers 4 MADD $.stock rome 1",
            ":1",
        );
        check(
            client,
            "OBJ.CHANGE doc:1 DO SREM $.words \"a\" MREM $.stock rome",
            ":1",
        );
        check_finds(
            client,
            "docs",
            &[
                ("@words:{c}", "doc:3"),
                ("@words:{a}", ""),
                ("@rome:[1 5]", "doc:3"),
                ("@numbers:[4 4]", "doc:3"),
            ],
        );
        // When a list, set or map becomes empty again, its former elements are no longer found.
        check(
            client,
            "OBJ.CHANGE doc:3 DO PUT $.words [] PUT $.numbers [] PUT $.stock {}",
            ":1",
        );
        check_finds(
            client,
            "docs",
            &[
                ("@words:{c}", ""),
                ("@numbers:[4 4]", ""),
                ("@rome:[1 5]", ""),
            ],
        );
    });
}

#[test]
fn missing_and_empty_values_are_found_if_declared() {
    each_server(|client| {
        check(
            client,
            "FT.CREATE things PREFIX 1 thing: SCHEMA t TAG INDEXMISSING INDEXEMPTY n NUMERIC INDEXMISSING x TEXT INDEXEMPTY plain TAG",
            "+OK",
        );
        for (key, fields) in [
            ("thing:1", "t a n 1 x word"),
            ("thing:2", "n 2"),
            ("thing:3", "t a,b"),
        ] {
            let line = format!("HSET {key} {fields}");
            assert!(call(client, &line.split(' ').collect::<Vec<_>>()).starts_with(':'));
        }
        assert_eq!(
            call(client, &["HSET", "thing:4", "t", "", "x", "", "n", "none"]),
            ":3"
        );
        check_finds(
            client,
            "things",
            &[
                ("ismissing(@t)", "thing:2"),
                ("ismissing(@n)", "thing:3 thing:4"),
                ("-ismissing(@t) @n:[1 1]", "thing:1"),
                ("@t:{\"\"}", "thing:4"),
                ("@x:\"\"", "thing:4"),
            ],
        );
        check(client, "HDEL thing:1 t", ":1");
        check_finds(client, "things", &[("ismissing(@t)", "thing:1 thing:2")]);
        let reply = call(client, &["FT.SEARCH", "things", "ismissing(@plain)"]);
        assert!(
            reply.contains("requires defining the field with 'INDEXMISSING'"),
            "{reply}"
        );
        let reply = call(client, &["FT.SEARCH", "things", "@plain:{\"\"}"]);
        assert!(reply.contains("INDEXEMPTY"), "{reply}");
    });
}

#[test]
fn attributes_are_added_and_dropped_with_existing_objects() {
    let mut server = server(2);
    let client = &mut Client::connect(&server);
    check(
        client,
        "FT.CREATE hotels PREFIX 1 hotel: SCHEMA city TAG price NUMERIC",
        "+OK",
    );
    for number in 0..300 {
        check(
            client,
            &format!(
                "HSET hotel:{number} city c{} price {number} stars {}",
                number % 3,
                number % 5
            ),
            ":3",
        );
    }
    check(
        client,
        "FT.ALTER hotels SCHEMA ADD stars NUMERIC SORTABLE note TEXT",
        "+OK",
    );
    wait_until_indexed(client, "hotels");
    // The new attribute is searchable on existing objects, also combined with others.
    let count = |client: &mut Client, query: &str| {
        call(client, &["FT.SEARCH", "hotels", query, "LIMIT", "0", "0"])
    };
    assert_eq!(count(client, "@stars:[4 4]"), "*1|:60");
    assert_eq!(
        count(client, "@stars:[4 4] @city:{c1} @price:[0 29]"),
        "*1|:2"
    );
    check(client, "HSET hotel:0 stars 9", ":0");
    assert_eq!(search_keys(client, "hotels", "@stars:[9 9]"), "hotel:0");
    check(client, "FT.ALTER hotels SCHEMA DROP price", "+OK");
    let reply = count(client, "@price:[1 2]");
    assert!(reply.starts_with("-ERR Unknown field"), "{reply}");
    assert_eq!(count(client, "@stars:[9 9] @city:{c0}"), "*1|:1");
    // Objects keep the field of a dropped attribute.
    check(client, "HGET hotel:7 price", "$1|7");
    for refused in ["DROP price", "ADD stars TAG", "DROP", "ADD"] {
        let reply = call(
            client,
            &format!("FT.ALTER hotels SCHEMA {refused}")
                .split(' ')
                .collect::<Vec<_>>(),
        );
        assert!(reply.starts_with("-ERR "), "{refused}: {reply}");
    }
    server.restart(|_| {});
    let client = &mut Client::connect(&server);
    assert_eq!(count(client, "@stars:[9 9]"), "*1|:1");
    check(client, "FT.ALTER hotels SCHEMA ADD price NUMERIC", "+OK");
    wait_until_indexed(client, "hotels");
    assert_eq!(count(client, "@price:[7 7] @stars:[2 2]"), "*1|:1");
}
