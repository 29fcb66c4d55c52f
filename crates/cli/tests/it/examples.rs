//! The examples and the README's session on tables, typed as they stand: their documents must show what happens.

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

/// What a shell prints for a script.
fn shell(script: &mut Command) -> String {
    let output = script.output().expect("sh runs");
    assert!(output.status.success(), "{}", show(&output));
    text(&output.stdout)
}

fn has_redis_cli() -> bool {
    let found = Command::new("redis-cli").arg("--version").output().is_ok();
    if !found {
        larder_testing::missing("redis-cli");
    }
    found
}

/// Runs an example on a new server, twice: its README must have what it prints.
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
fn the_timelines_of_the_example_are_those_its_readme_shows() {
    check_example("twip");
}

#[test]
fn the_page_of_the_example_is_the_one_its_readme_shows() {
    check_example("newp");
}

#[test]
fn the_readmes_timeline_works_as_typed() {
    check_session("$ redis-cli -p 7379 JOIN.CREATE");
}

#[test]
fn the_readmes_hotels_are_found_as_typed() {
    check_session("$ larder space load");
}

/// Types the README's session that has this line.
#[track_caller]
fn check_session(line: &str) {
    if !has_redis_cli() {
        return;
    }
    let readme = read("README.md");
    let session = readme.split("```").find(|block| block.contains(line));
    let session = session.expect("a session").trim();
    let folder = tempfile::tempdir().expect("a folder");
    let server = spawn_server(folder.path());
    // As on a terminal, where redis-cli shows types.
    let client = format!("redis-cli --no-raw -p {}", port(&server));
    let dump = folder.path().join("hotels.parquet");
    let mut printed = Vec::new();
    for line in session.lines().filter(|line| line.starts_with("$ ")) {
        printed.push(line.to_owned());
        let command = line[2..]
            .replace("redis-cli -p 7379", &client)
            .replace("-o hotels.parquet", &format!("-o {}", dump.display()))
            .replace(
                "larder space",
                &format!("{} space", env!("CARGO_BIN_EXE_larder")),
            );
        let mut shell_command = Command::new("sh");
        shell_command.arg("-c").arg(command).current_dir(root());
        let answer = shell(shell_command.env("LARDER_SERVER", &server.http));
        let answer = answer.replace(&dump.display().to_string(), "hotels.parquet");
        printed.extend(answer.lines().map(str::to_owned));
    }
    let timeless = |line: &str| match line.split_once(", in ") {
        Some((before, after)) if after.ends_with("/s)") => before.to_owned(),
        _ => line.to_owned(),
    };
    let printed: Vec<String> = printed.iter().map(|line| timeless(line)).collect();
    let session: Vec<String> = session.lines().map(timeless).collect();
    assert_eq!(printed.join("\n"), session.join("\n"));
}
