//! Connections that are notified of changed rows, including outputs of joins, on one serving thread and on several.

use larder_types::ByteSize;

use crate::redis_compatibility::{check_all, servers};
use crate::resp::{Client, TIMELINE, request, server_with};
use crate::support::TestServer;

/// Returns the next notification: the key, and `set` or `del`.
fn next_notification(client: &mut Client) -> (String, String) {
    let message = client.reply();
    let words: Vec<&str> = message.split("|$").collect();
    let word = |text: &str| {
        text.split_once('|')
            .map_or(text, |(_, word)| word)
            .to_owned()
    };
    let (channel, event) = match words[..] {
        [_, _, channel, event] => (channel, event),
        [_, _, _, channel, event] => (channel, event),
        _ => panic!("{message}"),
    };
    let channel = word(channel);
    let key = channel.strip_prefix("__keyspace@0__:").expect("a key");
    (key.to_owned(), word(event))
}

#[track_caller]
fn check_notified(client: &mut Client, expected: &[(&str, &str)]) {
    for (key, event) in expected {
        let (actual_key, actual_event) = next_notification(client);
        assert_eq!((actual_key.as_str(), actual_event.as_str()), (*key, *event));
    }
}

#[test]
fn a_subscriber_receives_writes_and_removals_of_rows() {
    for server in servers() {
        let (mut feed, mut writer) = (Client::connect(&server), Client::connect(&server));
        feed.check(
            "SUBSCRIBE __keyspace@0__:t|a __keyspace@0__:t|b",
            "*3|$9|subscribe|$18|__keyspace@0__:t|a|:1",
        );
        assert_eq!(feed.reply(), "*3|$9|subscribe|$18|__keyspace@0__:t|b|:2");
        feed.check(
            "PSUBSCRIBE __keyspace@*__:u|*x",
            "*3|$10|psubscribe|$19|__keyspace@*__:u|*x|:3",
        );
        check_all(
            &mut writer,
            &[
                ("SET t|other 1", "+OK"),
                ("SET t|a 1", "+OK"),
                ("SET t|a 1", "+OK"),
                ("DEL t|a", ":1"),
                ("DEL t|a", ":0"),
                ("MULTI", "+OK"),
                ("SET u|y 1", "+QUEUED"),
                ("INCR u|1x", "+QUEUED"),
                ("EXEC", "*2|+OK|:1"),
            ],
        );
        check_notified(
            &mut feed,
            &[
                ("t|a", "set"),
                ("t|a", "set"),
                ("t|a", "del"),
                ("u|1x", "set"),
            ],
        );
        check_all(
            &mut writer,
            &[
                ("SET t|b 1 PX 10", "+OK"),
                ("RENAME u|1x u|2x", "+OK"),
                ("FLUSHALL", "+OK"),
            ],
        );
        let mut seen = [(); 5].map(|()| next_notification(&mut feed));
        seen.sort();
        let seen = seen.each_ref().map(|(key, event)| (&key[..], &event[..]));
        assert_eq!(
            seen,
            [
                ("t|b", "del"),
                ("t|b", "set"),
                ("u|1x", "del"),
                ("u|2x", "del"),
                ("u|2x", "set")
            ]
        );
    }
}

/// Notifications of one row arrive in the order of its changes, regardless of concurrent writes of other rows.
#[test]
fn changes_of_one_row_arrive_in_order() {
    for server in servers() {
        let mut feed = Client::connect(&server);
        feed.call("PSUBSCRIBE __keyspace@0__:t|*");
        std::thread::scope(|scope| {
            for row in 0..3 {
                let server = &server;
                scope.spawn(move || {
                    let mut writer = Client::connect(server);
                    for _ in 0..100 {
                        writer.check(&format!("SET t|{row} v"), "+OK");
                        writer.check(&format!("DEL t|{row}"), ":1");
                    }
                });
            }
        });
        let mut last = std::collections::HashMap::new();
        for _ in 0..600 {
            let (key, event) = next_notification(&mut feed);
            let before = last.insert(key, event.clone()).unwrap_or("del".to_owned());
            assert_ne!(before, event);
        }
    }
}

