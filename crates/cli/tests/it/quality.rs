//! Gates of builds and pushes: each accepts valid versions, rejects invalid ones, and leaves no partial state.

use std::path::{Path, PathBuf};

use larder_batch::Manifest;

use crate::support::{Server, run_failing, run_ok, spawn_server, spawn_server_with};

/// Writes 1600 rows with prices, `nulls` of which are null and the others shifted by `add`. Three in four names are
/// not empty.
fn prices(folder: &Path, name: &str, nulls: usize, add: u64) -> PathBuf {
    let line = |row: usize| {
        if row < nulls {
            format!("{{\"sku\":{row},\"price\":null,\"name\":\"n\"}}\n")
        } else {
            format!(
                "{{\"sku\":{row},\"price\":{},\"name\":\"{}\"}}\n",
                row as u64 * 7919 % 1600 + add,
                if row.is_multiple_of(4) { "" } else { "n" }
            )
        }
    };
    let path = folder.join(format!("{name}.jsonl"));
    std::fs::write(&path, (0..1600).map(line).collect::<String>()).expect("written");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Returns the arguments of `larder build` from `input` to `out`, with more options.
fn build<'a>(input: &'a Path, out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec![
        "build",
        text(input),
        "--store",
        "prices",
        "--key",
        "sku",
        "--out",
        text(out),
    ];
    words.extend(more);
    words
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn each_gate_of_a_build_accepts_and_rejects() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (good, moved) = (
        prices(folder.path(), "good", 16, 0),
        prices(folder.path(), "moved", 16, 900),
    );
    run_ok(build(&good, &at("before"), &[]));
    std::fs::write(at("right.tsv"), "1\n").unwrap();
    std::fs::write(at("wrong.tsv"), "1\tanother\n").unwrap();
    let (right, wrong) = (at("right.tsv"), at("wrong.tsv"));
    let gates: [(&[&str], &[&str], &str); 8] = [
        (
            &["--min-records", "1600"],
            &["--min-records", "1601"],
            "holds 1600 records and min_records requires 1601",
        ),
        (
            &["--max-nulls", "price:1%"],
            &["--max-nulls", "price:0.9%"],
            "column \"price\" is null in 16 of 1600 rows, 1 %, and max_nulls allows 0.9 %",
        ),
        (
            &["--max-nulls", "0,price:1"],
            &["--max-nulls", "0"],
            "column \"price\" is null",
        ),
        (
            &["--max-empty", "name:25"],
            &["--max-empty", "24"],
            "column \"name\" is empty in 396 of 1600 rows",
        ),
        (
            &["--canary", text(&right)],
            &["--canary", text(&wrong)],
            "canary key \"1\" is",
        ),
        (
            &["--check", "/bin/test -d"],
            &["--check", "/bin/test -f"],
            "refuses the version (exit status: 1)",
        ),
        (
            &["--max-growth", "0%"],
            &["--max-nulls", "prize:5"],
            "no row of the new version has; its columns are sku, name, price",
        ),
        (
            &["--max-shift", "0.1"],
            &["--no-profile", "--max-shift", "0.1"],
            "the new version has none",
        ),
    ];
    let before = text(&at("before")).to_owned();
    for (number, (passes, refuses, output)) in gates.into_iter().enumerate() {
        let mut words = passes.to_vec();
        words.extend(["--against", &before]);
        run_ok(build(&good, &at(&format!("passed-{number}")), &words));
        let kept = files(folder.path());
        let mut words = refuses.to_vec();
        words.extend(["--against", &before]);
        let error = run_failing(4, build(&good, &at("refused"), &words));
        assert!(error.contains(output), "{refuses:?}: {error}");
        assert!(error.contains("nothing was left"), "{error}");
        assert_eq!(
            files(folder.path()),
            kept,
            "nothing is left of what was refused"
        );
    }
    let shifted = ["--against", &before, "--max-shift", "price:0.25"];
    let error = run_failing(4, build(&moved, &at("refused"), &shifted));
    assert!(
        error.contains("column \"price\" has shifted by ") && error.contains("PSI"),
        "{error}"
    );
    // If several gates fail, the error names all of them.
    let several = ["--max-nulls", "0", "--min-records", "2000"];
    let error = run_failing(4, build(&good, &at("refused"), &several));
    assert!(
        error.contains("min_records") && error.contains("max_nulls"),
        "{error}"
    );
}

