//! Tables and joins when the process is killed.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Server, spawn_server_with};

fn start(data: &std::path::Path) -> Server {
    spawn_server_with(data, |command| {
        command.env("LARDER_TABLES_FSYNC", "always");
    })
}

fn connect(server: &Server) -> BufReader<TcpStream> {
    let address = server.resp.trim_start_matches("redis://");
    BufReader::new(TcpStream::connect(address).expect("connected"))
}

fn line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(read) if read > 0 && line.ends_with("\r\n") => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

fn exchange(stream: &mut BufReader<TcpStream>, request: &str) -> String {
    write!(stream.get_mut(), "{request}\r\n").expect("sent");
    line(stream).expect("answered")
}

#[test]
fn acknowledged_writes_survive_a_killed_process() {
    const WRITERS: usize = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let mut control = connect(&server);
    let definition = "tline|<user>|<time> = check sub|<user>|<author> copy post|<author>|<time>";
    let created = exchange(
        &mut control,
        &format!("JOIN.CREATE timeline \"{definition}\""),
    );
    assert_eq!(created, "+OK");
    for writer in 0..WRITERS {
        assert_eq!(
            exchange(&mut control, &format!("SET sub|ann|{writer} 1")),
            "+OK"
        );
    }
    let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let mut stream = connect(&server);
            scope.spawn(move || {
                // Eight requests are in flight at any time, and the kill ends the loop.
                let send = |stream: &mut BufReader<TcpStream>, row: u64| {
                    write!(
                        stream.get_mut(),
                        "SET post|{writer}|{writer}{row:08} {row}\r\n"
                    )
                    .is_ok()
                };
                let mut sent = 0;
                while sent < 8 {
                    send(&mut stream, sent);
                    sent += 1;
                }
                while let Some(reply) = line(&mut stream) {
                    assert_eq!(reply, "+OK");
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                    send(&mut stream, sent);
                    sent += 1;
                }
            });
        }
        while acknowledged
            .iter()
            .any(|count| count.load(Ordering::SeqCst) < 200)
        {
            std::thread::yield_now();
        }
        server.kill();
    });
    let server = start(folder.path());
    let mut control = connect(&server);
    let mut all = 0;
    for (writer, acknowledged) in acknowledged.iter().enumerate() {
        let kept = exchange(
            &mut control,
            &format!("RANGECOUNT post|{writer}| post|{writer}}}"),
        );
        let kept: u64 = kept[1..].parse().expect("a number");
        let acknowledged = acknowledged.load(Ordering::SeqCst);
        assert!(kept >= acknowledged, "{kept} of {acknowledged}");
        all += kept;
    }
    // The join exists again and computes from the recovered rows.
    assert_eq!(
        exchange(&mut control, "RANGECOUNT tline|ann| tline|ann}"),
        format!(":{all}")
    );
}

#[test]
fn a_killed_multi_core_transaction_is_atomic() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let folder = tempfile::tempdir().expect("a folder");
    let on = |threads: &str| {
        spawn_server_with(folder.path(), |command| {
            command.env("LARDER_TABLES_FSYNC", "always");
            command.env("LARDER_SERVER_THREADS", threads);
        })
    };
    let mut server = on("3");
    let mut control = connect(&server);
    assert_eq!(
        exchange(&mut control, "MSET n|a 1000 n|b 1000 n|c 1000 n|d 1000"),
        "+OK"
    );
    for (round, threads) in ["2", "1", "3"].into_iter().enumerate() {
        let moved = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for mover in 0..3 {
                let (mut stream, moved) = (connect(&server), &moved);
                scope.spawn(move || {
                    // The kill ends the loop, in the middle of a request or a reply.
                    for n in 0.. {
                        let (from, to) = (NAMES[(mover + n) % 4], NAMES[(mover + 3 * n + 1) % 4]);
                        let request = format!(
                            "MULTI\r\nDECRBY n|{from} 7\r\nINCRBY n|{to} 7\r\nINCR done|{mover}\r\nEXEC\r\n"
                        );
                        if stream.get_mut().write_all(request.as_bytes()).is_err() {
                            return;
                        }
                        for _ in 0..8 {
                            if line(&mut stream).is_none() {
                                return;
                            }
                        }
                        moved.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while moved.load(Ordering::SeqCst) < 60 {
                std::thread::yield_now();
            }
            server.kill();
        });
        server = on(threads);
        let mut control = connect(&server);
        let mut number = |key: &str| -> i64 {
            write!(control.get_mut(), "GET {key}\r\n").expect("sent");
            line(&mut control).expect("a length");
            let value = line(&mut control).expect("a value");
            value.parse().expect("a number")
        };
        let sum: i64 = NAMES.iter().map(|name| number(&format!("n|{name}"))).sum();
        assert_eq!(sum, 4000, "after kill {round}");
        let done: i64 = (0..3).map(|mover| number(&format!("done|{mover}"))).sum();
        let moved = i64::try_from(moved.into_inner()).expect("a count");
        assert!(done >= moved, "{done} of {moved}");
    }
}
