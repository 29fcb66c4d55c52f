//! The effect of one client on the server and on other clients: wrong protocols, and excessive resource use.

use std::io::{Read, Write};

use larder_types::ByteSize;
use serde_json::json;

use crate::resp::{Client, request};
use crate::support::TestServer;

/// Returns a field of the client's line in CLIENT LIST, or `None` if the client is gone.
fn field(client: &mut Client, id: &str, name: &str) -> Option<u64> {
    let list = client.call(&format!("CLIENT LIST ID {id}"));
    let mut words = list.split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// Returns a client and its id.
fn connect(server: &TestServer) -> (Client, String) {
    let mut client = Client::connect(server);
    let id = client.call("CLIENT ID")[1..].to_owned();
    (client, id)
}

/// Returns a request whose last argument is incomplete, with its first `size` bytes.
fn unfinished(size: usize) -> Vec<u8> {
    let head = format!("*2\r\n$4\r\nECHO\r\n${}\r\n", size + 1);
    [head.as_bytes(), &vec![b'x'; size]].concat()
}

/// A web page of any site can make a browser send this, with a body of its choice.
#[test]
fn http_ends_the_connection_before_its_body_is_executed() {
    let server = TestServer::start();
    let body = b"SET post|v|1 pwned\r\n";
    for head in [
        &b"POST / HTTP/1.1\r\nHost: localhost:7379\r\nContent-Type: text/plain\r\n\r\n"[..],
        b"post / http/1.1\r\n",
        b"hOsT: localhost:7379\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost:7379\r\n\r\n",
        b"PUT /x HTTP/1.1\r\n\r\n",
        b"OPTIONS /x HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"User-Agent: x\r\n",
        &request(&["Post", "/"]),
        &request(&["HOST:", "x"]),
    ] {
        let mut client = Client::connect(&server);
        client.send(&[b"PING\r\n", head, body].concat());
        let rest = client.read_to_end();
        let expected =
            "+PONG\r\n-ERR Protocol error: this port accepts the Redis protocol, not HTTP; ";
        assert!(rest.starts_with(expected), "{head:?}: {rest}");
        assert_eq!(rest.lines().count(), 2, "{head:?}: {rest}");
    }
    let mut client = Client::connect(&server);
    client.check("EXISTS post|v|1", ":0");
    assert!(client.call("INFO stats").contains("http_refused:10"));
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(
        metrics.contains("larder_http_refused_total 10"),
        "{metrics}"
    );
}

#[test]
fn commands_that_resemble_http_are_executed() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    client.send(b"ECHO HTTP/1.1\r\n");
    assert_eq!(client.reply(), "$8|HTTP/1.1");
    client.check("ECHO Host:", "$5|Host:");
    client.check("SET page|host: HTTP/1.1", "+OK");
    client.check("GET page|host:", "$8|HTTP/1.1");
    client.send(&request(&["User-Agent:", "x"]));
    assert!(client.reply().starts_with("-ERR unknown command"));
    client.check("PING", "+PONG");
}

