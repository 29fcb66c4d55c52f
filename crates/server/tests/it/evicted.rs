//! Long ranges of what joins make, while memory is too short to keep them: no row is missing.

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

/// Asks for a range, and returns the times of its keys.
fn times(client: &mut Client, table: &str, user: &str, options: &str) -> Vec<usize> {
    let lo = format!("{table}|{user}|");
    let line = format!("RANGE {lo} {table}|{user}}} {options}");
    let reply = client.ask(line.trim_end());
    assert!(reply.starts_with('*'), "{line}: {reply}");
    let mut parts = reply.split(&*lo);
    parts.next();
    let time = |rest: &str| rest[..6].parse().expect("a time");
    parts.map(time).collect()
}

fn evictions(client: &mut Client) -> u64 {
    let mut evicted = 0;
    for (table, _) in MODES {
        let info = client.ask(&format!("JOIN.INFO {table}"));
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

/// Each follower's timeline takes more than is left beside the posts.
#[test]
fn a_timeline_that_is_evicted_while_it_is_read_has_all_its_rows() {
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
