//! Memory that the server holds for a client counts toward that client, whatever its kind. At `server.client_memory`,
//! requests are rejected, or the connection is closed with an error. The counted bytes are close to the growth of the
//! process.

use std::net::SocketAddr;

use larder_protocol::config::Fsync;

use crate::killable::Killable;
use crate::resp::{Client, request};

const LIMIT: usize = 16 << 20;
/// Number of names or keys per request.
const NAMES_PER_REQUEST: usize = 500;
/// Enough requests to exceed the limit with every kind.
const REQUESTS_MAX: usize = 400;

/// The effect of the limit on a kind of memory.
enum LimitEffect {
    /// The request is rejected, and existing state stays.
    Refused,
    /// The connection is closed after an error.
    Closed,
    /// New state replaces older state.
    Bounded,
}

fn resident_bytes(server: &Killable) -> usize {
    let pid = server.child.as_ref().expect("it runs").id();
    larder_testing::memory_bytes(pid, "VmRSS") as usize
}

fn counted_bytes(watcher: &mut Client) -> usize {
    watcher.info_number("memory", "mem_clients_normal") as usize
}

/// Sends requests of one kind, with 500 names each, until one is rejected or the connection is closed. Compares the
/// growth and the counted bytes before that.
#[track_caller]
fn check(kind: &str, words: &[&str], name: impl Fn(usize) -> String, end: &LimitEffect) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = format!("server.client_memory={LIMIT};server.clients_memory=1GiB");
    let server = Killable::start_set(folder.path(), Fsync::No, 1, &settings);
    let addr: SocketAddr = ([127, 0, 0, 1], server.port).into();
    let (mut client, mut watcher) = (Client::to(addr), Client::to(addr));
    client.call("HELLO 3");
    if kind == "tracking" {
        client.check("CLIENT TRACKING ON", "+OK");
    }
    let before = (resident_bytes(&server), counted_bytes(&mut watcher));
    let (mut grown, mut counted, mut why) = (0, 0, None);
    for number in 0..REQUESTS_MAX {
        let names: Vec<String> = (0..NAMES_PER_REQUEST)
            .map(|i| name(number * NAMES_PER_REQUEST + i))
            .collect();
        let mut line = words.to_vec();
        line.extend(names.iter().map(String::as_str));
        client.send(&request(&line));
        let replies = match kind {
            "watches" => 1,
            "tracking" => 0,
            _ => NAMES_PER_REQUEST,
        };
        let mut frames = 0;
        while frames < replies && why.is_none() {
            match client.reply_or_end() {
                None => why = Some(String::new()),
                Some(frame) if frame.starts_with('-') => why = Some(frame),
                Some(_) => frames += 1,
            }
        }
        // A closed connection does not reply.
        client.try_send(&request(&["PING"]));
        while why.is_none() {
            match client.reply_or_end() {
                None => why = Some(String::new()),
                Some(frame) if frame.starts_with('-') => why = Some(frame),
                Some(frame) if frame == "+PONG" => break,
                Some(_) => {}
            }
        }
        if why.is_some() {
            break;
        }
        grown = resident_bytes(&server).saturating_sub(before.0);
        counted = counted_bytes(&mut watcher).saturating_sub(before.1);
    }
    assert!(
        counted <= LIMIT + LIMIT / 8
            && grown <= 4 * counted + (4 << 20)
            && counted <= 3 * grown + (4 << 20),
        "{kind}: {counted} bytes are counted, and the process has grown by {grown}"
    );
    match end {
        LimitEffect::Bounded => assert_eq!(why, None, "{kind}"),
        LimitEffect::Refused | LimitEffect::Closed => {
            let why = why.unwrap_or_else(|| panic!("{kind}: nothing bounds it"));
            assert!(
                why.starts_with("-OOM ") && why.contains("server.client_memory"),
                "{kind}: {why}"
            );
        }
    }
    match end {
        LimitEffect::Closed => assert_eq!(client.read_to_end(), "", "{kind}"),
        LimitEffect::Refused => assert_eq!(client.reply(), "+PONG", "{kind}"),
        LimitEffect::Bounded => client.check("PING", "+PONG"),
    }
    assert!(counted >= LIMIT / 8, "{kind}: {counted}");
}

#[test]
fn all_memory_of_a_client_is_counted_and_limited() {
    let key = |i: usize| format!("__keyspace@0__:t|{i:012}");
    check(
        "subscriptions to keys",
        &["SUBSCRIBE"],
        key,
        &LimitEffect::Refused,
    );
    let pattern = |i: usize| format!("__keyspace@0__:t|{i:012}*");
    check(
        "patterns of keys",
        &["PSUBSCRIBE"],
        pattern,
        &LimitEffect::Refused,
    );
    let channel = |i: usize| format!("channel {i:012}");
    check("channels", &["SUBSCRIBE"], channel, &LimitEffect::Refused);
    let glob = |i: usize| format!("channel {i:012}*");
    check(
        "patterns of channels",
        &["PSUBSCRIBE"],
        glob,
        &LimitEffect::Refused,
    );
    let row = |i: usize| format!("t|{i:012}");
    check("watches", &["WATCH"], row, &LimitEffect::Closed);
    check("tracking", &["MGET"], row, &LimitEffect::Bounded);
}
