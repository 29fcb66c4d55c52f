//! Versions in an object store: `larder build --out s3://...`, and a pull from there.
//!
//! The store is moto's, started by the test from `.venv`, which `scripts/setup test` makes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use larder_protocol::http::PullState;

use crate::fixture::{RECORDS, STORE, pull, served, value};
use crate::support::{larder, show, spawn_server_with, write_csv};

/// A simulated S3 with an empty bucket `larder`; ended when dropped.
struct S3 {
    child: Child,
    address: String,
}

impl S3 {
    fn start() -> Option<S3> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/moto_server");
        let mut child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert_ne!(
                log.read_line(&mut line).unwrap(),
                0,
                "the simulated S3 did not start"
            );
            if let Some((_, address)) = line.trim().split_once("Running on http://") {
                break address.to_owned();
            }
        };
        // It logs every request; a full pipe would stop it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let s3 = S3 { child, address };
        assert_eq!(s3.request("PUT", "/larder"), 200);
        Some(s3)
    }

    fn request(&self, method: &str, path: &str) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("{answer}"))
    }

    /// What a process needs to reach this S3 and no other.
    fn adjust<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test-secret-of-nobody")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_version_built_into_s3_is_pulled_from_there() {
    let Some(s3) = S3::start() else {
        eprintln!("skipped: there is no simulated S3; run `scripts/setup test`");
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let rows = (0..RECORDS).map(|number| (format!("key{number}"), value('s', number)));
    let input = write_csv(temp.path(), "rows.csv", rows);
    let url = "s3://larder/versions/1";
    let arguments = [
        "build",
        input.to_str().unwrap(),
        "--store",
        STORE,
        "--key",
        "key",
        "--value",
        "value",
        "--out",
        url,
    ];
    let output = s3.adjust(larder().args(arguments)).output().unwrap();
    assert!(output.status.success(), "{}", show(&output));

    let server = spawn_server_with(&temp.path().join("data"), |command| {
        s3.adjust(command);
    });
    let status = pull(&server, url).unwrap();
    assert_eq!(status.state, PullState::Done, "{:?}", status.error);
    assert_eq!(served(&server), 's');

    let nothing = pull(&server, "s3://larder/versions/none").unwrap();
    assert_eq!(nothing.state, PullState::Failed);
    let error = nothing.error.unwrap();
    assert!(error.message.contains("versions/none"), "{}", error.message);
    assert_eq!(served(&server), 's');
}
