//! Runs the commands of the examples and of the README, and compares their output with the documents.

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

#[test]
fn the_readme_commands_run_in_order() {
    run_page("README.md", 5);
}

#[test]
fn the_increments_guide_commands_run_in_order() {
    run_page("docs/guide/increments.md", 5);
}

/// Executes the commands of a page on a new server, and compares their output with the page.
#[track_caller]
fn run_page(page: &str, blocks: usize) {
    if !has_redis_cli() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // The session's folder is next to a link to the repository's examples, as in a checkout.
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples"))
        .expect("a link");
    let session = folder.path().join("session");
    std::fs::create_dir(&session).expect("a folder");
    let server = spawn_server(&session.join("larder-data"));
    let typed = sessions(&read(page));
    assert_eq!(typed.len(), blocks, "blocks of commands with their output");
    for (commands, expected) in typed {
        // `--no-raw` makes redis-cli show types, as on a terminal.
        let client = format!("redis-cli --no-raw -p {}", port(&server));
        let larder = format!("\n{} ", env!("CARGO_BIN_EXE_larder"));
        let script = format!("exec 2>&1\n{commands}")
            .replace("redis-cli -p 7379", &client)
            .replace("\nlarder ", &larder);
        let mut sh = Command::new("sh");
        sh.arg("-ec").arg(script).current_dir(&session);
        let printed = shell(sh.env("LARDER_SERVER", &server.http));
        assert_eq!(
            without_times(&printed),
            without_times(&expected),
            "{commands}"
        );
    }
}

/// Returns the blocks of commands (`sh`) that are directly followed by a block of output (`text`).
fn sessions(page: &str) -> Vec<(String, String)> {
    let blocks: Vec<&str> = page.split("```").collect();
    let commands = blocks.windows(3).filter_map(|three| {
        let is_pair = three[1].trim().is_empty();
        let commands = three[0].strip_prefix("sh\n")?;
        let output = three[2].strip_prefix("text\n").filter(|_| is_pair)?;
        Some((commands.to_owned(), output.to_owned()))
    });
    commands.collect()
}

/// Removes durations and rates, and the scale of a duration's unit, which differ between runs.
fn without_times(text: &str) -> String {
    let is_time = |word: &str| {
        let unit = word.trim_end_matches([')', ',', ':']);
        matches!(unit, "µs" | "ms" | "s" | "records/s" | "objects/s")
    };
    let words = text.split(' ').collect::<Vec<_>>();
    let kept = (0..words.len()).filter(|&at| {
        let next = words.get(at + 1).and_then(|word| word.lines().next());
        !next.is_some_and(is_time)
    });
    // On a busy machine, milliseconds replace the microseconds of the page.
    let without_scale = |word: &str| {
        if word.lines().next().is_some_and(is_time) {
            word.trim_start_matches(['µ', 'm']).to_owned()
        } else {
            word.to_owned()
        }
    };
    let kept = kept.map(|at| without_scale(words[at]));
    kept.collect::<Vec<_>>().join(" ")
}
