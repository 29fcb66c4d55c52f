//! Tables partitioned over several serving threads give the same results as on one thread, on any connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use larder_protocol::config::Fsync;
use larder_types::ByteSize;

use crate::resp::{Client, TIMELINE, request};
use crate::support::{TestServer, until};
use crate::tables::{VISITED_MAX, check_visits};

/// A join over another join's output. Its rows belong to authors, and are therefore on other cores than the timelines
/// that it counts.
const SEEN: &str = "seen|<author> = count tline|<user>|<time>|<author>";

fn server(threads: usize) -> TestServer {
    TestServer::with(|config| config.server.threads = threads as u32)
}

fn clients(server: &TestServer, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::connect(server)).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) % n as u64) as usize
    }
}

type Rows = BTreeMap<String, String>;

/// Recomputes the rows of a table or an output from the base rows.
fn recompute_rows(base: &Rows, joined: bool, table: &str) -> Rows {
    let of = |name: &str| -> Vec<(Vec<String>, String)> {
        let prefix = format!("{name}|");
        let rows = base.iter().filter(|(key, _)| key.starts_with(&prefix));
        let cut = |key: &str| key.split('|').skip(1).map(str::to_owned).collect();
        rows.map(|(key, value)| (cut(key), value.clone())).collect()
    };
    let mut rows = Rows::new();
    match table {
        "tline" if joined => {
            for (sub, _) in of("sub") {
                for (post, text) in of("post").into_iter().filter(|(post, _)| post[0] == sub[1]) {
                    rows.insert(format!("tline|{}|{}|{}", sub[0], post[1], post[0]), text);
                }
            }
        }
        "seen" if joined => {
            for key in recompute_rows(base, joined, "tline").into_keys() {
                let author = key.split('|').next_back().expect("an author");
                let count = rows.entry(format!("seen|{author}")).or_insert("0".into());
                *count = (count.parse::<u32>().expect("a count") + 1).to_string();
            }
        }
        "tline" | "seen" => {}
        _ => {
            let prefix = format!("{table}|");
            let own = base.iter().filter(|(key, _)| key.starts_with(&prefix));
            rows.extend(own.map(|(key, value)| (key.clone(), value.clone())));
        }
    }
    rows
}

fn format_rows<'a>(rows: impl ExactSizeIterator<Item = (&'a String, &'a String)>) -> String {
    let mut all = format!("*{}", 2 * rows.len());
    for (key, value) in rows {
        all += &format!("|${}|{key}|${}|{value}", key.len(), value.len());
    }
    all
}

#[test]
fn every_connection_reads_writes_acknowledged_to_other_connections() {
    for (threads, seed) in [(2, 1), (3, 2), (3, 3)] {
        let server = server(threads);
        let mut clients = clients(&server, 12);
        let (mut random, mut base, mut joined) = (Random(seed), Rows::new(), false);
        for step in 0..1500 {
            let client = random.below(clients.len());
            let (user, author) = (random.below(8), random.below(8));
            let client = &mut clients[client];
            match random.below(20) {
                0 if step % 5 == 0 => {
                    if joined {
                        client.check("JOIN.DROP seen", "+OK");
                        client.check("JOIN.DROP timeline", "+OK");
                    } else {
                        client.create("timeline", TIMELINE);
                        client.create("seen", SEEN);
                    }
                    joined = !joined;
                }
                0..=3 => {
                    let key = format!("sub|u{user}|u{author}");
                    match base.remove(&key) {
                        Some(_) => client.check(&format!("DEL {key}"), ":1"),
                        None => {
                            client.check(&format!("SET {key} 1"), "+OK");
                            base.insert(key, "1".into());
                        }
                    }
                }
                4..=7 => {
                    let key = format!("post|u{author}|{:03}", random.below(20));
                    client.check(&format!("SET {key} text{step}"), "+OK");
                    base.insert(key, format!("text{step}"));
                }
                8 => {
                    let keys = [0, 1, 2].map(|n| format!("post|u{}|{:03}", (author + n) % 8, n));
                    let had = keys
                        .iter()
                        .filter(|key| base.remove(*key).is_some())
                        .count();
                    client.check(&format!("DEL {}", keys.join(" ")), &format!(":{had}"));
                }
                9 => {
                    let keys = [0, 1, 2].map(|n| format!("post|u{}|{:03}", (author + n) % 8, n));
                    let words = keys.clone().map(|key| format!("{key} many{step}"));
                    client.check(&format!("MSET {}", words.join(" ")), "+OK");
                    base.extend(keys.map(|key| (key, format!("many{step}"))));
                }
                what => {
                    let table = ["tline", "tline", "seen", "post", "sub"][what % 5];
                    let (lo, hi) = match what % 3 {
                        0 => (format!("{table}|"), format!("{table}}}")),
                        _ => (format!("{table}|u{user}|"), format!("{table}|u{user}}}")),
                    };
                    let mut rows = recompute_rows(&base, joined, table);
                    rows.retain(|key, _| *key >= lo && *key < hi);
                    let (got, expected) = match what % 4 {
                        0 => {
                            let limit = random.below(6);
                            let rows: Vec<_> = rows.iter().rev().take(limit).collect();
                            let ask = format!("RANGE {lo} {hi} REV LIMIT {limit}");
                            (client.call(&ask), format_rows(rows.into_iter()))
                        }
                        1 => (
                            client.call(&format!("RANGECOUNT {lo} {hi}")),
                            format!(":{}", rows.len()),
                        ),
                        _ => (
                            client.call(&format!("RANGE {lo} {hi}")),
                            format_rows(rows.iter()),
                        ),
                    };
                    assert_eq!(got, expected, "step {step} of seed {seed}: {lo} to {hi}");
                }
            }
        }
    }
}

