//! Random operations in PostgreSQL with concurrent reads, compared with PostgreSQL's own results.

use larder_protocol::config::SlotLife;

use super::cluster::{Cluster, Sql};
use super::proxy::Proxy;
use super::{CORES, POSTS_WRITE_THROUGH, SCHEMA, TIMELINE, server_with, unique_name};
use crate::resp::Client;

on_one_and_on_several_cores! {
    reads_match_postgres_under_random_changes,
}

/// A deterministic random number generator.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn change(sql: &mut Sql, dice: &mut Dice) {
    let (author, time, other) = (dice.roll(4), dice.roll(30), dice.roll(30));
    let statement = match dice.roll(12) {
        0..4 => format!(
            "INSERT INTO posts VALUES ('a{author}', {time}, 'b{other}') ON CONFLICT DO NOTHING"
        ),
        4 | 5 => format!(
            "UPDATE posts SET body = body || '+' WHERE author = 'a{author}' AND time > {time}"
        ),
        6 => format!("DELETE FROM posts WHERE author = 'a{author}' AND time = {time}"),
        7 => format!("DELETE FROM posts WHERE time BETWEEN {time} AND {other}"),
        8 => format!(
            "UPDATE posts SET time = time + 100 WHERE author = 'a{author}' AND time = {time} AND NOT EXISTS (SELECT FROM posts WHERE author = 'a{author}' AND time = {time} + 100)"
        ),
        9 => format!(
            "INSERT INTO subs VALUES ('f{}', 'a{author}') ON CONFLICT DO NOTHING",
            time % 3
        ),
        10 => format!(
            "DELETE FROM subs WHERE author = 'a{author}' AND follower = 'f{}'",
            time % 3
        ),
        _ if time == 0 => "TRUNCATE posts".to_owned(),
        _ => format!(
            "BEGIN; INSERT INTO posts VALUES ('a{author}', {time}, 'x') ON CONFLICT DO NOTHING; UPDATE posts SET body = 'y' WHERE time = {other}; DELETE FROM posts WHERE author = 'a{author}' AND time = {other}; COMMIT"
        ),
    };
    sql.run(&statement);
}

/// Formats keys and values like a reply to RANGE.
pub(super) fn answer(rows: &[(String, String)]) -> String {
    let shown = rows
        .iter()
        .map(|(key, value)| format!("|${}|{key}|${}|{value}", key.len(), value.len()));
    format!("*{}{}", rows.len() * 2, shown.collect::<String>())
}

pub(super) fn model(sql: &mut Sql, query: &str) -> Vec<(String, String)> {
    let rows = sql.rows(query);
    let pair = |row: &String| {
        row.split_once(',')
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    };
    let mut rows: Vec<_> = rows.iter().filter_map(pair).collect();
    rows.sort();
    rows
}

/// Repeats a read until it succeeds, because a cut connection may be noticed late.
pub(super) fn ask(client: &mut Client, read: &str) -> String {
    let mut answer = String::new();
    client.wait_until(read, |client| {
        answer = client.call(read);
        !answer.starts_with("-SOURCE ")
    });
    answer
}

fn check_all(client: &mut Client, sql: &mut Sql, seed: u64) {
    let key = "'post|' || author || '|' || lpad(time::text, 10, '0')";
    let all = model(sql, &format!("SELECT {key}, body FROM posts"));
    assert_eq!(
        ask(client, "RANGE post| post}"),
        answer(&all),
        "seed {seed}"
    );
    for author in 0..4 {
        let prefix = format!("post|a{author}|");
        let of_author: Vec<_> = all
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix))
            .cloned()
            .collect();
        let read = ask(client, &format!("RANGE post|a{author}| post|a{author}}}"));
        assert_eq!(read, answer(&of_author), "seed {seed}");
    }
    for follower in 0..3 {
        let timeline = model(
            sql,
            &format!(
                "SELECT 'tline|f{follower}|' || lpad(time::text, 10, '0') || '|' || author, body FROM posts JOIN subs USING (author) WHERE follower = 'f{follower}'"
            ),
        );
        let read = ask(
            client,
            &format!("RANGE tline|f{follower}| tline|f{follower}}}"),
        );
        assert_eq!(read, answer(&timeline), "seed {seed}");
    }
}

fn run(cluster: &Cluster, seed: u64, slot: SlotLife, rounds: u64) {
    let mut dice = Dice(seed);
    let mut sql = cluster.database(&format!("random_{seed}"));
    sql.run(SCHEMA);
    let proxy = Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), POSTS_WRITE_THROUGH, |config| {
        config.postgres.slot = slot;
        config.postgres.slot_name = unique_name(&format!("random_{seed}"));
        if seed.is_multiple_of(2) {
            config.tables.memory = larder_types::ByteSize(60 << 10);
        }
    });
    // The connections are distributed over the cores.
    let connections = 2 * u64::from(CORES.get()) - 1;
    let mut clients: Vec<Client> = (0..connections).map(|_| Client::connect(&server)).collect();
    clients[0].create("timeline", TIMELINE);
    for round in 0..rounds {
        // Changes and reads run concurrently, so that loads race with the stream.
        let mut writer = sql.another();
        let mut writers_dice = Dice(seed * 1000 + round + 1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..30 {
                    change(&mut writer, &mut writers_dice);
                }
            });
            for _ in 0..30 {
                let (author, time) = (dice.roll(4), dice.roll(30));
                let client = &mut clients[dice.roll(connections) as usize];
                let read = match dice.roll(10) {
                    0 | 1 => format!("GET post|a{author}|{time:010}"),
                    2 => format!("RANGE post|a{author}|{time:010} post|a{author}|0000000040"),
                    3 => format!("RANGE tline|f{}| tline|f{0}}}", time % 3),
                    4 => "RANGECOUNT post| post}".to_owned(),
                    5 => format!("SET post|a{author}|{time:010} own"),
                    6 => format!("DEL post|a{author}|{time:010}"),
                    7 => format!(
                        "MGET post|a{author}|{time:010} post|a0|{time:010} post|a1|{time:010}"
                    ),
                    8 => format!(
                        "MSET post|a{author}|{time:010} own post|a{}|{time:010} own",
                        (author + 1) % 4
                    ),
                    _ => format!("RANGE post|a{author}| post|a{author}}} LIMIT 2"),
                };
                let read = client.call(&read);
                // While the connection is cut, some reads fail.
                assert!(
                    !read.starts_with('-')
                        || read.starts_with("-SOURCE")
                        || read.starts_with("-IOERR"),
                    "seed {seed}: {read}"
                );
                if dice.roll(60) == 0 {
                    proxy.cut();
                }
            }
        });
        for client in &mut clients {
            client.wait_until("streaming", |client| {
                client.postgres_info("state") == "streaming"
            });
            client.catch_up(&mut sql);
            check_all(client, &mut sql, seed);
        }
    }
}

fn reads_match_postgres_under_random_changes() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let slow = std::env::var("LARDER_SLOW_TESTS").is_ok();
    let (seeds, rounds) = if slow { (40, 40) } else { (4, 6) };
    for seed in 1..=seeds {
        let slot = if seed % 3 == 0 {
            SlotLife::Permanent
        } else {
            SlotLife::Temporary
        };
        run(cluster, seed, slot, rounds);
    }
}
