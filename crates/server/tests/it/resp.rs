//! The Redis protocol, as raw bytes and through redis-cli if it is installed.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use larder_protocol::config::ServerConfig;
use larder_protocol::resp::client;
use larder_types::ByteSize;

use crate::support::{TestServer, build, build_rows};
use crate::wire;

/// A minimal RESP client.
pub struct Client {
    pub stream: BufReader<TcpStream>,
}

/// The join that most tests use.
pub const TIMELINE: &str =
    "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>";

impl Client {
    pub fn connect(server: &TestServer) -> Client {
        Client::to(server.server().resp_addr())
    }

    pub fn to(addr: SocketAddr) -> Client {
        Client::try_to(addr).expect("connected")
    }

    /// Like [`Client::to`], for a server that may not be running.
    pub fn try_to(addr: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(addr)?;
        // Makes the test fail instead of hang.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Client {
            stream: BufReader::new(stream),
        })
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("sent");
    }

    /// Like [`Client::send`], for a connection that the server may have closed.
    pub fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// Reads one reply, and returns it with `|` for line breaks. Nested replies follow one another.
    pub fn reply(&mut self) -> String {
        self.reply_or_end().expect("a reply")
    }

    /// Like [`Client::reply`]. Returns `None` if the server has closed the connection, so that the outcome of the
    /// request is unknown.
    pub fn reply_or_end(&mut self) -> Option<String> {
        let frame = wire::frame(&mut self.stream);
        frame.ok().map(|frame| wire::format_frame(&frame))
    }

    pub fn call(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.send(&request(&words));
        self.reply()
    }

    /// Sends words that may contain spaces, and returns the reply.
    pub fn call_words(&mut self, words: &[&str]) -> String {
        self.send(&request(words));
        self.reply()
    }

    /// Opens a connection with RESP3.
    pub fn resp3(addr: SocketAddr) -> Client {
        let mut client = Client::to(addr);
        assert!(client.call("HELLO 3").starts_with('%'));
        client
    }

    /// Returns the frames that arrive before the reply to a PING.
    pub fn frames_before_pong(&mut self) -> Vec<String> {
        self.send(&request(&["PING"]));
        let mut frames = Vec::new();
        loop {
            let frame = self.reply();
            if frame == "+PONG" {
                return frames;
            }
            frames.push(frame);
        }
    }

    #[track_caller]
    pub fn check(&mut self, line: &str, expected: &str) {
        assert_eq!(self.call(line), expected, "{line}");
    }

    #[track_caller]
    pub fn create(&mut self, name: &str, definition: &str) {
        self.send(&request(&["JOIN.CREATE", name, definition]));
        assert_eq!(self.reply(), "+OK");
    }

    /// Returns the value of a line in a section of INFO.
    #[track_caller]
    pub fn info(&mut self, section: &str, name: &str) -> String {
        let info = self.call(&format!("INFO {section}"));
        let mut lines = info.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {info}"))
            .to_owned()
    }

    /// Returns a number in a section of INFO.
    #[track_caller]
    pub fn info_number(&mut self, section: &str, name: &str) -> u64 {
        self.info(section, name).parse().expect("a number")
    }

    /// Returns everything that arrives until the server closes the connection.
    pub fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset is as good an end of the connection as a close.
        let _ = self.stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

pub fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::request(&mut bytes, words);
    bytes
}

/// Starts a server with the store `s`: keys k0 to k99 with the value `v`.
pub fn server_with(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    let server = TestServer::with(change);
    let folder = tempfile::tempdir().expect("a folder");
    build(folder.path(), "s", 100, "v");
    let pull = server.pull_from("s", folder.path().to_str().expect("UTF-8"));
    assert_eq!(pull["state"], "done", "{pull}");
    server
}

fn server() -> TestServer {
    server_with(|_| {})
}