#[test]
fn the_profile_of_a_build_is_in_its_manifest_and_threads_do_not_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let input = prices(folder.path(), "rows", 32, 0);
    let manifest = |name: &str, more: &[&str]| {
        run_ok(build(&input, &at(name), more));
        let bytes = std::fs::read(at(name).join(Manifest::FILE)).unwrap();
        Manifest::decode(name, &bytes).unwrap()
    };
    let one = manifest("one", &["--threads", "1"]);
    let many = manifest("many", &["--threads", "4", "--memory", "64MiB"]);
    let profile = one.profile().expect("a profile");
    assert_eq!(Some(profile), many.profile());
    assert_eq!(one.digest, many.digest);
    assert_eq!(profile.rows, 1600);
    let price = profile.column("price").expect("a column");
    assert_eq!((price.nulls, price.numbers), (32, 1568));
    let packed = manifest("packed", &["--values", "msgpack"]);
    let output = |manifest: &Manifest| {
        let profile = manifest.profile().expect("a profile");
        let each = profile.columns.iter();
        each.map(|it| {
            (
                it.name.clone(),
                it.nulls,
                it.empty,
                it.distinct,
                it.min,
                it.max,
            )
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(
        output(&packed),
        output(&one),
        "MessagePack has the same columns"
    );
    let column = manifest("column", &["--value", "price", "--skip-nulls"]);
    assert_eq!(
        column.profile().expect("a profile").columns[0].numbers,
        1568
    );
    assert!(manifest("none", &["--no-profile"]).profile().is_none());
}

#[test]
fn wrong_gate_options_are_reported_before_the_build() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let input = prices(folder.path(), "rows", 0, 0);
    let wrong: [(i32, &[&str], &str); 7] = [
        (
            2,
            &["--max-nulls", "price:much"],
            "is not a limit such as 5",
        ),
        (2, &["--max-shift", "-1"], "is not a limit such as 5"),
        (
            2,
            &["--max-shrink", "120%"],
            "write a share from 0% to 100%",
        ),
        (2, &["--check", " "], "--check names a program"),
        (2, &["--check-seconds", "5"], "--check <PROGRAM>"),
        (
            3,
            &["--against", "/no/such/place"],
            "there is no version to compare with at /no/such/place",
        ),
        (
            1,
            &["--canary", "/no/such/file"],
            "cannot read the canary file",
        ),
    ];
    for (code, words, output) in wrong {
        let error = run_failing(code, build(&input, &at("out"), words));
        assert!(error.contains(output), "{words:?}: {error}");
    }
    std::fs::create_dir(at("full")).unwrap();
    std::fs::write(at("full").join("mine"), "x").unwrap();
    let error = run_failing(1, build(&input, &at("full"), &["--min-records", "1"]));
    assert!(error.contains("is not empty"), "{error}");
    std::fs::create_dir(at("empty")).unwrap();
    run_ok(build(&input, &at("empty"), &["--min-records", "1"]));
    assert_eq!(files(folder.path()), ["empty", "full", "rows.jsonl"]);
}

#[test]
fn a_report_is_written_whether_the_version_passes_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (good, moved) = (
        prices(folder.path(), "good", 16, 0),
        prices(folder.path(), "moved", 16, 900),
    );
    let report = at("report.html");
    run_ok(build(&good, &at("before"), &["--report", text(&report)]));
    let first = std::fs::read_to_string(&report).unwrap();
    assert!(
        first.contains("no gates were requested") && first.contains("<svg"),
        "{first}"
    );
    assert!(
        !first.contains("before"),
        "there is nothing to compare with"
    );
    let before = at("before");
    let words = [
        "--against",
        text(&before),
        "--max-shift",
        "0.25",
        "--report",
        text(&report),
    ];
    run_failing(4, build(&moved, &at("refused"), &words));
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("1 of 3 gates reject it"), "{page}");
    for output in ["max_shift", "price", "refused", "before", "null before"] {
        assert!(page.contains(output), "{output}");
    }
    for far in ["http://", "https://", "<script", "<link"] {
        assert!(!page.contains(far), "the page asks for nothing: {far}");
    }
}