#[test]
fn a_client_that_exceeds_its_memory_limit_is_closed() {
    let server = TestServer::with(|config| {
        config.server.client_memory = ByteSize(2 << 20);
        config.server.clients_memory = ByteSize(64 << 20);
    });
    let mut client = Client::connect(&server);
    let mut greedy = Client::connect(&server);
    // The server may close the connection before everything is sent.
    let _ = greedy.stream.get_mut().write_all(&unfinished(5 << 20));
    let rest = greedy.read_to_end();
    assert!(
        rest.is_empty() || rest.starts_with("-OOM the request has 5242881 bytes or more"),
        "{rest}"
    );
    assert_eq!(
        client.info_number("everything", "client_memory_limit_disconnections"),
        1
    );
    // MULTI rejects a command before the queue exceeds the limit, and the connection remains usable.
    let value = "v".repeat(900 << 10);
    client.check("MULTI", "+OK");
    for _ in 0..2 {
        client.send(&request(&["SET", "t|1", &value]));
        assert_eq!(client.reply(), "+QUEUED");
    }
    client.send(&request(&["SET", "t|1", &value]));
    let refused = client.reply();
    assert!(
        refused.starts_with("-OOM the commands queued after MULTI took more"),
        "{refused}"
    );
    assert!(client.call("EXEC").starts_with("-EXECABORT"));
    client.check("EXISTS t|1", ":0");
    // A reply that would exceed the limit is rejected, in a transaction and outside.
    for _ in 0..3 {
        client.send(&request(&["SET", "t|1", &value]));
        assert_eq!(client.reply(), "+OK");
    }
    let mget = ["MGET", "t|1", "t|1", "t|1", "t|1"];
    client.send(&request(&mget));
    assert!(client.reply().starts_with("-OOM the reply is longer"));
    client.check("MULTI", "+OK");
    for word in ["GET t|1", "GET t|1", "GET t|1", "GET t|1", "SET t|2 x"] {
        client.check(word, "+QUEUED");
    }
    let exec = client.call("EXEC");
    assert!(
        exec.starts_with("*5|$921600|") && exec.ends_with("|+OK"),
        "{}",
        exec.len()
    );
    assert!(exec.contains("|-OOM the reply is longer"));
    client.check("GET t|2", "$1|x");
}

/// Starts a server with a limit of 2 MiB per client.
fn server_of_small_clients(threads: u32) -> TestServer {
    TestServer::with(|config| {
        config.server.threads = threads;
        config.server.client_memory = ByteSize(2 << 20);
        config.server.clients_memory = ByteSize(64 << 20);
    })
}

#[test]
fn an_announced_oversized_request_is_rejected_before_it_arrives() {
    for threads in [1, 2] {
        let server = server_of_small_clients(threads);
        let mut client = Client::connect(&server);
        let many = "$100000\r\n".to_owned() + &"v".repeat(100_000) + "\r\n";
        for (request, bytes) in [
            (
                "*3\r\n$3\r\nSET\r\n$3\r\nt|1\r\n$1048577\r\n".to_owned(),
                "1048577",
            ),
            (
                format!("*24\r\n$4\r\nMSET\r\n$3\r\nt|1\r\n{}", many.repeat(12)),
                "1200",
            ),
        ] {
            let mut refused = Client::connect(&server);
            // The server may close the connection before everything is sent.
            let _ = refused.stream.get_mut().write_all(request.as_bytes());
            let rest = refused.read_to_end();
            assert!(
                rest.is_empty() || rest.starts_with(&format!("-OOM the request has {bytes}")),
                "{rest}"
            );
            assert!(
                rest.is_empty() || rest.contains("server.client_memory"),
                "{rest}"
            );
        }
        let closed = "client_memory_limit_disconnections";
        assert_eq!(client.info_number("everything", closed), 2);
        client.check("EXISTS t|1", ":0");
        // Values below the limit can be written and read, on every core.
        let value = "v".repeat(1 << 20);
        let expected = format!("$1048576|{value}");
        for row in (0..6).cycle().take(60) {
            client.send(&request(&["SET", &format!("t|{row}"), &value]));
            assert_eq!(client.reply(), "+OK");
            client.send(&request(&["GET", &format!("t|{row}")]));
            assert!(client.reply() == expected, "row {row}");
        }
        assert_eq!(client.info_number("everything", closed), 2);
    }
}

