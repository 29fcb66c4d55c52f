//! The HSET family, with the results that Redis's own tests expect, on one serving thread and on several.

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, request};

#[test]
fn setting_reading_and_removing_fields_matches_redis() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET h:1 a 1 b 2", ":2"),
                ("HSET h:1 b 3 c 4 c 5", ":1"),
                ("HGET h:1 c", "$1|5"),
                ("HGET h:1 none", "$-1"),
                ("HGET h:none a", "$-1"),
                ("HMGET h:1 b none a", "*3|$1|3|$-1|$1|1"),
                ("HMGET h:none b a", "*2|$-1|$-1"),
                ("HGETALL h:1", "*6|$1|a|$1|1|$1|b|$1|3|$1|c|$1|5"),
                ("HKEYS h:1", "*3|$1|a|$1|b|$1|c"),
                ("HVALS h:1", "*3|$1|1|$1|3|$1|5"),
                ("HGETALL h:none", "*0"),
                ("HKEYS h:none", "*0"),
                ("HLEN h:1", ":3"),
                ("HLEN h:none", ":0"),
                ("HEXISTS h:1 a", ":1"),
                ("HEXISTS h:1 none", ":0"),
                ("HSTRLEN h:1 a", ":1"),
                ("HSTRLEN h:1 none", ":0"),
                ("HSETNX h:1 a 9", ":0"),
                ("HSETNX h:1 d 9", ":1"),
                ("HINCRBY h:1 d -10", ":-1"),
                ("HINCRBY h:1 new 7", ":7"),
                ("HINCRBYFLOAT h:1 d 0.25", "$5|-0.75"),
                ("HINCRBYFLOAT h:2 f 5e3", "$4|5000"),
                ("HMSET h:2 g 1", "+OK"),
                ("HDEL h:1 a b none a", ":2"),
                ("HDEL h:none a", ":0"),
                ("HKEYS h:1", "*3|$1|c|$1|d|$3|new"),
                ("HDEL h:1 c d new", ":3"),
                ("EXISTS h:1", ":0"),
                ("TYPE h:1", "+none"),
                (
                    "HSET h:1 a",
                    "-ERR wrong number of arguments for 'hset' command",
                ),
                (
                    "HSET h:1 a 1 b",
                    "-ERR wrong number of arguments for 'hset' command",
                ),
                (
                    "HMSET h:1 a 1 b",
                    "-ERR wrong number of arguments for 'hmset' command",
                ),
                ("HSET h:1 a x m 9223372036854775807", ":2"),
                ("HINCRBY h:1 a 1", "-ERR hash value is not an integer"),
                (
                    "HINCRBY h:1 m 1",
                    "-ERR increment or decrement would overflow",
                ),
                (
                    "HINCRBY h:1 m x",
                    "-ERR value is not an integer or out of range",
                ),
                ("HINCRBYFLOAT h:1 a 1", "-ERR hash value is not a float"),
                ("HINCRBYFLOAT h:1 m x", "-ERR value is not a valid float"),
                (
                    "HINCRBYFLOAT h:1 m +inf",
                    "-ERR increment would produce NaN or Infinity",
                ),
                ("HGETALL h:1", "*4|$1|a|$1|x|$1|m|$19|9223372036854775807"),
            ],
        );
        client.send(b"HELLO 3\r\n");
        client.reply();
        client.check("HGETALL h:1", "%2|$1|a|$1|x|$1|m|$19|9223372036854775807");
        client.check("HGETALL h:none", "%0");
    }
}

