//! Client-side caching: a client that caches what it reads, and drops the keys that CLIENT TRACKING reports, never
//! keeps a stale value.

use std::collections::HashMap;

use larder_types::{ByteSize, Random};

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, TIMELINE, request, server_with};
use crate::support::{TestServer, build};

fn resp3(server: &TestServer) -> Client {
    Client::resp3(server.server().resp_addr())
}

/// Returns the keys of the invalidations that arrive before the reply to a PING; `*` means all keys.
fn read_invalidations(client: &mut Client) -> Vec<String> {
    let frames = client.frames_before_pong().into_iter();
    let key = |frame: String| key_of(&frame).unwrap_or_else(|| panic!("{frame}"));
    frames.map(key).collect()
}

fn key_of(frame: &str) -> Option<String> {
    let keys = frame.strip_prefix(">2|$10|invalidate|")?;
    match keys {
        "_" => Some("*".to_owned()),
        keys => keys
            .strip_prefix("*1|$")?
            .split_once('|')
            .map(|it| it.1.to_owned()),
    }
}

#[track_caller]
fn check_invalidated(client: &mut Client, keys: &[&str]) {
    let mut found = read_invalidations(client);
    found.sort();
    assert_eq!(found, keys);
}

#[test]
fn a_change_of_a_tracked_key_is_reported_once() {
    for server in servers() {
        let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
        reader.check("CLIENT TRACKING ON", "+OK");
        reader.check("GET t|a", "_");
        reader.check("HGET h:1 f", "_");
        reader.check("MGET t|b plain", "*2|_|_");
        writer.check("SET t|other 1", "+OK");
        check_invalidated(&mut reader, &[]);
        writer.check("SET t|a 1", "+OK");
        writer.check("HSET h:1 f v", ":1");
        writer.check("SET plain 1", "+OK");
        check_invalidated(&mut reader, &["h:1", "plain", "t|a"]);
        writer.check("SET t|a 2", "+OK");
        check_invalidated(&mut reader, &[]);
        reader.check("GET t|a", "$1|2");
        writer.check("EXPIRE t|a 1000", ":1");
        check_invalidated(&mut reader, &["t|a"]);
        reader.check("GET t|a", "$1|2");
        writer.check("DEL t|a", ":1");
        check_invalidated(&mut reader, &["t|a"]);
        reader.check("GET t|a", "_");
        reader.check("CLIENT TRACKING OFF", "+OK");
        writer.check("SET t|a 1", "+OK");
        check_invalidated(&mut reader, &[]);
    }
}

#[test]
fn a_clients_own_writes_are_reported_unless_noloop_is_set() {
    for server in servers() {
        let mut client = resp3(&server);
        client.check("CLIENT TRACKING ON", "+OK");
        for key in ["t|a", "t|b", "plain"] {
            client.check(&format!("GET {key}"), "_");
            client.check(&format!("SET {key} 1"), "+OK");
            assert_eq!(
                client.reply(),
                format!(">2|$10|invalidate|*1|${}|{key}", key.len())
            );
        }
        client.check("CLIENT TRACKING ON NOLOOP", "+OK");
        // Changing the options invalidates everything that was cached before.
        check_invalidated(&mut client, &["*"]);
        client.check("GET t|a", "$1|1");
        client.check("SET t|a 2", "+OK");
        check_invalidated(&mut client, &[]);
        let mut other = Client::connect(&server);
        client.check("GET t|a", "$1|2");
        other.check("SET t|a 3", "+OK");
        check_invalidated(&mut client, &["t|a"]);
    }
}

/// Changes of a row are not tracked for the key that a group of rows has in common. Such a key is therefore
/// invalidated as soon as it is read.
#[test]
fn a_group_of_rows_is_invalidated_immediately_after_a_read() {
    for server in servers() {
        let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
        writer.create("leaders", "leaders|<rank:1>|<user> = top 2 score|<user>");
        check_all(
            &mut writer,
            &[("SET team|red|ann 1", "+OK"), ("SET score|ann 7", "+OK")],
        );
        for tracking in ["ON", "ON BCAST"] {
            reader.check(&format!("CLIENT TRACKING {tracking}"), "+OK");
            reader.frames_before_pong();
            for (read, key) in [
                ("SMEMBERS team|red", "team|red"),
                ("SCARD team|red", "team|red"),
                ("SISMEMBER team|red ann", "team|red"),
                ("ZCARD leaders", "leaders"),
                ("ZRANGE leaders 0 -1", "leaders"),
            ] {
                let reply = reader.call(read);
                assert!(!reply.starts_with('-'), "{read}: {reply}");
                check_invalidated(&mut reader, &[key]);
            }
            reader.check("CLIENT TRACKING OFF", "+OK");
        }
    }
}

