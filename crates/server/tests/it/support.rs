//! A server in this process on free ports, and builders for versions to load into it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_batch::{BuildOptions, Builder, Manifest};
use larder_protocol::config::ServerConfig;
use larder_server::{Error, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Waits until `condition` returns true. Fails after 30 seconds, which is far more than any of the awaited events takes.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "timed out waiting for: {what}"
        );
        std::thread::yield_now();
    }
}

pub struct TestServer {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
    config: ServerConfig,
    _folder: TempDir,
    base: String,
    agent: ureq::Agent,
}

/// Replaces the file at `path`, if there is one, by a named pipe.
pub fn put_pipe(path: &Path) {
    let _ = std::fs::remove_file(path);
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}

impl TestServer {
    pub fn start() -> TestServer {
        TestServer::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = ServerConfig::default();
        config.server.data = folder.path().join("data");
        config.server.resp = "127.0.0.1:0".to_owned();
        config.server.http = "127.0.0.1:0".to_owned();
        config.server.threads = 1;
        config.server.stop_timeout_seconds = 1;
        config.fetch.stall_timeout_seconds = 1;
        config.fetch.retries = 3;
        // The default timeout would let a test's outcome depend on how busy the machine is.
        config.spaces.search_timeout_ms = 0;
        // The sources of the tests listen on loopback, which is not allowed by default.
        config.fetch.allow.push("http://127.0.0.1/".to_owned());
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut server = TestServer {
            runtime,
            server: None,
            config,
            _folder: folder,
            base: String::new(),
            agent,
        };
        server.start_again();
        server
    }

    fn start_again(&mut self) {
        let server = self.start_when_free().expect("the server starts");
        self.base = format!("http://{}", server.http_addr());
        self.server = Some(server);
    }

    /// Starts the server, and retries while the folder is locked. A process that another test forks holds a copy of
    /// the lock until it executes its program.
    fn start_when_free(&self) -> Result<Server, Error> {
        let started = Instant::now();
        loop {
            match self.start_another() {
                Err(error)
                    if error.to_string().contains("is in use by")
                        && started.elapsed() < Duration::from_secs(10) =>
                {
                    std::thread::yield_now();
                }
                started => return started,
            }
        }
    }

    /// Tries to start a second server on the same folder.
    pub fn start_another(&self) -> Result<Server, Error> {
        self.runtime.block_on(Server::start(self.config.clone()))
    }

    /// Stops the server, calls `meddle` with the data folder, and starts the server again.
    pub fn restart(&mut self, meddle: impl FnOnce(&Path)) {
        self.stop();
        meddle(&self.config.server.data.clone());
        self.start_again();
    }

    /// Like [`TestServer::restart`], with a changed configuration.
    pub fn restart_with(&mut self, change: impl FnOnce(&mut ServerConfig)) {
        self.stop();
        change(&mut self.config);
        self.start_again();
    }

    /// Stops the server, checks that it does not start with the changed configuration, and returns the error message.
    pub fn start_refused(&mut self, change: impl FnOnce(&mut ServerConfig)) -> String {
        self.stop();
        change(&mut self.config);
        match self.start_when_free() {
            Ok(_) => panic!("the server starts"),
            Err(error) => error.to_string(),
        }
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            let stopped = self.runtime.block_on(server.stop());
            if !std::thread::panicking() {
                stopped.expect("the server stops cleanly");
            }
        }
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("the server runs")
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn store_folder(&self, store: &str) -> PathBuf {
        self.config.server.data.join("stores").join(store)
    }

    /// Returns the status and the body, parsed if it is JSON.
    pub fn get(&self, path: &str) -> (u16, Value) {
        answer(self.agent.get(self.url(path)).call())
    }

    pub fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.agent.post(self.url(path)).send_json(body))
    }

    pub fn patch(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.agent.patch(self.url(path)).send_json(body))
    }

    pub fn delete(&self, path: &str) -> (u16, Value) {
        answer(
            self.agent
                .delete(self.url(path))
                .header("X-Larder", "1")
                .call(),
        )
    }

    /// Starts a pull, waits for its end, and returns its final status.
    pub fn pull(&self, store: &str, body: Value) -> Value {
        let (status, pull) = self.post(&format!("/v1/stores/{store}/pull"), body);
        assert_eq!(status, 202, "{pull}");
        self.wait_for_pull(&pull)
    }

    pub fn pull_from(&self, store: &str, source: &str) -> Value {
        self.pull(store, json!({ "source": source }))
    }

    pub fn wait_for_pull(&self, pull: &Value) -> Value {
        let id = pull["id"].as_str().expect("an id");
        let (_, pull) = self.get(&format!("/v1/pulls/{id}?wait=60"));
        assert!(pull["ended_at"].is_u64(), "the pull does not end: {pull}");
        pull
    }

    #[track_caller]
    pub fn check_value(&self, store: &str, key: &str, expected: &str) {
        let (status, value) = self.get(&format!("/v1/stores/{store}/keys/{key}"));
        assert_eq!((status, value.as_str()), (200, Some(expected)), "{value}");
    }

    /// Returns the names of the entries of the store's folder, sorted.
    pub fn files(&self, store: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.store_folder(store)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort();
        names
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut response = result.expect("the server answers");
    let status = response.status().as_u16();
    let bytes = response.body_mut().read_to_vec().expect("a body");
    let json = serde_json::from_slice(&bytes)
        .ok()
        .filter(|value: &Value| value.is_object())
        .unwrap_or_else(|| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    (status, json)
}

/// Builds a version of `store` in `folder` with `count` keys `k0`, `k1` and so on, whose values are `value` plus
/// filler.
pub fn build(folder: &Path, store: &str, count: usize, value: &str) -> Manifest {
    let rows = (0..count).map(|i| (format!("k{i}"), value.to_owned()));
    build_rows(folder, store, rows, 4)
}

pub fn build_rows(
    folder: &Path,
    store: &str,
    rows: impl Iterator<Item = (String, String)>,
    partitions: u32,
) -> Manifest {
    let mut options = BuildOptions::new(store.parse().expect("a name"));
    options.partitions = partitions;
    let builder = Builder::new(options, folder).expect("a builder");
    let mut writer = builder.writer();
    for (seq, (key, value)) in rows.enumerate() {
        writer
            .push(seq as u64, key.as_bytes(), value.as_bytes())
            .expect("pushed");
    }
    writer.close().expect("closed");
    builder.finish(&|_| {}).expect("built")
}
