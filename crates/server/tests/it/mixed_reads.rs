//! Requests that mix keys of stores, keys of tables and unknown keys. The reply for each key must be the same as in a
//! request of its own.

use crate::resp::{Client, TIMELINE, request, server_with};
use crate::support::TestServer;

/// Starts servers with one and with three serving threads. Each has the store `s` and rows of two tables.
fn servers() -> [TestServer; 2] {
    [1, 3].map(|threads| {
        let server = server_with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        for line in [
            "SET t|a one",
            "SET t|b two",
            "SET user:7 ann",
            "SET sub|ann|bob 1",
        ] {
            client.check(line, "+OK");
        }
        client.check("SET post|bob|0000000001 hello", "+OK");
        server
    })
}

#[track_caller]
fn check_all(client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        client.check(line, expected);
    }
}

#[test]
fn an_absent_key_is_nil_among_keys_of_any_kind() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("MGET s:k1 nosuch:1", "*2|$1|v|$-1"),
                ("MGET nosuch:1 s:k1", "*2|$-1|$1|v"),
                ("MGET nosuch:1 nosuch:2", "*2|$-1|$-1"),
                ("MGET nosuch:1 t|a", "*2|$-1|$3|one"),
                (
                    "MGET t|a s:k1 user:7 s:none t|none t|b s:k1 t|a",
                    "*8|$3|one|$1|v|$3|ann|$-1|$-1|$3|two|$1|v|$3|one",
                ),
                ("EXISTS s:k1 nosuch:1", ":1"),
                ("EXISTS t|a s:k1 s:k1 s:none user:7 nosuch:1 t|none", ":4"),
                ("EXISTS nosuch:1 s:none", ":0"),
                ("TOUCH t|a s:k1 nosuch:1", ":2"),
            ],
        );
    }
}

#[test]
fn outputs_of_joins_are_read_together_with_a_store() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let read = "MGET s:k1 tline|ann|0000000001|bob tline|ann|0000000002|bob";
        client.check(read, "*3|$1|v|$5|hello|$-1");
    }
}

#[test]
fn a_mixed_read_reflects_earlier_writes_and_replies_in_order() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let mut sent = Vec::new();
        for at in 0..20 {
            sent.extend(request(&["SET", &format!("t|k{at}"), "x"]));
            sent.extend(request(&["MGET", &format!("t|k{at}"), "s:k1", "nosuch:1"]));
            sent.extend(request(&["EXISTS", "s:k1", &format!("t|k{at}")]));
            sent.extend(request(&["GET", "s:k2"]));
        }
        client.send(&sent);
        for _ in 0..20 {
            assert_eq!(client.reply(), "+OK");
            assert_eq!(client.reply(), "*3|$1|x|$1|v|$-1");
            assert_eq!(client.reply(), ":2");
            assert_eq!(client.reply(), "$1|v");
        }
    }
}

#[test]
fn absent_values_are_resp3_nulls_in_resp3() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.call("HELLO 3");
        client.check("MGET t|none s:none s:k1 t|a", "*4|_|_|$1|v|$3|one");
    }
}

#[test]
fn a_transaction_reads_stores_and_tables_together() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.check("MULTI", "+OK");
        let queued = [
            "SET t|a new",
            "MGET s:k1 nosuch:1 t|a",
            "EXISTS s:k1 t|a t|none",
            "MGET s:k1 s:none",
            "TTL s:k1",
            "GET t|b",
        ];
        for line in queued {
            client.check(line, "+QUEUED");
        }
        client.check(
            "EXEC",
            "*6|+OK|*3|$1|v|$-1|$3|new|:2|*2|$1|v|$-1|:-1|$3|two",
        );
    }
}

#[test]
fn a_stores_key_never_expires() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("TTL s:k1", ":-1"),
                ("PTTL s:k1", ":-1"),
                ("EXPIRETIME s:k1", ":-1"),
                ("PEXPIRETIME s:none", ":-2"),
                ("TTL s:none", ":-2"),
                ("PTTL nosuch:1", ":-2"),
                ("TTL t|a", ":-1"),
                ("TTL t|none", ":-2"),
            ],
        );
    }
}

#[test]
fn an_unreadable_store_returns_an_error_and_not_an_absent_key() {
    for mut server in servers() {
        server.restart(|data| {
            let manifest = data.join("stores/s/v0000000001/manifest.json");
            std::fs::write(manifest, "{}").unwrap();
        });
        let mut client = Client::connect(&server);
        for line in ["MGET t|a s:k1", "EXISTS s:k1 t|a", "MGET s:k1 nosuch:1"] {
            let reply = client.call(line);
            assert!(reply.starts_with("-CORRUPTED "), "{line}: {reply}");
        }
        client.check("MGET t|a nosuch:1", "*2|$3|one|$-1");
    }
}