#[test]
fn pipelined_replies_are_in_order_and_reflect_earlier_writes() {
    let server = server(3);
    let mut clients = clients(&server, 6);
    clients[0].create("timeline", TIMELINE);
    for (round, client) in (0..).zip(clients.iter_mut()) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        let mut say = |line: &str, reply: String| {
            bytes.extend(request(&line.split(' ').collect::<Vec<_>>()));
            expected.push(reply);
        };
        for n in 0..40 {
            let (user, author) = (format!("r{round}u{n}"), format!("r{round}a{n}"));
            say(&format!("SET sub|{user}|{author} 1"), "+OK".into());
            say("PING", "+PONG".into());
            say(
                &format!("RANGECOUNT tline|{user}| tline|{user}}}"),
                ":0".into(),
            );
            say(&format!("SET post|{author}|1 hello"), "+OK".into());
            say(&format!("GET tline|{user}|1|{author}"), "$5|hello".into());
            say(&format!("INCR n|{user}"), ":1".into());
            say(
                &format!("MGET n|{user} n|none post|{author}|1"),
                "*3|$1|1|$-1|$5|hello".into(),
            );
            say(&format!("DEL sub|{user}|{author}"), ":1".into());
            say(
                &format!("RANGECOUNT tline|{user}| tline|{user}}}"),
                ":0".into(),
            );
        }
        client.send(&bytes);
        for (at, expected) in expected.iter().enumerate() {
            assert_eq!(client.reply(), *expected, "reply {at}");
        }
    }
}

