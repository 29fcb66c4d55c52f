//! SIGTERM and SIGHUP: what was asked is answered, nothing more is accepted, and the exit code is 0.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use larder_batch::{BuildOptions, Builder};
use larder_protocol::resp::client::{Replies, Reply, request};

use crate::fixture::{STORE, pull_ok, store};
use crate::support::{Server, spawn_server, spawn_server_with, through_shell};

const KEYS: usize = 8;
const VALUE_BYTES: usize = 256 << 10;
/// Replies of 2 MiB each: far more than the buffers between server and client hold.
const REQUESTS: usize = 50;

fn value(number: usize) -> Vec<u8> {
    vec![b'a' + number as u8; VALUE_BYTES]
}

/// A store of few large values: small requests, large replies.
fn build_large(folder: &Path) {
    let mut options = BuildOptions::new(store());
    options.partitions = 1;
    let builder = Builder::new(options, folder).unwrap();
    let mut rows = builder.writer();
    for number in 0..KEYS {
        rows.push(
            number as u64,
            format!("{number}").as_bytes(),
            &value(number),
        )
        .unwrap();
    }
    rows.close().unwrap();
    builder.finish(&|_| {}).unwrap();
}

fn server_of_large_values(folder: &Path) -> Server {
    let version = folder.join("version");
    build_large(&version);
    let server = spawn_server(&folder.join("data"));
    pull_ok(&server, &version);
    server
}

/// Waits for bytes; whether there were any before the server closed.
fn receive(stream: &mut TcpStream, replies: &mut Replies) -> bool {
    let count = stream.read(replies.input().room()).unwrap();
    replies.input().filled(count);
    count > 0
}

fn reply(stream: &mut TcpStream, replies: &mut Replies) -> Reply {
    loop {
        if let Some(reply) = replies.next_reply().unwrap() {
            return reply;
        }
        assert!(receive(stream, replies), "the reply is cut");
    }
}

/// Until nothing listens there any more.
fn wait_until_refused(address: &str) {
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn a_stopping_server_answers_what_was_asked_and_accepts_nothing_more() {
    let temp = tempfile::tempdir().unwrap();
    let server = server_of_large_values(temp.path());
    let keys: Vec<String> = (0..KEYS).map(|key| format!("{STORE}:{key}")).collect();
    let words: Vec<&str> = ["MGET"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    let mut mget = Vec::new();
    request(&mut mget, &words);
    let mut stream = TcpStream::connect(&server.resp).unwrap();
    stream.write_all(&mget.repeat(REQUESTS)).unwrap();
    let mut replies = Replies::default();
    // The first reply is on its way, so the requests are with the server.
    assert!(receive(&mut stream, &mut replies));
    let mut idle = TcpStream::connect(&server.resp).unwrap();
    idle.write_all(b"PING\r\n").unwrap();
    idle.read_exact(&mut [0; 7]).unwrap();

    server.ask_to_stop();
    wait_until_refused(&server.resp);
    wait_until_refused(server.http.trim_start_matches("http://"));
    let values = (0..KEYS).map(|number| Reply::Bulk(value(number)));
    let expected = Reply::Array(values.collect());
    for _ in 0..REQUESTS {
        assert!(reply(&mut stream, &mut replies) == expected);
    }
    assert!(
        !receive(&mut stream, &mut replies),
        "then the server closes"
    );
    assert_eq!(idle.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_dump_in_hand_ends_whole_when_the_server_stops() {
    let temp = tempfile::tempdir().unwrap();
    let server = server_of_large_values(temp.path());
    let mut dump = BufReader::new(server.admin().dump(&store(), None).unwrap());
    dump.fill_buf().unwrap();
    server.ask_to_stop();
    wait_until_refused(server.http.trim_start_matches("http://"));
    let lines = dump.lines().map(Result::unwrap).count();
    assert_eq!(lines, KEYS);
    assert_eq!(server.wait().code(), Some(0));
}

/// The terminal goes: the server ends as it does when it is asked to. Started to outlive its terminal, it does not notice.
#[test]
fn a_server_whose_terminal_goes_stops_cleanly_unless_it_is_to_outlive_it() {
    let temp = tempfile::tempdir().unwrap();
    // Whoever runs the tests may be one that is to outlive it.
    let server = spawn_server_with(&temp.path().join("data"), |command| {
        through_shell(command, "exec env --default-signal=HUP \"$@\"");
    });
    server.signal("-HUP");
    assert!(server.wait().success());
    let server = spawn_server_with(&temp.path().join("data"), |command| {
        through_shell(command, "trap '' HUP; exec \"$@\"");
    });
    server.signal("-HUP");
    let pong = server.resp().command(&[b"PING"]);
    assert_eq!(pong, Ok(Reply::Simple("PONG".to_owned())));
    assert!(server.stop().success());
}
