//! PUBLISH, SUBSCRIBE and PUBSUB on any channel, and the events that `notify-keyspace-events` selects, compared with
//! Redis.

use std::net::SocketAddr;

use crate::redis_compatibility::servers;
use crate::resp::{Client, request};

/// Returns the messages that one client receives for each line of another client, with the replies of both.
fn run_scenario(addr: SocketAddr, feed_lines: &[&str], lines: &[&str]) -> Vec<String> {
    let (mut feed, mut client) = (Client::resp3(addr), Client::resp3(addr));
    client.call("FLUSHALL");
    client.check("CONFIG SET notify-keyspace-events KEA", "+OK");
    let mut all: Vec<String> = feed_lines.iter().map(|line| feed.call(line)).collect();
    for line in lines {
        let reply = client.call(line);
        let mut frames = feed.frames_before_pong();
        // Redis reports the two keys of RENAME in the opposite order.
        frames.sort();
        all.push(format!("{line}: {reply} {frames:#?}"));
    }
    all
}

#[track_caller]
fn check_as_in_redis(feed_lines: &[&str], lines: &[&str]) {
    let Some(redis) = larder_testing::redis() else {
        return;
    };
    let addr = redis.address().parse().expect("an address");
    let expected = run_scenario(addr, feed_lines, lines);
    for server in servers() {
        let actual = run_scenario(server.server().resp_addr(), feed_lines, lines);
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual, expected);
        }
    }
}

#[test]
fn messages_reach_subscribers_of_channels_and_of_patterns() {
    check_as_in_redis(
        &["SUBSCRIBE news", "PSUBSCRIBE n?ws", "PSUBSCRIBE *s"],
        &[
            "PUBLISH news hello",
            "PUBLISH nothing hello",
            "PUBSUB CHANNELS",
            "PUBSUB CHANNELS x*",
            "PUBSUB NUMSUB news other",
            "PUBSUB NUMSUB",
            "PUBSUB NUMPAT",
            "MULTI",
            "SET t|a 1",
            "PUBLISH news inside",
            "EXEC",
            "PUBLISH news",
            "PUBSUB NUMPAT x",
        ],
    );
}

#[test]
fn a_subscription_ends_with_unsubscribe() {
    for server in servers() {
        let addr = server.server().resp_addr();
        let (mut feed, mut writer) = (Client::to(addr), Client::to(addr));
        feed.check("SUBSCRIBE a", "*3|$9|subscribe|$1|a|:1");
        feed.check("PSUBSCRIBE a*", "*3|$10|psubscribe|$2|a*|:2");
        writer.check("PUBLISH a 1", ":2");
        assert_eq!(feed.reply(), "*3|$7|message|$1|a|$1|1");
        assert_eq!(feed.reply(), "*4|$8|pmessage|$2|a*|$1|a|$1|1");
        feed.check("UNSUBSCRIBE a", "*3|$11|unsubscribe|$1|a|:1");
        writer.check("PUBLISH a 2", ":1");
        assert_eq!(feed.reply(), "*4|$8|pmessage|$2|a*|$1|a|$1|2");
        feed.check("RESET", "+RESET");
        writer.check("PUBLISH a 3", ":0");
        writer.check("PUBSUB CHANNELS", "*0");
        // A closed connection has no subscriptions.
        feed.check("SUBSCRIBE a", "*3|$9|subscribe|$1|a|:1");
        drop(feed);
        crate::support::until("the subscription ends", || {
            writer.call("PUBLISH a 4") == ":0"
        });
    }
}

/// A client that receives a message can read all writes that its sender made before it.
#[test]
fn a_message_arrives_after_earlier_writes_are_visible() {
    for server in servers() {
        let addr = server.server().resp_addr();
        let (mut feed, mut reader, mut writer) =
            (Client::resp3(addr), Client::to(addr), Client::to(addr));
        feed.call("SUBSCRIBE ready");
        for round in 0..50 {
            let mut lines = Vec::new();
            for key in ["t|a", "u|b", "plain"] {
                lines.extend(request(&["SET", key, &round.to_string()]));
            }
            lines.extend(request(&["PUBLISH", "ready", "now"]));
            writer.send(&lines);
            feed.reply();
            let value = format!("${}|{round}", round.to_string().len());
            reader.check("MGET t|a u|b plain", &format!("*3|{value}|{value}|{value}"));
            (0..4).for_each(|_| drop(writer.reply()));
        }
    }
}

