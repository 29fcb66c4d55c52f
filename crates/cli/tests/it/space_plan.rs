//! `larder space plan`: computes the best subspaces from a workload.

use std::path::{Path, PathBuf};

use crate::support::{run_failing, run_ok, spawn_server};

fn example() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("examples/hotels/workload.toml")
        .display()
        .to_string()
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let printed = run_ok([&["space", "plan", "--json"], arguments].concat());
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn the_guide_shows_the_plan_of_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guide/spaces-plan.md")).unwrap();
    let of_repository = "examples/hotels/workload.toml";
    let typed = format!("$ larder space plan --workload {of_repository} --html plan.html\n");
    let shown = guide.split_once(&typed).expect("the guide types it").1;
    let shown = shown.split_once("\npicture: ").expect("and its picture").0;
    let printed = run_ok(["space", "plan", "--workload", &example()]);
    assert_eq!(printed.replace(&example(), of_repository), shown);
}

#[test]
fn the_example_is_planned_as_a_table_as_json_and_as_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let eight = file(
        folder.path(),
        "eight.toml",
        "servers = 8\nreplicas = 2\n\n[costs]\nserver_us = 20\n",
    );
    let page: PathBuf = folder.path().join("plan.html");
    let workload = example();
    let arguments = ["--workload", &workload, "--deployment", &eight];
    let html = ["--html", page.to_str().unwrap()];
    let table = run_ok([&["space", "plan"], &arguments[..], &html].concat());
    for part in [
        "256,000 objects, 3 classes of queries (71 %), 3 of modifications",
        "servers: 8, cores of each: 1, replicas: 2",
        "best ",
        "one per attribute",
        "rooms in a city",
        "FT.CREATE name SUBSPACES 2 city:7 ",
        " REGIONS 256 INDEX ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("rooms in a city") && !page.contains("<script"));
    assert!(
        !page.contains("http"),
        "it asks nothing of the network: {page}"
    );
    let plan = json(&[&arguments[..], &["--current", "stars price", "--top", "3"]].concat());
    assert_eq!(plan["top"].as_array().unwrap().len(), 3);
    // All costs but one are estimates.
    assert_eq!(plan["proof"]["is_proven"], false);
    assert_eq!(plan["servers"]["costs"]["server_us"], 20.0);
    let of = |it: &serde_json::Value| it["capacity"].as_f64().unwrap();
    let best = of(&plan["best"]);
    assert!(of(&plan["current"]) < best);
    for it in plan["heuristics"].as_array().unwrap() {
        assert!(of(&it["prediction"]) <= best * 1.000_001, "{it}");
    }
}

#[test]
fn a_plan_repeats_the_warnings_of_its_calibration_and_calls_no_guess_proven() {
    let folder = tempfile::tempdir().unwrap();
    let costs = "[costs]\nget_us = 5\nquery_us = 15\nserver_us = 10\nregion_us = 2\ncandidate_us = 0.3\nresult_us = 1\nwrite_us = 6\nstage_us = 6\nmove_us = 8\nindex_entry_us = 1\n";
    let warnings = "warnings = [\"walk_us is too small to measure\"]\n";
    let guessed = "guessed = [\"stage_us\", \"move_us\"]\n";
    let plan = |head: &str| {
        let deployment = file(
            folder.path(),
            "d.toml",
            &format!("servers = 8\n{head}{costs}"),
        );
        let at = ["--workload", &example(), "--deployment", &deployment];
        let table = run_ok([&["space", "plan"], &at[..]].concat());
        (table, json(&at)["proof"]["is_proven"] == true)
    };
    let (measured, is_proven) = plan("");
    assert!(measured.contains("\nproven: ") && is_proven, "{measured}");
    assert!(!measured.contains("warning: "), "{measured}");
    let (warned, is_proven) = plan(warnings);
    assert!(
        warned.contains("\nwarning: walk_us is too small to measure\n") && is_proven,
        "{warned}"
    );
    let (guesses, is_proven) = plan(&format!("{warnings}{guessed}"));
    let both = "\nwarning: these costs are guesses, not measured: stage_us, move_us\nwarning: walk_us is too small to measure\n";
    assert!(guesses.contains(both) && !is_proven, "{guesses}");
    assert!(
        !guesses.contains("proven") && guesses.contains("by guessed costs no set of "),
        "{guesses}"
    );
}

#[test]
fn a_plan_from_an_incomplete_recording_has_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let complete = std::fs::read_to_string(example()).unwrap();
    let part = file(
        folder.path(),
        "part.toml",
        &format!("unrecorded = 5\n{complete}"),
    );
    let plan = run_ok(["space", "plan", "--workload", &part]);
    let warning = "of the recorded operations belong to rare classes, which the workload omits";
    assert!(plan.contains(warning) && !plan.contains("proven"), "{plan}");
}

