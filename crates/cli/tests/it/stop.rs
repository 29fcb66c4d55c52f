//! The end of a server: a graceful stop on SIGTERM, no reaction to SIGHUP, and an error message if one of its threads
//! fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};

use larder_batch::{BuildOptions, Builder};
use larder_protocol::resp::client::{Replies, Reply, request};

use crate::fixture::{STORE, pull_ok, store};
use crate::support::{
    Server, serve_command, show, spawn_server, spawn_server_with, text, through_shell,
};

const KEYS: usize = 8;
const VALUE_BYTES: usize = 256 << 10;
/// Number of requests with replies of 2 MiB each, far more than the buffers between server and client hold.
const REQUESTS: usize = 50;

fn value(number: usize) -> Vec<u8> {
    vec![b'a' + number as u8; VALUE_BYTES]
}

/// Builds a store with a few large values, for small requests with large replies.
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

/// Waits for bytes. Returns false if the server has closed the connection.
fn receive(stream: &mut TcpStream, replies: &mut Replies) -> bool {
    let count = stream.read(replies.input().spare()).unwrap();
    replies.input().commit(count);
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

/// Waits until nothing listens at the address.
fn wait_until_refused(address: &str) {
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn a_stopping_server_answers_pending_requests_and_accepts_no_more() {
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
    // The first reply arrives, so that the server has received the requests.
    assert!(receive(&mut stream, &mut replies));
    let mut idle = TcpStream::connect(&server.resp).unwrap();
    idle.write_all(b"PING\r\n").unwrap();
    idle.read_exact(&mut [0; 7]).unwrap();

    server.terminate();
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
fn a_dump_in_progress_completes_when_the_server_stops() {
    let temp = tempfile::tempdir().unwrap();
    let server = server_of_large_values(temp.path());
    let mut dump = BufReader::new(server.admin().dump(&store(), None).unwrap());
    dump.fill_buf().unwrap();
    server.terminate();
    wait_until_refused(server.http.trim_start_matches("http://"));
    let lines = dump.lines().map(Result::unwrap).count();
    assert_eq!(lines, KEYS);
    assert_eq!(server.wait().code(), Some(0));
}

/// Closing the terminal of a server must not stop it.
#[test]
fn a_hangup_does_not_stop_a_server() {
    let temp = tempfile::tempdir().unwrap();
    // The test process may ignore the signal, and the server would inherit that.
    let server = spawn_server_with(&temp.path().join("data"), |command| {
        through_shell(command, "exec env --default-signal=HUP \"$@\"");
    });
    server.signal("-HUP");
    let pong = server.resp().command(&[b"PING"]);
    assert_eq!(pong, Ok(Reply::Simple("PONG".to_owned())));
    assert!(server.stop().success());
}

/// A serving thread hangs, and SIGTERM ends the server nevertheless.
#[test]
fn sigterm_ends_a_server_whose_serving_thread_is_stuck() {
    let temp = tempfile::tempdir().unwrap();
    let server = spawn_server_with(&temp.path().join("data"), |command| {
        command
            .args(["--set", "server.threads=2"])
            .args(["--set", "server.stop_timeout_seconds=0"])
            .env("LARDER_FAULT_POINT", "hang@core.turn:4");
    });
    let http = server.http.trim_start_matches("http://");
    let reason = loop {
        let (status, body) = get(http, "/readyz");
        if status == 503 {
            break body;
        }
    };
    assert!(reason.contains("has served no client for"), "{reason}");
    let (status, metrics) = get(http, "/metrics");
    assert_eq!(status, 200);
    let stalls = |line: &&str| line.starts_with("larder_core_stalls_total") && line.ends_with(" 1");
    assert_eq!(metrics.lines().filter(stalls).count(), 1, "{metrics}");
    assert_eq!(server.stop().code(), Some(1));
}

#[test]
fn a_loading_server_replies_loading_and_exits_on_sigterm() {
    for threads in [1, 2, 4] {
        let temp = tempfile::tempdir().unwrap();
        let mut child = serve(&temp.path().join("data"), threads, "hang@core.opening");
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let [resp, http] = addresses(&mut log);
        let mut stream = TcpStream::connect(resp).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 49];
        stream.read_exact(&mut reply).unwrap();
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert_eq!(reply, "-LOADING Redis is loading the dataset in memory\r\n");

        assert_eq!(get(&http, "/healthz").0, 200);
        let (status, body) = get(&http, "/readyz");
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("rows are being loaded into memory"), "{body}");
        let (status, body) = get(&http, "/v1/joins");
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("\"LOADING\""), "{body}");
        assert_eq!(get(&http, "/metrics").0, 200);

        terminate(&child);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{threads} threads");
    }
}

