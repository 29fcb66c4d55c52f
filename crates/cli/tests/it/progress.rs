//! Progress bars on a terminal, for operations that take more than a second.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::fixture::{RECORDS, STORE, build, pull_ok};
use crate::support::{larder, spawn_server};

/// Number of attempts, which is far more than a bar needs to appear.
const ATTEMPTS_MAX: u32 = 2_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Starts the command with a terminal as its standard error. Returns a channel with the terminal's output.
fn on_a_terminal(command: &mut Command) -> (Child, Receiver<String>) {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: both descriptors are written to locals; the name and the settings are null.
    let opened = unsafe {
        libc::openpty(
            &mut ours,
            &mut theirs,
            std::ptr::null_mut(),
            std::ptr::null(),
            &size,
        )
    };
    assert_eq!(opened, 0);
    // SAFETY: both descriptors are open and have no other owner.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(theirs)
        .env("TERM", "xterm")
        .spawn()
        .unwrap();
    // The command holds a copy of the terminal. If it stayed open, the reader would never see the end.
    command.stderr(Stdio::null());
    let (send, shown) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // At the end of a terminal's output, the read returns an error.
        while let Ok(count @ 1..) = ours.read(&mut bytes) {
            if send
                .send(String::from_utf8_lossy(&bytes[..count]).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    (child, shown)
}

#[test]
fn a_long_dump_shows_its_progress() {
    let temp = tempfile::tempdir().unwrap();
    let server = spawn_server(&temp.path().join("data"));
    pull_ok(&server, &build('a', &temp.path().join("a")));
    let mut dump = larder();
    dump.args(["store", "dump", STORE, "--server", &server.http]);
    let (mut child, shown) = on_a_terminal(&mut dump);
    let mut stdout = child.stdout.take().unwrap();
    let (mut seen, mut text, mut part) = (String::new(), Vec::new(), [0; 1024]);
    // Reads slowly until a bar appears, then reads the rest.
    while !(seen.contains("dumping") && seen.contains("3,000 records")) {
        match stdout.read(&mut part).unwrap() {
            0 => panic!("no bar: {seen:?}"),
            count => text.extend_from_slice(&part[..count]),
        }
        seen.extend(shown.recv_timeout(POLL_INTERVAL));
    }
    stdout.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(
        text.iter().filter(|byte| **byte == b'\n').count() as u64,
        RECORDS
    );
}

#[test]
fn a_long_verify_shows_its_progress() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let mut verify = larder();
    verify.args(["store", "verify", STORE, "--server", &server]);
    let (child, shown) = on_a_terminal(&mut verify);
    let (mut stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let request: Vec<String> = reader
        .by_ref()
        .lines()
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .collect();
    // The request is read completely, because closing a socket with unread data would discard the response.
    let size = request
        .iter()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |size| size.parse().unwrap());
    reader.read_exact(&mut vec![0; size]).unwrap();
    assert!(
        request.contains(&"accept: application/x-ndjson".to_owned()),
        "{request:?}"
    );
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n\r\n",
        )
        .unwrap();
    let mut seen = String::new();
    for _ in 0..ATTEMPTS_MAX {
        stream
            .write_all(b"{\"progress\":{\"bytes_done\":1048576,\"bytes_total\":4194304}}\n")
            .unwrap();
        seen.extend(shown.recv_timeout(POLL_INTERVAL));
        if seen.contains("1.00 MiB/4.00 MiB") {
            break;
        }
    }
    assert!(
        seen.contains("verifying") && seen.contains("1.00 MiB/4.00 MiB"),
        "{seen:?}"
    );
    stream
        .write_all(
            b"{\"done\":{\"version\":7,\"record_count\":3,\"size_bytes\":4194304,\"ok\":true}}\n",
        )
        .unwrap();
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stdout);
    assert!(
        error.contains("pymk version 7 is intact: 3 records"),
        "{error}"
    );
}
