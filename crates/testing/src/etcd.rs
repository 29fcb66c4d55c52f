//! An etcd cluster for one test: members on free local ports, in a folder that is removed with it.
//!
//! Members can be killed, suspended and restarted by number. Heartbeats are ten times and elections three times
//! faster than etcd's defaults. Nothing is synced, which loses no data when a process is killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{find, free_port};

/// Maximum number of start attempts on different ports: another process may take a port between its choice and its
/// use.
const STARTS_MAX: usize = 5;

/// The log message of a member that knows a leader and serves requests.
const READY: &str = "ready to serve client requests";

/// Longer than any start takes: it only bounds a hang.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
    options: Vec<String>,
}

struct Member {
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

/// Returns the path of the program: installed, or where `scripts/setup test` stores it.
pub fn program() -> Option<PathBuf> {
    let unpacked = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.etcd/usr/bin/etcd");
    find("etcd").or_else(|| unpacked.is_file().then_some(unpacked))
}

impl Etcd {
    /// Starts members and waits until they respond. `None`, with a message, if etcd is not installed.
    pub fn start(members: usize) -> Option<Etcd> {
        Etcd::start_with(members, &[])
    }

    /// Starts members with additional options. If the options name certificates, members use TLS for clients.
    #[track_caller]
    pub fn start_with(members: usize, options: &[&str]) -> Option<Etcd> {
        if program().is_none() {
            crate::report_missing("etcd");
            return None;
        }
        let mut why = String::new();
        for _ in 0..STARTS_MAX {
            let mut etcd = Etcd {
                folder: tempfile::tempdir().expect("a folder"),
                members: (0..members).map(|_| Member::new()).collect(),
                options: options.iter().map(|&option| option.to_owned()).collect(),
            };
            match etcd.start_all() {
                Ok(()) => return Some(etcd),
                Err(last_line) => why = last_line,
            }
        }
        panic!("etcd does not start: {why}");
    }

    /// Returns the URLs of its members.
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len())
            .map(|at| self.endpoint(at))
            .collect()
    }

    pub fn endpoint(&self, member: usize) -> String {
        let port = self.members[member].client_port;
        format!("{}://127.0.0.1:{port}", self.scheme())
    }

    /// Returns host and port, as the proxy expects them.
    pub fn address(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.members[member].client_port)
    }

    fn scheme(&self) -> &'static str {
        let is_tls = self
            .options
            .iter()
            .any(|option| option.starts_with("--cert-file"));
        if is_tls { "https" } else { "http" }
    }

    /// Starts all members that are not running, and waits until they respond.
    ///
    /// # Errors
    /// The last log line of a member that ended instead.
    pub fn start_all(&mut self) -> Result<(), String> {
        let absent = (0..self.members.len()).filter(|at| self.members[*at].process.is_none());
        let started: Vec<_> = absent
            .collect::<Vec<_>>()
            .into_iter()
            .map(|at| self.spawn(at))
            .collect();
        started.into_iter().try_for_each(|ready| {
            ready
                .recv_timeout(HANG_TIMEOUT)
                .map_err(|error| error.to_string())?
        })
    }

    fn spawn(&mut self, at: usize) -> mpsc::Receiver<Result<(), String>> {
        let peers = self.members.iter().enumerate();
        let peers =
            peers.map(|(at, member)| format!("m{at}=http://127.0.0.1:{}", member.peer_port));
        let cluster = peers.collect::<Vec<_>>().join(",");
        let client = self.endpoint(at);
        let peer = format!("http://127.0.0.1:{}", self.members[at].peer_port);
        let mut child = Command::new(program().expect("found before"))
            .args(["--name", &format!("m{at}")])
            .arg("--data-dir")
            .arg(self.data(at))
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
            .args(["--initial-cluster", &cluster, "--unsafe-no-fsync"])
            .args(["--heartbeat-interval", "30", "--election-timeout", "300"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("etcd starts");
        let stderr = child.stderr.take().expect("it is piped");
        self.members[at].process = Some(child);
        let log = File::create(self.folder.path().join(format!("m{at}.log"))).expect("a file");
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || read_log(stderr, log, &sender));
        ready
    }

    /// Kills a member (SIGKILL). Its data are kept.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills all members and removes their data; restarts them empty.
    ///
    /// # Errors
    /// Like [`Etcd::start_all`].
    pub fn lose_data(&mut self) -> Result<(), String> {
        (0..self.members.len()).for_each(|at| self.kill(at));
        for at in 0..self.members.len() {
            std::fs::remove_dir_all(self.data(at)).map_err(|error| error.to_string())?;
        }
        self.start_all()
    }

    /// Returns a member's folder.
    pub fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("m{member}"))
    }

    pub fn is_up(&self, member: usize) -> bool {
        self.members[member].process.is_some()
    }

    /// Suspends a member (SIGSTOP): its connections stay open, and it does not respond.
    pub fn suspend(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// Resumes a suspended member.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    fn signal(&self, member: usize, signal: Signal) {
        let child = self.members[member]
            .process
            .as_ref()
            .expect("the member runs");
        let _ = kill_process(Pid::from_child(child), signal);
    }

    /// Returns the leader according to the members; waits for a running election.
    pub fn leader(&self) -> usize {
        let status = |at: usize| {
            self.post(at, "maintenance/status", "{}")
                .unwrap_or_default()
        };
        let started = std::time::Instant::now();
        while started.elapsed() < HANG_TIMEOUT {
            for at in (0..self.members.len()).filter(|at| self.is_up(*at)) {
                let status = status(at);
                let (own, leader) = (text_of(&status, "member_id"), text_of(&status, "leader"));
                if own.is_some() && own == leader {
                    return at;
                }
            }
            std::thread::yield_now();
        }
        panic!("etcd has no leader");
    }

    /// Compacts all revisions before this one.
    pub fn compact(&self, member: usize, revision: u64) {
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        let answer = self
            .post(member, "kv/compaction", &body)
            .expect("etcd answers");
        assert!(answer.contains("revision"), "{answer}");
    }

    /// Sends a request to the JSON gateway, without TLS.
    ///
    /// # Errors
    /// If the member is not reachable.
    pub fn post(&self, member: usize, path: &str, body: &str) -> io::Result<String> {
        let address = self.address(member);
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(HANG_TIMEOUT))?;
        let length = body.len();
        write!(
            stream,
            "POST /v3/{path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap_or_default())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }
}

impl Member {
    fn new() -> Member {
        Member {
            client_port: free_port(),
            peer_port: free_port(),
            process: None,
        }
    }
}

/// Reads a member's log to the end, and reports when it is ready or has ended.
fn read_log(stderr: impl Read, mut log: File, sender: &mpsc::Sender<Result<(), String>>) {
    let mut last = String::new();
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else {
            break;
        };
        let _ = writeln!(log, "{line}");
        if line.contains(READY) {
            let _ = sender.send(Ok(()));
        }
        last = line;
    }
    let _ = sender.send(Err(last));
}

/// Returns a string of a flat JSON object, without a JSON parser.
fn text_of<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(text, _)| text)
}