#[test]
fn a_subscriber_receives_changes_of_outputs() {
    for server in servers() {
        let (mut feed, mut writer) = (Client::connect(&server), Client::connect(&server));
        feed.create("timeline", TIMELINE);
        feed.create("votes", "votes|<id> = count vote|<id>|<user>");
        feed.create("best", "best|<id> = max votes|<id>");
        writer.check("MSET sub|ann|bob 1 post|bob|0000000100 old", "+OK");
        feed.check(
            "PSUBSCRIBE __keyspace@0__:tline|ann|*",
            "*3|$10|psubscribe|$26|__keyspace@0__:tline|ann|*|:1",
        );
        feed.check(
            "SUBSCRIBE __keyspace@0__:votes|7",
            "*3|$9|subscribe|$22|__keyspace@0__:votes|7|:2",
        );
        // Outputs of joins over joins are included.
        feed.call("PSUBSCRIBE __keyspace@0__:best|*");
        writer.check("SET post|bob|0000000200 new", "+OK");
        check_notified(&mut feed, &[("tline|ann|0000000200|bob", "set")]);
        writer.check("DEL post|bob|0000000100", ":1");
        check_notified(&mut feed, &[("tline|ann|0000000100|bob", "del")]);
        // A change of a checked row takes effect when the range is read. The subscription itself reads it.
        writer.check("SET post|eve|0000000150 hi", "+OK");
        writer.check("SET sub|ann|eve 1", "+OK");
        check_notified(&mut feed, &[("tline|ann|0000000150|eve", "set")]);
        writer.check("DEL sub|ann|bob", ":1");
        check_notified(&mut feed, &[("tline|ann|0000000200|bob", "del")]);
        for (line, event) in [("SET vote|7|ann 1", "set"), ("DEL vote|7|ann", "del")] {
            writer.call(line);
            let mut seen = [next_notification(&mut feed), next_notification(&mut feed)];
            seen.sort();
            let seen = seen.each_ref().map(|(key, event)| (&key[..], &event[..]));
            assert_eq!(seen, [("best|7", event), ("votes|7", event)]);
        }
    }
}

/// Subscribed ranges stay in memory when memory is short, and notifications match what a reader sees.
#[test]
fn subscribed_ranges_are_not_evicted() {
    let server = server_with(|config| config.tables.memory = ByteSize(4 << 20));
    let (mut feed, mut other) = (Client::connect(&server), Client::connect(&server));
    other.create("timeline", TIMELINE);
    let text = "x".repeat(20_000);
    for user in 0..100 {
        other.check(&format!("SET sub|u{user:03}|bob 1"), "+OK");
    }
    for post in 0..20 {
        other.check(&format!("SET post|bob|{post:010} {text}"), "+OK");
    }
    feed.call("PSUBSCRIBE __keyspace@0__:tline|u000|*");
    for _ in 0..3 {
        for user in 0..100 {
            other.check(
                &format!("RANGECOUNT tline|u{user:03}| tline|u{user:03}}}"),
                ":20",
            );
        }
    }
    for post in 20..40 {
        other.check(&format!("SET post|bob|{post:010} y"), "+OK");
        let key = format!("tline|u000|{post:010}|bob");
        check_notified(&mut feed, &[(&key, "set")]);
    }
}

