//! The `JSON.*` commands as client libraries use them, in both protocol versions, on one serving thread and on
//! several.

use larder_protocol::config::Fsync;

use super::check_sized;
use crate::redis_compatibility::servers;
use crate::resp::{Client, request};
use crate::support::TestServer;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_KEY: &str = "-ERR could not perform this operation on a key that doesn't exist";

fn version_3(client: &mut Client) {
    client.send(b"HELLO 3\r\n");
    client.reply();
}

#[test]
fn documents_are_set_read_and_removed() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_sized(
            &mut client,
            &[
                (
                    r#"JSON.SET d:1 $ {"a":1,"b":{"a":[1,2.5,"x"]},"big":9223372036854775807}"#,
                    "+OK",
                ),
                (
                    "JSON.GET d:1",
                    r#"$?|{"a":1,"b":{"a":[1,2.5,"x"]},"big":9223372036854775807}"#,
                ),
                (
                    "JSON.GET d:1 $",
                    r#"$?|[{"a":1,"b":{"a":[1,2.5,"x"]},"big":9223372036854775807}]"#,
                ),
                ("JSON.GET d:1 $..a", r#"$?|[1,[1,2.5,"x"]]"#),
                ("JSON.GET d:1 .b.a[1]", "$3|2.5"),
                ("JSON.GET d:1 $.none", "$?|[]"),
                ("JSON.GET d:1 .none", "-ERR Path '.none' does not exist"),
                (
                    "JSON.GET d:1 $.a $.b.a[0]",
                    r#"$?|{"$.a":[1],"$.b.a[0]":[1]}"#,
                ),
                ("JSON.GET d:1 .a .b.a[0]", r#"$?|{".a":1,".b.a[0]":1}"#),
                ("JSON.GET d:none $", "$-1"),
                ("TYPE d:1", "+ReJSON-RL"),
                ("SCAN 0 MATCH d:* TYPE ReJSON-RL", "*2|$1|0|*1|$3|d:1"),
                ("JSON.SET d:1 $.new true NX", "+OK"),
                ("JSON.SET d:1 $.new 2 NX", "$-1"),
                ("JSON.SET d:1 $.none 2 XX", "$-1"),
                ("JSON.SET d:1 $.new 2 XX", "+OK"),
                (
                    "JSON.SET d:none $.a 1",
                    "-ERR new objects must be created at the root: give $ as the path",
                ),
                (
                    "JSON.SET d:1 $ {",
                    "-ERR this is not valid JSON: EOF while parsing an object at line 1 column 1 (column 1)",
                ),
                ("JSON.MERGE d:1 $.b {\"a\":null,\"c\":1}", "+OK"),
                ("JSON.GET d:1 $.b", r#"$?|[{"c":1}]"#),
                ("JSON.DEL d:1 $.b.c", ":1"),
                ("JSON.FORGET d:1 $.none", ":0"),
                (
                    "JSON.GET d:1 .",
                    r#"$?|{"a":1,"b":{},"big":9223372036854775807,"new":2}"#,
                ),
                ("GET d:1", WRONG),
                ("HGET d:1 a", WRONG),
                ("HSET d:1 a 1", WRONG),
                ("HSET h:1 f v", ":1"),
                ("SET s|1 text", "+OK"),
                ("JSON.GET h:1", WRONG),
                ("JSON.SET h:1 $ 1", WRONG),
                ("JSON.SET s|1 $ 1", WRONG),
                ("JSON.DEL h:1", WRONG),
                ("EXPIRE d:1 100", ":1"),
                ("JSON.SET d:1 $ 1", "+OK"),
                ("TTL d:1", ":100"),
                ("JSON.DEL d:1", ":1"),
                ("JSON.DEL d:1", ":0"),
                ("EXISTS d:1", ":0"),
            ],
        );
    }
}

#[test]
fn values_at_paths_of_documents_are_changed() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_sized(
            &mut client,
            &[
                (
                    r#"JSON.SET d:1 $ {"n":1,"s":"ab","l":[1,2,3],"o":{"n":2.5,"s":1},"t":true}"#,
                    "+OK",
                ),
                ("JSON.TYPE d:1 $.n", "*1|$7|integer"),
                ("JSON.TYPE d:1 $..n", "*2|$7|integer|$6|number"),
                ("JSON.TYPE d:1 .s", "$6|string"),
                ("JSON.TYPE d:1", "$6|object"),
                ("JSON.TYPE d:none", "$-1"),
                ("JSON.NUMINCRBY d:1 $..n 2", "$?|[3,4.5]"),
                ("JSON.NUMINCRBY d:1 $..s 2", "$?|[null,3]"),
                ("JSON.NUMINCRBY d:1 .n 2", "$1|5"),
                ("JSON.NUMMULTBY d:1 $.n 2", "$?|[10]"),
                (
                    "JSON.NUMINCRBY d:1 .s 2",
                    "-ERR Path '.s' does not exist or is not a number: string is there",
                ),
                ("JSON.NUMINCRBY d:none $ 2", NO_KEY),
                ("JSON.STRAPPEND d:1 $..s \"cd\"", "*2|:4|$-1"),
                ("JSON.STRAPPEND d:1 .s \"e\"", ":5"),
                (
                    "JSON.STRAPPEND d:1 .s 5",
                    "-ERR the value is not a JSON string: enclose it in quotes",
                ),
                ("JSON.STRLEN d:1 $..s", "*2|:5|$-1"),
                ("JSON.STRLEN d:1 .s", ":5"),
                ("JSON.TOGGLE d:1 $.t", "*1|:0"),
                ("JSON.TOGGLE d:1 .t", "$4|true"),
                ("JSON.ARRAPPEND d:1 $.l 4 5", "*1|:5"),
                ("JSON.ARRAPPEND d:1 .l 6", ":6"),
                ("JSON.ARRINSERT d:1 $.l 0 0", "*1|:7"),
                ("JSON.ARRLEN d:1 .l", ":7"),
                ("JSON.ARRINDEX d:1 $.l 3", "*1|:3"),
                ("JSON.ARRINDEX d:1 .l 9", ":-1"),
                ("JSON.ARRPOP d:1 $.l", "*1|$1|6"),
                ("JSON.ARRPOP d:1 .l 0", "$1|0"),
                ("JSON.ARRTRIM d:1 $.l 1 2", "*1|:2"),
                ("JSON.GET d:1 $.l", "$?|[[2,3]]"),
                ("JSON.OBJKEYS d:1 $.o", "*1|*2|$1|n|$1|s"),
                ("JSON.OBJKEYS d:1", "*5|$1|n|$1|s|$1|l|$1|o|$1|t"),
                ("JSON.OBJLEN d:1 $.o", "*1|:2"),
                ("JSON.OBJLEN d:1", ":5"),
                ("JSON.CLEAR d:1 $.l", ":1"),
                ("JSON.GET d:1 $.l", "$?|[[]]"),
                ("JSON.ARRLEN d:none", "$-1"),
                ("JSON.CLEAR d:none", NO_KEY),
            ],
        );
        version_3(&mut client);
        check_sized(
            &mut client,
            &[
                ("JSON.TYPE d:1 $.n", "*1|*1|$7|integer"),
                ("JSON.TYPE d:1 .n", "*1|$7|integer"),
                ("JSON.NUMINCRBY d:1 $..n 1", "*2|:11|,5.5"),
                ("JSON.NUMINCRBY d:1 .n 1", "*1|:12"),
                ("JSON.NUMINCRBY d:1 $..s 1", "*2|_|:4"),
                ("JSON.GET d:none $", "_"),
            ],
        );
    }
}

