//! Help, errors, and commands that need no server.

use crate::support::{run, run_failing, run_ok, text, write_csv};

const COMMANDS: [&[&str]; 32] = [
    &["serve"],
    &["build"],
    &["push"],
    &["demo"],
    &["get"],
    &["dump"],
    &["store", "list"],
    &["store", "info"],
    &["store", "get"],
    &["store", "sample"],
    &["store", "dump"],
    &["store", "diff"],
    &["store", "verify"],
    &["store", "rollback"],
    &["store", "swap"],
    &["store", "remove"],
    &["space", "plan"],
    &["space", "record"],
    &["space", "calibrate"],
    &["cluster", "certs"],
    &["cluster", "local"],
    &["cluster", "demo"],
    &["cluster", "status"],
    &["cluster", "plan"],
    &["cluster", "join"],
    &["cluster", "drain"],
    &["cluster", "keep"],
    &["cluster", "remove"],
    &["cluster", "set"],
    &["config", "check"],
    &["config", "show"],
    &["config", "reference"],
];

#[test]
fn every_commands_help_has_an_example() {
    for command in COMMANDS {
        let help = run_ok(command.iter().copied().chain(["--help"]));
        let example = format!("    larder {}", command.join(" "));
        assert!(help.contains(&example), "{command:?}: {help}");
    }
    assert!(run_ok(["--help"]).contains("Exit codes:"));
}

#[test]
fn a_wrong_command_line_exits_with_2_and_an_unreachable_server_with_5() {
    run_failing(2, ["store", "list", "--jsn"]);
    run_failing(2, ["push", "x.csv", "--store", "../x", "--key", "k"]);
    let server = format!("http://127.0.0.1:{}", larder_testing::free_port());
    let error = run_failing(5, ["store", "list", "--server", &server]);
    assert_eq!(
        error,
        format!("larder: no larder server answers at {server}; start one with `larder serve`\n")
    );
}

#[test]
fn a_negative_number_is_a_wrong_value_of_its_option_and_may_be_a_key() {
    for (option, command) in [
        (
            "--skip-lines",
            &["build", "in.csv", "--store", "s", "--out", "out"][..],
        ),
        (
            "--partitions",
            &["build", "in.csv", "--store", "s", "--out", "out"],
        ),
        ("--min-records", &["push", "in.csv", "--store", "s"]),
        ("--count", &["store", "sample", "s"]),
    ] {
        let error = run_failing(2, [command, &[option, "-1"]].concat());
        assert!(
            error.contains("invalid value '-1'")
                && error.contains(option)
                && error.contains("write a whole number")
                && !error.contains("tip:"),
            "{error}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let input = write_csv(folder.path(), "in.csv", [("-5".to_owned(), "v".to_owned())]);
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let what = ["--store", "s", "--key", "key", "--value", "value"];
    let build = ["build", input.to_str().unwrap(), "--out", out];
    run_ok(build.iter().chain(&what));
    assert_eq!(run_ok(["get", out, "-5"]), "v\n");
}

#[test]
fn a_build_prints_a_summary_and_is_deterministic() {
    let folder = tempfile::tempdir().unwrap();
    let rows = || (0..1000).map(|n| (n.to_string(), format!("value {n}")));
    let input = write_csv(folder.path(), "in.csv", rows());
    let reversed = write_csv(
        folder.path(),
        "reversed.csv",
        rows().collect::<Vec<_>>().into_iter().rev(),
    );
    let digest = |input: &std::path::Path, out: &str| {
        let out = folder.path().join(out);
        let arguments = [
            "build",
            input.to_str().unwrap(),
            "--store",
            "s",
            "--key",
            "key",
            "--value",
            "value",
        ];
        let printed =
            run_ok(
                arguments
                    .iter()
                    .copied()
                    .chain(["--json", "--out", out.to_str().unwrap()]),
            );
        let summary: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(summary["record_count"], 1000);
        assert!(out.join("manifest.json").is_file());
        summary["digest"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest(&input, "one"), digest(&reversed, "two"));
}

#[test]
fn a_failed_build_reports_the_error_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let input = write_csv(
        folder.path(),
        "in.csv",
        [1, 2, 1].map(|n| (n.to_string(), "v".to_owned())),
    );
    let out = folder.path().join("out");
    let arguments = [
        "build",
        input.to_str().unwrap(),
        "--store",
        "s",
        "--out",
        out.to_str().unwrap(),
    ];
    let with = |more: &[&'static str]| -> Vec<String> {
        arguments
            .iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect()
    };
    let error = run_failing(1, with(&["--key", "key"]));
    assert!(
        error.contains("\"1\"") && error.contains("--on-duplicate"),
        "{error}"
    );
    let error = run_failing(2, with(&["--key", "member"]));
    assert!(
        error.contains("there is no column \"member\"; the columns are key, value"),
        "{error}"
    );
    let error = run_failing(2, with(&[]));
    assert!(error.contains("--key is missing"), "{error}");
    let left = std::fs::read_dir(&out).map_or(0, |entries| entries.count());
    assert_eq!(left, 0);
    run_ok(with(&["--key", "key", "--on-duplicate", "collect"]));
    let output = run(with(&["--key", "key", "--on-duplicate", "last"]));
    assert!(
        !output.status.success(),
        "a folder that holds a version is not built over"
    );
    assert!(
        out.join("manifest.json").is_file(),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn configuration_is_checked_shown_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("larder.toml");
    std::fs::write(&file, run_ok(["config", "reference", "--sample"])).unwrap();
    let path = file.to_str().unwrap();
    run_ok(["config", "check", "--config", path]);
    std::fs::write(&file, "[fetch]\nparalel = 3\n").unwrap();
    let error = run_failing(2, ["config", "check", "--config", path]);
    assert!(
        error.contains("paralel") && error.contains("parallel"),
        "{error}"
    );
    std::fs::write(&file, "[fetch]\nparallel = 3\n").unwrap();
    let shown = run_ok([
        "config",
        "show",
        "--json",
        "--config",
        path,
        "--set",
        "fetch.retries=9",
    ]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["fetch"]["parallel"], &shown["fetch"]["retries"]),
        (&3.into(), &9.into())
    );
    assert!(run_ok(["config", "reference"]).contains("LARDER_FETCH_PARALLEL"));
}
