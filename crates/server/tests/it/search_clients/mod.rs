//! Search helpers and object mappers of client libraries: node-redis, go-redis, jedis, and redis-om in Python and
//! JavaScript. (`redis_py.rs` covers redis-py's helpers.) `scripts/setup test` installs them in `.search-clients`,
//! and jedis in `.cluster-clients`.
//!
//! Each program runs against a server with two serving threads and prints `content` if all its checks pass.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::redis_py;
use crate::spaces::server;

#[test]
fn search_helpers_of_node_redis_work() {
    check_script("node-redis", || node("search.js"));
}

#[test]
fn redis_om_in_javascript_works() {
    check_script("redis-om", || node("mapper.js"));
}

#[test]
fn redis_om_in_python_works() {
    check_script("redis-om", || {
        let mut python = Command::new(redis_py::python()?);
        python.env("PYTHONPATH", installed(".search-clients/python")?);
        python.arg(program("mapper.py"));
        Some(python)
    });
}

#[test]
fn search_commands_of_go_redis_work() {
    check_script("go-redis", || {
        let mut go = Command::new("go");
        go.current_dir(installed(".search-clients/go")?);
        go.args(["run", "-mod=vendor"]).arg(program("search.go"));
        Some(go)
    });
}

#[test]
fn search_commands_of_jedis_work() {
    check_script("jedis", || {
        let mut java = Command::new("java");
        java.arg("-cp")
            .arg(installed(".cluster-clients")?.join("java/*"));
        java.arg(program("Search.java"));
        Some(java)
    });
}

fn node(script: &str) -> Option<Command> {
    let mut node = Command::new("node");
    let modules = installed(".search-clients/node")?.join("node_modules");
    node.env("NODE_PATH", modules).arg(program(script));
    Some(node)
}

fn program(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/it/search_clients").join(name)
}

/// Returns the folder in which clients are installed, if it exists.
fn installed(folder: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("../..").join(folder);
    folder.join("installed.txt").is_file().then_some(folder)
}

fn check_script(name: &str, command: impl FnOnce() -> Option<Command>) {
    let Some(mut command) = command() else {
        return larder_testing::report_missing(name);
    };
    let server = server(2);
    let port = server.server().resp_addr().port();
    let output = command.arg(port.to_string()).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let reply = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(reply.trim(), "content", "{name}: {wrong}");
}