/// Several documents are set atomically, even if they are on several cores.
#[test]
fn several_documents_are_set_and_read_in_one_command() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let keys: Vec<String> = (0..12).map(|at| format!("d:{at}")).collect();
        let mut words = vec!["JSON.MSET"];
        keys.iter()
            .for_each(|key| words.extend([key, "$", "{\"a\":1}"]));
        client.send(&request(&words));
        assert_eq!(client.reply(), "+OK");
        let mut words = vec!["JSON.MGET"];
        keys.iter().for_each(|key| words.push(key));
        words.extend(["d:none", "$.a"]);
        client.send(&request(&words));
        assert_eq!(client.reply(), format!("*13{}|$-1", "|$3|[1]".repeat(12)));
        check_sized(
            &mut client,
            &[
                ("EXPIRE d:3 100", ":1"),
                ("HSET h:1 f v", ":1"),
                ("JSON.MGET d:0 h:1 d:1 .a", "*3|$1|1|$-1|$1|1"),
                ("JSON.MSET d:0 $.a 2 d:3 $.b 3 d:0 $.c 4", "+OK"),
                ("JSON.GET d:0", r#"$?|{"a":2,"c":4}"#),
                ("JSON.GET d:3", r#"$?|{"a":1,"b":3}"#),
                ("TTL d:3", ":100"),
                ("JSON.MSET d:0 $.a 5 d:1 $.a 5 d:2 $.a 5 h:1 $ 5", WRONG),
                (
                    "JSON.MSET d:0 $.a 5 d:1 $.a 5 d:2 $.a 5 d:none $.a 5",
                    "-ERR new objects must be created at the root: give $ as the path",
                ),
                (
                    "JSON.MSET d:0 $.a 5 d:1 $.a",
                    "-ERR wrong number of arguments for 'json.mset' command",
                ),
                ("JSON.MGET d:0 d:1 d:2 .a", "*3|$1|2|$1|1|$1|1"),
                ("MULTI", "+OK"),
                ("JSON.SET d:0 $.a 6", "+QUEUED"),
                ("JSON.NUMINCRBY d:0 $.a 1", "+QUEUED"),
                ("EXEC", "*2|+OK|$3|[7]"),
            ],
        );
    }
}

