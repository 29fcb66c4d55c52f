//! The etcd server of a local cluster: one member, with its data in the cluster's folder.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::process::Process;
use crate::failure::Failure;
use crate::interrupt;

/// A start that takes longer has failed.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of attempts, because another process may take a free port between its choice and its use.
const STARTS_MAX: usize = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

const MISSING: &str = "a cluster stores its map in etcd, which was not found; install it:\n\n    \
    sudo apt-get install etcd-server\n\nDebian's package starts its own server, which larder does not use (sudo systemctl disable --now etcd stops it). \
    Or pass its path: --etcd PROGRAM";

/// Finds the program in `PATH`, or in the folder where `scripts/setup test` unpacks it.
pub fn program() -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("etcd"));
    let own = std::env::current_exe().unwrap_or_default();
    let unpacked = own
        .ancestors()
        .skip(1)
        .map(|folder| folder.join(".etcd/usr/bin/etcd"));
    let mut found = in_path.chain(unpacked);
    let found = found.find(|program| program.is_file());
    found.ok_or_else(|| Failure::not_found(format!("etcd is not installed: {MISSING}")))
}

pub fn missing(program: &Path) -> Failure {
    Failure::not_found(format!("{} does not exist; {MISSING}", program.display()))
}

/// Starts etcd and waits until it answers. Returns the process and the URL for clients.
pub fn start(program: &Path, folder: &Path) -> Result<(Process, String), Failure> {
    let data = folder.join("etcd");
    fs::create_dir_all(folder).map_err(Failure::io(format!("make {}", folder.display())))?;
    let mut last = None;
    for _ in 0..STARTS_MAX {
        let [client, peer] = free_ports()?.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(program);
        command
            .args(["--name", "local"])
            .arg("--data-dir")
            .arg(&data)
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("local={peer}")])
            // A single member has no peers to wait for.
            .args(["--heartbeat-interval", "30", "--election-timeout", "300"])
            .stdout(Stdio::null());
        let mut process = Process::start("etcd", command, folder.join("etcd.log"))?;
        if is_up(&mut process, &client)? {
            return Ok((process, client));
        }
        last = Some(process);
    }
    let words = last.map(|process| process.log_tail()).unwrap_or_default();
    Err(Failure::new(format!(
        "etcd did not start; the end of its log {}:\n{words}",
        folder.join("etcd.log").display()
    )))
}

/// Waits until etcd answers. Returns `false` if it ends or takes too long.
fn is_up(process: &mut Process, url: &str) -> Result<bool, Failure> {
    let started = Instant::now();
    while process.ended().is_none() && started.elapsed() < START_TIMEOUT {
        interrupt::check()?;
        if is_healthy(url.trim_start_matches("http://")) {
            return Ok(true);
        }
        interrupt::wait(POLL_INTERVAL);
    }
    Ok(false)
}

fn is_healthy(address: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"true\""))
}

fn free_ports() -> Result<[u16; 2], Failure> {
    let free = || -> std::io::Result<(TcpListener, u16)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    };
    // Both listeners are open until both ports are chosen, so the ports differ.
    let failed = || Failure::io("take a free port");
    let (one, two) = (free().map_err(failed())?, free().map_err(failed())?);
    Ok([one.1, two.1])
}
