//! FT.CHANGE, which applies a change to all objects that match a query (HyperDex's group operations), and DO DELETE
//! of one object.

use crate::redis_compatibility::servers;
use crate::resp::{Client, request};

/// Creates a space with `count` hotels, each with its number.
fn hotels(client: &mut Client, count: usize) {
    client.check(
        "FT.CREATE hotels ON HASH PREFIX 1 hotel: SCHEMA n NUMERIC SORTABLE city TAG name TEXT",
        "+OK",
    );
    for number in 0..count {
        let city = ["rome", "paris"][number % 2];
        client.check(&format!("HSET hotel:{number} n {number} city {city}"), ":2");
    }
}

#[test]
fn objects_that_are_not_indexed_yet_are_changed_and_removed() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        let (count, of_rome) = (20_000, 10_000);
        let puts: Vec<Vec<String>> = (0..count)
            .map(|number| {
                let city = ["rome", "paris"][number % 2];
                let words = format!("HSET hotel:{number} city {city}");
                words.split(' ').map(str::to_owned).collect()
            })
            .collect();
        crate::spaces::call_all(client, &puts);
        let create = "FT.CREATE hotels ON HASH PREFIX 1 hotel: SCHEMA city TAG";
        let in_rome = format!(":{of_rome}");
        // The commands are pipelined, so that each follows immediately on the previous one.
        for line in [
            create,
            "FT.CHANGE hotels @city:{rome} DO PUT mark 1",
            "FT.ALTER hotels SCHEMA ADD mark NUMERIC",
            "FT.CHANGE hotels @mark:[1] DO PUT city oslo",
            "FT.DROPINDEX hotels",
            create,
            "FT.DROPINDEX hotels DD",
        ] {
            client.send(&request(&line.split(' ').collect::<Vec<_>>()));
        }
        for expected in ["+OK", &in_rome, "+OK", &in_rome, "+OK", "+OK", "+OK"] {
            assert_eq!(client.reply(), expected);
        }
        client.check("EXISTS hotel:0 hotel:1 hotel:19999", ":0");
    }
}

#[test]
fn all_matching_objects_are_changed_once_and_counted() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        hotels(client, 600);
        // These are more objects than one step changes, and each still matches when it is changed.
        client.check(
            "FT.CHANGE hotels @city:{rome} DO ADD n 1000 PUT seen yes",
            ":300",
        );
        client.check("FT.CHANGE hotels @city:{rome} DO PUT city oslo", ":300");
        client.check("FT.CHANGE hotels @city:{rome} DO PUT city bern", ":0");
        assert_eq!(
            client.call_words(&[
                "FT.SEARCH",
                "hotels",
                "@n:[1000 1600] @city:{oslo}",
                "LIMIT",
                "0",
                "0"
            ]),
            "*1|:300"
        );
        client.check("HMGET hotel:0 n seen", "*2|$4|1000|$3|yes");
        client.check("HMGET hotel:1 n seen", "*2|$1|1|$-1");
        // The same with query parameters, and with an alias.
        client.check("FT.ALIASADD inns hotels", "+OK");
        let words = [
            "FT.CHANGE",
            "inns",
            "@n:[$low 9]",
            "PARAMS",
            "2",
            "low",
            "5",
            "DO",
            "MUL",
            "n",
            "2",
        ];
        assert_eq!(client.call_words(&words), ":3");
        client.check("HGET hotel:9 n", "$2|18");
        let words = ["FT.CHANGE", "hotels", "@city:{paris}", "DO", "DELETE"];
        assert_eq!(client.call_words(&words), ":300");
        assert_eq!(client.call_words(&words), ":0");
        client.check("EXISTS hotel:1 hotel:2", ":1");
        client.check("FT.CHANGE hotels * DO DELETE", ":300");
        client.check("FT.SEARCH hotels * LIMIT 0 0", "*1|:0");
    }
}

#[test]
fn objects_that_reject_a_change_stay_unchanged_and_the_others_are_changed() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        hotels(client, 10);
        client.check("HSET hotel:3 tally many", ":1");
        client.check(
            "FT.CHANGE hotels * DO ADD tally 1 PUT seen yes",
            "-ERR 9 objects were changed and 1 were not; the first error is hotel:3: field \"tally\" is not a number: nothing was changed",
        );
        client.check("HMGET hotel:3 tally seen", "*2|$4|many|$-1");
        client.check("HMGET hotel:4 tally seen", "*2|$1|1|$3|yes");
    }
}