/// Requests that would take a core long, or much memory, are rejected before they are executed.
#[test]
fn excessively_deep_paths_and_values_are_rejected() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
        client.send(&request(&["JSON.SET", "d:1", "$", &deep]));
        assert_eq!(client.reply(), "+OK");
        let reply = client.call("JSON.GET d:1 $..*..*..*..*..*");
        assert!(
            reply.contains("selects or visits too many values"),
            "{reply}"
        );
        let path = format!("$[0{}]", ",0".repeat(8)) + &format!("[0{}]", ",0".repeat(8)).repeat(20);
        for command in [
            "JSON.GET",
            "JSON.DEL",
            "JSON.TYPE",
            "JSON.CLEAR",
            "JSON.ARRLEN",
        ] {
            let reply = client.call(&format!("{command} d:1 {path}"));
            assert!(
                reply.contains("selects or visits too many values"),
                "{command}: {reply}"
            );
        }
        let wide = format!("[{}]", ["[]"; 5000].join(","));
        client.send(&request(&["JSON.SET", "d:2", "$", &wide]));
        assert_eq!(client.reply(), "+OK");
        let value = format!("\"{}\"", "x".repeat(10_000));
        for words in [
            &["JSON.ARRAPPEND", "d:2", "$[*]", &value][..],
            &["JSON.SET", "d:2", "$[*]", &value],
            &["JSON.ARRINSERT", "d:2", "$[*]", "0", &value],
        ] {
            client.send(&request(words));
            let reply = client.reply();
            assert!(reply.contains("the maximum size of an object"), "{reply}");
        }
        let huge = format!("\"{}\"", "x".repeat(5 << 20));
        client.send(&request(&["JSON.SET", "d:3", "$", &huge]));
        assert!(client.reply().contains("the maximum size of an object"));
        client.send(&request(&["HSET", "h:1", "f", &huge]));
        assert!(client.reply().contains("nothing was changed"));
        client.check("EXISTS d:3 h:1", ":0");
        client.check("JSON.ARRLEN d:2 $", "*1|:5000");
    }
}

#[test]
fn documents_survive_a_restart() {
    let mut server = TestServer::with(|config| config.tables.fsync = Fsync::No);
    let mut client = Client::connect(&server);
    client.check(
        r#"JSON.SET d:1 $ {"b":1,"a":[0.1,18446744073709551615]}"#,
        "+OK",
    );
    check_sized(&mut client, &[("JSON.NUMINCRBY d:1 $.b 1", "$?|[2]")]);
    let before = client.call("JSON.GET d:1");
    server.restart(|_| {});
    let mut client = Client::connect(&server);
    assert_eq!(client.call("JSON.GET d:1"), before);
}
