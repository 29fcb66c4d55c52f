//! Hash fields with expiry times.

use larder_protocol::config::Fsync;

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, request};
use crate::support::TestServer;

#[test]
fn expiry_of_fields_matches_redis() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET h|1 a 1 b 2 c 3", ":3"),
                ("HEXPIRE h|1 100 FIELDS 2 a none", "*2|:1|:-2"),
                ("HTTL h|1 FIELDS 3 a b none", "*3|:100|:-1|:-2"),
                ("HEXPIRE h|1 200 NX FIELDS 2 a b", "*2|:0|:1"),
                ("HEXPIRE h|1 300 XX FIELDS 2 a c", "*2|:1|:0"),
                ("HEXPIRE h|1 400 LT FIELDS 1 a", "*1|:0"),
                ("HEXPIRE h|1 50 GT FIELDS 1 a", "*1|:0"),
                ("HEXPIREAT h|1 33177117420 FIELDS 1 a", "*1|:1"),
                ("HEXPIRETIME h|1 FIELDS 1 a", "*1|:33177117420"),
                ("HPEXPIREAT h|1 33177117420500 FIELDS 1 a", "*1|:1"),
                ("HPEXPIRETIME h|1 FIELDS 1 a", "*1|:33177117420500"),
                ("HINCRBY h|1 a 1", ":2"),
                ("HPEXPIRETIME h|1 FIELDS 1 a", "*1|:33177117420500"),
                ("HSET h|1 a 1", ":0"),
                ("HTTL h|1 FIELDS 1 a", "*1|:-1"),
                ("HPERSIST h|1 FIELDS 3 a b none", "*3|:-1|:1|:-2"),
                ("HPEXPIRE h|1 100000 FIELDS 1 c", "*1|:1"),
                ("HGETEX h|1 FIELDS 2 c none", "*2|$1|3|$-1"),
                ("HGETEX h|1 EX 100 FIELDS 1 b", "*1|$1|2"),
                ("HTTL h|1 FIELDS 1 b", "*1|:100"),
                ("HGETEX h|1 PERSIST FIELDS 1 b", "*1|$1|2"),
                ("HTTL h|1 FIELDS 1 b", "*1|:-1"),
                ("HGETDEL h|1 FIELDS 3 b none b", "*3|$1|2|$-1|$-1"),
                ("HKEYS h|1", "*2|$1|a|$1|c"),
                ("HEXPIRE h|1 0 FIELDS 1 a", "*1|:2"),
                ("HPEXPIREAT h|1 1 FIELDS 1 c", "*1|:2"),
                ("EXISTS h|1", ":0"),
                ("HEXPIRE h|1 10 FIELDS 2 a b", "*2|:-2|:-2"),
                ("HTTL h|1 FIELDS 2 a b", "*2|:-2|:-2"),
                ("HPERSIST h|1 FIELDS 1 a", "*1|:-2"),
                ("HGETDEL h|1 FIELDS 1 a", "*1|$-1"),
                ("EXISTS h|1", ":0"),
                (
                    "HEXPIRE h|1 10 FIELD 1 a",
                    "-ERR Mandatory argument FIELDS is missing or not at the right position",
                ),
                (
                    "HEXPIRE h|1 10 FIELDS 2 a",
                    "-ERR The `numfields` parameter must match the number of arguments",
                ),
                (
                    "HEXPIRE h|1 10 FIELDS 0 a",
                    "-ERR Parameter `numFields` should be greater than 0",
                ),
                (
                    "HEXPIRE h|1 x FIELDS 1 a",
                    "-ERR value is not an integer or out of range",
                ),
                (
                    "HEXPIRE h|1 -1 FIELDS 1 a",
                    "-ERR invalid expire time, must be >= 0",
                ),
                (
                    "HEXPIRE h|1 9223372036854775807 FIELDS 1 a",
                    "-ERR invalid expire time in 'hexpire' command",
                ),
                (
                    "HGETEX h|1 EX 0 FIELDS 1 a",
                    "-ERR invalid expire time in 'hgetex' command",
                ),
                ("HGETEX h|1 EVER FIELDS 1 a", "-ERR syntax error"),
            ],
        );
    }
}