#[test]
fn a_connection_beyond_the_limit_is_refused_with_its_reason_while_rows_load() {
    let temp = tempfile::tempdir().unwrap();
    let mut child = serve_command(temp.path())
        .args(["--set", "server.max_connections=2"])
        .env("LARDER_FAULT_POINT", "hang@core.opening")
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let [resp, _] = addresses(&mut log);
    let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"PING\r\n").unwrap();
        let mut reply = vec![0; loading.len()];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(text(&reply), text(loading));
    };
    let mut open = [(); 2].map(|()| TcpStream::connect(&resp).unwrap());
    open.iter_mut().for_each(ask);
    let mut refused = String::new();
    let mut third = TcpStream::connect(&resp).unwrap();
    third.read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "-ERR max number of clients reached\r\n");
    ask(&mut open[0]);
    terminate(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_server_that_opens_its_stores_answers_http_info_and_auth() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    std::fs::create_dir_all(data.join("stores/pymk")).unwrap();
    std::fs::write(data.join("stores/a-file"), "").unwrap();
    let mut child = serve_command(&data)
        .args(["--set", "server.password=secret"])
        .env("LARDER_FAULT_POINT", "hang@stores.opening:2")
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let [resp, http] = addresses(&mut log);
    assert_eq!(get(&http, "/healthz").0, 200);
    let (status, _) = get(&http, "/readyz");
    assert_eq!(status, 503);

    let begin = "-NOAUTH Authentication required.\r\n+OK\r\n-LOADING Redis is loading the dataset in memory\r\n";
    let is_first_counted = |_| {
        let mut stream = TcpStream::connect(&resp).unwrap();
        let requests = b"PING\r\nAUTH secret\r\nPING\r\nINFO persistence\r\nQUIT\r\n";
        stream.write_all(requests).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        assert!(replies.starts_with(begin), "{replies}");
        assert!(replies.contains("loading:1\r\n"), "{replies}");
        // The regular file in the folder of stores is counted, too.
        replies.contains("stores are being opened: 1 of 2")
    };
    assert!((0..10_000).any(is_first_counted));
    terminate(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_start_that_fails_is_never_ready() {
    let temp = tempfile::tempdir().unwrap();
    // The tables' newest log is a folder, so that the start fails.
    std::fs::create_dir_all(temp.path().join("tables/log-0000000001")).unwrap();
    for _ in 0..5 {
        let mut child = serve_command(temp.path())
            .args(["--set", "server.threads=2"])
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let [_, http] = addresses(&mut log);
        while let Ok((status, body)) = try_get(&http, "/readyz") {
            assert_eq!(status, 503, "{body}");
        }
        assert_eq!(child.wait().unwrap().code(), Some(1));
    }
}

/// Returns the RESP and HTTP addresses in the startup log.
fn addresses(log: &mut impl Iterator<Item = std::io::Result<String>>) -> [String; 2] {
    let opening = log.find_map(|line| {
        let line = line.unwrap();
        line.contains("opening the stores and the tables")
            .then_some(line)
    });
    let opening = opening.expect("the log names the addresses");
    ["resp", "http"].map(|name| {
        let (_, rest) = opening.split_once(&format!("{name}=")).expect(name);
        rest.split(' ').next().unwrap().to_owned()
    })
}

/// Returns the status and the complete response.
fn get(address: &str, path: &str) -> (u16, String) {
    try_get(address, path).unwrap()
}

/// Like [`get`]. Returns an error if the server closes the connection without a response.
fn try_get(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    let status = status.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok((status, answer))
}

/// If a serving thread panics, at any time, the process ends with its message and exit code 1.
#[test]
fn a_panic_of_a_serving_thread_ends_the_process_with_its_message() {
    for (fault, threads, stops) in [
        ("core.opening", 1, false),
        ("core.opening", 2, false),
        ("core.opening:2", 2, false),
        ("core.opening:3", 4, false),
        ("core.turn:2", 1, false),
        ("core.turn:3", 2, false),
        ("core.closing", 2, true),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let mut child = serve(
            &temp.path().join("data"),
            threads,
            &format!("panic@{fault}"),
        );
        if stops {
            let mut ready = String::new();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            stdout.read_line(&mut ready).unwrap();
            terminate(&child);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{fault}: {}", show(&output));
        let last = text(&output.stderr);
        let last = last.lines().last().unwrap();
        assert!(
            last.starts_with("larder: thread resp-") && last.contains("panicked: fault point"),
            "{fault}, {threads} threads: {last}"
        );
    }
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.unwrap().success());
}

fn serve(data: &Path, threads: u32, fault: &str) -> Child {
    serve_command(data)
        .args(["--set", &format!("server.threads={threads}")])
        .env("LARDER_FAULT_POINT", fault)
        .spawn()
        .unwrap()
}