fn push(server: &Server, input: &Path, more: &[&str]) -> Vec<String> {
    let words = [
        "push",
        text(input),
        "--store",
        "prices",
        "--key",
        "sku",
        "--server",
        &server.http,
    ];
    words
        .iter()
        .chain(more)
        .map(|it| (*it).to_owned())
        .collect()
}

#[test]
fn gates_of_a_push_compare_with_the_live_version() {
    let folder = tempfile::tempdir().unwrap();
    let (good, moved) = (
        prices(folder.path(), "good", 16, 0),
        prices(folder.path(), "moved", 160, 900),
    );
    let server = spawn_server(&folder.path().join("data"));
    let report = folder.path().join("report.html");
    let gates = ["--max-shift", "price:0.25", "--report", text(&report)];
    run_ok(push(&server, &good, &gates));
    let value = || server.resp().get("prices:1599").unwrap().unwrap();
    let old = value();
    let refused: [(&[&str], &str); 4] = [
        (&gates, "column \"price\" has shifted by "),
        (
            &["--max-nulls", "5"],
            "column \"price\" is null in 160 of 1600 rows",
        ),
        (&["--check", "/bin/false"], "/bin/false refuses the version"),
        (
            &["--max-shift", "prise:0.25"],
            "no row of the new version has",
        ),
    ];
    for (gates, output) in refused {
        let error = run_failing(4, push(&server, &moved, gates));
        assert!(
            error.contains(output) && error.contains("the live version is unchanged"),
            "{error}"
        );
        assert_eq!(value(), old);
    }
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(
        page.contains("the live version") && page.contains("refused"),
        "{page}"
    );
    run_ok(push(
        &server,
        &moved,
        &["--max-shift", "price:100", "--check", "/bin/true"],
    ));
    assert_ne!(value(), old);
}

#[test]
fn configured_gates_apply_to_every_push() {
    let folder = tempfile::tempdir().unwrap();
    let (good, moved) = (
        prices(folder.path(), "good", 16, 0),
        prices(folder.path(), "moved", 160, 900),
    );
    let server = spawn_server_with(&folder.path().join("data"), |command| {
        command
            .env(
                "LARDER_STORES_MAX_NULLS",
                "other/price:0,prices/price:20,*/*:0",
            )
            .env("LARDER_STORES_MAX_SHIFT", "prices/price:0.25")
            .env(
                "LARDER_STORES_GATE_PROGRAM",
                "/bin/sh,-c,grep -q '\"store\":\"prices\"' && test -e $0/manifest.json",
            );
    });
    run_ok(push(&server, &good, &[]));
    let error = run_failing(4, push(&server, &moved, &[]));
    assert!(
        error.contains("has shifted by ") && error.contains("live version 1"),
        "{error}"
    );
    // A push can override a configured limit.
    run_ok(push(&server, &moved, &["--max-shift", "price:100"]));
    assert!(server.resp().get("prices:1").unwrap().is_some());
}

#[test]
fn the_configured_program_rejects_versions() {
    let folder = tempfile::tempdir().unwrap();
    let good = prices(folder.path(), "good", 16, 0);
    let server = spawn_server_with(&folder.path().join("data"), |command| {
        command.env(
            "LARDER_STORES_GATE_PROGRAM",
            "/bin/sh,-c,echo not today >&2; exit 7",
        );
    });
    let error = run_failing(4, push(&server, &good, &[]));
    assert!(
        error.contains("exit status: 7") && error.contains("not today"),
        "{error}"
    );
    assert!(
        server.admin().stores().unwrap().is_empty(),
        "nothing is left"
    );
    let bad = spawn_server_with(&folder.path().join("other"), |command| {
        command.env("LARDER_STORES_GATE_PROGRAM", "/no/such/program");
    });
    let error = run_failing(4, push(&bad, &good, &[]));
    assert!(
        error.contains("/no/such/program cannot be started"),
        "{error}"
    );
}

#[test]
fn invalid_configured_limits_are_reported_at_startup() {
    let error = {
        let mut command = crate::support::larder();
        command.args(["config", "check"]);
        command.env("LARDER_STORES_MAX_SHIFT", "price:0.25");
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(
        error.contains("stores.max_shift is \"price:0.25\"") && error.contains("prices/price:5"),
        "{error}"
    );
}
