//! An etcd of the tests' own: some members on free ports of this machine, in a folder that goes with it.
//!
//! Members are killed, stopped and started again by their number. Heartbeats and elections are ten and three times faster than etcd's
//! defaults, and nothing is synced: a killed process loses nothing by that.

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

/// How often a start is tried on other ports: between choosing a port and taking it, another process may.
const STARTS_MAX: usize = 5;

/// What a member says when it knows a leader and answers.
const READY: &str = "ready to serve client requests";

/// Longer than any start takes: only a hang is bounded by it.
const HANG: Duration = Duration::from_secs(60);

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

/// Where the program is: where others are, or where `scripts/setup test` puts it.
pub fn program() -> Option<PathBuf> {
    let unpacked = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.etcd/usr/bin/etcd");
    find("etcd").or_else(|| unpacked.is_file().then_some(unpacked))
}

impl Etcd {
    /// Starts so many members, and waits until they answer. `None` if etcd is not installed, which is said.
    pub fn start(members: usize) -> Option<Etcd> {
        Etcd::start_with(members, &[])
    }

    /// With more options for each member. If they name certificates, members speak TLS to clients.
    #[track_caller]
    pub fn start_with(members: usize, options: &[&str]) -> Option<Etcd> {
        if program().is_none() {
            crate::missing("etcd");
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
                Err(said) => why = said,
            }
        }
        panic!("etcd does not start: {why}");
    }

    /// The addresses of its members.
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len())
            .map(|at| self.endpoint(at))
            .collect()
    }

    pub fn endpoint(&self, member: usize) -> String {
        let port = self.members[member].client_port;
        format!("{}://127.0.0.1:{port}", self.scheme())
    }

    /// Host and port, as a proxy takes it.
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

    /// Starts all members that do not run, and waits until they answer.
    ///
    /// # Errors
    /// What a member said last that ended instead.
    pub fn start_all(&mut self) -> Result<(), String> {
        let absent = (0..self.members.len()).filter(|at| self.members[*at].process.is_none());
        let started: Vec<_> = absent
            .collect::<Vec<_>>()
            .into_iter()
            .map(|at| self.spawn(at))
            .collect();
        started.into_iter().try_for_each(|ready| {
            ready
                .recv_timeout(HANG)
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
        let mut child = Command::new(program().expect("it was there before"))
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
        let said = child.stderr.take().expect("it is piped");
        self.members[at].process = Some(child);
        let log = File::create(self.folder.path().join(format!("m{at}.log"))).expect("a file");
        let (tell, ready) = mpsc::channel();
        std::thread::spawn(move || listen(said, log, &tell));
        ready
    }

    /// Kills a member at once (SIGKILL). Its data stay.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills all members and removes their data; they start again with none.
    ///
    /// # Errors
    /// As [`Etcd::start_all`].
    pub fn lose_data(&mut self) -> Result<(), String> {
        (0..self.members.len()).for_each(|at| self.kill(at));
        for at in 0..self.members.len() {
            std::fs::remove_dir_all(self.data(at)).map_err(|error| error.to_string())?;
        }
        self.start_all()
    }

    /// A member's folder.
    pub fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("m{member}"))
    }

    pub fn is_up(&self, member: usize) -> bool {
        self.members[member].process.is_some()
    }

    /// Stops a member where it stands (SIGSTOP): its connections stay open, and it says nothing.
    pub fn stop(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// Lets a stopped member go on.
    pub fn go_on(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    fn signal(&self, member: usize, signal: Signal) {
        let child = self.members[member]
            .process
            .as_ref()
            .expect("the member runs");
        let _ = kill_process(Pid::from_child(child), signal);
    }

    /// The member that leads, as the others know; waits for an election that is under way.
    pub fn leader(&self) -> usize {
        let status = |at: usize| {
            self.post(at, "maintenance/status", "{}")
                .unwrap_or_default()
        };
        let started = std::time::Instant::now();
        while started.elapsed() < HANG {
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

    /// Forgets all revisions before this one.
    pub fn compact(&self, member: usize, revision: u64) {
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        let answer = self
            .post(member, "kv/compaction", &body)
            .expect("etcd answers");
        assert!(answer.contains("revision"), "{answer}");
    }

    /// One request of its JSON gateway; without TLS.
    ///
    /// # Errors
    /// The member is not there.
    pub fn post(&self, member: usize, path: &str, body: &str) -> io::Result<String> {
        let address = self.address(member);
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(HANG))?;
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

/// Reads what a member says to its end, and tells when it is ready or has ended.
fn listen(said: impl Read, mut log: File, tell: &mpsc::Sender<Result<(), String>>) {
    let mut last = String::new();
    for line in BufReader::new(said).lines() {
        let Ok(line) = line else {
            break;
        };
        let _ = writeln!(log, "{line}");
        if line.contains(READY) {
            let _ = tell.send(Ok(()));
        }
        last = line;
    }
    let _ = tell.send(Err(last));
}

/// A text of a flat answer; JSON is not understood here.
fn text_of<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(text, _)| text)
}
