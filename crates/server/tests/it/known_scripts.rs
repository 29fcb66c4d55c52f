//! The client libraries' scripts that EVAL recognizes have the same effects as in Redis.

use std::net::SocketAddr;

use larder_types::Random;

use crate::resp::Client;
use crate::support::TestServer;

const SCRIPTS: [&str; 6] = [
    include_str!("../../src/resp/known_scripts/redis-py-release.lua"),
    include_str!("../../src/resp/known_scripts/redis-py-extend.lua"),
    include_str!("../../src/resp/known_scripts/redis-py-reacquire.lua"),
    include_str!("../../src/resp/known_scripts/django-redis-incr-present.lua"),
    include_str!("../../src/resp/known_scripts/django-redis-incr.lua"),
    include_str!("../../src/resp/known_scripts/rate-limiter-flexible.lua"),
];

/// Reduces an error to its code, because Redis appends the script's line.
fn normalize_error(reply: String) -> String {
    if reply.starts_with('-') {
        reply.split(' ').next().unwrap_or_default().to_owned()
    } else {
        reply
    }
}

/// Rounds times, because the two servers execute a command at different times.
fn round_times(reply: &str) -> String {
    reply
        .split('|')
        .map(|part| match part.strip_prefix(':').map(str::parse::<i64>) {
            Some(Ok(number)) if number > 1_000 => format!(":{}", (number + 30_000) / 60_000),
            _ => part.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("|")
}

#[test]
fn known_scripts_return_and_write_the_same_as_in_redis() {
    let Some(redis) = larder_testing::redis() else {
        return;
    };
    let redis = SocketAddr::from(([127, 0, 0, 1], redis.port));
    for threads in [1, 2] {
        let larder = TestServer::with(|config| config.server.threads = threads);
        let mut clients = [Client::connect(&larder), Client::to(redis)];
        clients[1].call_words(&["FLUSHALL"]);
        let hashes = SCRIPTS.map(|script| {
            let [here, there] = clients
                .each_mut()
                .map(|client| client.call_words(&["SCRIPT", "LOAD", script]));
            assert_eq!(here, there, "{script}");
            here.rsplit('|').next().expect("a hash").to_owned()
        });
        let mut random = Random::new(7);
        let keys = ["lock", "t|a", "{t}b"];
        for step in 0..3_000 {
            let mut one = |of: &[&'static str]| of[random.index(of.len())];
            let (key, token) = (one(&keys), one(&["1", "token", "7"]));
            let times = ["60000", "3600000", "-1", "x", "0"];
            let write = match one(&["SET", "SET PX", "HSET", "DEL", "", "", "", "", ""]) {
                "SET" => vec!["SET", key, token],
                "SET PX" => vec!["SET", key, token, "PX", "7200000"],
                "HSET" => vec!["HSET", key, "f", "v"],
                "DEL" => vec!["DEL", key],
                _ => {
                    let at = random.index(SCRIPTS.len());
                    let mut one = |of: &[&'static str]| of[random.index(of.len())];
                    let args = match at {
                        0 => vec![token],
                        1 => vec![token, one(&times), one(&["0", "1"])],
                        2 => vec![token, one(&times)],
                        3 | 4 => vec![one(&["1", "-5", "x"])],
                        // With other arguments, Redis leaves a window without an expiry time.
                        _ => vec![one(&["1", "3"]), one(&["3600", "0", "x"]), "5", "6"],
                    };
                    let script = match one(&["EVAL", "EVALSHA"]) {
                        "EVAL" => ["EVAL", SCRIPTS[at]],
                        name => [name, hashes[at].as_str()],
                    };
                    [&script[..], &["1", key], &args].concat()
                }
            };
            let seen = clients.each_mut().map(|client| {
                let reply = normalize_error(client.call_words(&write));
                let ttl = client.call_words(&["PTTL", key]);
                let kind = client.call_words(&["TYPE", key]);
                let value = match kind.as_str() {
                    "+hash" => client.call_words(&["HGETALL", key]),
                    _ => client.call_words(&["GET", key]),
                };
                [round_times(&reply), round_times(&ttl), kind, value]
            });
            assert_eq!(seen[0], seen[1], "step {step}: {write:?}");
        }
    }
}

#[test]
fn scripts_are_executed_in_transactions_and_forwarded_to_the_owner() {
    let larder = TestServer::with(|config| config.server.threads = 2);
    let mut client = Client::connect(&larder);
    for key in ["a", "b", "c", "d"] {
        client.check(&format!("SET {key} token"), "+OK");
        client.check("MULTI", "+OK");
        let release = "EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1";
        client.check(&format!("{release} {key} other"), "+QUEUED");
        client.check(&format!("{release} {key} token"), "+QUEUED");
        client.check("EXEC", "*2|:0|:1");
        client.check(&format!("EXISTS {key}"), ":0");
    }
}
