//! OBJ.CHANGE: the conditional and atomic operations of HyperDex, with the cases of its own tests.

use super::check_sized;
use crate::redis_compatibility::servers;
use crate::resp::{Client, request};

#[test]
fn an_object_is_put_if_its_precondition_is_met() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_sized(
            &mut client,
            &[
                ("OBJ.CHANGE p:1 IF ABSENT DO PUT name Ann PUT age 30", ":1"),
                ("OBJ.CHANGE p:1 IF ABSENT DO PUT name Bob", ":0"),
                ("OBJ.CHANGE p:2 IF PRESENT DO PUT name Bob", ":0"),
                ("OBJ.CHANGE p:1 IF PRESENT DO PUT city Rome", ":1"),
                (
                    "HGETALL p:1",
                    "*6|$4|name|$3|Ann|$3|age|$2|30|$4|city|$4|Rome",
                ),
                (
                    "OBJ.CHANGE p:2 DO ADD n 1",
                    "-ERR no such object: put it first",
                ),
                ("EXISTS p:2", ":0"),
            ],
        );
        let mut put = |query: &str, value: &str| {
            let words = [
                "OBJ.CHANGE",
                "p:1",
                "IF",
                query,
                "SCHEMA",
                "age",
                "NUMERIC",
                "city",
                "TAG",
                "DO",
                "PUT",
                "age",
                value,
            ];
            client.send(&request(&words));
            client.reply()
        };
        assert_eq!(put("@age:[31 +inf]", "1"), ":0");
        assert_eq!(put("@age:[30 30] @city:{rome}", "31"), ":1");
        assert_eq!(put("@age:[30 30] @city:{rome}", "32"), ":0");
        assert_eq!(put("-@city:{paris}", "33"), ":1");
        assert!(put("@age:[31", "1").starts_with("-ERR the query of IF is invalid: "));
        assert!(put("@none:{x}", "1").starts_with("-ERR the query of IF is invalid: "));
        client.check("HGET p:1 age", "$2|33");
        client.check(r#"JSON.SET d:1 $ {"age":30}"#, "+OK");
        let words = [
            "OBJ.CHANGE",
            "d:1",
            "IF",
            "@age:[30 30]",
            "SCHEMA",
            "$.age",
            "AS",
            "age",
            "NUMERIC",
            "DO",
            "ADD",
            "$.age",
            "1",
        ];
        client.send(&request(&words));
        assert_eq!(client.reply(), ":1");
        client.send(&request(&words));
        assert_eq!(client.reply(), ":0");
        check_sized(&mut client, &[("JSON.GET d:1", r#"$?|{"age":31}"#)]);
    }
}

#[test]
fn numbers_texts_lists_sets_and_maps_are_changed_atomically() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_sized(
            &mut client,
            &[
                (
                    "HSET o:1 n 10 f 1.5 s mid l [1,2] t [1,2,3] m {\"a\":1}",
                    ":6",
                ),
                (
                    "OBJ.CHANGE o:1 DO ADD n 5 MUL n 4 SUB n 1 DIV n 2 MOD n 10",
                    ":1",
                ),
                ("HGET o:1 n", "$1|9"),
                (
                    "OBJ.CHANGE o:1 DO AND n 12 OR n 3 XOR n 1 MAX n 4 MIN n 99",
                    ":1",
                ),
                ("HGET o:1 n", "$2|10"),
                ("OBJ.CHANGE o:1 DO ADD f 0.25", ":1"),
                ("HGET o:1 f", "$4|1.75"),
                (
                    "OBJ.CHANGE o:1 DO APPEND s dle PREPEND s a- TRIMRIGHT s 1 TRIMLEFT s 2",
                    ":1",
                ),
                ("HGET o:1 s", "$5|middl"),
                ("OBJ.CHANGE o:1 DO LPUSH l 0 RPUSH l \"x\"", ":1"),
                ("HGET o:1 l", r#"$?|[0,1,2,"x"]"#),
                (
                    "OBJ.CHANGE o:1 DO SADD t 3 SADD t 4 SREM t 1 SUNION t [4,5] SINTER t [2,4,5,6]",
                    ":1",
                ),
                ("HGET o:1 t", "$?|[2,4,5]"),
                (
                    "OBJ.CHANGE o:1 DO MADD m b 2 MREM m a ADD m->$.b 5 ADD m->$.new.deep 1",
                    ":1",
                ),
                ("HGET o:1 m", r#"$?|{"b":7,"new":{"deep":1}}"#),
                ("OBJ.CHANGE o:1 DO RENAME s text UNSET l ADD fresh 3", ":1"),
                ("HKEYS o:1", "*6|$1|n|$1|f|$1|t|$1|m|$4|text|$5|fresh"),
                // If one of several changes fails, none is applied.
                (
                    "OBJ.CHANGE o:1 DO ADD n 1 PUT new x ADD text 1",
                    "-ERR field \"text\" is not a number: nothing was changed",
                ),
                (
                    "OBJ.CHANGE o:1 DO ADD n 1 DIV n 0",
                    "-ERR field \"n\" would be divided by zero: nothing was changed",
                ),
                (
                    "OBJ.CHANGE o:1 DO ADD n 9223372036854775807",
                    "-ERR field \"n\" would overflow 64 bits, or be infinite: nothing was changed",
                ),
                ("HMGET o:1 n new", "*2|$2|10|$-1"),
                (
                    "OBJ.CHANGE o:1 DO UNSET n UNSET f UNSET t UNSET m UNSET text UNSET fresh",
                    ":1",
                ),
                ("EXISTS o:1", ":0"),
                (r#"JSON.SET d:1 $ {"a":{"b":1}}"#, "+OK"),
                (
                    "OBJ.CHANGE d:1 DO ADD $.a.b 2 RPUSH $.list 1 PUT $.c {\"x\":1} RENAME $.a z",
                    ":1",
                ),
                ("JSON.GET d:1", r#"$?|{"list":[1],"c":{"x":1},"z":{"b":3}}"#),
                (
                    "OBJ.CHANGE d:1 DO ADD $..b 2",
                    "-ERR path $..b: it may select several values; nothing was changed",
                ),
                (
                    "OBJ.CHANGE d:1 AS HASH DO PUT f v",
                    "-WRONGTYPE Operation against a key holding the wrong kind of value",
                ),
                ("OBJ.CHANGE d:2 AS JSON DO PUT $ [1]", ":1"),
                ("TYPE d:2", "+ReJSON-RL"),
            ],
        );
        client.check("JSON.GET d:1 .z.b", "$1|3");
        for (line, response) in [
            ("OBJ.CHANGE o:1 DO ADD n", "-ERR ADD is missing an argument"),
            (
                "OBJ.CHANGE o:1 DO POP n 1",
                "-ERR 'POP' is not a change (argument 3)",
            ),
            ("OBJ.CHANGE o:1 ADD n 1", "-ERR write OBJ.CHANGE key "),
            (
                "OBJ.CHANGE o:1 IF x DO ADD n 1",
                "-ERR the SCHEMA of IF is invalid: ",
            ),
            (
                "OBJ.CHANGE o:1 IF x SCHEMA y TAG",
                "-ERR write OBJ.CHANGE key ",
            ),
            (
                "OBJ.CHANGE o:1 AS LIST DO ADD n 1",
                "-ERR AS must be followed by HASH or JSON",
            ),
            (
                "OBJ.CHANGE o:1 DO SUNION n 1",
                "-ERR a set must be a JSON array",
            ),
        ] {
            let reply = client.call(line);
            assert!(reply.starts_with(response), "{line}: {reply}");
        }
        let mut words = vec!["OBJ.CHANGE", "o:1", "DO"];
        (0..200).for_each(|_| words.extend(["ADD", "n", "1"]));
        client.send(&request(&words));
        assert_eq!(
            client.reply(),
            "-ERR a command can make at most 128 changes"
        );
    }
}

/// A client that does not know whether a request arrived can send it again.
#[test]
fn a_change_with_an_id_is_applied_once() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_sized(
            &mut client,
            &[
                ("HSET h:1 rooms 2", ":1"),
                (
                    "OBJ.CHANGE h:1 ONCE last w17 DO SUB rooms 1 ADD sold 1",
                    ":1",
                ),
                (
                    "OBJ.CHANGE h:1 ONCE last w17 DO SUB rooms 1 ADD sold 1",
                    ":1",
                ),
                ("HMGET h:1 rooms sold last", "*3|$1|1|$1|1|$3|w17"),
                // The condition no longer holds at the second attempt, whose reply is nevertheless that of the first
                // one.
                (
                    "OBJ.CHANGE h:1 ONCE last w18 IF @rooms:[1,+inf] SCHEMA rooms NUMERIC DO SUB rooms 1",
                    ":1",
                ),
                (
                    "OBJ.CHANGE h:1 ONCE last w18 IF @rooms:[1,+inf] SCHEMA rooms NUMERIC DO SUB rooms 1",
                    ":1",
                ),
                // The condition does not hold, and nothing is changed.
                (
                    "OBJ.CHANGE h:1 ONCE last w19 IF @rooms:[1,+inf] SCHEMA rooms NUMERIC DO SUB rooms 1",
                    ":0",
                ),
                ("HMGET h:1 rooms last", "*2|$1|0|$3|w18"),
                // Each sender has its own field for ids, or its own entry of a map.
                ("OBJ.CHANGE h:1 ONCE marks->$.ann 1 DO ADD sold 1", ":1"),
                ("OBJ.CHANGE h:1 ONCE marks->$.bob 1 DO ADD sold 1", ":1"),
                ("OBJ.CHANGE h:1 ONCE marks->$.ann 1 DO ADD sold 1", ":1"),
                ("HGET h:1 sold", "$1|3"),
                ("OBJ.CHANGE h:2 ONCE last a IF ABSENT DO PUT rooms 9", ":1"),
                ("OBJ.CHANGE h:2 ONCE last a IF ABSENT DO PUT rooms 9", ":1"),
                ("OBJ.CHANGE h:2 ONCE last b IF ABSENT DO PUT rooms 9", ":0"),
                ("JSON.SET d:1 $ {\"n\":1}", "+OK"),
                ("OBJ.CHANGE d:1 ONCE $.last w1 DO ADD $.n 1", ":1"),
                ("OBJ.CHANGE d:1 ONCE $.last w1 DO ADD $.n 1", ":1"),
                ("JSON.GET d:1", "$19|{\"n\":2,\"last\":\"w1\"}"),
                // A rejected change does not store its id.
                (
                    "OBJ.CHANGE h:1 ONCE last w20 DO ADD sold x",
                    "-ERR field \"sold\" is not a number: nothing was changed",
                ),
                ("HGET h:1 last", "$3|w18"),
                (
                    "OBJ.CHANGE h:3 ONCE last w1 DO ADD n 1",
                    "-ERR no such object: put it first",
                ),
                ("EXISTS h:3", ":0"),
                (
                    "OBJ.CHANGE h:1 ONCE last w20 DO DELETE",
                    "-ERR ONCE cannot be combined with DELETE: ONCE stores its id in the object, which DELETE removes",
                ),
            ],
        );
        let reply = client.call("OBJ.CHANGE h:1 ONCE last DO ADD n 1");
        assert!(reply.starts_with("-ERR write OBJ.CHANGE key"), "{reply}");
    }
}