#[test]
fn an_output_row_is_reported_when_its_sources_change() {
    for server in servers() {
        let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
        writer.create("timeline", TIMELINE);
        writer.create("posts", "posts|<author> = count post|<author>|<time>");
        writer.create("latest", "latest|<author> = pull max post|<author>|<time>");
        check_all(
            &mut writer,
            &[("SET sub|ann|bob 1", "+OK"), ("SET post|bob|1 7", "+OK")],
        );
        reader.check("CLIENT TRACKING ON", "+OK");
        let read = |reader: &mut Client| {
            reader.call("GET tline|ann|1|bob");
            reader.call("GET tline|ann|2|bob");
            reader.call("GET posts|bob");
            check_invalidated(reader, &[]);
        };
        read(&mut reader);
        writer.check("SET post|bob|1 8", "+OK");
        check_invalidated(&mut reader, &["tline|ann|1|bob"]);
        read(&mut reader);
        writer.check("SET post|bob|2 9", "+OK");
        check_invalidated(&mut reader, &["posts|bob", "tline|ann|2|bob"]);
        read(&mut reader);
        // A change of a checked row takes effect when the range is read. Until then, the complete range may be stale.
        writer.check("DEL sub|ann|bob", ":1");
        check_invalidated(&mut reader, &["tline|ann|1|bob", "tline|ann|2|bob"]);
        reader.check("GET tline|ann|1|bob", "_");
        // A row of a pull join is invalidated as soon as it is read.
        reader.check("GET latest|bob", "$1|9");
        check_invalidated(&mut reader, &["latest|bob"]);
        // A change of the definitions can affect every key.
        writer.check("JOIN.DROP posts", "+OK");
        assert!(read_invalidations(&mut reader).contains(&"*".to_owned()));
    }
}