#[test]
fn lookups_return_a_value_nil_or_an_error() {
    let server = server();
    let mut client = Client::connect(&server);
    client.check("GET s:k1", "$1|v");
    client.check("get s:none", "$-1");
    client.check("GET s:", "$-1");
    // No store or table has this name. A table may be created later, so that its keys are only absent.
    client.check("GET x:k1", "$-1");
    client.check(
        "STORE.INFO x",
        "-NOSTORE no store is named 'x'; STORE.LIST lists all stores",
    );
    client.check("GET plain", "$-1");
    client.check("MGET s:k1 s:none s:k2", "*3|$1|v|$-1|$1|v");
    client.check("MGET s:k1 x:k2", "*2|$1|v|$-1");
    client.check("EXISTS s:k1 s:none s:k1", ":2");
    client.check("STRLEN s:k1", ":1");
    client.check("STRLEN s:none", ":0");
    client.check("GETRANGE s:k1 0 -1", "$1|v");
    client.check("GETRANGE s:none 0 -1", "$0|");
    client.check("TYPE s:k1", "+string");
    client.check("TYPE s:none", "+none");
    client.check("MEMORY USAGE s:k1", ":3");
    client.check("DBSIZE", ":100");
    client.check("STORE.LIST", "*1|$1|s");
    client.check("STORE.VERSION s", ":1");
    assert!(client.call("STORE.INFO s").contains("$7|records|:100"));
    assert!(client.call("STORE.VERSION x").starts_with("-NOSTORE"));
}

#[test]
fn pipelined_replies_are_in_the_order_of_their_requests() {
    let server = server();
    let mut client = Client::connect(&server);
    let mut bytes = Vec::new();
    for i in 0..100 {
        bytes.extend(request(&["GET", &format!("s:k{}", i * 2)]));
        if i % 7 == 0 {
            bytes.extend(request(&["ECHO", &i.to_string()]));
        }
        if i % 11 == 0 {
            bytes.extend(b"GET x:1\r\n");
        }
    }
    client.send(&bytes);
    for i in 0..100 {
        assert_eq!(client.reply(), if i < 50 { "$1|v" } else { "$-1" });
        if i % 7 == 0 {
            assert_eq!(client.reply(), format!("${}|{i}", i.to_string().len()));
        }
        if i % 11 == 0 {
            assert_eq!(client.reply(), "$-1");
        }
    }
}

#[test]
fn unsupported_requests_return_the_errors_of_redis() {
    let server = server();
    let mut client = Client::connect(&server);
    client.check(
        "NOSUCH a b",
        "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' ",
    );
    client.check("GET", "-ERR wrong number of arguments for 'get' command");
    client.check(
        "CLIENT SETNAME",
        "-ERR wrong number of arguments for 'client|setname' command",
    );
    client.check(
        "CLIENT NOSUCH",
        "-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.",
    );
    client.check(
        "CLUSTER INFO",
        "-ERR This instance has cluster support disabled",
    );
    client.check("SELECT 1", "-ERR DB index is out of range");
    client.check("SELECT 0", "+OK");
    client.check(
        "GETRANGE s:k1 a 2",
        "-ERR value is not an integer or out of range",
    );
    client.check(
        "SET s:k1 x",
        "-NOWRITE stores are read-only, SET is refused; build a version and push it: larder push FILE --store s",
    );
    assert!(
        client
            .call("CONFIG SET maxmemory 1")
            .starts_with("-ERR CONFIG SET is not supported")
    );
    assert!(
        client
            .call("AUTH x")
            .starts_with("-ERR AUTH <password> called without any password")
    );
}

#[test]
fn hello_switches_the_protocol_and_reset_switches_back() {
    let server = server();
    let mut client = Client::connect(&server);
    assert!(client.call("HELLO 3").starts_with("%7|$6|server|$5|redis"));
    client.check("GET s:none", "_");
    client.check("CONFIG GET maxmemor?", "%1|$9|maxmemory|$1|0");
    client.check("RESET", "+RESET");
    client.check("GET s:none", "$-1");
    client.check("CONFIG GET maxmemor?", "*2|$9|maxmemory|$1|0");
    client.check("HELLO 4", "-NOPROTO unsupported protocol version");
    client.check("CLIENT SETNAME me", "+OK");
    client.check("CLIENT GETNAME", "$2|me");
    assert!(client.call("CLIENT LIST").contains("name=me"));
    assert!(client.call("COMMAND COUNT").starts_with(':'));
    let docs = client.call("COMMAND DOCS get");
    assert!(docs.contains("summary") && docs.contains("complexity"));
    assert!(
        client
            .call("COMMAND INFO get nosuch")
            .contains("|$3|get|:2|")
    );
    client.check("COMMAND GETKEYS MGET a:1 b:2", "*2|$3|a:1|$3|b:2");
    assert!(client.call("INFO").contains("connected_clients:1"));
    assert!(
        client
            .call("INFO commandstats")
            .contains("cmdstat_get:calls=2")
    );
    client.check("QUIT", "+OK");
    assert_eq!(client.read_to_end(), "");
}

