//! Servers of a test's own, each on a free port and gone with the value.
//!
//! As root, PostgreSQL runs as the user `postgres` and memcached is told that root is meant: both refuse root otherwise.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_testing::missing;
use rustix::process::{Pid, Signal, kill_process};

/// A server process.
pub struct Server {
    pub port: u16,
    child: Child,
    /// How it is asked to stop.
    stop: Signal,
    /// Its data and its log.
    _folder: tempfile::TempDir,
}

impl Server {
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that a test stopped hears nothing before it goes on.
        self.signal(Signal::CONT);
        self.signal(self.stop);
        let _ = self.child.wait();
    }
}

pub fn postgres() -> Option<Server> {
    let Some(programs) = postgres_programs() else {
        missing("PostgreSQL");
        return None;
    };
    let folder = folder("postgres");
    let user = postgres_user();
    if let Some((user, group)) = user {
        std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).expect("given away");
    }
    let as_user = |program: &str| {
        let mut command = Command::new(programs.join(program));
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        command.env("LC_ALL", "C.UTF-8").current_dir(folder.path());
        command
    };
    let made = as_user("initdb")
        .args(["-A", "trust", "-U", "postgres", "-E", "UTF8"])
        .args(["--locale=C.UTF-8", "--no-sync", "-D", "data"])
        .output()
        .expect("initdb runs");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let port = free_port();
    let mut command = as_user("postgres");
    command
        .args(["-D", "data", "-k", "", "-h", "127.0.0.1", "-p"])
        .arg(port.to_string());
    // The machine does not crash here, and what a process wrote outlives it.
    for setting in [
        "fsync=off",
        "full_page_writes=off",
        "wal_level=minimal",
        "max_wal_senders=0",
        "max_connections=200",
        "shared_buffers=64MB",
    ] {
        command.args(["-c", setting]);
    }
    let mut server = start(command, port, folder);
    // Does not wait for clients.
    server.stop = Signal::INT;
    let began = Instant::now();
    while let Err(error) = ask_postgres(port, "SELECT 1") {
        assert!(began.elapsed() < STARTED, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(server)
}

/// A database of a test's own, on a PostgreSQL that the tests of this process share as long as any of them has one.
pub struct Database {
    server: Arc<Server>,
    name: String,
}

impl Database {
    pub fn address(&self) -> String {
        let server = self.server.address();
        format!("postgres://postgres@{server}/{}", self.name)
    }
}

pub fn database() -> Option<Database> {
    static SHARED: Mutex<(Weak<Server>, u32)> = Mutex::new((Weak::new(), 0));
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let server = match shared.0.upgrade() {
        Some(server) => server,
        None => Arc::new(postgres()?),
    };
    shared.0 = Arc::downgrade(&server);
    shared.1 += 1;
    let name = format!("test_{}", shared.1);
    ask_postgres(server.port, &format!("CREATE DATABASE {name}")).expect("created");
    Some(Database { server, name })
}

/// Runs statements as a client of its own; the first column of the last row that one gives.
pub fn ask_postgres(port: u16, text: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let said = client.simple_query(text).await?;
        let mut last = String::new();
        for message in said {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                last = row.get(0).unwrap_or_default().to_owned();
            }
        }
        Ok(last)
    })
}

/// One that keeps nothing.
pub fn memcached() -> Option<Server> {
    let program = ["/usr/bin/memcached", "/usr/local/bin/memcached"];
    let Some(program) = program.iter().find(|path| Path::new(path).exists()) else {
        missing("memcached");
        return None;
    };
    let port = free_port();
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    command.args(["-m", "256", "-I", "8m", "-t", "2"]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    Some(start(command, port, folder("memcached")))
}

pub fn redis() -> Option<Server> {
    if Command::new("redis-server")
        .arg("--version")
        .output()
        .is_err()
    {
        missing("Redis");
        return None;
    }
    let folder = folder("redis");
    let port = free_port();
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--port"])
        .arg(port.to_string())
        .current_dir(folder.path());
    Some(start(command, port, folder))
}

/// One that speaks MongoDB's protocol, from memory.
pub fn mongo() -> Option<Server> {
    let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.mongo-java-server");
    if !jars.join("installed.txt").exists() || !has_java() {
        missing("mongo-java-server");
        return None;
    }
    let port = free_port();
    let mut command = Command::new("java");
    let class_path = format!("{0}:{0}/*", jars.display());
    // Quick to start, and small.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]);
    command.args(["-cp", &class_path, "Main", &port.to_string()]);
    Some(start(command, port, folder("mongo")))
}

fn has_java() -> bool {
    let mut java = Command::new("java");
    java.arg("-version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    java.status().is_ok_and(|status| status.success())
}

const STARTED: Duration = Duration::from_secs(60);

fn start(mut command: Command, port: u16, folder: tempfile::TempDir) -> Server {
    let log = std::fs::File::create(folder.path().join("log")).expect("a file");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(log).spawn().expect("it runs");
    let mut server = Server {
        port,
        child,
        stop: Signal::TERM,
        _folder: folder,
    };
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = server.child.try_wait().expect("our own child");
        let log = || std::fs::read(server._folder.path().join("log")).unwrap_or_default();
        assert!(
            ended.is_none() && began.elapsed() < STARTED,
            "{command:?}: {ended:?} {}",
            String::from_utf8_lossy(&log())
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    server
}

fn folder(of: &str) -> tempfile::TempDir {
    let folder = tempfile::Builder::new()
        .prefix(&format!("bg-{of}-"))
        .tempdir();
    folder.expect("a folder")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// The newest that Debian installed, or in PATH.
fn postgres_programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").exists() && bin.join("postgres").exists())
        .collect();
    found.sort();
    found.pop().or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find(|bin| bin.join("initdb").exists())
    })
}

fn postgres_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("readable");
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let line = line.expect("Debian's postgresql makes the user postgres");
    let mut ids = line.split(':').skip(2).map(|id| id.parse().expect("an id"));
    ids.next().zip(ids.next())
}