/// A row may be longer than the reply limit, because it was written under a higher limit.
#[test]
fn an_oversized_reply_is_rejected_and_the_value_remains() {
    for threads in [1, 2] {
        let mut server = TestServer::with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        let value = "v".repeat(5 << 20);
        for row in 0..4 {
            client.send(&request(&["SET", &format!("t|{row}"), &value]));
            assert_eq!(client.reply(), "+OK");
        }
        server.restart_with(|config| config.server.client_memory = ByteSize(2 << 20));
        let mut client = Client::connect(&server);
        let refused = "-OOM the reply is longer than 1048576 bytes, half of one client's memory limit (server.client_memory): request less at a time";
        for row in 0..4 {
            for ask in [
                format!("GET t|{row}"),
                format!("MGET t|{row} t|none"),
                format!("GETRANGE t|{row} 1 -1"),
                format!("GETDEL t|{row}"),
                format!("GETEX t|{row} EX 1"),
                format!("GETSET t|{row} x"),
                format!("SET t|{row} x GET"),
            ] {
                client.check(&ask, refused);
            }
            client.check(&format!("GETRANGE t|{row} 0 1"), "$2|vv");
            // A transaction that would remove the value is rejected before it executes.
            client.check("MULTI", "+OK");
            client.check(&format!("SET n|{row} x"), "+QUEUED");
            client.check("SET n|other x", "+QUEUED");
            client.check(&format!("GETDEL t|{row}"), "+QUEUED");
            client.check("EXEC", refused);
            client.check(&format!("EXISTS n|{row} n|other"), ":0");
            // In a transaction that only reads the value, only the read fails.
            client.check("MULTI", "+OK");
            client.check(&format!("SET n|{row} x"), "+QUEUED");
            client.check(&format!("GET t|{row}"), "+QUEUED");
            client.check("EXEC", &format!("*2|+OK|{refused}"));
            client.check(&format!("STRLEN t|{row}"), ":5242880");
            client.check(&format!("TTL t|{row}"), ":-1");
        }
        assert_eq!(
            client.info_number("everything", "client_memory_limit_disconnections"),
            0
        );
    }
}

/// The length of some replies is known only after execution: values that the transaction itself writes and returns
/// several times.
#[test]
fn a_transaction_with_oversized_replies_reports_that_it_was_executed() {
    for threads in [1, 2] {
        let server = server_of_small_clients(threads);
        let mut client = Client::connect(&server);
        let value = "v".repeat(700_000);
        for row in 0..4 {
            let (key, other) = (format!("t|{row}"), format!("u|{row}"));
            client.check("MULTI", "+OK");
            client.send(&request(&["SET", &key, &value]));
            assert_eq!(client.reply(), "+QUEUED");
            for _ in 0..3 {
                client.check(&format!("GETEX {key}"), "+QUEUED");
            }
            client.check(&format!("INCR {other}"), "+QUEUED");
            let exec = client.call("EXEC");
            let expected = format!(
                "*5|+OK|$700000|{value}|$700000|{value}|-OOM GETEX was executed, but its reply of"
            );
            assert!(exec.starts_with(&expected), "{}", &exec[exec.len() - 300..]);
            assert!(
                exec.ends_with("(server.client_memory)|:1"),
                "{}",
                exec.len()
            );
            client.check(&format!("GET {other}"), "$1|1");
        }
        assert_eq!(
            client.info_number("everything", "client_memory_limit_disconnections"),
            0
        );
    }
}

/// Writes are executed although the client has not read the replies before them.
#[test]
fn oversized_replies_of_other_cores_in_a_pipeline_with_a_write_are_rejected_individually() {
    let server = TestServer::with(|config| {
        config.server.threads = 2;
        config.server.client_memory = ByteSize(8 << 20);
    });
    let mut client = Client::connect(&server);
    let value = "v".repeat(100_000);
    for row in 0..4 {
        let key = format!("t|{row}");
        client.send(&request(&["SET", &key, &value]));
        assert_eq!(client.reply(), "+OK");
        let gets = request(&["GET", &key]).repeat(120);
        client.send(&[gets, request(&["PERSIST", &key])].concat());
        let expected = format!("$100000|{value}");
        for _ in 0..120 {
            let reply = client.reply();
            let is_refused = reply.starts_with("-OOM the reply is longer");
            assert!(reply == expected || is_refused, "{}", reply.len());
        }
        assert_eq!(client.reply(), ":0");
    }
    assert_eq!(
        client.info_number("everything", "client_memory_limit_disconnections"),
        0
    );
}

