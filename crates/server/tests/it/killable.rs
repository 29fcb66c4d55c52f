//! A server that tests can kill with SIGKILL and restart on the same port and data. It is this program, started again
//! to run only [`killable_server_process`]. Also a module of `crates/bg/tests/it`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use larder_protocol::config::{Fsync, ServerConfig};
use larder_server::Server;

const DATA: &str = "TEST_SERVER_DATA";
const PORT: &str = "TEST_SERVER_PORT";
const FSYNC: &str = "TEST_SERVER_FSYNC";
const THREADS: &str = "TEST_SERVER_THREADS";
/// Settings in the form `key=value`, separated by `;`.
const SETTINGS: &str = "TEST_SERVER_SETTINGS";
const READY: &str = "the server is ready";

/// Not a test: the server's process. Without the environment of [`Killable`], it does nothing.
#[test]
fn killable_server_process() {
    let (Ok(data), Ok(port)) = (std::env::var(DATA), std::env::var(PORT)) else {
        return;
    };
    let mut config = ServerConfig::default();
    config.server.data = data.into();
    // The default timeout would let a test's outcome depend on how busy the machine is.
    config.spaces.search_timeout_ms = 0;
    config.server.resp = format!("127.0.0.1:{port}");
    config.server.http = "127.0.0.1:0".to_owned();
    let set = |name: &str| std::env::var(name).expect("set");
    config.server.threads = set(THREADS).parse().expect("a number");
    let given = config.set("tables.fsync", &set(FSYNC), FSYNC);
    given.expect("a word that there is");
    let settings = set(SETTINGS);
    for setting in settings.split(';').filter(|it| !it.is_empty()) {
        let (key, value) = setting.split_once('=').expect("a key and a value");
        config.set(key, value, SETTINGS).expect("a setting");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(Server::start(config)).expect("it starts");
    println!("\n{READY}");
    // Waits for the end of the test, which closes this pipe.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runtime.block_on(server.stop()).expect("it stops cleanly");
}

pub struct Killable {
    pub child: Option<Child>,
    pub port: u16,
    data: PathBuf,
    fsync: Fsync,
    pub threads: u32,
    settings: String,
}

impl Killable {
    /// Starts two serving threads with `tables.fsync = always`.
    pub fn start(data: &Path) -> Killable {
        Killable::start_with(data, Fsync::Always, 2)
    }

    pub fn start_with(data: &Path, fsync: Fsync, threads: u32) -> Killable {
        Killable::start_set(data, fsync, threads, "")
    }

    /// Starts with additional settings (see [`SETTINGS`]).
    pub fn start_set(data: &Path, fsync: Fsync, threads: u32, settings: &str) -> Killable {
        let mut server = Killable {
            settings: settings.to_owned(),
            child: None,
            port: larder_testing::free_port(),
            data: data.to_owned(),
            fsync,
            threads,
        };
        server.start_again();
        server
    }

    pub fn start_again(&mut self) {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--nocapture", "--exact"])
            .arg("killable::killable_server_process")
            .env(DATA, &self.data)
            .env(PORT, self.port.to_string())
            .env(FSYNC, self.fsync.word())
            .env(THREADS, self.threads.to_string())
            .env(SETTINGS, &self.settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line == READY), "the server does not start");
        self.child = Some(child);
    }

    /// Sends SIGKILL and waits for the process to end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}