#[test]
fn an_invalid_group_change_changes_nothing() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        hotels(client, 3);
        for (words, why) in [
            (
                &["FT.CHANGE", "hotels", "*", "ADD", "n", "1"][..],
                "write FT.CHANGE index query",
            ),
            (
                &["FT.CHANGE", "hotels", "*", "DO", "ADD", "n"],
                "ADD is missing an argument",
            ),
            (
                &["FT.CHANGE", "hotels", "*", "DO", "DELETE", "n"],
                "DELETE must be the only word after DO",
            ),
            (
                &["FT.CHANGE", "hotels", "*", "DO", "JUMP", "n", "1"],
                "'JUMP' is not a change",
            ),
            (
                &[
                    "FT.CHANGE",
                    "hotels",
                    "*",
                    "PARAMS",
                    "1",
                    "x",
                    "DO",
                    "DELETE",
                ],
                "PARAMS",
            ),
            (
                &[
                    "FT.CHANGE",
                    "hotels",
                    "*",
                    "PARAMS",
                    "99999999999999999999",
                    "DO",
                    "DELETE",
                ],
                "write FT.CHANGE",
            ),
            (
                &["FT.CHANGE", "hotels", "@n:[1", "DO", "DELETE"],
                "Syntax error",
            ),
            (
                &["FT.CHANGE", "hotels", "@none:{x}", "DO", "DELETE"],
                "none",
            ),
            (
                &["FT.CHANGE", "bars", "*", "DO", "DELETE"],
                "bars: no such index",
            ),
            (
                &["FT.CHANGE", "hotels", "*", "DO"],
                "wrong number of arguments",
            ),
        ] {
            let reply = client.call_words(words);
            assert!(
                reply.starts_with('-') && reply.contains(why),
                "{words:?}: {reply}"
            );
        }
        client.check("FT.SEARCH hotels * LIMIT 0 0", "*1|:3");
        client.check("MULTI", "+OK");
        client.check(
            "FT.CHANGE hotels * DO DELETE",
            "-ERR FT.CHANGE isn't allowed in a transaction",
        );
        client.check("DISCARD", "+OK");
    }
}

#[test]
fn documents_are_changed_by_a_query() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        let create = [
            "FT.CREATE",
            "docs",
            "ON",
            "JSON",
            "PREFIX",
            "1",
            "doc",
            "SCHEMA",
            "$.n",
            "AS",
            "n",
            "NUMERIC",
        ];
        assert_eq!(client.call_words(&create), "+OK");
        for number in 0..5 {
            client.check(&format!("JSON.SET doc{number} $ {{\"n\":{number}}}"), "+OK");
        }
        assert_eq!(
            client.call_words(&[
                "FT.CHANGE",
                "docs",
                "@n>=2",
                "DO",
                "ADD",
                "$.n",
                "10",
                "RPUSH",
                "$.log",
                "1"
            ]),
            ":3"
        );
        client.check("JSON.GET doc4", "$18|{\"n\":14,\"log\":[1]}");
        client.check("JSON.GET doc1", "$7|{\"n\":1}");
    }
}

/// A condition that names a space holds if a search in that space would find the object.
#[test]
fn an_object_is_deleted_if_a_search_would_find_it() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        hotels(client, 3);
        client.check("HSET inn:1 n 1 city rome", ":2");
        client.check("JSON.SET hotel:doc $ {\"n\":1}", "+OK");
        for (key, query, reply) in [
            ("hotel:1", "@n:[7 9]", ":0"),
            ("hotel:1", "@n:[1 1]", ":1"),
            ("hotel:1", "@n:[1 1]", ":0"),
            // These objects do not belong to the space.
            ("inn:1", "@n:[1 1]", ":0"),
            ("hotel:doc", "*", ":0"),
        ] {
            let words = [
                "OBJ.CHANGE",
                key,
                "IF",
                query,
                "IN",
                "hotels",
                "DO",
                "DELETE",
            ];
            assert_eq!(client.call_words(&words), reply, "{key} {query}");
        }
        client.check("OBJ.CHANGE inn:1 DO DELETE", ":1");
        client.check("OBJ.CHANGE inn:1 DO DELETE", ":0");
        client.check("OBJ.CHANGE hotel:doc DO DELETE", ":1");
        client.check("EXISTS hotel:1 inn:1 hotel:doc hotel:2", ":1");
    }
}

/// A change of a group with an id is not applied again to objects that were already changed with this id.
#[test]
fn a_group_change_with_an_id_is_applied_once() {
    for server in servers() {
        let client = &mut Client::connect(&server);
        hotels(client, 600);
        for number in [0, 2, 4] {
            let line = format!("OBJ.CHANGE hotel:{number} ONCE raise may DO ADD n 1000");
            client.check(&line, ":1");
        }
        let raise = "FT.CHANGE hotels @city:{rome} ONCE raise may DO ADD n 1000";
        for _ in 0..2 {
            client.check(raise, ":300");
            client.check("FT.SEARCH hotels @n:[1000,1999] LIMIT 0 0", "*1|:300");
        }
        client.check(
            "FT.CHANGE hotels @city:{rome} ONCE raise june DO ADD n 1000",
            ":300",
        );
        client.check("FT.SEARCH hotels @n:[2000,2999] LIMIT 0 0", "*1|:300");
        client.check("HMGET hotel:4 n raise", "*2|$4|2004|$4|june");
        let reply = client.call("FT.CHANGE hotels @city:{rome} ONCE raise DO ADD n 1");
        assert!(reply.starts_with("-"), "{reply}");
    }
}
