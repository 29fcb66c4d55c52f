//! Random commands on texts and hashes, with all their options, right and wrong ones: larder answers what Redis answers, and a WATCH sees the
//! same changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use larder_types::Random;

use crate::resp::{Client, request};
use crate::support::TestServer;

const KEYS: [&str; 6] = ["plain", "t|a", ":x", "h:1", "{t}b", "a:{t}"];
const FIELDS: [&str; 3] = ["f", "g", "n"];
/// Numbers stay within the 64 bits of precision that Redis adds floats with: beyond them larder's decimals are exact, and Redis rounds.
const VALUES: [&str; 8] = [
    "v",
    "",
    "12",
    "-7",
    "1.5",
    "9007199254740993",
    "3.25",
    "word",
];

/// What is written into other values, which must not become longer numbers.
const TEXTS: [&str; 3] = ["v", "", "word"];

struct Draw(Random);

impl Draw {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.0.index(of.len())]
    }

    fn words<'a>(&mut self, of: &[&'a str], most: usize) -> Vec<&'a str> {
        (0..self.0.index(most + 1)).map(|_| self.one(of)).collect()
    }

    fn command(&mut self) -> Vec<&'static str> {
        let kinds = [
            "SET",
            "SET",
            "SET",
            "GET",
            "GETSET",
            "GETDEL",
            "GETEX",
            "SETEX",
            "PSETEX",
            "SETNX",
            "MSET",
            "MSETNX",
            "MGET",
            "APPEND",
            "SETRANGE",
            "GETRANGE",
            "STRLEN",
            "INCR",
            "INCRBY",
            "DECRBY",
            "INCRBYFLOAT",
            "HSET",
            "HSET",
            "HMSET",
            "HSETNX",
            "HGET",
            "HMGET",
            "HDEL",
            "HEXISTS",
            "HLEN",
            "HSTRLEN",
            "HINCRBY",
            "HINCRBYFLOAT",
            "HGETALL",
            "HKEYS",
            "HVALS",
            "HSCAN",
            "HRANDFIELD",
            "DEL",
            "EXISTS",
            "TYPE",
            "TTL",
            "EXPIRE",
            "PEXPIREAT",
            "PERSIST",
            "RENAME",
            "RENAMENX",
            "COPY",
            "TOUCH",
        ];
        let (kind, key) = (self.one(&kinds), self.one(&KEYS));
        let mut words = vec![kind, key];
        // Long enough that nothing expires while the test runs.
        let times = ["1000000", "1000000", "2000000", "0", "-1", "x"];
        match kind {
            "SET" => {
                words.push(self.one(&VALUES));
                for _ in 0..self.0.index(4) {
                    let option = self.one(&["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "nx", "IF"]);
                    words.push(option);
                    if matches!(option, "EX" | "PX") {
                        words.push(self.one(&times));
                    }
                }
            }
            "GETEX" => {
                for _ in 0..self.0.index(2) {
                    let option = self.one(&["PERSIST", "EX", "PX", "KEEPTTL"]);
                    words.push(option);
                    if option.len() == 2 {
                        words.push("1000000");
                    }
                }
            }
            "SETEX" | "PSETEX" => words.extend([self.one(&times), self.one(&VALUES)]),
            "GETSET" | "SETNX" => words.push(self.one(&VALUES)),
            "APPEND" => words.push(self.one(&TEXTS)),
            "MSET" | "MSETNX" => {
                words.push(self.one(&VALUES));
                words.extend(self.words(&KEYS, 1));
                words.extend(self.words(&VALUES, 1));
            }
            "SETRANGE" => words.extend([self.one(&["0", "3", "-1", "x"]), self.one(&TEXTS)]),
            "GETRANGE" => words.extend([self.one(&["0", "-2", "x"]), self.one(&["1", "-1"])]),
            "INCRBY" | "DECRBY" => words.push(self.one(&["1", "-5", "x", "9007199254740993"])),
            "INCRBYFLOAT" => words.push(self.one(&["0.5", "-2", "x", "1e2"])),
            "HSET" | "HMSET" => {
                words.extend([self.one(&FIELDS), self.one(&VALUES)]);
                words.extend(self.words(&FIELDS, 1));
                words.extend(self.words(&VALUES, 1));
            }
            "HSETNX" => words.extend([self.one(&FIELDS), self.one(&VALUES)]),
            "HGET" | "HEXISTS" | "HSTRLEN" => words.push(self.one(&FIELDS)),
            "HMGET" | "HDEL" => {
                words.push(self.one(&FIELDS));
                words.extend(self.words(&FIELDS, 2));
            }
            "HINCRBY" => words.extend([self.one(&FIELDS), self.one(&["1", "-5", "x"])]),
            "HINCRBYFLOAT" => words.extend([self.one(&FIELDS), self.one(&["0.5", "-2", "x"])]),
            "HSCAN" => {
                words.push(self.one(&["0", "0", "x"]));
                words.extend(self.one(&["", "COUNT 10", "MATCH f*"]).split_whitespace());
            }
            "HRANDFIELD" => words.push(self.one(&["0", "x"])),
            "EXPIRE" => {
                words.push(self.one(&["1000000", "2000000", "-1", "x"]));
                words.extend(self.words(&["NX", "XX", "GT", "LT", "NO"], 2));
            }
            "PEXPIREAT" => words.push(self.one(&["1", "x"])),
            "RENAME" | "RENAMENX" => words.push(self.one(&KEYS)),
            "COPY" => {
                words.push(self.one(&KEYS));
                words.extend(self.words(&["REPLACE", "NO"], 1));
            }
            "MGET" | "EXISTS" | "DEL" | "TOUCH" => words.extend(self.words(&KEYS, 2)),
            _ => {}
        }
        words
    }
}

