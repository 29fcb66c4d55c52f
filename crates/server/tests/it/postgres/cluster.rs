//! A PostgreSQL of the tests' own, on a free port and in a folder of its own.
//!
//! Most tests share one and have a database each; it is stopped when the tests end. One whose test kills it has its own.
//! As root it runs as the user `postgres`, since PostgreSQL refuses to run as root.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub struct Cluster {
    folder: PathBuf,
    port: u16,
    settings: &'static str,
    child: Mutex<Option<Child>>,
}

/// Where the programs are: the newest version that Debian installed, or in PATH.
fn programs() -> Option<PathBuf> {
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

/// The user that PostgreSQL runs as, if it cannot be this one.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("readable");
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let mut ids = line
        .expect("Debian's postgresql makes the user postgres")
        .split(':')
        .skip(2);
    let mut id = || ids.next().and_then(|id| id.parse().ok()).expect("a number");
    Some((id(), id()))
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    command
}

extern "C" fn stop_shared() {
    if let Some(Some(cluster)) = SHARED.get() {
        cluster.end();
    }
}

static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();

impl Cluster {
    /// The one that tests share. `None`, with a word about it, where PostgreSQL is not installed.
    pub fn shared() -> Option<&'static Cluster> {
        let cluster = SHARED.get_or_init(|| {
            // SAFETY: the function touches nothing but a static that lives to the end.
            unsafe { libc::atexit(stop_shared) };
            Cluster::start("")
        });
        cluster.as_ref()
    }

    /// One of a test's own, with settings as `postgres` takes them.
    pub fn start(settings: &'static str) -> Option<Cluster> {
        let Some(programs) = programs() else {
            larder_testing::missing("PostgreSQL");
            return None;
        };
        let folder = tempfile::Builder::new()
            .prefix("larder-postgres-")
            .tempdir();
        let folder = folder.expect("a folder").keep();
        if let Some((user, group)) = other_user() {
            std::os::unix::fs::chown(&folder, Some(user), Some(group)).expect("given away");
        }
        let made = command(&programs.join("initdb"))
            .args([
                "-A",
                "trust",
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
                "-D",
            ])
            .arg(folder.join("data"))
            .output()
            .expect("initdb runs");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let cluster = Cluster {
            folder,
            port: listener.local_addr().expect("bound").port(),
            settings,
            child: Mutex::default(),
        };
        drop(listener);
        cluster.begin();
        Some(cluster)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Writes a file of its data folder.
    pub fn put(&self, name: &str, text: &str) {
        use std::os::unix::fs::{PermissionsExt, chown};

        let path = self.folder.join("data").join(name);
        std::fs::write(&path, text).expect("written");
        let owner_alone = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, owner_alone).expect("set");
        if let Some((user, group)) = other_user() {
            chown(&path, Some(user), Some(group)).expect("given away");
        }
    }

    /// Starts it, or starts it again.
    pub fn begin(&self) {
        let programs = programs().expect("seen before");
        let spawn = || {
            let log = std::fs::File::create(self.folder.join("log")).expect("a file");
            command(&programs.join("postgres"))
                .arg("-D")
                .arg(self.folder.join("data"))
                .args([
                    "-p",
                    &self.port.to_string(),
                    "-c",
                    "listen_addresses=127.0.0.1",
                ])
                .args(["-c", "unix_socket_directories=", "-c", "wal_level=logical"])
                .args(["-c", "max_wal_senders=60", "-c", "max_replication_slots=60"])
                // The machine does not crash here, and what a process wrote outlives it.
                .args([
                    "-c",
                    "fsync=off",
                    "-c",
                    "max_connections=300",
                    "-c",
                    "shared_buffers=32MB",
                ])
                .args(self.settings.split_whitespace())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("postgres runs")
        };
        let began = Instant::now();
        let mut child = spawn();
        while Sql::connect(self.port, "postgres").is_err() {
            let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            assert!(began.elapsed() < Duration::from_secs(30), "{log}");
            // It does not start while processes of one that was killed still end.
            if child.try_wait().expect("our own child").is_some() {
                child = spawn();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        *self.child.lock().unwrap() = Some(child);
    }

    /// Ends it as SIGKILL to all its processes does, or asks it to stop (the fast shutdown).
    pub fn kill(&self, at_once: bool) {
        let mut child = self.child.lock().unwrap();
        let Some(mut child) = child.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_child(&child);
        let signal = match at_once {
            // Its children end when they see that it is gone.
            true => rustix::process::Signal::KILL,
            false => rustix::process::Signal::INT,
        };
        rustix::process::kill_process(pid, signal).expect("our own child");
        child.wait().expect("our own child");
    }

    fn end(&self) {
        self.kill(false);
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// A new database, and a connection to it.
    pub fn database(&self, name: &str) -> Sql {
        let name = super::named(name);
        Sql::to(self.port, "postgres").run(&format!("CREATE DATABASE {name}"));
        Sql::to(self.port, &name)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection that a test talks SQL on.
pub struct Sql {
    runtime: tokio::runtime::Runtime,
    client: Client,
    port: u16,
    database: String,
}

impl Sql {
    pub fn connect(port: u16, database: &str) -> Result<Sql, tokio_postgres::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let url = format!("postgres://postgres@127.0.0.1:{port}/{database}");
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        Ok(Sql {
            runtime,
            client,
            port,
            database: database.to_owned(),
        })
    }

    pub fn to(port: u16, database: &str) -> Sql {
        Sql::connect(port, database).expect("PostgreSQL runs")
    }

    /// Another connection to the same database.
    pub fn another(&self) -> Sql {
        Sql::to(self.port, &self.database)
    }

    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The database's address behind another port.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.database)
    }

    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        if let Err(error) = self.try_run(sql) {
            panic!("{sql}: {error}");
        }
    }

    pub fn try_run(&mut self, sql: &str) -> Result<(), String> {
        let done = self.runtime.block_on(self.client.batch_execute(sql));
        done.map_err(|error| format!("{error} {:?}", error.as_db_error()))
    }

    /// The rows, their columns joined by `,`.
    pub fn rows(&mut self, sql: &str) -> Vec<String> {
        let messages = self.runtime.block_on(self.client.simple_query(sql));
        let messages = messages.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let cells: Vec<&str> = (0..row.len())
                    .map(|at| row.get(at).unwrap_or("null"))
                    .collect();
                Some(cells.join(","))
            }
            _ => None,
        });
        rows.collect()
    }

    pub fn one(&mut self, sql: &str) -> String {
        self.rows(sql)
            .pop()
            .unwrap_or_else(|| panic!("{sql}: no row"))
    }
}
