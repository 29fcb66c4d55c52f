//! redis-py as a client, from `.venv`, which `scripts/setup test` creates.

use std::path::{Path, PathBuf};
use std::process::Command;

use larder_protocol::config::ClusterMode;

use crate::resp::server_with;

#[test]
fn redis_py_works() {
    run_script("tests/it/redis_py.py", ClusterMode::Off);
}

#[test]
fn redis_py_locks_ranks_and_reads_sets() {
    run_script("tests/it/redis_py_families.py", ClusterMode::Off);
}

#[test]
fn the_client_side_cache_of_redis_py_is_fresh_for_rows_and_outputs() {
    run_script("tests/it/redis_py_caching.py", ClusterMode::Off);
}

#[test]
fn redis_py_uses_hashes_and_documents() {
    run_script("tests/it/objects/stock.py", ClusterMode::Off);
}

#[test]
fn search_helpers_of_redis_py_work() {
    run_script("tests/it/spaces/redis_py.py", ClusterMode::Off);
}

#[test]
fn the_cluster_client_of_redis_py_works_with_one_node() {
    run_script("tests/it/cluster_clients/cluster.py", ClusterMode::One);
}

fn run_script(script: &str, mode: ClusterMode) {
    for threads in [1, 2] {
        let server = server_with(|config| {
            config.server.threads = threads;
            config.cluster.mode = mode;
        });
        check_script(script, server.server().resp_addr().port());
    }
}

/// Runs a redis-py script against a server, and checks that it succeeds.
fn check_script(script: &str, port: u16) {
    let Some(python) = python() else {
        return larder_testing::report_missing("redis-py");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(python)
        .arg(script)
        .arg(port.to_string())
        .output();
    let output = output.expect("python runs");
    let reply = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(reply.trim(), "content", "{wrong}");
}

/// Returns the Python interpreter that has redis-py, if it is installed.
pub fn python() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("../../.venv/bin/python");
    let has_it = Command::new(&python).args(["-c", "import redis"]).output();
    has_it
        .is_ok_and(|output| output.status.success())
        .then_some(python)
}