/// No command sees an expired field, and a hash disappears with its last field.
#[test]
fn expired_fields_are_invisible() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.check("HSET h|1 a 1 b 2", ":2");
        client.check("EXPIRE h|1 100", ":1");
        client.check("HPEXPIRE h|1 1 FIELDS 1 a", "*1|:1");
        while client.call("HEXISTS h|1 a") != ":0" {}
        check_all(
            &mut client,
            &[
                ("HGETALL h|1", "*2|$1|b|$1|2"),
                ("HLEN h|1", ":1"),
                ("HMGET h|1 a b", "*2|$-1|$1|2"),
                ("HSCAN h|1 0", "*2|$1|0|*2|$1|b|$1|2"),
                ("HRANDFIELD h|1 5", "*1|$1|b"),
                ("HSETNX h|1 a 3", ":1"),
                ("HTTL h|1 FIELDS 1 a", "*1|:-1"),
                ("TTL h|1", ":100"),
                ("HPEXPIRE h|1 1 FIELDS 2 a b", "*2|:1|:1"),
            ],
        );
        while client.call("EXISTS h|1") != ":0" {}
        check_all(
            &mut client,
            &[
                ("TYPE h|1", "+none"),
                ("KEYS h|*", "*0"),
                ("SETNX h|1 text", ":1"),
                ("DEL h|1", ":1"),
            ],
        );
        // These are more fields than one turn expires, and no command accesses them.
        let mut words = vec!["HPEXPIRE".to_owned(), String::new(), "1".to_owned()];
        words.extend(["FIELDS", "1", "f"].map(str::to_owned));
        for number in 0..200 {
            words[1] = format!("late|{number}");
            client.check(&format!("HSET late|{number} f v"), ":1");
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            client.send(&request(&words));
            client.reply();
        }
        while client.call("RANGECOUNT none| none}") == ":0" && client.call("KEYS late|*") != "*0" {}
    }
}

#[test]
fn expiry_times_of_fields_survive_a_restart() {
    for threads in [1, 2] {
        let mut server = TestServer::with(|config| {
            config.server.threads = threads;
            config.tables.fsync = Fsync::No;
        });
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET h|1 a 1 b 2", ":2"),
                ("HPEXPIREAT h|1 33177117420500 FIELDS 1 a", "*1|:1"),
                ("HSET h|2 a 1", ":1"),
                ("HPEXPIRE h|2 1 FIELDS 1 a", "*1|:1"),
            ],
        );
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HPEXPIRETIME h|1 FIELDS 2 a b", "*2|:33177117420500|:-1"),
                ("HGETALL h|1", "*4|$1|a|$1|1|$1|b|$1|2"),
                ("HPEXPIREAT h|1 1 FIELDS 1 a", "*1|:2"),
            ],
        );
        while client.call("EXISTS h|2") != ":0" {}
        client.check("DBSIZE", ":1");
    }
}

/// These are more fields than are looked up one by one.
#[test]
fn hsetex_keeps_or_sets_the_expiry_times_of_many_fields() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let all: Vec<String> = (0..20).map(|n| format!("f{n} v{n}")).collect();
        let fields = format!("FIELDS 20 {}", all.join(" "));
        client.check(&format!("HSETEX h|1 FXX {fields}"), ":0");
        client.check(&format!("HSETEX h|1 FNX {fields}"), ":1");
        client.check(&format!("HSETEX h|1 FNX {fields}"), ":0");
        client.check("HPEXPIREAT h|1 33177117420500 FIELDS 1 f7", "*1|:1");
        client.check(&format!("HSETEX h|1 FXX KEEPTTL {fields}"), ":1");
        let times = "HPEXPIRETIME h|1 FIELDS 2 f7 f8";
        client.check(times, "*2|:33177117420500|:-1");
        client.check(&format!("HSETEX h|1 PXAT 33177117420600 {fields}"), ":1");
        client.check(times, "*2|:33177117420600|:33177117420600");
        client.check(&format!("HSETEX h|1 {fields}"), ":1");
        client.check(times, "*2|:-1|:-1");
        client.check("HGET h|1 f19", "$3|v19");
    }
}