#[test]
fn commands_over_several_cores_return_one_combined_reply() {
    let server = server(3);
    let mut clients = clients(&server, 6);
    clients[0].create("timeline", TIMELINE);
    let keys: Vec<String> = (0..60).map(|n| format!("t|k{n:02}|x")).collect();
    for (at, key) in keys.iter().enumerate() {
        clients[at % 6].check(&format!("SET {key} v{at:02}"), "+OK");
    }
    for client in &mut clients {
        client.check("DBSIZE", ":60");
        client.check("RANGECOUNT t| t}", ":60");
        let three = "$7|t|k03|x|$7|t|k04|x|$7|t|k05|x";
        client.check("RANGE t|k03 t|k06 KEYSONLY", &format!("*3|{three}"));
        client.check("RANGE t|k03 t} LIMIT 3 KEYSONLY", &format!("*3|{three}"));
        client.check("RANGE t|k03 t|k06 REV LIMIT 1", "*2|$7|t|k05|x|$3|v05");
        client.check("RANGE t|k03 t|k06 LIMIT 0", "*0");
        client.check("EXISTS t|k01|x t|k02|x t|none t|k01|x", ":3");
        assert!(client.call("RANGE t|x u|x").starts_with("-ERR range"));
        client.check("MGET t|k01|x s", "*2|$3|v01|$-1");
        assert!(client.call("INFO tables").contains("tables_rows:60"));
        assert!(client.call("JOIN.INFO timeline").contains("updaters"));
        assert!(client.call("JOIN.INFO none").starts_with("-NOJOIN"));
        assert!(
            client
                .call("JOIN.EXPLAIN timeline tline|a| tline|a}")
                .contains("scans first")
        );
        assert!(client.call("JOIN.LIST").contains("timeline"));
    }
    // A cursor is valid on every connection, not only on the one that received it.
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    for turn in 0.. {
        let reply = clients[turn % 6].call(&format!("SCAN {cursor} MATCH t|* COUNT 7"));
        let mut words = reply.split('|').skip(2);
        cursor = words.next().expect("a cursor").to_owned();
        let found = reply.split("|$7|").skip(1);
        seen.extend(found.map(|key| key.trim_end_matches('|').to_owned()));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, keys);
    let (_, metrics) = server.get("/metrics");
    let rows = "larder_table_rows{table=\"t|\"} 60";
    assert!(metrics.as_str().expect("a text").contains(rows));
    clients[1].check("RANGEDEL t|k10 t|k20", ":10");
    clients[2].check("RANGECOUNT t| t}", ":50");
    clients[3].check(&format!("DEL {}", keys[..10].join(" ")), ":10");
    clients[4].check("RANGECOUNT t| t}", ":40");
    // A definition that one core rejects is rejected on all cores and leaves no trace.
    for client in &mut clients {
        client.send(&request(&[
            "JOIN.CREATE",
            "bad",
            "t|<a>|<b> = copy p|<a>|<b>",
        ]));
        assert!(client.reply().contains("table t contains base rows"));
        client.send(&request(&["JOIN.LIST"]));
        assert!(!client.reply().contains("bad"));
    }
}