#[test]
fn the_largest_clients_are_closed_when_the_total_limit_is_exceeded() {
    let server = TestServer::with(|config| config.server.clients_memory = ByteSize(8 << 20));
    let mut watcher = Client::connect(&server);
    let mut others = Vec::new();
    for size in [3 << 20, 1 << 20, 2 << 20] {
        let (mut client, id) = connect(&server);
        client.send(&unfinished(size));
        while field(&mut watcher, &id, "qbuf").expect("the client is listed") < size as u64 {}
        assert!(field(&mut watcher, &id, "tot-mem").expect("the client is listed") >= size as u64);
        others.push((client, id));
    }
    let listed = watcher.info_number("everything", "mem_clients_normal");
    assert!((6 << 20..8 << 20).contains(&listed), "{listed}");
    assert_eq!(
        watcher.info_number("everything", "maxmemory_clients"),
        8 << 20
    );
    let (mut last, last_id) = connect(&server);
    last.send(&unfinished(5 << 19));
    while watcher.info_number("everything", "evicted_clients") == 0 {}
    // The first client used the most memory.
    while field(&mut watcher, &others[0].1, "qbuf").is_some() {}
    assert_eq!(others[0].0.read_to_end(), "");
    for (_, id) in &others[1..] {
        assert!(field(&mut watcher, id, "qbuf").is_some());
    }
    assert!(field(&mut watcher, &last_id, "qbuf").is_some());
    let left = watcher.info_number("everything", "mem_clients_normal");
    assert!((5 << 20..8 << 20).contains(&left), "{left}");
    drop((last, others));
    while watcher.info_number("everything", "mem_clients_normal") > 64 << 10 {}
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("larder_clients_closed_total{why=\"clients_memory\"} 1"));
}

#[test]
fn a_client_that_reads_no_replies_is_closed() {
    let server = TestServer::with(|config| config.server.unread_timeout_seconds = 1);
    let mut client = Client::connect(&server);
    client.send(&request(&["SET", "t|1", &"v".repeat(1 << 20)]));
    assert_eq!(client.reply(), "+OK");
    let mut lazy = Client::connect(&server);
    lazy.send(&request(&["GET", "t|1"]).repeat(64));
    while client.info_number("everything", "client_unread_disconnections") == 0 {}
    let mut taken = Vec::new();
    // A reset is as good an end of the connection as a close.
    let _ = lazy.stream.read_to_end(&mut taken);
    assert!(taken.len() < 64 << 20, "{}", taken.len());
}

/// Clients request a large table and do not read the reply, while all of its rows are overwritten. The writer is
/// never rejected. Each reader receives the rows of one moment, or its connection is closed.
fn check_slow_readers_cause_no_write_errors(threads: u32) {
    const ROWS: usize = 20_000;
    let server = TestServer::with(|config| {
        config.server.threads = threads;
        config.server.output_buffer_bytes = ByteSize(64 << 10);
        config.server.clients_memory = ByteSize(16 << 20);
        config.tables.memory = ByteSize(u64::from(threads) * (48 << 20));
    });
    let mut writer = Client::connect(&server);
    let mut write = |round: usize| {
        let value = format!("{round:0>1000}");
        for part in 0..20 {
            let rows = part * ROWS / 20..(part + 1) * ROWS / 20;
            let all = rows
                .clone()
                .flat_map(|row| request(&["SET", &format!("b|{row:05}"), &value]));
            writer.send(&all.collect::<Vec<u8>>());
            for row in rows {
                assert_eq!(writer.reply(), "+OK", "row {row} in round {round}");
            }
        }
    };
    write(0);
    let mut lazy: Vec<Client> = (0..12).map(|_| Client::connect(&server)).collect();
    for client in &mut lazy {
        client.send(&request(&["RANGE", "b|", "b}"]));
    }
    // Each socket holds as much of the reply as it accepts.
    let mut watcher = Client::connect(&server);
    for client in &mut lazy {
        let mut line = [0; 1];
        client
            .stream
            .get_mut()
            .peek(&mut line)
            .expect("it is answered");
    }
    for round in 1..4 {
        write(round);
        assert!(watcher.info_number("everything", "mem_clients_normal") < 64 << 20);
    }
    let (mut complete, mut truncated) = (0, 0);
    for mut client in lazy {
        let mut bytes = Vec::new();
        client.send(&request(&["QUIT"]));
        let _ = client.stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).expect("text");
        let values: Vec<&str> = text.lines().filter(|line| line.len() == 1000).collect();
        assert!(
            values.windows(2).all(|pair| pair[0] == pair[1]),
            "one moment"
        );
        match values.len() {
            ROWS => complete += 1,
            _ => truncated += 1,
        }
    }
    eprintln!("{complete} complete replies, {truncated} truncated");
    assert!(truncated > 0, "twelve answers of 20 MB do not fit in 16 MB");
    writer.check("PING", "+PONG");
}