#[test]
fn long_requests_require_authentication() {
    let server = TestServer::with(|config| config.server.password = "secret".to_owned());
    let mut client = Client::connect(&server);
    client.check("GET s:k1", "-NOAUTH Authentication required.");
    client.check(
        "AUTH wrong",
        "-WRONGPASS invalid username-password pair or user is disabled.",
    );
    client.check("AUTH default secret", "+OK");
    client.check("PING", "+PONG");
    let mut client = Client::connect(&server);
    assert!(client.call("HELLO 3 AUTH default secret").starts_with('%'));
    let mut client = Client::connect(&server);
    client.send(b"*100\r\n");
    assert_eq!(
        client.read_to_end(),
        "-ERR Protocol error: invalid multibulk length\r\n"
    );
}

#[test]
fn malformed_bytes_close_the_connection_after_earlier_replies() {
    let server = server();
    for (bytes, error) in [
        (&b"*1\r\n!3\r\nGET\r\n"[..], "expected '$', got '!'"),
        (b"*9999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
        (b"GET \"s:k1\r\n", "unbalanced quotes in request"),
    ] {
        let mut client = Client::connect(&server);
        client.send(&[b"PING\r\n", bytes].concat());
        assert_eq!(
            client.read_to_end(),
            format!("+PONG\r\n-ERR Protocol error: {error}\r\n")
        );
    }
    // A truncated frame, sent byte by byte, has no effect on other clients.
    let mut cut = Client::connect(&server);
    for byte in b"*2\r\n$3\r\nGET\r\n$500000000\r\ns:k" {
        cut.send(&[*byte]);
    }
    Client::connect(&server).check("GET s:k1", "$1|v");
    for byte in request(&["GET", "s:k1"]) {
        let mut client = Client::connect(&server);
        client.send(&[byte]);
    }
    Client::connect(&server).check("GET s:k1", "$1|v");
}

#[test]
fn a_large_request_is_assembled_from_several_reads() {
    let server = server();
    let mut client = Client::connect(&server);
    let large = "x".repeat(3 << 20);
    client.send(&request(&["ECHO", &large]));
    assert_eq!(client.reply(), format!("${}|{large}", large.len()));
    let keys: Vec<String> = (0..20_000).map(|i| format!("s:k{}", i % 200)).collect();
    let words: Vec<&str> = ["MGET"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    client.send(&request(&words));
    let reply = client.reply();
    assert_eq!(
        (reply.matches("|v").count(), reply.matches("$-1").count()),
        (10_000, 10_000)
    );
}

#[test]
fn idle_connections_do_not_block_others() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Both ends of every connection are in this process, as are the other tests. Enough descriptors must remain for
    // their servers to open versions.
    let allowed = limit.maximum.unwrap_or(u64::MAX).saturating_sub(8000) / 2;
    let count = allowed.min(10_000) as usize;
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("raised");
    eprintln!("{count} silent connections");
    let server = server();
    let resident_bytes = || larder_testing::memory_bytes(std::process::id(), "VmRSS");
    let before = resident_bytes();
    let mut silent = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(server.server().resp_addr()).expect("connected");
        stream.write_all(b"*2\r\n$3\r\n").expect("sent");
        silent.push(stream);
    }
    let mut client = Client::connect(&server);
    client.check("GET s:k1", "$1|v");
    assert!(
        client
            .call("INFO clients")
            .contains(&format!("connected_clients:{}", count + 1))
    );
    let each = resident_bytes().saturating_sub(before) / count as u64;
    eprintln!("{each} bytes of memory each");
    assert!(each < 8192, "{each} bytes a connection");
}

#[test]
fn an_excess_connection_receives_an_error() {
    let server = TestServer::with(|config| config.server.max_connections = 2);
    let mut open = [Client::connect(&server), Client::connect(&server)];
    open.iter_mut()
        .for_each(|client| client.check("PING", "+PONG"));
    assert_eq!(
        Client::connect(&server).read_to_end(),
        "-ERR max number of clients reached\r\n"
    );
    open[0].check("PING", "+PONG");
}

#[test]
fn idle_connections_are_closed_after_the_timeout() {
    let server = TestServer::with(|config| config.server.idle_timeout_seconds = 1);
    let mut client = Client::connect(&server);
    client.check("PING", "+PONG");
    assert_eq!(client.read_to_end(), "");
}