fn ask(client: &mut Client, words: &[&str]) -> String {
    client.send(&request(words));
    client.reply()
}

#[test]
fn texts_and_hashes_are_written_and_refused_as_in_redis() {
    let Some(redis) = larder_testing::redis() else {
        return;
    };
    let redis = SocketAddr::from(([127, 0, 0, 1], redis.port));
    for (threads, seed) in [(1, 1), (2, 2)] {
        let larder = TestServer::with(|config| config.server.threads = threads);
        let mut here = [Client::connect(&larder), Client::connect(&larder)];
        let mut there = [Client::to(redis), Client::to(redis)];
        ask(&mut there[0], &["FLUSHALL"]);
        let mut draw = Draw(Random::new(seed));
        let mut wrong = BTreeMap::new();
        for _ in 0..6000 {
            let watched = draw.one(&KEYS);
            let words = draw.command();
            let mut replies = [&mut here, &mut there].map(|[client, other]| {
                ask(other, &["WATCH", watched]);
                let reply = ask(client, &words);
                ask(other, &["MULTI"]);
                format!("{reply}, EXEC {}", ask(other, &["EXEC"]))
            });
            if words[0] == "TTL" {
                // Seconds may pass between the two.
                replies =
                    replies.map(|reply| reply.replace(|digit: char| digit.is_ascii_digit(), "9"));
            }
            if replies[0] != replies[1] {
                let [here, there] = replies;
                wrong.entry(words[0]).or_insert_with(|| {
                    format!("{words:?}, watching {watched}: {here}; Redis: {there}")
                });
            }
            let state = |client: &mut Client| {
                KEYS.map(|key| match ask(client, &["TYPE", key]).as_str() {
                    "+hash" => ask(client, &["HGETALL", key]),
                    _ => ask(client, &["GET", key]),
                })
            };
            let states = [state(&mut here[0]), state(&mut there[0])];
            assert_eq!(
                states[0], states[1],
                "after {words:?}, seed {seed}; {wrong:#?}"
            );
        }
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}
