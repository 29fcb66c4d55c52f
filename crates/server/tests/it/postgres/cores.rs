//! Tables of PostgreSQL on several cores: reads return the same as on one core, of one moment, on any connection.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::cluster::Sql;
use super::{POSTS_WRITE_THROUGH, SCHEMA, TIMELINE, server, server_with, with_cores};
use crate::resp::Client;
use crate::support::TestServer;

const AUTHORS: usize = 8;
const FOLLOWERS: usize = 4;

/// Creates authors with a post each, and followers of all of them.
fn start_following(name: &str) -> Option<(Sql, TestServer)> {
    let cluster = super::Cluster::shared()?;
    let mut sql = cluster.database(name);
    sql.run(SCHEMA);
    sql.run(&format!(
        "INSERT INTO posts SELECT 'a' || n, 1, '0' FROM generate_series(0, {AUTHORS} - 1) n;
        INSERT INTO subs SELECT 'f' || f, 'a' || a FROM generate_series(0, {AUTHORS} - 1) a, generate_series(0, {FOLLOWERS} - 1) f"
    ));
    let server = server(&sql.url(), POSTS_WRITE_THROUGH);
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    Some((sql, server))
}

/// Decrements the number of readers on drop.
struct FinishedGuard<'a>(&'a AtomicUsize);

impl Drop for FinishedGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Returns the values in a formatted reply, all of which are numbers.
fn parse_values(answer: &str) -> Vec<u64> {
    let parts = answer.split('|');
    let all: Vec<&str> = parts.collect();
    let is_value = |at: &usize| *at > 0 && all[at - 1].starts_with('$');
    let values = (0..all.len()).filter(is_value).map(|at| all[at]);
    values.filter_map(|value| value.parse().ok()).collect()
}

#[test]
fn reads_on_all_cores_see_commits_atomically() {
    with_cores(3, check_atomic_commits);
}

fn check_atomic_commits() {
    // Number of distinct commits that each reader must observe.
    const COMMITS: u64 = 100;
    let Some((mut sql, server)) = start_following("whole") else {
        return;
    };
    let authors = |each: &dyn Fn(usize) -> String| (0..AUTHORS).map(each).collect::<Vec<_>>();
    let posts = authors(&|a| format!("post|a{a}|0000000001")).join(" ");
    // One output row per follower, so that several cores compute them.
    let timelines = authors(&|a| format!("tline|f{}|0000000001|a{a}", a % FOLLOWERS)).join(" ");
    let gets = authors(&|a| format!("GET post|a{a}|0000000001"));
    let ranges: Vec<String> = (0..FOLLOWERS)
        .map(|f| format!("RANGE tline|f{f}| tline|f{f}}}"))
        .collect();
    let reads: Vec<Vec<String>> = vec![
        vec![format!("MGET {posts}")],
        vec!["RANGE post| post}".to_owned()],
        vec!["RANGE tline| tline}".to_owned()],
        vec![format!("MGET {timelines}")],
        vec![format!("MGET {timelines} {posts}")],
        gets,
        ranges,
    ];
    let reading = AtomicUsize::new(reads.len());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                if reading.load(Relaxed) == 0 {
                    return;
                }
                sql.run(&format!("UPDATE posts SET body = '{round}'"));
            }
        });
        for read in &reads {
            let (server, reading) = (&server, &reading);
            scope.spawn(move || {
                let mut client = Client::connect(server);
                let _done = FinishedGuard(reading);
                let (mut last, mut seen) = (0, 0);
                while seen < COMMITS {
                    let answer = match &read[..] {
                        [one] => client.call(one),
                        many => {
                            client.check("MULTI", "+OK");
                            many.iter().for_each(|one| client.check(one, "+QUEUED"));
                            client.call("EXEC")
                        }
                    };
                    let values = parse_values(&answer);
                    assert!(values.len() >= AUTHORS, "{read:?}: {answer}");
                    assert!(
                        values.iter().all(|value| *value == values[0]),
                        "{read:?} sees a part of a commit: {answer}"
                    );
                    assert!(values[0] >= last, "{read:?} goes back: {answer}");
                    seen += u64::from(values[0] > last);
                    last = values[0];
                }
            });
        }
    });
}

#[test]
fn a_write_through_is_on_every_core_before_its_reply() {
    with_cores(3, check_write_through);
}

