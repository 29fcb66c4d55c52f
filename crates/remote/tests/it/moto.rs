//! A simulated S3: moto's, from `.venv`, which `scripts/setup test` creates.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A simulated S3 with an empty bucket `larder`; stopped on drop.
pub struct S3 {
    child: Child,
    address: String,
}

impl S3 {
    /// Starts it. Returns `None`, with a message on standard error, if it is not installed.
    pub fn start() -> Option<S3> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/moto_server");
        let spawned = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = spawned else {
            larder_testing::report_missing("the simulated S3");
            return None;
        };
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
        // It logs every request; a full pipe would block it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let s3 = S3 { child, address };
        assert_eq!(s3.request("PUT", "/larder").0, 200);
        Some(s3)
    }

    /// Returns status and body.
    pub fn request(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (
            status.unwrap_or_else(|| panic!("{answer}")),
            body.to_owned(),
        )
    }

    /// Sets the environment so that a process uses only this S3.
    pub fn adjust<'a>(&self, command: &'a mut Command) -> &'a mut Command {
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