#[test]
fn a_long_range_over_several_cores_reads_one_point_in_time() {
    use std::io::BufRead;
    let server = server(2);
    let mut client = Client::connect(&server);
    const ROWS: usize = 60_000;
    let filler = "x".repeat(80);
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(1000) {
        let pairs = chunk
            .iter()
            .flat_map(|row| [format!("t|{row:08}"), filler.clone()]);
        let words: Vec<String> = std::iter::once("MSET".to_owned()).chain(pairs).collect();
        client.send(&request(
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
        assert_eq!(client.reply(), "+OK");
    }
    for reverse in [false, true] {
        let mut slow = Client::connect(&server);
        let words = ["RANGE", "t|", "t}", "REV"];
        slow.send(&request(&words[..if reverse { 4 } else { 3 }]));
        slow.send(&request(&["PING"]));
        assert!(!slow.stream.fill_buf().expect("a beginning").is_empty());
        client.check("DEL t|00000000 t|00030000 t|00059999", ":3");
        client.check("SET t|00030000x new", "+OK");
        let rows = slow.reply();
        let count = format!("*{}|", 2 * ROWS);
        assert!(rows.starts_with(&count), "{}", &rows[..20]);
        let mut keys: Vec<&str> = rows.split('|').filter(|word| word.len() == 8).collect();
        if reverse {
            keys.reverse();
        }
        assert_eq!(keys.len(), ROWS);
        assert!(keys.is_sorted());
        assert!(!rows.contains("00030000x"));
        assert_eq!(slow.reply(), "+PONG");
        client.check("DEL t|00030000x", ":1");
        for row in ["00000000", "00030000", "00059999"] {
            client.check(&format!("SET t|{row} {filler}"), "+OK");
        }
    }
}

#[test]
fn a_transaction_over_several_cores_is_atomic_and_durable() {
    let mut server = TestServer::with(|config| {
        config.server.threads = 3;
        config.tables.fsync = Fsync::Always;
    });
    let addr = server.server().resp_addr();
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    client.create("total", "total|all = sum n|<name>");
    client.check("MSET n|a 1000 n|b 1000 n|c 1000 n|d 1000", "+OK");
    let movers: Vec<_> = (0..3)
        .map(|mover| {
            std::thread::spawn(move || {
                let mut client = Client::to(addr);
                let mut random = Random(mover);
                for round in 0..60 {
                    let names = ["a", "b", "c", "d"];
                    let (from, to) = (names[random.below(4)], names[random.below(4)]);
                    client.check("MULTI", "+OK");
                    client.check(&format!("DECRBY n|{from} 7"), "+QUEUED");
                    client.check(&format!("SET sub|m{mover}|m{round} 1"), "+QUEUED");
                    client.check(&format!("SET post|m{round}|{mover} x"), "+QUEUED");
                    // If a transaction contains reads of join outputs, its commands are executed one by one,
                    // otherwise on all cores in parallel.
                    let views = round % 2 == 0;
                    if views {
                        let count = format!("RANGECOUNT tline|m{mover}| tline|m{mover}}}");
                        client.check(&count, "+QUEUED");
                    }
                    client.check(&format!("INCRBY n|{to} 7"), "+QUEUED");
                    let done = client.call("EXEC");
                    let begins = if views { "*5|:" } else { "*4|:" };
                    assert!(done.starts_with(begins), "{done}");
                }
            })
        })
        .collect();
    let sum = |client: &mut Client| -> i64 {
        client.check("MULTI", "+OK");
        for name in ["a", "b", "c", "d"] {
            client.check(&format!("GET n|{name}"), "+QUEUED");
        }
        let all = client.call("EXEC");
        let numbers = all.split('|').skip(2).step_by(2);
        numbers.map(|n| n.parse::<i64>().expect("a number")).sum()
    };
    let numbers = |reply: &str| -> i64 {
        let words = reply.split('|').filter_map(|word| word.parse::<i64>().ok());
        words.sum()
    };
    let mut rounds = 0;
    while movers.iter().any(|mover| !mover.is_finished()) {
        assert_eq!(sum(&mut client), 4000);
        // The totals also hold outside a transaction.
        assert_eq!(numbers(&client.call("MGET n|a n|b n|c n|d")), 4000);
        assert_eq!(numbers(&client.call("RANGE n| n}")), 4000);
        client.check("GET total|all", "$4|4000");
        rounds += 1;
    }
    assert!(rounds > 0);
    movers
        .into_iter()
        .for_each(|mover| mover.join().expect("moved"));
    client.check("MULTI", "+OK");
    client.check("SET t|w word", "+QUEUED");
    client.check("INCR t|w", "+QUEUED");
    client.check("PING", "+QUEUED");
    client.check("MGET n|none t|w", "+QUEUED");
    client.check("RANGE t| t}", "+QUEUED");
    client.check(
        "EXEC",
        "*5|+OK|-ERR value is not an integer or out of range|+PONG|*2|$-1|$4|word|*2|$3|t|w|$4|word",
    );
    client.check("MULTI", "+OK");
    client.check("SET t|w x", "+QUEUED");
    assert!(client.call("NOSUCH").starts_with("-ERR unknown command"));
    assert!(client.call("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.call("EXEC"), "-ERR EXEC without MULTI");
    drop(client);
    server.restart(|_| {});
    assert_eq!(sum(&mut Client::connect(&server)), 4000);
}

#[test]
fn rows_are_reassigned_when_the_number_of_cores_changes() {
    let mut server = server(3);
    let mut base = Rows::new();
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    for n in 0..50 {
        let rows = [
            (format!("sub|u{}|u{}", n % 7, n), "1".to_owned()),
            (format!("post|u{n}|{n:03}"), format!("text{n}")),
        ];
        for (key, value) in rows {
            client.check(&format!("SET {key} {value}"), "+OK");
            base.insert(key, value);
        }
    }
    client.check("SET t|soon x PX 1", "+OK");
    client.check("SET t|later x EX 1000", "+OK");
    drop(client);
    for threads in [1, 2, 3] {
        server.restart_with(|config| config.server.threads = threads);
        for mut client in clients(&server, 4) {
            for table in ["sub", "post", "tline"] {
                let expected = format_rows(recompute_rows(&base, true, table).iter());
                client.check(&format!("RANGE {table}| {table}}}"), &expected);
            }
            client.check("RANGE t| t} KEYSONLY", "*1|$7|t|later");
            assert!([":999", ":1000"].contains(&client.call("TTL t|later").as_str()));
        }
        let mut client = Client::connect(&server);
        let key = format!("post|u{threads}|9");
        client.check(&format!("SET {key} again"), "+OK");
        base.insert(key, "again".into());
    }
}

#[test]
fn snapshots_shorten_the_journal_and_contain_every_row() {
    for threads in [1, 3] {
        let mut server = server(threads);
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        client.check("SET sub|ann|bob 1", "+OK");
        client.check("SET post|bob|1 hello", "+OK");
        client.check("SET t|later here EX 999", "+OK");
        let value = "x".repeat(1 << 20);
        for round in 0..9 {
            for row in 0..10 {
                client.check(&format!("SET big|{row} {round}{value}"), "+OK");
            }
        }
        client.check("DEL big|0 big|1", ":2");
        // The server checks the log's size once per second.
        let made = |server: &TestServer| {
            let (_, metrics) = server.get("/metrics");
            let metrics = metrics.as_str().expect("a text").to_owned();
            let mut lines = metrics.lines();
            let line = lines.find(|l| l.starts_with("larder_tables_snapshot_bytes "));
            line.expect("the figure").rsplit(' ').next() != Some("0")
        };
        let mut count = 0;
        until("a snapshot is written", || {
            let is_made = made(&server);
            if !is_made {
                count += 1;
                client.check("INCR t|n", &format!(":{count}"));
            }
            is_made
        });
        drop(client);
        server.restart_with(|config| config.server.threads = 2);
        let mut client = Client::connect(&server);
        client.check("INCR t|n", &format!(":{}", count + 1));
        client.check("RANGECOUNT big| big}", ":8");
        assert!(client.call("GET big|9").starts_with("$1048577|8x"));
        assert!(client.call("TTL t|later").starts_with(":9"));
        client.check("GET tline|ann|1|bob", "$5|hello");
    }
}

#[test]
fn an_expired_row_is_removed_from_outputs_on_other_cores() {
    let server = server(3);
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    for n in 0..20 {
        client.check(&format!("SET sub|u{n}|star 1"), "+OK");
    }
    client.check("SET post|star|1 soon PX 60", "+OK");
    for n in 0..20 {
        let count = client.call(&format!("RANGECOUNT tline|u{n}| tline|u{n}}}"));
        assert!(count == ":1" || count == ":0", "{count}");
    }
    for n in 0..20 {
        let count = format!("RANGECOUNT tline|u{n}| tline|u{n}}}");
        until("the output row is removed", || client.call(&count) == ":0");
    }
}

/// Covers both cases: the owner has already removed the expired row, or is about to. In both, the core that computed
/// the output has not received the removal yet.
#[test]
fn outputs_never_contain_expired_rows() {
    let server = server(3);
    let mut clients = clients(&server, 3);
    clients[0].create("timeline", TIMELINE);
    let mut expired = 0;
    for round in 0..60 {
        let (user, author) = (format!("u{round}"), format!("a{}", round * 7));
        let timeline = format!("RANGE tline|{user}| tline|{user}}}");
        let client = &mut clients[round % 3];
        client.check(&format!("SET sub|{user}|{author} 1"), "+OK");
        client.check(
            &format!("SET post|{author}|1 x PX {}", 3 + round % 5),
            "+OK",
        );
        let goes_at = Instant::now() + Duration::from_millis(4 + round as u64 % 5);
        client.call(&timeline);
        match round % 2 {
            // In even rounds, a read observes the expiry first;
            0 => while client.call(&format!("GET post|{author}|1")) != "$-1" {},
            // in odd rounds, nothing reads the row before its expiry.
            _ => while Instant::now() < goes_at {},
        }
        client.check(&timeline, "*0");
        client.check("MULTI", "+OK");
        client.check(&timeline, "+QUEUED");
        client.check(&format!("GET post|{author}|1"), "+QUEUED");
        client.check("EXEC", "*2|*0|$-1");
        expired += 1;
    }
    assert_eq!(expired, 60);
}

#[test]
fn eviction_on_every_core_preserves_correct_results() {
    let server = TestServer::with(|config| {
        config.server.threads = 2;
        config.tables.memory = ByteSize(1 << 20);
    });
    let mut clients = clients(&server, 4);
    clients[0].create("timeline", TIMELINE);
    let text = "x".repeat(500);
    for author in 0..40 {
        for time in 0..20 {
            clients[author % 4].check(&format!("SET post|a{author}|{time:02} {text}"), "+OK");
        }
    }
    for user in 0..60 {
        for n in 0..10 {
            clients[n % 4].check(
                &format!("SET sub|u{user}|a{} 1", (user * 7 + n) % 40),
                "+OK",
            );
        }
    }
    for round in 0..3 {
        for user in 0..60 {
            let client = &mut clients[(user + round) % 4];
            client.check(
                &format!("RANGECOUNT tline|u{user}| tline|u{user}}}"),
                ":200",
            );
        }
    }
    let evicted = clients[0].call("JOIN.INFO timeline");
    let evicted = evicted.split("evicted|:").nth(1).expect("a figure");
    let evicted: u64 = evicted
        .split('|')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    assert!(evicted > 0, "nothing was evicted");
}

#[test]
fn a_long_fan_out_to_other_cores_delays_only_its_writer() {
    let is_slow = std::env::var_os("LARDER_SLOW_TESTS").is_some();
    let followers = if is_slow { 1_000_000 } else { 40_000 };
    let server = server(2);
    let mut writer = Client::connect(&server);
    writer.create("timeline", TIMELINE);
    for chunk in (0..followers).collect::<Vec<_>>().chunks(500) {
        let mut bytes = Vec::new();
        for user in chunk {
            bytes.extend(request(&["SET", &format!("sub|{user:06}|star"), "1"]));
        }
        for user in chunk {
            let (lo, hi) = (format!("tline|{user:06}|"), format!("tline|{user:06}}}"));
            bytes.extend(request(&["RANGE", &lo, &hi]));
        }
        writer.send(&bytes);
        chunk.iter().for_each(|_| assert_eq!(writer.reply(), "+OK"));
        chunk.iter().for_each(|_| assert_eq!(writer.reply(), "*0"));
    }
    let mut others = clients(&server, 6);
    writer.send(&request(&["SET", "post|star|0000000001", "hello"]));
    writer.stream.get_ref().set_nonblocking(true).expect("set");
    let mut meanwhile = 0;
    while writer.stream.get_ref().peek(&mut [0]).is_err() {
        others[meanwhile % 6].check("PING", "+PONG");
        meanwhile += 1;
    }
    writer.stream.get_ref().set_nonblocking(false).expect("set");
    assert_eq!(writer.reply(), "+OK");
    assert!(meanwhile > 1, "no other client was served");
    check_visits(&mut others[0], VISITED_MAX, "the fan-out");
    for user in (0..followers).step_by(997) {
        others[user % 6].check(&format!("GET tline|{user:06}|0000000001|star"), "$5|hello");
    }
}

/// Sets the flag on drop, so that the other threads also end if an assertion fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// When one transaction resumes the cores, the next one is already queued. Without fairness, the first core, to which
/// all transactions are sent first, would never execute anything else.
#[test]
fn endless_transactions_over_several_cores_do_not_starve_other_clients() {
    let server = server(2);
    // The two rows belong to different cores.
    let transaction = [
        request(&["MULTI"]),
        request(&["SET", "t|1", "x"]),
        request(&["SET", "t|2", "x"]),
        request(&["EXEC"]),
    ];
    let pipeline = transaction.concat().repeat(8);
    let mut readers = clients(&server, 8);
    readers[0].check("MSET t|1 x t|2 x", "+OK");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(&server);
                while !ended.load(Relaxed) {
                    client.send(&pipeline);
                    for _ in 0..8 {
                        let replies: Vec<String> = (0..4).map(|_| client.reply()).collect();
                        let expected = ["+OK", "+QUEUED", "+QUEUED", "*2|+OK|+OK"];
                        assert_eq!(replies, expected);
                    }
                }
            });
        }
        let _ended = SetOnDrop(&ended);
        for _ in 0..20 {
            for client in &mut readers {
                client.check("GET t|1", "$1|x");
                client.check("GET t|2", "$1|x");
                client.check("MGET t|1 t|2", "*2|$1|x|$1|x");
                client.check("RANGE t| t}", "*4|$3|t|1|$1|x|$3|t|2|$1|x");
            }
        }
    });
}
