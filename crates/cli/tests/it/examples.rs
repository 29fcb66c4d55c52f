//! Runs the examples, and compares their output with their READMEs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Server, show, spawn_server, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("a document of the repository")
}

fn port(server: &Server) -> &str {
    server.resp.rsplit(':').next().expect("a port")
}

/// Returns the output of a shell script.
fn shell(script: &mut Command) -> String {
    let output = script.output().expect("sh runs");
    assert!(output.status.success(), "{}", show(&output));
    text(&output.stdout)
}

fn has_redis_cli() -> bool {
    let found = Command::new("redis-cli").arg("--version").output().is_ok();
    if !found {
        larder_testing::report_missing("redis-cli");
    }
    found
}

/// Runs an example twice on a new server. Its README must contain the output.
#[track_caller]
fn check_example(name: &str) {
    if !has_redis_cli() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = spawn_server(folder.path());
    let script = root().join("examples").join(name).join("run.sh");
    let shown = read(&format!("examples/{name}/README.md"));
    for _ in 0..2 {
        let printed = shell(Command::new(&script).env("PORT", port(&server)));
        assert!(printed.lines().count() > 20, "{printed}");
        assert!(
            shown.contains(&format!("```\n{printed}```\n")),
            "examples/{name}/README.md does not show what it prints:\n{printed}"
        );
    }
}

#[test]
fn the_timelines_example_matches_its_readme() {
    check_example("twip");
}

#[test]
fn the_page_example_matches_its_readme() {
    check_example("newp");
}
