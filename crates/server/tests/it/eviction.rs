//! Long ranges of join outputs that do not fit into memory: no row may be missing.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use larder_types::ByteSize;

use crate::resp::{Client, request};
use crate::support::TestServer;

fn server(threads: u32, memory_bytes: u64) -> TestServer {
    TestServer::with(|config| {
        config.server.threads = threads;
        config.tables.memory = ByteSize(memory_bytes);
    })
}

fn post(client: &mut Client, author: &str, times: std::ops::Range<usize>, value: &str) {
    let times: Vec<usize> = times.collect();
    for chunk in times.chunks(1_000) {
        let mut words = vec!["MSET".to_owned()];
        for time in chunk {
            words.extend([format!("post|{author}|{time:06}"), value.to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        client.send(&request(&words));
        assert_eq!(client.reply(), "+OK");
    }
}

/// Reads a range and returns the times of its keys.
fn times(client: &mut Client, table: &str, user: &str, options: &str) -> Vec<usize> {
    let lo = format!("{table}|{user}|");
    let line = format!("RANGE {lo} {table}|{user}}} {options}");
    let reply = client.call(line.trim_end());
    assert!(reply.starts_with('*'), "{line}: {reply}");
    let mut parts = reply.split(&*lo);
    parts.next();
    let time = |rest: &str| rest[..6].parse().expect("a time");
    parts.map(time).collect()
}

fn evictions(client: &mut Client) -> u64 {
    let mut evicted = 0;
    for (table, _) in MODES {
        let info = client.call(&format!("JOIN.INFO {table}"));
        let count = info.split("evicted|:").nth(1).expect("a figure");
        let count = count
            .split('|')
            .next()
            .and_then(|count| count.parse::<u64>().ok());
        evicted += count.expect("a number");
    }
    evicted
}

const MODES: [(&str, &str); 4] = [
    ("push", ""),
    ("auto", "auto "),
    ("snap", "snapshot 60 "),
    ("pull", "pull "),
];

fn create_joins(client: &mut Client) {
    for (table, mode) in MODES {
        let join = format!(
            "{table}|<user>|<time:6>|<author> = {mode}check sub|<user>|<author> copy post|<author>|<time>"
        );
        client.create(table, &join);
    }
}

/// Each follower's timeline needs more memory than the posts leave free.
#[test]
fn a_timeline_evicted_during_a_read_is_returned_completely() {
    const POSTS: usize = 1_500;
    let server = server(1, 150_000);
    let mut client = Client::connect(&server);
    create_joins(&mut client);
    post(&mut client, "bob", 0..POSTS, "x");
    for user in 0..20 {
        client.check(&format!("SET sub|u{user:02}|bob 1"), "+OK");
    }
    let all: Vec<usize> = (0..POSTS).collect();
    let reversed: Vec<usize> = (0..POSTS).rev().collect();
    for (table, _) in MODES {
        for user in 0..20 {
            let user = format!("u{user:02}");
            for (options, expected) in [
                ("", &all[..]),
                ("REV", &reversed[..]),
                ("LIMIT 1400", &all[..1_400]),
                ("REV LIMIT 1400", &reversed[..1_400]),
                ("KEYSONLY", &all[..]),
            ] {
                let read = times(&mut client, table, &user, options);
                assert!(
                    read == expected,
                    "{table} {user} {options}: {} rows",
                    read.len()
                );
            }
        }
    }
    let evicted = evictions(&mut client);
    assert!(evicted > 20, "{evicted} ranges were evicted");
}

/// Clients of two threads read timelines longer than any chunk concurrently, while the posts are rewritten.
#[test]
fn timelines_are_returned_completely_on_two_threads_during_evictions() {
    let sizes = [
        ("a1", 1_023),
        ("a2", 1_024),
        ("a3", 1_025),
        ("a4", 2_000),
        ("a5", 70_000),
    ];
    let server = server(2, 2 << 20);
    let mut client = Client::connect(&server);
    create_joins(&mut client);
    for (author, size) in sizes {
        post(&mut client, author, 0..size, "x");
        for user in 0..if size < 10_000 { 200 } else { 2 } {
            client.check(&format!("SET sub|{author}u{user}|{author} 1"), "+OK");
        }
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, ended) = (&server, &ended);
        scope.spawn(move || {
            let mut client = Client::connect(server);
            for round in 0.. {
                let (author, size) = sizes[round % sizes.len()];
                let time = round * 7_919 % size;
                client.check(&format!("SET post|{author}|{time:06} {round}"), "+OK");
                if ended.load(Relaxed) {
                    return;
                }
            }
        });
        let readers: Vec<_> = (0..3_usize)
            .map(|reader| {
                scope.spawn(move || {
                    let mut client = Client::connect(server);
                    for round in 0..120 {
                        let (author, size) =
                            sizes[(round + reader) % if round % 20 == 0 { 5 } else { 4 }];
                        let users = if size < 10_000 { 200 } else { 2 };
                        let user = format!("{author}u{}", (round * 37 + reader * 61) % users);
                        let (table, _) = MODES[round / 2 % MODES.len()];
                        let (options, limit) = match round % 5 {
                            0 => ("REV", size),
                            1 => ("LIMIT 1400", size.min(1_400)),
                            2 => ("KEYSONLY", size),
                            _ => ("", size),
                        };
                        let mut read = times(&mut client, table, &user, options);
                        if options == "REV" {
                            read.reverse();
                        }
                        let is_all = read.iter().copied().eq(0..limit);
                        assert!(is_all, "{table} {user} {options}: {} rows", read.len());
                    }
                })
            })
            .collect();
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        ended.store(true, Relaxed);
        for result in results {
            result.expect("a reader found all rows");
        }
    });
    let evicted = evictions(&mut client);
    assert!(evicted > 20, "{evicted} ranges were evicted");
}