#[test]
fn slow_readers_do_not_cause_write_errors_on_one_core() {
    check_slow_readers_cause_no_write_errors(1);
}

#[test]
fn slow_readers_do_not_cause_write_errors_on_two_cores() {
    check_slow_readers_cause_no_write_errors(2);
}

/// Pipelines of reads of a row on another core, whose replies the client does not read.
#[test]
fn replies_of_other_cores_wait_there_until_the_client_reads_them() {
    const READS: usize = 200;
    let server = TestServer::with(|config| config.server.threads = 2);
    let mut watcher = Client::connect(&server);
    let value = "v".repeat(100 << 10);
    // Some of these rows are on the other core, whichever core has the connection.
    let mut lazy: Vec<(Client, String)> = (0..6).map(|_| connect(&server)).collect();
    for (row, (client, _)) in lazy.iter_mut().enumerate() {
        let name = format!("t|{row}");
        client.send(&request(&["SET", &name, &value]));
        assert_eq!(client.reply(), "+OK");
        client.send(&request(&["GET", &name]).repeat(READS));
    }
    let mut most = 0;
    for _ in 0..100 {
        for (_, id) in &lazy {
            most = most.max(field(&mut watcher, id, "tot-mem").expect("the client is listed"));
        }
    }
    assert!(most < 8 << 20, "{most} of 20 MB at a time");
    for (client, _) in &mut lazy {
        for _ in 0..READS {
            assert_eq!(client.reply().len(), value.len() + "$102400|".len());
        }
    }
}

#[test]
fn the_number_of_commands_in_a_transaction_is_limited() {
    let server = TestServer::with(|config| config.server.max_transaction_commands = 3);
    let mut client = Client::connect(&server);
    client.check("MULTI", "+OK");
    for _ in 0..3 {
        client.check("INCR t|1", "+QUEUED");
    }
    let refused = client.call("INCR t|1");
    assert!(
        refused.starts_with("-ERR MULTI has queued 3 commands"),
        "{refused}"
    );
    assert!(client.call("EXEC").starts_with("-EXECABORT"));
    client.check("EXISTS t|1", ":0");
}

#[test]
fn an_excessive_number_of_command_names_is_rejected() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    let words: Vec<&str> = ["COMMAND", "DOCS"]
        .into_iter()
        .chain(["client"; 10_000])
        .collect();
    client.send(&request(&words));
    assert!(
        client
            .reply()
            .starts_with("-ERR the request lists more names than")
    );
}

