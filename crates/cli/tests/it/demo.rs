//! Complete runs of the demo.

use crate::support::{run, show, text};

/// Runs the complete demo and checks its output.
fn run_demo(arguments: &[&str]) {
    let temp = tempfile::tempdir().unwrap();
    let output = crate::support::larder()
        .args(["demo", "--exit"])
        .args(arguments)
        .env("TMPDIR", temp.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", show(&output));
    let story = text(&output.stdout);
    assert!(
        story.contains("failed: 0, answers that mixed versions: 0"),
        "{story}"
    );
    for told in [
        "version 1 is live again",
        "computed from scratch",
        "'s posts are in",
        "the posts are gone",
        "A celebrity posts",
        "compared with a look at every hotel: all equal",
        "searchers that failed: 0, hotels that did not match: 0",
        "one of 10 rooms: 10 were sold",
    ] {
        assert!(story.contains(told), "{told}: {story}");
    }
    let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
    assert!(left.is_empty(), "the demo leaves nothing behind: {left:?}");
}

#[test]
fn the_demo_completes_and_leaves_no_files() {
    run_demo(&["--users", "500"]);
}

#[test]
fn the_demo_runs_on_real_friendships() {
    let Some(edges) = larder_testing::external_data("graph/facebook_combined.txt.gz") else {
        return;
    };
    run_demo(&["--edges", edges.to_str().unwrap()]);
}

#[test]
fn an_invalid_edge_list_is_reported_by_name() {
    let output = run(["demo", "--exit", "--edges", "/nowhere/edges.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("/nowhere/edges.txt"),
        "{}",
        show(&output)
    );
}
