//! Clients pipeline posts, follows, votes and deletes while the server is killed. Afterwards, a prefix of each
//! connection's writes must exist that includes every acknowledged write, and the joins must match it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use larder_protocol::config::Fsync;
use larder_protocol::resp::client::Reply;

use crate::killable::Killable;
use crate::resp::TIMELINE;
use crate::wire;

const KARMA: &str = "karma|<author> = count vote|<author>|<id>|<voter>";
const CLIENTS: usize = 4;
/// Number of leading columns of each client, which no other client writes. With several cores, they are distributed
/// over the cores.
const COLUMNS: usize = 5;
/// Maximum number of writes per batch.
const BATCH_MAX: usize = 40;

type Rows = BTreeMap<String, String>;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// One request or transaction.
struct PlannedWrite {
    request: String,
    /// Number of lines in its replies.
    lines: usize,
    changes: Vec<(String, Option<String>)>,
}

fn column(client: usize, n: usize) -> String {
    format!("c{client}x{n}")
}

/// Returns a random write of a client. `rows` reflects the client's previous writes.
fn draw(random: &mut Random, client: usize, rows: &mut Rows, serial: u64) -> PlannedWrite {
    let own = |random: &mut Random| column(client, random.below(COLUMNS));
    let any = |random: &mut Random| column(random.below(CLIENTS), random.below(COLUMNS));
    let key = |random: &mut Random| match random.below(4) {
        0 => format!("sub|{}|{}", own(random), any(random)),
        1 => format!(
            "vote|{}|{}|v{}",
            own(random),
            random.below(3),
            random.below(9)
        ),
        _ => format!("post|{}|{:010}", own(random), random.below(40)),
    };
    let write = match random.below(10) {
        0..=4 => {
            let (key, value) = (key(random), serial.to_string());
            PlannedWrite {
                request: format!("SET {key} {value}\r\n"),
                lines: 1,
                changes: vec![(key, Some(value))],
            }
        }
        5 | 6 => {
            let key = key(random);
            PlannedWrite {
                request: format!("DEL {key}\r\n"),
                lines: 1,
                changes: vec![(key, None)],
            }
        }
        7 => {
            let key = format!("n|{}", own(random));
            let before: u64 = rows.get(&key).map_or(0, |n| n.parse().expect("a number"));
            PlannedWrite {
                request: format!("INCR {key}\r\n"),
                lines: 1,
                changes: vec![(key, Some((before + 1).to_string()))],
            }
        }
        8 => {
            let (first, second, value) = (key(random), key(random), serial.to_string());
            PlannedWrite {
                request: format!("MSET {first} {value} {second} {value}\r\n"),
                lines: 1,
                changes: vec![(first, Some(value.clone())), (second, Some(value))],
            }
        }
        _ => {
            let (first, second, value) = (key(random), key(random), serial.to_string());
            PlannedWrite {
                request: format!("MULTI\r\nSET {first} {value}\r\nDEL {second}\r\nEXEC\r\n"),
                // OK, two QUEUED, and an array of two elements.
                lines: 6,
                changes: vec![(first, Some(value)), (second, None)],
            }
        }
    };
    apply(rows, &write.changes);
    write
}

fn apply(rows: &mut Rows, changes: &[(String, Option<String>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(rows.insert(key.clone(), value.clone())),
            None => drop(rows.remove(key)),
        }
    }
}

/// The writes that a client has sent, and how many were acknowledged.
struct Sent {
    writes: Vec<PlannedWrite>,
    answered: usize,
}

/// Writes until the server is killed, with two batches in flight at any time.
fn write_until_killed(
    addr: SocketAddr,
    client: usize,
    mut rows: Rows,
    seed: u64,
    answered: &AtomicU64,
) -> Sent {
    let mut random = Random(seed);
    let mut stream = BufReader::new(TcpStream::connect(addr).expect("connected"));
    let mut sent = Sent {
        writes: Vec::new(),
        answered: 0,
    };
    let (mut unread, mut serial) = (0, seed << 32);
    loop {
        let mut batch = String::new();
        for _ in 0..1 + random.below(BATCH_MAX) {
            serial += 1;
            let write = draw(&mut random, client, &mut rows, serial);
            batch += &write.request;
            sent.writes.push(write);
        }
        if stream.get_mut().write_all(batch.as_bytes()).is_err() {
            return sent;
        }
        while sent.answered < unread {
            for _ in 0..sent.writes[sent.answered].lines {
                let mut line = String::new();
                match stream.read_line(&mut line) {
                    Ok(_) if line.ends_with("\r\n") => assert!(!line.starts_with('-'), "{line}"),
                    _ => return sent,
                }
            }
            sent.answered += 1;
            answered.fetch_add(1, Ordering::Relaxed);
        }
        unread = sent.writes.len();
    }
}

/// Reads the rows of a table or an output.
fn read_rows(addr: SocketAddr, table: &str) -> Rows {
    let mut stream = BufReader::new(TcpStream::connect(addr).expect("connected"));
    write!(stream.get_mut(), "RANGE {table}| {table}}}\r\n").expect("sent");
    let Reply::Array(all) = wire::reply(&mut stream).expect("a reply") else {
        panic!("a range is an array");
    };
    let text = |reply| match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    };
    let texts: Vec<String> = all.into_iter().map(text).collect();
    let pairs = texts.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

