//! Requests for several rows on several cores read all rows at one moment, and an error in one row does not affect
//! the others.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::resp::{Client, request};
use crate::support::TestServer;

fn server(threads: u32) -> TestServer {
    TestServer::with(|config| config.server.threads = threads)
}

/// Both rows of a pair are on one core, so that a single-core transaction writes them.
#[test]
fn mget_sees_transactions_of_one_core_atomically() {
    const PAIRS: usize = 6;
    let server = server(2);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (server, ended) = (&server, &ended);
            scope.spawn(move || {
                let mut client = Client::connect(server);
                for n in 0.. {
                    let pair = (n * 2 + writer) % PAIRS;
                    client.check("MULTI", "+OK");
                    for side in ["a", "b"] {
                        client.check(&format!("SET bal|{pair}|{side} {n}"), "+QUEUED");
                    }
                    client.check("EXEC", "*2|+OK|+OK");
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let mut client = Client::connect(&server);
        let keys = (0..PAIRS).flat_map(|pair| ["a", "b"].map(|side| format!("bal|{pair}|{side}")));
        let mget = format!("MGET {}", keys.collect::<Vec<_>>().join(" "));
        let torn = (0..400).find_map(|_| {
            let reply = client.call(&mget);
            let values: Vec<&str> = reply
                .split('|')
                .skip(1)
                .filter(|part| *part == "$-1" || !part.starts_with('$'))
                .collect();
            assert_eq!(values.len(), 2 * PAIRS, "{reply}");
            let is_torn = values.chunks(2).any(|pair| pair[0] != pair[1]);
            is_torn.then_some(reply)
        });
        ended.store(true, Ordering::Relaxed);
        assert_eq!(torn, None);
    });
}

#[test]
fn mget_and_exists_succeed_despite_a_row_with_an_invalid_sum() {
    for threads in [1, 3] {
        let server = server(threads);
        let mut client = Client::connect(&server);
        client.create("plain", "sum|<a> = sum p|<a>|<t>");
        client.create("other", "total|<a> = sum p|<a>|<t> else 0");
        for (a, value) in [("1", "5"), ("2", "bad"), ("3", "7"), ("4", "bad")] {
            client.check(&format!("SET p|{a}|1 {value}"), "+OK");
        }
        client.check(
            "MGET sum|1 sum|2 sum|3 sum|4 sum|5",
            "*5|$1|5|$-1|$1|7|$-1|$-1",
        );
        // `else` applies to a group without rows, not to a group with an invalid row.
        client.check(
            "MGET total|1 total|2 total|3 total|4 total|5",
            "*5|$1|5|$-1|$1|7|$-1|$1|0",
        );
        client.check("EXISTS sum|1 sum|2 sum|3 sum|4 sum|5", ":2");
    }
}

/// A row that cannot be computed is absent for commands that test for existence, and an error for commands that read
/// its value. The guide lists both kinds.
#[test]
fn a_row_with_an_invalid_sum_is_absent_unless_its_value_is_read() {
    for threads in [1, 3] {
        let server = server(threads);
        let mut client = Client::connect(&server);
        client.create("plain", "sum|<a> = sum p|<a>|<t>");
        client.check("SET p|1|1 bad", "+OK");
        client.check("TYPE sum|1", "+none");
        for ask in ["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"] {
            client.check(&format!("{ask} sum|1"), ":-2");
        }
        let error = client.call("GET sum|1");
        assert!(error.starts_with("-ERR "), "{error}");
        for ask in [
            "STRLEN sum|1",
            "GETRANGE sum|1 0 -1",
            "MEMORY USAGE sum|1",
            "WATCH sum|1",
        ] {
            client.check(ask, &error);
        }
        // The error disappears with the invalid value.
        client.check("SET p|1|1 5", "+OK");
        client.check("TYPE sum|1", "+string");
        client.check("TTL sum|1", ":-1");
        client.check("STRLEN sum|1", ":1");
    }
}

#[test]
fn mget_over_cores_returns_binary_values_in_order() {
    let server = server(3);
    let mut client = Client::connect(&server);
    let values = ["", "$5\r\n", "*2\r\n$-1\r\n", "_\r\n", "\r\n\r\n", "x"];
    let keys: Vec<String> = (0..values.len()).map(|n| format!("t|{n}")).collect();
    for (key, value) in keys.iter().zip(values) {
        client.send(&request(&["SET", key, value]));
        assert_eq!(client.reply(), "+OK");
    }
    let mut asked = vec!["MGET", "t|nothing"];
    asked.extend(keys.iter().map(String::as_str));
    for proto in ["2", "3"] {
        client.call(&format!("HELLO {proto}"));
        client.send(&request(&asked));
        let reply = client.reply();
        let nothing = if proto == "2" { "$-1" } else { "_" };
        let expected = values.map(|value| format!("${}|{value}", value.len()));
        assert_eq!(reply, format!("*7|{nothing}|{}", expected.join("|")));
    }
}

#[test]
fn a_transaction_over_several_cores_drops_a_join() {
    for threads in [1, 2, 3] {
        let server = server(threads);
        let mut client = Client::connect(&server);
        client.create("copied", "copied|<a> = copy p|<a>");
        client.check("SET p|1 one", "+OK");
        client.check("GET copied|1", "$3|one");
        client.check("MULTI", "+OK");
        client.check("JOIN.DROP copied", "+QUEUED");
        client.check("SET p|2 two", "+QUEUED");
        client.check("EXEC", "*2|+OK|+OK");
        client.check("GET p|2", "$3|two");
        client.check("EXISTS copied|1", ":0");
    }
}
