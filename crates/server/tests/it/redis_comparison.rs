//! Random commands on strings and hashes with all their options, valid and invalid. larder must return the same
//! replies as Redis, and WATCH must detect the same changes.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use larder_types::Random;

use crate::resp::Client;
use crate::support::TestServer;
use crate::wire;

const KEYS: [&str; 8] = [
    "plain",
    "t|a",
    ":x",
    "h:1",
    "{t}b",
    "a:{t}",
    "\0h:1",
    "\0\0:plain",
];
const FIELDS: [&str; 3] = ["f", "g", "n"];
/// Redis adds floats with 64 bits of precision. Beyond that, larder's decimals are exact while Redis rounds, so that
/// numbers must stay within that precision.
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

/// Text that is written into other values. Digits could produce longer numbers.
const TEXTS: [&str; 3] = ["v", "", "word"];

struct CommandGenerator(Random);

impl CommandGenerator {
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
            "OBJECT",
        ];
        let (kind, key) = (self.one(&kinds), self.one(&KEYS));
        let mut words = vec![kind, key];
        // Long enough that nothing expires during the test.
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
            "OBJECT" => words.insert(1, self.one(&["IDLETIME", "NO"])),
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

#[test]
fn commands_on_texts_and_hashes_match_redis() {
    let Some(redis) = larder_testing::redis() else {
        return;
    };
    let redis = SocketAddr::from(([127, 0, 0, 1], redis.port));
    for (threads, seed) in [(1, 1), (2, 2)] {
        let larder = TestServer::with(|config| config.server.threads = threads);
        let mut here = [Client::connect(&larder), Client::connect(&larder)];
        let mut there = [Client::to(redis), Client::to(redis)];
        there[0].call_words(&["FLUSHALL"]);
        let mut draw = CommandGenerator(Random::new(seed));
        let mut wrong = BTreeMap::new();
        for _ in 0..6000 {
            let watched = draw.one(&KEYS);
            let words = draw.command();
            let mut replies = [&mut here, &mut there].map(|[client, other]| {
                other.call_words(&["WATCH", watched]);
                let reply = client.call_words(&words);
                other.call_words(&["MULTI"]);
                format!("{reply}, EXEC {}", other.call_words(&["EXEC"]))
            });
            if words[0] == "TTL" {
                // Seconds may pass between the two executions.
                replies =
                    replies.map(|reply| reply.replace(|digit: char| digit.is_ascii_digit(), "9"));
            }
            if words.contains(&"IDLETIME") {
                // Redis counts the seconds since the last use of the key; larder always returns 0.
                replies = replies.map(|reply| match reply.split_once(',') {
                    Some((idle, rest)) if idle.starts_with(':') => format!(":0,{rest}"),
                    _ => reply,
                });
            }
            if replies[0] != replies[1] {
                let [here, there] = replies;
                wrong.entry(words[0]).or_insert_with(|| {
                    format!("{words:?}, watching {watched}: {here}; Redis: {there}")
                });
            }
            let state = |client: &mut Client| {
                KEYS.map(|key| match client.call_words(&["TYPE", key]).as_str() {
                    "+hash" => client.call_words(&["HGETALL", key]),
                    _ => client.call_words(&["GET", key]),
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

/// Sends a request of arbitrary bytes, and returns the encoded reply.
fn send_raw(stream: &mut BufReader<TcpStream>, words: &[&[u8]]) -> Vec<u8> {
    let mut sent = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        sent.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        sent.extend_from_slice(word);
        sent.extend_from_slice(b"\r\n");
    }
    stream.get_mut().write_all(&sent).expect("sent");
    wire::frame(stream).expect("a reply")
}

/// Sorts the strings of a reply, because the hash tables of Redis have no order.
fn sorted_lines(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

fn connect(addr: SocketAddr) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(addr).expect("connected"))
}

#[test]
fn redis_and_larder_restore_each_others_dumps() {
    let Some(redis) = larder_testing::redis() else {
        return;
    };
    let larder = TestServer::start();
    let here = connect(larder.server().resp_addr());
    let there = connect(SocketAddr::from(([127, 0, 0, 1], redis.port)));
    let mut servers = [here, there];
    let long = "long value ".repeat(100);
    let many: Vec<String> = (0..600).map(|number| format!("field{number}")).collect();
    let mut large = vec!["HSET", "k"];
    large.extend(many.iter().flat_map(|name| [name.as_str(), "-70000"]));
    let writes = [
        vec!["SET", "k", ""],
        vec!["SET", "k", "v"],
        vec!["SET", "k", "-123456"],
        vec!["SET", "k", &long],
        vec![
            "HSET",
            "k",
            "f",
            "v",
            "n",
            "-5",
            "m",
            "123456789012",
            "",
            "x",
            "l",
            &long,
        ],
        large,
    ];
    for write in writes {
        let write: Vec<&[u8]> = write.iter().map(|word| word.as_bytes()).collect();
        let read: &[u8] = if write[0] == b"SET" {
            b"GET"
        } else {
            b"HGETALL"
        };
        for [from, to] in [[0, 1], [1, 0], [0, 0]] {
            let from = &mut servers[from];
            send_raw(from, &[b"DEL", b"k"]);
            send_raw(from, &write);
            let value = send_raw(from, &[read, b"k"]);
            let dumped = send_raw(from, &[b"DUMP", b"k"]);
            let start = dumped
                .iter()
                .position(|byte| *byte == b'\n')
                .expect("a header")
                + 1;
            let payload = &dumped[start..dumped.len() - 2];
            let to = &mut servers[to];
            send_raw(to, &[b"DEL", b"k"]);
            assert_eq!(
                send_raw(to, &[b"RESTORE", b"k", b"100000", payload]),
                b"+OK\r\n"
            );
            assert_eq!(
                sorted_lines(&send_raw(to, &[read, b"k"])),
                sorted_lines(&value)
            );
            assert!(send_raw(to, &[b"PTTL", b"k"]).len() > 4, "it expires");
            let again = send_raw(to, &[b"RESTORE", b"k", b"0", payload]);
            assert_eq!(again, b"-BUSYKEY Target key name already exists.\r\n");
            let again = send_raw(to, &[b"RESTORE", b"k", b"0", payload, b"REPLACE"]);
            assert_eq!(again, b"+OK\r\n");
            assert_eq!(send_raw(to, &[b"TTL", b"k"]), b":-1\r\n");
            let past = send_raw(
                to,
                &[b"RESTORE", b"k", b"1", payload, b"REPLACE", b"ABSTTL"],
            );
            assert_eq!(past, b"+OK\r\n");
            assert_eq!(send_raw(to, &[b"EXISTS", b"k"]), b":0\r\n");
            let damaged = [payload, b"x"].concat();
            let refused = send_raw(to, &[b"RESTORE", b"k", b"0", &damaged]);
            assert_eq!(
                refused,
                b"-ERR DUMP payload version or checksum are wrong\r\n"
            );
        }
    }
}