#[test]
fn unsupported_subscriptions_are_rejected_without_partial_effects() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.create("pulled", "pulled|<id> = pull count vote|<id>|<user>");
        for (line, part) in [
            ("SUBSCRIBE __keyspace@0__:s:k1", "-ERR s is a store"),
            (
                "PSUBSCRIBE __keyspace@0__:t|* __keyspace@0__:pulled|*",
                "is computed by join pulled",
            ),
            ("SUBSCRIBE", "wrong number of arguments"),
        ] {
            let reply = client.call(line);
            assert!(
                reply.starts_with("-ERR ") && reply.contains(part),
                "{line}: {reply}"
            );
        }
        // The connection is not subscribed, so that other commands keep working.
        client.check("SET t|a 1", "+OK");
        client.check("GET t|a", "$1|1");
        client.check("MULTI", "+OK");
        client.check(
            "SUBSCRIBE __keyspace@0__:t|a",
            "-ERR SUBSCRIBE isn't allowed in a transaction",
        );
        assert!(client.call("EXEC").starts_with("-EXECABORT"));
    }
}

#[test]
fn a_resp2_subscriber_may_send_few_commands_and_a_resp3_subscriber_all() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.call("SUBSCRIBE __keyspace@0__:t|a");
        let only = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
        check_all(
            &mut client,
            &[
                ("GET s:k1", &format!("-ERR Can't execute 'get': {only}")),
                ("SET t|a 1", &format!("-ERR Can't execute 'set': {only}")),
                ("PING", "*2|$4|pong|$0|"),
                ("PING hi", "*2|$4|pong|$2|hi"),
                (
                    "UNSUBSCRIBE",
                    "*3|$11|unsubscribe|$18|__keyspace@0__:t|a|:0",
                ),
                ("UNSUBSCRIBE", "*3|$11|unsubscribe|$-1|:0"),
                ("PUNSUBSCRIBE x", "*3|$12|punsubscribe|$1|x|:0"),
                ("GET s:k1", "$1|v"),
            ],
        );
        client.call("SUBSCRIBE __keyspace@0__:t|a");
        client.check("RESET", "+RESET");
        client.check("SET t|a 1", "+OK");
        client.call("HELLO 3");
        client.send(&request(&["SUBSCRIBE", "__keyspace@0__:t|a"]));
        assert_eq!(client.reply(), ">3|$9|subscribe|$18|__keyspace@0__:t|a|:1");
        let mut other = Client::connect(&server);
        let list = other.call("CLIENT LIST TYPE pubsub");
        assert!(list.contains("flags=P db=0 sub=1 psub=0"), "{list}");
        client.check("GET s:k1", "$1|v");
        client.check("PING", "+PONG");
        other.check("SET t|a 2", "+OK");
        assert_eq!(
            client.reply(),
            ">3|$7|message|$18|__keyspace@0__:t|a|$3|set"
        );
        // A client is also notified of its own changes.
        client.send(&request(&["DEL", "t|a"]));
        let mut both = [client.reply(), client.reply()];
        both.sort();
        assert_eq!(both, [":1", ">3|$7|message|$18|__keyspace@0__:t|a|$3|del"]);
    }
}

/// The server closes the connection of a subscriber that does not read, instead of buffering its messages without
/// limit.
#[test]
fn a_subscriber_that_does_not_read_is_closed_at_a_limit() {
    let server = TestServer::with(|config| {
        config.server.subscriber_buffer_bytes = ByteSize(64 << 10);
        config.server.output_buffer_bytes = ByteSize(64 << 10);
    });
    let (mut slow, mut writer) = (Client::connect(&server), Client::connect(&server));
    slow.call("PSUBSCRIBE __keyspace@0__:t|*");
    let long = "k".repeat(1000);
    let keys: Vec<Vec<u8>> = (0..1000)
        .map(|row| request(&["SET", &format!("t|{long}{row}"), "v"]))
        .collect();
    let is_there = |writer: &mut Client| writer.call("CLIENT LIST TYPE pubsub").contains("psub=1");
    let mut rounds = 0;
    while is_there(&mut writer) {
        writer.send(&keys.concat());
        (0..keys.len()).for_each(|_| assert_eq!(writer.reply(), "+OK"));
        rounds += 1;
        assert!(rounds < 100, "the socket's buffers took {rounds} MB");
    }
    slow.read_to_end();
    // The closed connection's buffer is freed, and the writer can continue.
    writer.check("SET t|a v", "+OK");
}