fn check_write_through() {
    let Some((_sql, server)) = start_following("everywhere") else {
        return;
    };
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&server)).collect();
    // A join over rows of other cores and rows of PostgreSQL.
    let mixed =
        "mixed|<user>|<time:10>|<author> = check own|<user>|<author> copy post|<author>|<time>";
    let created = clients[0].call_words(&["JOIN.CREATE", "mixed", mixed]);
    assert_eq!(created, "+OK");
    for f in 0..FOLLOWERS {
        for a in 0..AUTHORS {
            clients[1].check(&format!("SET own|f{f}|a{a} x"), "+OK");
        }
    }
    for round in 0..120_usize {
        let (a, f) = (round % AUTHORS, round % FOLLOWERS);
        let value = format!("round {round}");
        let key = format!("post|a{a}|0000000001");
        let set = clients[round % 6].call_words(&["SET", &key, &value]);
        assert_eq!(set, "+OK");
        let expected = format!("${}|{value}", value.len());
        let other = &mut clients[(round / 6 + round) % 6];
        other.check(&format!("GET {key}"), &expected);
        for output in ["tline", "mixed"] {
            let read = format!("GET {output}|f{f}|0000000001|a{a}");
            other.check(&read, &expected);
        }
        let all = other.call("RANGE tline| tline}");
        assert_eq!(all.matches(&expected).count(), FOLLOWERS, "{all}");
    }
    // A write of keys of several columns is one transaction in PostgreSQL.
    let both = ["MSET", "post|a0|0000000001", "m", "post|a1|0000000001", "m"];
    assert_eq!(clients[2].call_words(&both), "+OK");
    clients[3].check(
        "MGET post|a0|0000000001 post|a1|0000000001 post|a9|0000000001",
        "*3|$1|m|$1|m|$-1",
    );
    clients[4].check("EXISTS post|a0|0000000001 post|a1|0000000001", ":2");
    clients[5].check("DEL post|a0|0000000001 post|a1|0000000001", ":2");
    clients[0].check("EXISTS post|a0|0000000001 post|a1|0000000001", ":0");
    let apart = clients[1].call("MSET post|a0|0000000001 x own|f0|a9 x");
    assert!(apart.contains("in separate commands"), "{apart}");
    // Replies arrive in order, whatever each of them waits for.
    clients[2].send(b"SET post|a1|0000000001 new\r\nMGET post|a0|0000000001 post|a1|0000000001\r\nRANGECOUNT post| post}\r\nSET own|f0|a0 y\r\n");
    let replies: Vec<String> = (0..4).map(|_| clients[2].reply()).collect();
    assert_eq!(replies, ["+OK", "*2|$-1|$3|new", ":7", "+OK"]);
}

#[test]
fn reads_on_every_core_report_that_postgres_is_down() {
    with_cores(3, check_outage_reports);
}

fn check_outage_reports() {
    let Some(cluster) = super::Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("away");
    sql.run(SCHEMA);
    sql.run("INSERT INTO posts SELECT 'a' || n, 1, 'x' FROM generate_series(0, 99) n");
    let proxy = super::proxy::Proxy::to(cluster.port());
    let server = server_with(&sql.url_at(proxy.port()), POSTS_WRITE_THROUGH, |_| {});
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&server)).collect();
    clients[0].create("timeline", TIMELINE);
    let mut next = 0;
    for round in 0..2 {
        for (at, client) in clients.iter_mut().enumerate() {
            client.check(&format!("GET post|a{at}|0000000001"), "$1|x");
        }
        proxy.refuse(true);
        clients[0].wait_until("lost", |client| {
            client.postgres_info("state") != "streaming"
        });
        for client in &mut clients {
            for read in [
                "GET post|NEW|1",
                "RANGE post|NEW| post|NEW}",
                "RANGE tline|NEW| tline|NEW}",
                "MGET post|NEW|0000000001 post|NEW2|0000000001 own|1",
                "SCAN 0 MATCH post|*",
                "SET post|NEW|0000000001 x",
            ] {
                next += 1;
                let read = read.replace("NEW", &format!("new{next}"));
                let answer = client.call(&read);
                assert!(answer.starts_with("-SOURCE "), "{read}: {answer}");
            }
            client.check("MULTI", "+OK");
            client.check("SET own|1 x", "+QUEUED");
            client.check(&format!("GET post|zoe{next}|1"), "+QUEUED");
            client.check(&format!("RANGE tline|f{next}| tline|f{next}}}"), "+QUEUED");
            let answer = client.call("EXEC");
            assert!(answer.starts_with("-SOURCE "), "{answer}");
            // The transaction had no effect.
            client.check("GET own|1", "$-1");
        }
        proxy.refuse(false);
        for (at, client) in clients.iter_mut().enumerate() {
            let read = format!("GET post|a{}|0000000001", 10 * (round + 1) + at);
            client.wait_until("back", |client| client.call(&read) == "$1|x");
        }
        clients[0].wait_until("streaming", |client| {
            client.postgres_info("state") == "streaming"
        });
    }
}

#[test]
fn existing_rows_on_any_core_prevent_a_table_from_being_mapped() {
    with_cores(3, check_unmapped_table);
}

fn check_unmapped_table() {
    let Some(cluster) = super::Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("owned");
    sql.run(SCHEMA);
    let mut config = larder_protocol::config::ServerConfig::default();
    config.postgres.url = sql.url();
    config.apply_toml(POSTS_WRITE_THROUGH, "the test").unwrap();
    for author in ["ann", "bob", "eve", "joe", "zoe"] {
        let mut server = TestServer::with(|config| config.server.threads = 3);
        Client::connect(&server).check(&format!("SET post|{author}|0000000001 mine"), "+OK");
        server.restart(|_| {});
        let error = server.start_refused(|ours| {
            ours.postgres = config.postgres.clone();
            ours.mapped = config.mapped.clone();
        });
        assert!(
            error.starts_with("table post cannot be stored in PostgreSQL"),
            "{error}"
        );
    }
}
