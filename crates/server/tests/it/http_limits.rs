//! Limits on the resources that HTTP clients may use: connections, threads, memory and time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use larder_protocol::config::ServerConfig;
use larder_server::Server;
use serde_json::{Value, json};

use crate::source::{Fault, Source};
use crate::support::{TestServer, build, build_rows};

/// Connects, and sends `text` as the request or a part of it.
fn begin(addr: SocketAddr, text: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(addr).expect("connected");
    stream.write_all(text.as_bytes()).expect("sent");
    BufReader::new(stream)
}

fn get(addr: SocketAddr, path: &str) -> BufReader<TcpStream> {
    begin(
        addr,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    )
}

/// Returns the status of the response, or 0 if there is none.
fn status(stream: &mut BufReader<TcpStream>) -> u16 {
    let mut line = String::new();
    let _ = stream.read_line(&mut line);
    line.split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

const INCOMPLETE_BODY: &str = "POST /v1/stores/pymk/swap HTTP/1.1\r\nHost: localhost\r\n\
                           Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";

/// Starts a server with a store of `count` records of 100 kB.
fn server_of_large_values(count: usize, change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    let versions = tempfile::tempdir().expect("a folder");
    let rows = (0..count).map(|i| (format!("k{i}"), i.to_string() + &"x".repeat(100_000)));
    build_rows(versions.path(), "large", rows, 2);
    let server = TestServer::with(change);
    let pull = server.pull_from("large", versions.path().to_str().expect("UTF-8"));
    assert_eq!(pull["state"], "done", "{pull}");
    server
}

#[test]
fn incomplete_bodies_time_out_and_do_not_delay_health_checks() {
    let server = TestServer::with(|config| {
        config.server.max_http_connections = 4;
        config.server.http_timeout_seconds = 1;
    });
    let addr = server.server().http_addr();
    let mut halves: Vec<_> = (0..4).map(|_| begin(addr, INCOMPLETE_BODY)).collect();
    assert_eq!(status(&mut get(addr, "/healthz")), 200);
    assert_eq!(status(&mut get(addr, "/readyz")), 200);
    for half in &mut halves {
        assert_eq!(status(half), 408);
        half.read_to_end(&mut Vec::new()).expect("closed");
    }
    assert_eq!(server.get("/v1/stores").0, 200);
}

/// The server rejects the request by its `Content-Length` before any of the body is sent. A chunked body, which does
/// not declare its length, is rejected before its end is sent.
#[test]
fn an_oversized_body_is_rejected_before_it_is_read() {
    let server = TestServer::start();
    let addr = server.server().http_addr();
    let head = "POST /v1/stores/pymk/swap HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let reply = format!("{head}Content-Length: 2000000\r\n\r\n");
    let part = format!("{:x}\r\n{}\r\n", 1 << 19, "x".repeat(1 << 19));
    let untold = format!("{head}Transfer-Encoding: chunked\r\n\r\n{part}{part}1\r\nx\r\n");
    for text in [reply, untold] {
        let mut refused = begin(addr, &text);
        assert_eq!(status(&mut refused), 413);
        let mut rest = Vec::new();
        // A reset is as good an end of the connection as a close.
        let _ = refused.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        let why = "the request's body is longer than 1048576 bytes";
        assert!(rest.contains(why), "{rest}");
    }
}

#[test]
fn idle_connections_do_not_block_health_checks() {
    let server = TestServer::with(|config| config.server.max_http_connections = 1);
    let addr = server.server().http_addr();
    let _first = begin(addr, INCOMPLETE_BODY);
    // These are many more connections than the server reserves for health checks, and none completes its request.
    let _silent: Vec<_> = (0..40).map(|_| begin(addr, "GET /heal")).collect();
    assert_eq!(status(&mut get(addr, "/healthz")), 200);
}

/// One client occupies the only read slot and consumes nothing. Other requests queue, the one that exceeds the queue
/// is rejected, and the server closes the connection of the client that consumes nothing.
#[test]
fn costly_responses_are_limited_and_stalled_ones_are_closed() {
    let server = server_of_large_values(300, |config| {
        config.server.http_reads = 1;
        config.server.http_timeout_seconds = 2;
    });
    let addr = server.server().http_addr();
    let mut unread = get(addr, "/v1/stores/large/dump");
    assert_eq!(status(&mut unread), 200);
    let (done, statuses) = channel();
    for _ in 0..5 {
        let done = done.clone();
        std::thread::spawn(move || {
            let status = status(&mut get(addr, "/v1/stores/large/sample?n=1"));
            // The test receives only the first status, so that later sends may fail.
            let _ = done.send(status);
        });
    }
    assert_eq!(
        statuses.recv(),
        Ok(503),
        "the fifth that waits is one too many"
    );
    // This loop ends only if the server aborts the dump.
    while status(&mut get(addr, "/v1/stores/large/sample?n=1")) != 200 {}
    let mut rest = Vec::new();
    let _ = unread.read_to_end(&mut rest);
    assert!(rest.len() < 30_000_000, "{}", rest.len());
}

/// Limits the receive buffer of a socket. A system that chooses the size itself may buffer megabytes ahead of the
/// reader, and it releases memory and opens the window in equally large steps.
pub fn read_slowly(stream: &TcpStream) {
    socket2::SockRef::from(stream)
        .set_recv_buffer_size(128 << 10)
        .expect("a socket");
}

/// A socket accepts more data only when much of its buffer is free. With a slow reader, that takes longer than the
/// timeout.
#[test]
fn a_dump_that_is_read_slowly_is_not_aborted() {
    let server = server_of_large_values(300, |config| config.server.http_timeout_seconds = 2);
    let mut slow = get(server.server().http_addr(), "/v1/stores/large/dump");
    read_slowly(slow.get_ref());
    assert_eq!(status(&mut slow), 200);
    let uptime = || {
        let (_, stats) = server.get("/v1/stats");
        stats["uptime_seconds"].as_u64().expect("a number")
    };
    // Reads a little each second, for much longer than the timeout.
    let (began, mut taken) = (uptime(), vec![0; 512 << 10]);
    for second in 1..=6 {
        slow.read_exact(&mut taken).expect("more of the dump");
        while uptime() < began + second {}
    }
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(rest.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", rest.len());
}

#[test]
fn a_large_dump_is_complete() {
    let server = server_of_large_values(90, |_| {});
    let (_, dump) = server.get("/v1/stores/large/dump");
    assert_eq!(dump.as_str().expect("lines").lines().count(), 90);
}

#[test]
fn a_sample_is_truncated_at_its_size_limit_and_reports_it() {
    let server = server_of_large_values(100, |_| {});
    let (_, sample) = server.get("/v1/stores/large/sample?n=10000");
    let bytes: usize = sample["records"]
        .as_array()
        .expect("records")
        .iter()
        .map(|record| record["value"].as_str().expect("a text").len())
        .sum();
    assert_eq!(sample["is_cut"], true);
    assert!((3 << 20..=4 << 20).contains(&bytes), "{bytes}");
    let (_, sample) = server.get("/v1/stores/large/sample?n=2");
    assert_eq!(
        (sample["is_cut"].clone(), 2),
        (json!(false), sample["records"].as_array().unwrap().len())
    );
}

#[test]
fn pulls_above_the_limit_queue_and_pulls_beyond_the_queue_are_rejected() {
    let versions = tempfile::tempdir().expect("a folder");
    for store in ["one", "two", "three"] {
        build(&versions.path().join(store), store, 10, "v");
    }
    let held = Source::serve(versions.path().join("one"));
    held.break_next("manifest.json", Fault::Hold);
    let server = TestServer::with(|config| {
        config.fetch.pulls = 1;
        config.fetch.queue = 1;
        config.fetch.stall_timeout_seconds = 60;
    });
    let start = |store: &str| {
        let source = versions.path().join(store);
        server.post(
            &format!("/v1/stores/{store}/pull"),
            json!({ "source": source }),
        )
    };
    let (_, one) = server.post("/v1/stores/one/pull", json!({ "source": held.url() }));
    held.wait_for("manifest.json", 1);
    let (status, two) = start("two");
    assert_eq!((status, &two["state"]), (202, &json!("waiting")));
    assert_eq!(start("two").1["id"], two["id"]);
    let (status, refused) = start("three");
    assert_eq!(
        (status, &refused["error"]["code"]),
        (503, &json!("OVERLOADED"))
    );

    let id = two["id"].as_str().expect("an id");
    let (_, cancelled) = server.delete(&format!("/v1/pulls/{id}"));
    assert_eq!(
        cancelled["state"], "cancelled",
        "a queued pull ends immediately"
    );
    let (_, three) = start("three");
    assert_eq!(three["state"], "waiting");
    held.release_held();
    assert_eq!(server.wait_for_pull(&one)["state"], "done");
    assert_eq!(server.wait_for_pull(&three)["state"], "done");
    assert_eq!(server.get("/v1/stores/two").0, 404);
}

#[test]
fn a_stopping_server_ends_queued_pulls() {
    let versions = tempfile::tempdir().expect("a folder");
    build(versions.path(), "one", 10, "v");
    let held = Source::serve(versions.path());
    held.break_next("manifest.json", Fault::Hold);
    let mut server = TestServer::with(|config| {
        config.fetch.pulls = 1;
        config.fetch.stall_timeout_seconds = 60;
    });
    server.post("/v1/stores/one/pull", json!({ "source": held.url() }));
    held.wait_for("manifest.json", 1);
    let (_, two) = server.post("/v1/stores/two/pull", json!({ "source": "/nowhere" }));
    assert_eq!(two["state"], "waiting");
    server.restart(|_| {});
    assert_eq!(server.get("/v1/pulls").1["pulls"], json!([]));
}

/// Covers every numeric query parameter, also with values that are not numbers.
#[test]
fn out_of_range_numbers_are_rejected() {
    let versions = tempfile::tempdir().expect("a folder");
    build(versions.path(), "pymk", 10, "v");
    let server = TestServer::start();
    let pull = server.pull_from("pymk", versions.path().to_str().expect("UTF-8"));
    let id = pull["id"].as_str().expect("an id");
    for wait in [
        "nan", "NaN", "-nan", "inf", "-inf", "-1", "-1e300", "1e999", "x", "",
    ] {
        let (status, error) = server.get(&format!("/v1/pulls/{id}?wait={wait}"));
        assert_eq!(
            (status, &error["error"]["code"]),
            (400, &json!("BAD_REQUEST")),
            "{wait}"
        );
    }
    for wait in ["0", "-0", "1e-300", "1e308"] {
        assert_eq!(
            server.get(&format!("/v1/pulls/{id}?wait={wait}")).0,
            200,
            "{wait}"
        );
    }
    for query in [
        "sample?n=-1",
        "sample?n=nan",
        "sample?n=99999999999999999999",
        "sample?seed=-1",
        "sample?version=1.5",
        "diff?limit=-1",
        "diff?limit=inf",
        "diff?from=-1",
        "diff?to=nan",
        "dump?version=-1",
    ] {
        let (status, error) = server.get(&format!("/v1/stores/pymk/{query}"));
        assert_eq!(
            (status, &error["error"]["code"]),
            (400, &json!("BAD_REQUEST")),
            "{query}"
        );
    }
    for query in [
        "sample?n=18446744073709551615",
        "sample?n=0",
        "diff?from=1&to=1&limit=18446744073709551615",
    ] {
        assert_eq!(
            server.get(&format!("/v1/stores/pymk/{query}")).0,
            200,
            "{query}"
        );
    }
    for percent in ["-1", "100.1", "1e308"] {
        let percent: Value = percent.parse::<f64>().expect("a number").into();
        let body = json!({ "source": "/x", "gates": { "max_shrink_percent": percent } });
        assert_eq!(server.post("/v1/stores/pymk/pull", body).0, 400);
    }
    let column = json!([{ "column": "price", "limit": -1.0 }]);
    for (gate, limit) in [
        ("max_growth_percent", json!(-1.0)),
        ("max_nulls", column.clone()),
        ("max_empty", column.clone()),
        ("max_shift", column),
    ] {
        let body = json!({ "source": "/x", "gates": { gate: limit } });
        let (status, error) = server.post("/v1/stores/pymk/pull", body);
        let reply = error["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && reply.starts_with(gate), "{error}");
        assert!(reply.contains("it must be at least 0"), "{error}");
    }
    for not_an_object in [json!([]), json!([5]), json!("x"), json!(1), json!(null)] {
        let (status, error) = server.patch("/v1/settings", not_an_object);
        assert_eq!(status, 400, "{error}");
    }
    for settings in [
        json!({ "fetch_bytes_per_second": u64::MAX, "slowlog_threshold_us": u64::MAX }),
        json!({ "retain_age_hours": u64::MAX, "retain_bytes": u64::MAX }),
        json!({ "retain_versions": 0 }),
    ] {
        let status = server.patch("/v1/settings", settings).0;
        assert!([200, 400].contains(&status), "{status}");
    }
    assert_eq!(server.get("/v1/pulls").0, 200);
    let pull = server.pull_from("pymk", versions.path().to_str().expect("UTF-8"));
    assert_eq!(pull["state"], "done", "with these settings, too: {pull}");
}

const LIMITED_SERVER_DATA: &str = "TEST_FEW_DESCRIPTORS";

/// Not a test: the server process that [`server_with_descriptors`] starts with few file descriptors.
#[test]
fn server_with_few_descriptors() {
    let Ok(data) = std::env::var(LIMITED_SERVER_DATA) else {
        return;
    };
    let mut config = ServerConfig::default();
    config.server.data = data.into();
    config.server.resp = "127.0.0.1:0".to_owned();
    config.server.http = "127.0.0.1:0".to_owned();
    config.server.threads = 1;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(Server::start(config)).expect("it starts");
    println!("\nserving {}", server.http_addr());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runtime.block_on(server.stop()).expect("it stops cleanly");
}

struct LimitedServer {
    child: Child,
    /// Further output; dropping the reader would break the pipe.
    _said: Box<dyn Iterator<Item = String>>,
    addr: SocketAddr,
}

/// Starts this program as [`server_with_few_descriptors`], with at most `limit` file descriptors.
fn server_with_descriptors(limit: u32, data: &Path) -> LimitedServer {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -n {limit} && exec \"$0\" --nocapture --exact http_limits::server_with_few_descriptors"
        ))
        .arg(std::env::current_exe().expect("this program"))
        .env(LIMITED_SERVER_DATA, data)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs");
    let said = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = said.lines().map_while(Result::ok);
    let addr = lines
        .find_map(|line| line.strip_prefix("serving ")?.parse().ok())
        .expect("it serves");
    LimitedServer {
        child,
        _said: Box::new(lines),
        addr,
    }
}

impl LimitedServer {
    fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("our own child").success());
    }
}