#[test]
fn a_swap_of_a_store_is_reported() {
    for server in servers() {
        let mut reader = resp3(&server);
        reader.check("CLIENT TRACKING ON", "+OK");
        reader.check("GET s:k1", "$1|v");
        reader.check("MGET s:k2 t|a", "*2|$1|v|_");
        check_invalidated(&mut reader, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        build(folder.path(), "s", 100, "w");
        let pull = server.pull_from("s", folder.path().to_str().expect("UTF-8"));
        assert_eq!(pull["state"], "done", "{pull}");
        check_invalidated(&mut reader, &["s:k1", "s:k2"]);
        reader.check("GET s:k1", "$1|w");
    }
}

#[test]
fn opt_in_tracks_reads_after_caching_yes_and_opt_out_skips_reads_after_caching_no() {
    for server in servers() {
        let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
        let keys = ["t|a", "t|b", "t|c", "u|d"];
        let write_all = |writer: &mut Client| {
            keys.iter()
                .for_each(|key| drop(writer.call(&format!("SET {key} 1"))));
        };
        reader.check("CLIENT TRACKING ON OPTIN", "+OK");
        let mut lines = Vec::new();
        for line in [
            "GET t|a",
            "CLIENT CACHING YES",
            "GET t|b",
            "GET t|c",
            "CLIENT CACHING YES",
            "GET u|d",
        ] {
            lines.extend(request(&line.split(' ').collect::<Vec<_>>()));
        }
        reader.send(&lines);
        (0..6).for_each(|_| drop(reader.reply()));
        write_all(&mut writer);
        check_invalidated(&mut reader, &["t|b", "u|d"]);
        // A transaction counts as one command.
        for line in [
            "CLIENT CACHING YES",
            "MULTI",
            "GET t|a",
            "GET u|d",
            "EXEC",
            "GET t|b",
        ] {
            reader.call(line);
        }
        write_all(&mut writer);
        check_invalidated(&mut reader, &["t|a", "u|d"]);
        reader.check("CLIENT TRACKING OFF", "+OK");
        reader.check("CLIENT TRACKING ON OPTOUT", "+OK");
        for line in ["GET t|a", "CLIENT CACHING NO", "GET t|b", "GET t|c"] {
            reader.call(line);
        }
        write_all(&mut writer);
        check_invalidated(&mut reader, &["t|a", "t|c"]);
    }
}

#[test]
fn a_broadcast_reports_every_change_of_keys_with_a_prefix() {
    for server in servers() {
        let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
        writer.create("posts", "posts|<author> = count post|<author>|<time>");
        reader.check("CLIENT TRACKING ON BCAST PREFIX t| PREFIX posts|", "+OK");
        writer.check("SET t|a 1", "+OK");
        writer.check("SET u|a 1", "+OK");
        writer.check("HSET t|h f v", ":1");
        check_invalidated(&mut reader, &["t|a", "t|h"]);
        // Changes of a computed row are reported after it has been read once.
        writer.check("GET posts|bob", "$-1");
        writer.check("SET post|bob|1 x", "+OK");
        check_invalidated(&mut reader, &["posts|bob"]);
    }
}

#[test]
fn invalidations_are_redirected_to_a_subscribed_connection() {
    for server in servers() {
        let (mut reader, mut writer) = (Client::connect(&server), Client::connect(&server));
        let mut feed = Client::connect(&server);
        let id = feed.call("CLIENT ID");
        let id = id.strip_prefix(':').expect("a number");
        feed.check(
            "SUBSCRIBE __redis__:invalidate",
            "*3|$9|subscribe|$20|__redis__:invalidate|:1",
        );
        reader.check(&format!("CLIENT TRACKING ON REDIRECT {id}"), "+OK");
        reader.check("CLIENT GETREDIR", &format!(":{id}"));
        reader.check("GET t|a", "$-1");
        writer.check("SET t|a 1", "+OK");
        assert_eq!(
            feed.reply(),
            "*3|$7|message|$20|__redis__:invalidate|*1|$3|t|a"
        );
        writer.check("FLUSHALL", "+OK");
        reader.check(
            "CLIENT TRACKING ON REDIRECT 123456",
            "-ERR The client ID you want redirect to does not exist",
        );
    }
}

#[test]
fn a_client_is_notified_of_a_broken_redirection() {
    for server in servers() {
        let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
        let mut feed = resp3(&server);
        let id = feed.call("CLIENT ID");
        let id = id.strip_prefix(':').expect("a number").to_owned();
        reader.check(&format!("CLIENT TRACKING ON REDIRECT {id}"), "+OK");
        writer.check(&format!("CLIENT KILL ID {id}"), ":1");
        assert_eq!(feed.read_to_end(), "");
        crate::support::until("the connection is closed", || {
            !writer.call("CLIENT LIST").contains(&format!("id={id} "))
        });
        reader.check("GET t|a", "_");
        writer.check("SET t|a 1", "+OK");
        assert_eq!(
            reader.reply(),
            format!(">2|$21|tracking-redir-broken|:{id}")
        );
        assert!(
            reader
                .call("CLIENT TRACKINGINFO")
                .contains("broken_redirect")
        );
    }
}

#[test]
fn a_full_tracking_table_invalidates_keys() {
    let server = server_with(|config| {
        config.server.threads = 2;
        config.server.tracking_keys_max = 10;
    });
    let (mut reader, mut writer) = (resp3(&server), Client::connect(&server));
    reader.check("CLIENT TRACKING ON", "+OK");
    let mut cached: Vec<String> = (0..100).map(|key| format!("t|{key}")).collect();
    for key in &cached {
        reader.send(&request(&["GET", key]));
    }
    let mut replies = 0;
    let mut forgotten = Vec::new();
    while replies < cached.len() {
        match reader.reply().as_str() {
            "_" => replies += 1,
            frame => forgotten.extend(key_of(frame)),
        }
    }
    forgotten.extend(read_invalidations(&mut reader));
    cached.retain(|key| !forgotten.contains(key));
    assert!(cached.len() <= 12, "{cached:?}");
    for key in &cached {
        writer.check(&format!("SET {key} 1"), "+OK");
    }
    let mut found = read_invalidations(&mut reader);
    found.sort();
    cached.sort();
    assert_eq!(found, cached);
}

/// A client with a cache, which it consults before each read.
struct CachingClient {
    client: Client,
    cache: HashMap<String, String>,
    hits: usize,
    reported: usize,
}

impl CachingClient {
    fn forget(&mut self, frame: &str) -> bool {
        let Some(key) = key_of(frame) else {
            return false;
        };
        self.reported += 1;
        match key.as_str() {
            "*" => self.cache.clear(),
            key => drop(self.cache.remove(key)),
        }
        true
    }

    fn read(&mut self, key: &str) {
        if self.cache.contains_key(key) {
            self.hits += 1;
            return;
        }
        self.client.send(&request(&read_command(key)));
        let reply = loop {
            let frame = self.client.reply();
            if !self.forget(&frame) {
                break frame;
            }
        };
        self.cache.insert(key.to_owned(), reply);
    }

    fn catch_up(&mut self) {
        for frame in self.client.frames_before_pong() {
            assert!(self.forget(&frame), "{frame}");
        }
    }
}

fn read_command(key: &str) -> Vec<&str> {
    if key.starts_with("h:") {
        vec!["HGETALL", key]
    } else {
        vec!["GET", key]
    }
}

/// Returns a random key of a row, an object, or a join's output.
fn random_key(random: &mut Random) -> String {
    let (a, b, c) = (random.index(3), random.index(3), random.index(4));
    match random.index(6) {
        0 => format!("t|{a}{b}"),
        1 => format!("h:{a}{b}"),
        2 | 3 => format!("tline|u{a}|{c}|u{b}"),
        4 => format!("posts|u{b}"),
        _ => format!("unread|u{a}"),
    }
}

fn random_write(random: &mut Random) -> String {
    let (a, b, c, value) = (
        random.index(3),
        random.index(3),
        random.index(4),
        random.index(100),
    );
    match random.index(24) {
        0..=4 => format!("SET t|{a}{b} {value}"),
        5 => format!("DEL t|{a}{b}"),
        6..=7 => format!("HSET h:{a}{b} f {value}"),
        8 => format!("HDEL h:{a}{b} f"),
        9 => format!("DEL h:{a}{b}"),
        10..=14 => format!("SET post|u{b}|{c} {value}"),
        15..=16 => format!("DEL post|u{b}|{c}"),
        17..=18 => format!("SET sub|u{a}|u{b} 1"),
        19..=20 => format!("DEL sub|u{a}|u{b}"),
        21 => format!("RANGEDEL post|u{b}| post|u{b}}}"),
        // Long values evict computed ranges, because the server has little memory.
        22 => format!("SET post|u{b}|{c} {}", "x".repeat(20_000)),
        _ => format!("INCR t|{a}{b}"),
    }
}

fn check_cache(threads: u32, seed: u64) {
    let server = TestServer::with(|config| {
        config.server.threads = threads;
        config.tables.memory = ByteSize(600 << 10);
    });
    let mut plain = Client::connect(&server);
    plain.create("timeline", TIMELINE);
    plain.create("posts", "posts|<author> = count post|<author>|<time>");
    plain.create(
        "unread",
        "unread|<user> = count tline|<user>|<time>|<author>",
    );
    let mut client = resp3(&server);
    client.check("CLIENT TRACKING ON", "+OK");
    let mut caching = CachingClient {
        client,
        cache: HashMap::new(),
        hits: 0,
        reported: 0,
    };
    let mut compared = 0;
    for round in 0..30 {
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let server = &server;
                scope.spawn(move || {
                    let mut random = Random::new(seed * 1000 + round * 2 + writer);
                    let mut client = Client::connect(server);
                    for _ in 0..20 {
                        client.call(&random_write(&mut random));
                    }
                });
            }
            let mut random = Random::new(seed * 7000 + round);
            for _ in 0..80 {
                caching.read(&random_key(&mut random));
            }
        });
        caching.catch_up();
        for (key, cached) in &caching.cache {
            plain.send(&request(&read_command(key)));
            let there = plain.reply();
            let same = |reply: &str| reply.replace("$-1", "_").replacen('*', "%", 1);
            let halved = |reply: String| match reply.strip_prefix("%2") {
                Some(rest) => format!("%1{rest}"),
                None => reply,
            };
            assert_eq!(
                *cached,
                halved(same(&there)),
                "{key}, {threads} threads, seed {seed}, round {round}"
            );
            compared += 1;
        }
    }
    assert!(
        compared > 100 && caching.hits > 100 && caching.reported > 100,
        "compared {compared}, hits {}, reported {}",
        caching.hits,
        caching.reported
    );
}

/// After each PING and the invalidations before its reply, every cached value must equal the server's.
#[test]
fn a_client_side_cache_never_keeps_a_stale_value() {
    for seed in 1..=3 {
        check_cache(1, seed);
        check_cache(2, seed);
    }
}