#[test]
fn events_have_the_names_of_redis() {
    check_as_in_redis(
        &["PSUBSCRIBE __key*@0__:*"],
        &[
            "SET t|a 1",
            "SET t|a 1 EX 1000",
            "SET t|a 1 KEEPTTL",
            "SETEX t|b 1000 v",
            "SETNX t|c v",
            "SETNX t|c v",
            "GETSET t|c w",
            "MSET m:1 a m:2 b",
            "INCR t|a",
            "DECRBY t|a 3",
            "INCRBYFLOAT t|a 0.5",
            "APPEND t|c x",
            "SETRANGE t|c 1 yz",
            "GETEX t|c EX 1000",
            "GETEX t|c PERSIST",
            "EXPIRE t|c 1000",
            "PERSIST t|c",
            "PERSIST t|c",
            "EXPIRE t|c -1",
            "GETDEL m:1",
            "GETDEL m:1",
            "HSET h:1 f 1 g 2",
            "HSETNX h:1 k 1",
            "HINCRBY h:1 f 1",
            "HINCRBYFLOAT h:1 f 0.5",
            "HDEL h:1 f none",
            "HDEL h:1 g k",
            "HSET h:1 f 1",
            "SET h:1 text",
            "HSET plain f 1",
            "HSET {p}a f 1",
            "RENAME {p}a {p}b",
            "SET {t}a 1 EX 1000",
            "RENAME {t}a {t}b",
            "COPY {t}b {t}c",
            "DEL {t}b {t}c none",
            "UNLINK {p}b plain",
            "GET none",
            "MULTI",
            "SET t|a 1",
            "HSET h:2 f 1",
            "EXEC",
            "CONFIG GET notify-keyspace-events",
            "CONFIG SET notify-keyspace-events Eh",
            "SET t|a 1",
            "HSET h:2 f 2",
            "CONFIG GET notify-keyspace-events",
            "CONFIG SET notify-keyspace-events Kx$",
            "DEL h:2",
            "SET t|a 1",
            "CONFIG GET notify-keyspace-events",
        ],
    );
}

#[test]
fn expired_keys_are_reported() {
    for server in servers() {
        let addr = server.server().resp_addr();
        let (mut feed, mut writer) = (Client::resp3(addr), Client::to(addr));
        writer.check("CONFIG SET notify-keyspace-events Ex", "+OK");
        feed.call("SUBSCRIBE __keyevent@0__:expired");
        for key in ["t|a", "plain"] {
            writer.check(&format!("SET {key} v PX 1"), "+OK");
            assert_eq!(
                feed.reply(),
                format!(
                    ">3|$7|message|$22|__keyevent@0__:expired|${}|{key}",
                    key.len()
                )
            );
        }
        writer.check("HSET h:1 f v", ":1");
        writer.check("PEXPIRE h:1 1", ":1");
        assert!(feed.reply().ends_with("|h:1"));
    }
}

/// Without keyspace events, the channel of a key reports whether the row exists.
#[test]
fn selected_events_are_published_on_the_channel_of_their_key() {
    for server in servers() {
        let addr = server.server().resp_addr();
        let (mut feed, mut writer) = (Client::resp3(addr), Client::to(addr));
        writer.create("posts", "posts|<author> = count post|<author>|<time>");
        feed.call("SUBSCRIBE __keyspace@0__:t|a");
        feed.call("SUBSCRIBE __keyspace@0__:posts|bob");
        let message = |key: &str, event: &str| {
            format!(
                ">3|$7|message|${}|__keyspace@0__:{key}|${}|{event}",
                key.len() + 15,
                event.len()
            )
        };
        writer.check("INCR t|a", ":1");
        assert_eq!(feed.frames_before_pong(), [message("t|a", "set")]);
        writer.check("CONFIG SET notify-keyspace-events KA", "+OK");
        writer.check("INCR t|a", ":2");
        writer.check("SET post|bob|1 x", "+OK");
        let mut frames = feed.frames_before_pong();
        frames.sort();
        let mut expected = [message("t|a", "incrby"), message("posts|bob", "set")];
        expected.sort();
        assert_eq!(frames, expected);
    }
}

/// A core matches a message with all patterns in one turn.
#[test]
fn expensive_patterns_are_rejected() {
    let heavy = |number: usize| format!("*{number}{}*", "?".repeat(4000));
    for server in servers() {
        let addr = server.server().resp_addr();
        let (mut feed, mut other) = (Client::resp3(addr), Client::resp3(addr));
        for number in 0..4 {
            feed.call_words(&["PSUBSCRIBE", &heavy(number)]);
        }
        feed.send(&request(&["PSUBSCRIBE", "light*", &heavy(4)]));
        let refused = feed.reply();
        assert!(refused.contains("too long to match"), "{refused}");
        other.check("PUBSUB NUMPAT", ":4");
        // A pattern with several subscribers is matched once.
        let subscribed = other.call_words(&["PSUBSCRIBE", &heavy(0)]);
        assert!(subscribed.starts_with(">3|$10|psubscribe|"), "{subscribed}");
        feed.call_words(&["PUNSUBSCRIBE", &heavy(1)]);
        let subscribed = feed.call_words(&["PSUBSCRIBE", &heavy(4)]);
        assert!(subscribed.starts_with(">3|$10|psubscribe|"), "{subscribed}");
        let channel = "c".repeat(70_000);
        for words in [&["PUBLISH", &channel, "m"][..], &["SUBSCRIBE", &channel]] {
            let refused = other.call_words(words);
            assert_eq!(
                refused,
                "-ERR the channel's name has 70000 bytes; 65600 are allowed"
            );
        }
    }
}