#[test]
fn a_client_that_does_not_read_is_throttled_and_later_receives_all_replies() {
    let server = TestServer::with(|config| config.server.output_buffer_bytes = ByteSize(64 << 10));
    let folder = tempfile::tempdir().expect("a folder");
    let large = "L".repeat(1 << 20);
    let rows = [
        ("large".to_owned(), large.clone()),
        ("small".to_owned(), "v".to_owned()),
    ];
    build_rows(folder.path(), "s", rows.into_iter(), 1);
    server.pull_from("s", folder.path().to_str().expect("UTF-8"));

    const ASKED: usize = 200;
    let mut lazy = Client::connect(&server);
    lazy.send(&request(&["GET", "s:large"]).repeat(ASKED));
    let keys = ["s:large"; 50];
    let mget: Vec<&str> = ["MGET"].into_iter().chain(keys).collect();
    lazy.send(&request(&mget));
    let mut client = Client::connect(&server);
    client.check("GET s:small", "$1|v");
    let list = client.call("CLIENT LIST");
    let pending: u64 = list
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("omem=")?.parse().ok())
        .max()
        .expect("a figure");
    assert!(
        pending <= (64 << 10) + (1 << 20) + 100,
        "{pending} bytes wait: {list}"
    );
    for _ in 0..ASKED {
        assert_eq!(lazy.reply().len(), large.len() + "$1048576|".len());
    }
    assert_eq!(lazy.reply().matches("$1048576|L").count(), 50);
    lazy.check("GETRANGE s:large 1048570 -1", "$6|LLLLLL");
}

static COLD: OnceLock<Mutex<mpsc::Receiver<()>>> = OnceLock::new();

#[test]
fn a_slow_disk_delays_only_requests_that_read_from_it() {
    if !cfg!(debug_assertions) {
        return larder_testing::report_unsupported(
            "slow the disk down: release builds have no means",
        );
    }
    let (release, released) = mpsc::channel::<()>();
    COLD.set(Mutex::new(released)).expect("set once");
    larder_server::resp::set_disk_hook(
        |key| key.starts_with(b"cold"),
        |_| {
            let released = COLD.get().expect("set").lock().expect("not poisoned");
            released.recv().expect("released");
        },
    );
    let server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let rows = [("cold1", "c1"), ("cold2", "c2"), ("warm", "w")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
    build_rows(folder.path(), "s", rows.into_iter(), 1);
    server.pull_from("s", folder.path().to_str().expect("UTF-8"));

    let mut waits = Client::connect(&server);
    let pipeline = [
        request(&["GET", "s:warm"]),
        request(&["GET", "s:cold1"]),
        request(&["GET", "s:warm"]),
        request(&["MGET", "s:warm", "s:cold2", "s:warm", "s:absent"]),
        request(&["PING"]),
    ];
    waits.send(&pipeline.concat());
    assert_eq!(
        waits.reply(),
        "$1|w",
        "what was ready before the disk is not held back"
    );
    for _ in 0..100 {
        Client::connect(&server).check("GET s:warm", "$1|w");
    }
    release.send(()).expect("sent");
    release.send(()).expect("sent");
    assert_eq!(waits.reply(), "$2|c1");
    assert_eq!(waits.reply(), "$1|w");
    assert_eq!(waits.reply(), "*4|$1|w|$2|c2|$1|w|$-1");
    assert_eq!(waits.reply(), "+PONG");
}

#[test]
fn a_damaged_block_is_never_an_absent_key() {
    let mut server = server();
    server.restart(|data| {
        let version = data.join("stores/s/v0000000001");
        for entry in std::fs::read_dir(version).expect("a folder").flatten() {
            if entry.file_name().to_string_lossy().contains("seg") {
                let mut bytes = std::fs::read(entry.path()).expect("read");
                // The blocks follow the header.
                bytes[200] ^= 0xff;
                std::fs::write(entry.path(), bytes).expect("written");
            }
        }
    });
    let mut client = Client::connect(&server);
    let mut damaged = 0;
    for i in 0..100 {
        let reply = client.call(&format!("GET s:k{i}"));
        assert!(
            reply == "$1|v" || reply.starts_with("-CORRUPTED "),
            "{reply}"
        );
        damaged += usize::from(reply.starts_with("-CORRUPTED "));
    }
    assert!(damaged > 0);
    let all: Vec<String> = (0..100).map(|i| format!("s:k{i}")).collect();
    assert!(
        client
            .call(&format!("MGET {}", all.join(" ")))
            .starts_with("-CORRUPTED ")
    );
    client.check("PING", "+PONG");
}

#[test]
fn scan_returns_every_key_once() {
    let server = server();
    let mut client = Client::connect(&server);
    let mut keys = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = client.call(&format!("SCAN {cursor} MATCH s:k* COUNT 7"));
        let words: Vec<&str> = reply.split('|').collect();
        cursor = words[2].to_owned();
        keys.extend(
            words
                .iter()
                .filter(|word| word.starts_with("s:k"))
                .map(|word| word.to_string()),
        );
        if cursor == "0" {
            break;
        }
    }
    keys.sort();
    let total = keys.len();
    keys.dedup();
    assert_eq!((keys.len(), total), (100, 100));
    client.check("SCAN 0 MATCH x:*", "*2|$1|0|*0");
    assert!(
        client
            .call("SCAN 281474976710657123 MATCH s:*")
            .starts_with("-ERR cursor")
    );
    client.check("SCAN 0 MATCH s:k5 COUNT 1000", "*2|$1|0|*1|$4|s:k5");
}