/// Ten wrong passwords are answered immediately, over both protocols together. After that, one attempt per second is
/// checked, right or wrong.
#[test]
fn wrong_passwords_are_rate_limited_and_the_correct_one_is_accepted() {
    let server = TestServer::with(|config| config.server.password = "secret".to_owned());
    let mut client = Client::connect(&server);
    for _ in 0..4 {
        assert!(client.call("AUTH wrong").starts_with("-WRONGPASS"));
        assert!(
            client
                .call("HELLO 3 AUTH default wrong")
                .starts_with("-WRONGPASS")
        );
    }
    for _ in 0..2 {
        let mut response = ureq::get(server.url("/v1/stores"))
            .header("Authorization", "Bearer wrong")
            .config()
            .http_status_as_error(false)
            .build()
            .call()
            .expect("an answer");
        let body: serde_json::Value = response.body_mut().read_json().expect("JSON");
        assert_eq!(body["error"]["code"], json!("WRONGPASS"));
    }
    // The attempt is checked within a second. Requests after it wait.
    client.send(&[request(&["AUTH", "secret"]), request(&["SET", "t|1", "x"])].concat());
    assert_eq!(client.reply(), "+OK");
    assert_eq!(client.reply(), "+OK");
    // More than ten arguments, which exceeds the limit that applies before the password.
    let keys = ["EXISTS"]
        .into_iter()
        .chain(["t|1"; 20])
        .collect::<Vec<_>>();
    client.send(&request(&keys));
    assert_eq!(client.reply(), ":20");
    assert_eq!(
        client.info_number("everything", "acl_access_denied_auth"),
        10
    );
    assert_eq!(
        client.info_number("everything", "passwords_not_looked_at"),
        0
    );
}

#[test]
fn a_public_address_requires_a_password_or_an_explicit_setting() {
    let mut server = TestServer::start();
    let everywhere = "0.0.0.0:0".to_owned();
    let refused = server.start_refused(|config| config.server.resp = everywhere.clone());
    assert!(refused.starts_with("server.resp (0.0.0.0:"), "{refused}");
    assert!(refused.contains("server.protected_mode=false"), "{refused}");
    let refused = server.start_refused(|config| {
        config.server.resp = "127.0.0.1:0".to_owned();
        config.server.http = "[::]:0".to_owned();
    });
    assert!(refused.starts_with("server.http ([::]:"), "{refused}");
    server.restart_with(|config| config.server.password = "secret".to_owned());
    server.restart_with(|config| {
        config.server.password = String::new();
        config.server.protected_mode = false;
    });
}

/// Replies of any total size are sent as long as the client reads them.
#[test]
fn a_client_that_reads_its_replies_may_receive_more_than_its_memory_limit() {
    for threads in [1, 2] {
        let server = TestServer::with(|config| {
            config.server.threads = threads;
            config.server.client_memory = ByteSize(4 << 20);
        });
        let mut client = Client::connect(&server);
        let value = "v".repeat(60 << 10);
        for n in 0..4 {
            client.send(&request(&["SET", &format!("t|{n}"), &value]));
            assert_eq!(client.reply(), "+OK");
        }
        let gets: Vec<u8> = (0..600)
            .flat_map(|n| request(&["GET", &format!("t|{}", n % 4)]))
            .collect();
        client.send(&gets);
        let expected = format!("${}|{value}", value.len());
        for n in 0..600 {
            assert!(client.reply() == expected, "reply {n}");
        }
        assert_eq!(
            client.info_number("everything", "client_memory_limit_disconnections"),
            0
        );
    }
}

/// A socket accepts more data only when much of its buffer is free. With a slow reader, that takes longer than the
/// timeout.
#[test]
fn a_slow_but_steady_reader_is_not_closed() {
    let server = TestServer::with(|config| config.server.unread_timeout_seconds = 2);
    let mut client = Client::connect(&server);
    client.send(&request(&["SET", "t|1", &"v".repeat(1 << 20)]));
    assert_eq!(client.reply(), "+OK");
    let (mut slow, id) = connect(&server);
    crate::http_limits::read_slowly(slow.stream.get_ref());
    slow.send(&request(&["GET", "t|1"]).repeat(64));
    // Reads a little each second, for much longer than the timeout.
    let mut age = || field(&mut client, &id, "age");
    let began = age().expect("it is open");
    let mut taken = vec![0; 512 << 10];
    for second in 1..=6 {
        slow.stream.get_mut().read_exact(&mut taken).unwrap();
        while age().expect("it is open") < began + second {}
    }
    assert_eq!(
        client.info_number("everything", "client_unread_disconnections"),
        0
    );
}