#[test]
fn hashes_support_hscan_and_hrandfield() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let fields: Vec<String> = (0..300).map(|at| format!("f{at}")).collect();
        let mut words = vec!["HSET", "h|1"];
        fields.iter().for_each(|field| words.extend([field, "v"]));
        client.send(&request(&words));
        assert_eq!(client.reply(), ":300");
        client.check("HSCAN h|1 0 MATCH f29? NOVALUES COUNT 300", &{
            let found: String = (290..300).map(|at| format!("|$4|f{at}")).collect();
            format!("*2|$1|0|*10{found}")
        });
        client.check("HSCAN h|1 0 MATCH f7 COUNT 300", "*2|$1|0|*2|$2|f7|$1|v");
        client.check("HSCAN h|none 0", "*2|$1|0|*0");
        client.check("HSCAN h|1 x", "-ERR invalid cursor");
        client.check("HSCAN h|1 0 COUNT 0", "-ERR syntax error");
        client.check("HSCAN h|1 0 COUNT", "-ERR syntax error");
        let all = client.call("HRANDFIELD h|1 1000");
        assert!(all.starts_with("*300|"), "{all}");
        for field in &fields {
            assert!(
                all.contains(&format!("|{field}|")) || all.ends_with(&format!("|{field}")),
                "{field}"
            );
        }
        assert!(client.call("HRANDFIELD h|1 -400").starts_with("*400|"));
        assert!(
            client
                .call("HRANDFIELD h|1 3 WITHVALUES")
                .starts_with("*6|$")
        );
        assert!(client.call("HRANDFIELD h|1").starts_with("$"));
        check_all(
            &mut client,
            &[
                ("HRANDFIELD h|none", "$-1"),
                ("HRANDFIELD h|none -5", "*0"),
                ("HRANDFIELD h|1 0", "*0"),
                (
                    "HRANDFIELD h|1 x",
                    "-ERR value is not an integer or out of range",
                ),
                (
                    "HRANDFIELD h|1 -9223372036854775808",
                    "-ERR value is out of range: HRANDFIELD returns at most 100000 fields",
                ),
                ("HRANDFIELD h|1 1 VALUES", "-ERR syntax error"),
            ],
        );
        // Looks up many fields in one command.
        let mut words = vec!["HMGET", "h|1", "none"];
        fields.iter().for_each(|field| words.push(field));
        client.send(&request(&words));
        assert_eq!(client.reply(), format!("*301|$-1{}", "|$1|v".repeat(300)));
        let mut words = vec!["HDEL", "h|1"];
        fields.iter().for_each(|field| words.push(field));
        client.send(&request(&words));
        assert_eq!(client.reply(), ":300");
        client.check("EXISTS h|1", ":0");
        client.send(b"HELLO 3\r\n");
        client.reply();
        client.check("HSET h|1 a 1", ":1");
        client.check("HRANDFIELD h|1 2 WITHVALUES", "*1|*2|$1|a|$1|1");
    }
}

/// A scan returns every field that exists throughout exactly once, regardless of concurrent insertions and removals,
/// and no part exceeds its COUNT.
#[test]
fn a_large_hash_is_scanned_in_parts_during_changes() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        let mut words = vec!["HSET".to_owned(), "h|1".to_owned()];
        (0..1000).for_each(|at| words.extend([format!("stays{at}"), at.to_string()]));
        (0..500).for_each(|at| words.extend([format!("goes{at}"), "x".to_owned()]));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        client.send(&request(&words));
        assert_eq!(client.reply(), ":1500");
        let (mut cursor, mut seen, mut calls) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let part = client.call(&format!("HSCAN h|1 {cursor} NOVALUES COUNT 300"));
            let parts: Vec<&str> = part.split('|').collect();
            let count: usize = parts[3][1..].parse().expect("an array");
            assert!(count <= 300, "{count} fields in one reply");
            let names = parts[4..].iter().filter(|part| part.starts_with("stays"));
            seen.extend(names.map(|name| (*name).to_owned()));
            cursor = parts[2].to_owned();
            calls += 1;
            if cursor == "0" {
                break;
            }
            assert!(cursor.parse::<u64>().expect("a cursor") < 1 << 53);
            other.check(&format!("HDEL h|1 goes{calls} goes{}", calls + 100), ":2");
            other.check(&format!("HSET h|1 comes{calls} 1 stays7 x"), ":1");
        }
        assert!(calls >= 4, "{calls} calls");
        seen.sort_unstable();
        seen.dedup_by(|one, other| {
            assert_ne!(one, other, "seen twice");
            false
        });
        assert_eq!(seen.len(), 1000);
        // The same without COUNT. A scan of a hash that has shrunk returns the rest.
        let part = client.call("HSCAN h|1 0");
        assert!(
            part.contains("|*512|") && !part.starts_with("*2|$1|0|"),
            "{part}"
        );
        let cursor = part.split('|').nth(2).expect("a cursor");
        client.check("DEL h|1", ":1");
        client.check(&format!("HSCAN h|1 {cursor}"), "*2|$1|0|*0");
    }
}

/// A change that fails in a transaction leaves the hash unchanged, and the others are applied.
#[test]
fn replies_are_limited_and_a_rejected_change_leaves_the_hash_unchanged() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("HSET h|1 n 1 t x", ":2"),
                ("MULTI", "+OK"),
                ("HINCRBY h|1 n 5", "+QUEUED"),
                ("HINCRBY h|1 t 1", "+QUEUED"),
                ("HSET h|1 u y", "+QUEUED"),
                ("EXEC", "*3|:6|-ERR hash value is not an integer|:1"),
                ("HGETALL h|1", "*6|$1|n|$1|6|$1|t|$1|x|$1|u|$1|y"),
            ],
        );
    }
}