#[test]
fn slow_commands_are_logged_and_killed_clients_are_removed() {
    let server = server_with(|config| config.slowlog.threshold_us = 0);
    let mut client = Client::connect(&server);
    client.check("SLOWLOG RESET", "+OK");
    client.check("GET s:k1", "$1|v");
    let log = client.call("SLOWLOG GET 1");
    assert!(log.contains("*2|$3|GET|$4|s:k1"), "{log}");
    let mut other = Client::connect(&server);
    let id = other.call("CLIENT ID");
    client.check(&format!("CLIENT KILL ID {}", &id[1..]), ":1");
    assert_eq!(other.read_to_end(), "");
    assert!(
        client
            .call("LATENCY HISTOGRAM get")
            .starts_with("*2|$3|get|*4|$5|calls|:1")
    );
}

#[test]
fn redis_cli_works() {
    let server = server();
    let port = server.server().resp_addr().port().to_string();
    let run = |args: &[&str]| {
        let output = std::process::Command::new("redis-cli")
            .args(["-p", &port])
            .args(args)
            .output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    if run(&["PING"]).is_err() {
        return larder_testing::report_missing("redis-cli");
    }
    for (args, expected) in [
        (&["GET", "s:k1"][..], "v\n"),
        (&["-3", "MGET", "s:k1", "s:none"], "v\n\n"),
        (&["--scan", "--pattern", "s:k1"], "s:k1\n"),
    ] {
        assert_eq!(run(args).expect("runs"), expected, "{args:?}");
    }
    assert!(
        run(&["INFO", "server"])
            .expect("runs")
            .contains("redis_version:")
    );
}

#[test]
fn large_values_are_read_on_disk_threads_and_small_ones_on_serving_threads() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let rows = (0..8).map(|i| (format!("k{i}"), i.to_string().repeat(400 << 10)));
    build_rows(folder.path(), "large", rows, 1);
    let pull = server.pull_from("large", folder.path().to_str().expect("UTF-8"));
    assert_eq!(pull["state"], "done", "{pull}");
    let read_apart = || server.get("/v1/stats").1["disk_reads"].as_u64().unwrap();

    let mut client = Client::connect(&server);
    client.check("GET s:k1", "$1|v");
    client.check("MGET s:k1 s:k2", "*2|$1|v|$1|v");
    assert_eq!(read_apart(), 0, "it is all in memory");
    let value = |i: usize| format!("$409600|{}", i.to_string().repeat(400 << 10));
    client.check("GET large:k3", &value(3));
    assert_eq!(read_apart(), 1);
    client.check("GETRANGE large:k3 5 7", "$3|333");
    client.check("STRLEN large:k3", ":409600");
    let part = format!("$100000|{}", "4".repeat(100_000));
    client.check("GETRANGE large:k4 0 99999", &part);
    let both = format!("*3|{}|$-1|{}", value(5), value(6));
    client.check("MGET large:k5 large:none large:k6", &both);
    assert_eq!(read_apart(), 7);
    // The same in a pipeline, and over HTTP.
    client.send(&[request(&["GET", "large:k1"]), request(&["GET", "s:k1"])].concat());
    assert_eq!(client.reply(), value(1));
    assert_eq!(client.reply(), "$1|v");
    server.check_value("large", "k7", &value(7)[8..]);
}
