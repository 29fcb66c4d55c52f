//! FT.SEARCH, FT.AGGREGATE and FT.INFO between MULTI and EXEC.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{add_hotels, call, check, create_hotels, server};
use crate::resp::Client;

/// Aggregates all objects by a NUMERIC attribute, which returns its distinct values.
const PRICES: [&str; 6] = ["FT.AGGREGATE", "hotels", "*", "GROUPBY", "1", "@price"];

#[test]
fn searches_in_a_transaction_find_its_own_writes() {
    for threads in [1, 2, 3] {
        let server = server(threads);
        let client = &mut Client::connect(&server);
        create_hotels(client);
        add_hotels(client);
        for watched in [false, true] {
            if watched {
                check(client, "WATCH hotel:2 t|a", "+OK");
            }
            check(client, "MULTI", "+OK");
            for line in [
                "FT.SEARCH hotels @city:{rome} NOCONTENT SORTBY price",
                "HSET hotel:9 city Rome stars 2 price 40 name Cella",
                "FT.SEARCH hotels @city:{rome} NOCONTENT SORTBY price",
                "DEL hotel:1",
                "FT.AGGREGATE hotels @city:{rome} GROUPBY 0 REDUCE COUNT 0 AS n",
                "FT.SEARCH bars *",
                "HSET hotel:1 city Rome stars 4 price 120 name Aurora",
                "DEL hotel:9",
                "GET t|a",
            ] {
                check(client, line, "+QUEUED");
            }
            check(
                client,
                "EXEC",
                "*9|*3|:2|$7|hotel:2|$7|hotel:1|:4|*4|:3|$7|hotel:9|$7|hotel:2|$7|hotel:1|:1\
                 |*2|:1|*2|$1|n|$1|2|-ERR bars: no such index|:4|:1|$-1",
            );
        }
        check(client, "MULTI", "+OK");
        check(client, "FT.INFO hotels", "+QUEUED");
        let info = call(client, &["EXEC"]);
        assert!(info.contains("num_docs|:3|"), "{info}");
        // Other commands on spaces are not allowed in a transaction.
        check(client, "MULTI", "+OK");
        check(
            client,
            "FT.DROPINDEX hotels",
            "-ERR FT.DROPINDEX isn't allowed in a transaction",
        );
    }
}

/// Ends the writer on drop, also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn searches_in_a_transaction_read_one_point_in_time() {
    for threads in [1, 3] {
        let server = server(threads);
        let client = &mut Client::connect(&server);
        create_hotels(client);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = &mut Client::connect(&server);
                let mut price = 0;
                while !ended.load(Ordering::Relaxed) {
                    price += 1;
                    check(writer, "MULTI", "+OK");
                    for hotel in 0..8 {
                        let line = format!("HSET hotel:{hotel} price {price}");
                        check(writer, &line, "+QUEUED");
                    }
                    call(writer, &["EXEC"]);
                }
            });
            let _end = End(&ended);
            for _ in 0..200 {
                check(client, "MULTI", "+OK");
                assert_eq!(call(client, &PRICES), "+QUEUED");
                assert_eq!(call(client, &PRICES), "+QUEUED");
                let both = call(client, &["EXEC"]);
                let both = both.strip_prefix("*2|").expect(&both);
                let (first, second) = both.split_at(both.len() / 2);
                assert_eq!(first.trim_matches('|'), second.trim_matches('|'), "{both}");
                // All objects have the same price, because one transaction writes them.
                assert!(first.matches("$5|price").count() <= 1, "{both}");
            }
        });
    }
}