#[test]
fn a_server_without_free_descriptors_answers_health_checks_and_recovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let few = server_with_descriptors(100, folder.path());
    let addr = few.addr;
    // Opens more connections than there are descriptors. Each sends a request, so that the server accepts it before
    // the next one.
    let mut open = Vec::new();
    let mut answered = 200;
    while answered == 200 && open.len() < 200 {
        let mut stream = get(addr, "/v1/openapi.json");
        answered = status(&mut stream);
        open.push(stream);
    }
    assert_eq!(answered, 503, "after {}", open.len());
    for _ in 0..3 {
        assert_eq!(status(&mut get(addr, "/healthz")), 200);
    }
    drop(open);
    // The server notices the closed connections with a delay.
    while status(&mut get(addr, "/v1/openapi.json")) != 200 {}
    few.stop();
}

/// All of these connections precede the health check in the accept queue.
#[test]
fn clients_that_take_all_descriptors_do_not_delay_health_checks() {
    let folder = tempfile::tempdir().expect("a folder");
    let few = server_with_descriptors(64, folder.path());
    let addr = few.addr;
    // Makes the test fail instead of hang.
    let patience = Duration::from_secs(10);
    let connect = || TcpStream::connect_timeout(&addr, patience).expect("connected");
    let crowd: Vec<TcpStream> = (0..500).map(|_| connect()).collect();
    let mut health = connect();
    health.set_read_timeout(Some(patience)).expect("set");
    let asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    health.write_all(asked).expect("sent");
    assert_eq!(status(&mut BufReader::new(health)), 200);
    drop(crowd);
    few.stop();
}