#[test]
fn a_storage_limit_that_no_plan_satisfies_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let small = file(
        folder.path(),
        "small.toml",
        "servers = 8\nstorage_bytes_max = 1000\n",
    );
    let workload = example();
    let words = [
        "space",
        "plan",
        "--workload",
        &workload,
        "--deployment",
        &small,
    ];
    let output = run_failing(1, words);
    let start = "larder: deployment: storage_bytes_max: 1000 bytes are too few: 256000 objects";
    assert!(
        output.starts_with(start) && output.contains("raise it to at least "),
        "{output}"
    );
}

/// The workload A1 of the thesis, and the output of the thesis's program for it.
#[test]
fn thesis_mode_reproduces_the_numbers_of_the_thesis() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "objects = 256000\n".to_owned();
    for name in ["region", "address", "postcode", "tel"] {
        text += &format!("[[attribute]]\nname = \"{name}\"\n");
    }
    for (share, names) in [
        ("0.054", r#""region""#),
        ("0.117", r#""address", "postcode""#),
        ("0.234", r#""address", "region", "tel""#),
        ("0.495", r#""address", "postcode", "region", "tel""#),
    ] {
        text += &format!("[[query]]\nfrequency = {share}\nequal = [{names}]\n");
    }
    for name in ["address", "postcode"] {
        text += &format!("[[modification]]\nfrequency = 0.05\nchanges = [\"{name}\"]\n");
    }
    let workload = file(folder.path(), "a1.toml", &text);
    let arguments = ["--workload", &workload, "--thesis", "--top", "10"];
    let plan = json(&arguments);
    let top: Vec<String> = (plan["top"].as_array().unwrap().iter())
        .map(|it| format!("{:.4}", it["throughput"].as_f64().unwrap()))
        .collect();
    assert_eq!(
        top,
        [
            "3231.7423",
            "3231.7423",
            "3210.5674",
            "3210.5674",
            "3186.5566",
            "3165.9678",
            "3165.9678",
            "3165.9678",
            "3165.9678",
            "3145.6433"
        ]
    );
    let table = run_ok([&["space", "plan"], &arguments[..]].concat());
    assert!(table.contains("3231.7423    100 %"), "{table}");
    assert!(
        table.contains("by address, region, tel") && table.contains("postcode changes"),
        "{table}"
    );
}

#[test]
fn an_error_in_a_file_is_reported_with_its_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read_to_string(example()).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        let path = file(folder.path(), "bad.toml", &good.replacen(from, to, 1));
        let error = run_failing(1, ["space", "plan", "--workload", &path]);
        error.replace(&path, "bad.toml")
    };
    let line = |text: &str| 1 + good[..good.find(text).unwrap()].lines().count();
    assert_eq!(
        refused("range = { price = 0.2 }", "range = { price = 2 }"),
        format!(
            "larder: bad.toml:{}: query[1].range.price: 2 is not a share; from 0 to 1\n",
            line("range = { price = 0.2 }")
        )
    );
    assert_eq!(
        refused("changes = [\"rating\"]", "changes = [\"ratings\"]"),
        format!(
            "larder: bad.toml:{}: modification[1].changes[0]: no attribute \"ratings\"; add it as an [[attribute]]\n",
            line("changes = [\"rating\"]")
        )
    );
    let error = refused("distinct = 6", "distinc = 6");
    assert!(
        error.contains(&format!("line {}", line("distinct = 6"))) && error.contains("distinc"),
        "{error}"
    );
    let deployment = file(
        folder.path(),
        "d.toml",
        "servers = 2\n\n[costs]\nmove_us = -1\n",
    );
    let workload = example();
    let error = run_failing(
        1,
        [
            "space",
            "plan",
            "--workload",
            &workload,
            "--deployment",
            &deployment,
        ],
    );
    assert_eq!(
        error,
        format!(
            "larder: {deployment}:4: costs.move_us: -1 is not a time in microseconds; 0 to 1e9\n"
        )
    );
    let error = run_failing(3, ["space", "plan", "--workload", "/nowhere.toml"]);
    assert!(
        error.contains("cannot read the workload /nowhere.toml"),
        "{error}"
    );
    let error = run_failing(
        1,
        [
            "space",
            "plan",
            "--workload",
            &workload,
            "--current",
            "town",
        ],
    );
    assert!(
        error.contains("subspace town: no attribute \"town\""),
        "{error}"
    );
}

#[test]
fn a_plan_is_compared_with_the_current_subspaces() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let create = "FT.CREATE hotels PREFIX 1 hotel: SUBSPACES 2 stars city:4,price REGIONS 64 SCHEMA city TAG stars NUMERIC price NUMERIC";
    let parts: Vec<&[u8]> = create.split(' ').map(str::as_bytes).collect();
    server.resp().command(&parts).unwrap();
    let workload = example();
    let arguments = ["--workload", &workload, "--server", &server.http];
    let plan = json(&[&arguments[..], &["--space", "hotels"]].concat());
    // `stars` has six values, for which three bits are enough.
    assert_eq!(
        plan["current"]["subspaces"],
        serde_json::json!(["stars:3", "city:4,price:2"])
    );
    let missing = [&["space", "plan"], &arguments[..], &["--space", "inns"]].concat();
    assert!(run_failing(3, missing).contains("there is no space \"inns\""));
}