/// Computes the outputs of the joins from base rows.
fn compute_outputs(base: &Rows) -> (Rows, Rows) {
    let of = |table: &str| -> Vec<(Vec<&str>, &String)> {
        let prefix = format!("{table}|");
        let rows = base.iter().filter(|(key, _)| key.starts_with(&prefix));
        rows.map(|(key, value)| (key.split('|').skip(1).collect(), value))
            .collect()
    };
    let (mut timelines, mut karma) = (Rows::new(), BTreeMap::new());
    let posts = of("post");
    for (sub, _) in of("sub") {
        for (post, text) in posts.iter().filter(|(post, _)| post[0] == sub[1]) {
            let key = format!("tline|{}|{}|{}", sub[0], post[1], post[0]);
            timelines.insert(key, (*text).clone());
        }
    }
    for (vote, _) in of("vote") {
        *karma.entry(format!("karma|{}", vote[0])).or_insert(0) += 1;
    }
    let karma = karma
        .into_iter()
        .map(|(key, n): (String, i32)| (key, n.to_string()));
    (timelines, karma.collect())
}

/// Returns the rows of one client.
fn rows_of_client(rows: &Rows, prefix: &str) -> Rows {
    let is_its = |key: &str| {
        key.split('|')
            .nth(1)
            .is_some_and(|column| column.starts_with(prefix))
    };
    let its = rows.iter().filter(|(key, _)| is_its(key));
    its.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Checks that the rows found are the result of a prefix of the client's writes, which includes all acknowledged
/// ones.
fn check(before: &Rows, sent: &Sent, found: &Rows, of: &str) {
    let (mut rows, mut done) = (before.clone(), 0);
    for write in &sent.writes[..sent.answered] {
        apply(&mut rows, &write.changes);
        done += 1;
    }
    loop {
        if rows_of_client(&rows, of) == *found {
            return;
        }
        let Some(write) = sent.writes.get(done) else {
            let kept = |rows: &Rows| format!("{:#?}", rows_of_client(rows, of));
            panic!(
                "{of}: what was kept is after no number of writes from {} to {}: {}",
                sent.answered,
                sent.writes.len(),
                kept(found)
            );
        };
        apply(&mut rows, &write.changes);
        done += 1;
    }
}

fn kills(fsync: Fsync, threads: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Killable::start_with(&folder.path().join("data"), fsync, threads);
    let addr = SocketAddr::from(([127, 0, 0, 1], server.port));
    let mut control = BufReader::new(TcpStream::connect(addr).expect("connected"));
    for (name, definition) in [("timeline", TIMELINE), ("karma", KARMA)] {
        write!(control.get_mut(), "JOIN.CREATE {name} \"{definition}\"\r\n").expect("sent");
        let mut line = String::new();
        control.read_line(&mut line).expect("a reply");
        assert_eq!(line, "+OK\r\n");
    }
    let mut base = Rows::new();
    let mut unanswered = 0;
    for round in 0..3_usize {
        let answered = AtomicU64::new(0);
        let all: Vec<Sent> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (own, answered) =
                        (rows_of_client(&base, &format!("c{client}x")), &answered);
                    let seed = (round * CLIENTS + client + 1) as u64;
                    scope.spawn(move || write_until_killed(addr, client, own, seed, answered))
                })
                .collect();
            // These reads fill the outputs, which the server then maintains.
            read_rows(addr, "tline");
            read_rows(addr, "karma");
            while answered.load(Ordering::Relaxed) < 3000 {
                std::thread::yield_now();
            }
            server.kill();
            let ended = writers
                .into_iter()
                .map(|writer| writer.join().expect("ended"));
            ended.collect()
        });
        server.start_again();
        let found: Rows = ["post", "sub", "vote", "n"]
            .iter()
            .flat_map(|table| read_rows(addr, table))
            .collect();
        for (client, sent) in all.iter().enumerate() {
            let kept = rows_of_client(&found, &format!("c{client}x"));
            let before = rows_of_client(&base, &format!("c{client}x"));
            check(&before, sent, &kept, &format!("c{client}x"));
            unanswered += sent.writes.len() - sent.answered;
        }
        let (timelines, karma) = compute_outputs(&found);
        assert_eq!(read_rows(addr, "tline"), timelines);
        assert_eq!(read_rows(addr, "karma"), karma);
        base = found;
    }
    assert!(unanswered > 0, "nothing was under way");
}

#[test]
fn a_kill_under_everysec_keeps_a_prefix_of_each_connections_writes_with_all_acknowledged_ones() {
    kills(Fsync::EverySecond, 1);
    kills(Fsync::EverySecond, 2);
}

#[test]
fn a_kill_under_no_keeps_a_prefix_of_each_connections_writes_with_all_acknowledged_ones() {
    kills(Fsync::No, 1);
    kills(Fsync::No, 3);
}

#[test]
fn a_kill_under_always_keeps_a_prefix_of_each_connections_writes_with_all_acknowledged_ones() {
    kills(Fsync::Always, 1);
    kills(Fsync::Always, 2);
}
