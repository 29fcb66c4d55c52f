//! The commands `larder build --on` and `larder compact`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{larder, show};

/// A folder with a version `monday` of 100 rows, and input files to build on it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let rows: String = (0..100).map(|n| format!("k{n},{n}\n")).collect();
        place.write("monday.csv", &format!("key,value\n{rows}"));
        place.write("changes.csv", "key,value\nk1,one\nnew,100\nk2,2\n");
        place.write("gone.csv", "key,why\nk3,sold\nnever there,\n");
        let all = rows.replace("k1,1\n", "k1,one\n").replace("k3,3\n", "");
        place.write("tuesday.csv", &format!("key,value\n{all}new,100\n"));
        place.ok(place.build(&["monday.csv", "--out", "monday"]));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn larder(&self, args: &[&str]) -> Command {
        let mut command = larder();
        command.current_dir(self.0.path()).args(args);
        command
    }

    fn build(&self, args: &[&str]) -> Command {
        let mut command = self.larder(&[
            "build", "--store", "prices", "--key", "key", "--value", "value",
        ]);
        command.args(args);
        command
    }

    #[track_caller]
    fn ok(&self, mut command: Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", show(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, mut command: Command) -> String {
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{}", show(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns the lines of a dump, sorted.
    fn dump(&self, version: &str) -> Vec<String> {
        let text = self.ok(self.larder(&["dump", version]));
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn segments(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".segment") {
            files.push((name, fs::read(path).unwrap()));
        }
    }
    files.sort();
    files
}

/// A delta built from changes has no profile, because it does not contain the unchanged rows. Gates without a profile,
/// such as canaries, read it together with its base.
#[test]
fn gates_apply_to_full_deltas_and_compacted_versions() {
    let place = Place::new();
    let delta = ["changes.csv", "--deleted", "gone.csv", "--on", "monday"];
    let gates = ["--out", "tuesday", "--max-nulls", "5%"];
    let output = place.refused(place.build(&[&delta[..], &gates].concat()));
    assert!(
        output.contains("max_nulls needs a profile of every column, but the new version has none: build it from the complete input (--full)"),
        "{output}"
    );
    place.write("canary.tsv", "k1\tone\nk2\t2\nnew\t100\n");
    let gates = ["--out", "tuesday", "--canary", "canary.tsv"];
    place.ok(place.build(&[&delta[..], &gates].concat()));
    place.ok(place.larder(&["compact", "tuesday", "--out", "compacted"]));
    let full = ["tuesday.csv", "--full", "--on", "monday"];
    let gates = ["--out", "full", "--max-nulls", "5%", "--max-shift", "0.5"];
    let against = ["--against", "compacted"];
    place.ok(place.build(&[&full[..], &gates, &against].concat()));
    place.ok(place.build(&["tuesday.csv", "--out", "whole"]));
    let profile = |version: &str| {
        let manifest = fs::read(place.path(version).join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        manifest["built"]["profile"].clone()
    };
    assert!(profile("tuesday").is_null());
    assert_eq!(profile("full"), profile("whole"));
    assert_eq!(profile("compacted"), profile("whole"));
}

#[test]
fn changes_and_a_complete_input_build_the_same_version() {
    let place = Place::new();
    let output = place.ok(place.build(&[
        "changes.csv",
        "--deleted",
        "gone.csv",
        "--on",
        "monday",
        "--out",
        "tuesday",
    ]));
    assert!(output.contains("built 3 changes, "), "{output}");
    assert!(
        output.contains("layer 2 of a version of 100 records"),
        "{output}"
    );
    place.ok(place.build(&[
        "tuesday.csv",
        "--on",
        "monday",
        "--full",
        "--out",
        "by-difference",
    ]));
    place.ok(place.build(&["tuesday.csv", "--out", "whole"]));
    let expected = place.dump("whole");
    assert_eq!(expected.len(), 100);
    assert_eq!(place.dump("tuesday"), expected);
    assert_eq!(place.dump("by-difference"), expected);
    assert_eq!(place.ok(place.larder(&["get", "tuesday", "k1"])), "one\n");
    assert!(
        place
            .refused(place.larder(&["get", "tuesday", "k3"]))
            .contains("has no key")
    );
    assert_eq!(
        segments(&place.path("tuesday")),
        segments(&place.path("by-difference"))
    );

    // A delta on a delta that only removes keys.
    place.ok(place.build(&[
        "--deleted",
        "gone.csv",
        "--on",
        "tuesday",
        "--out",
        "wednesday",
    ]));
    assert_eq!(place.dump("wednesday"), expected);
    let output = place.ok(place.larder(&["compact", "wednesday", "--out", "compacted"]));
    assert!(
        output.contains("compacted 3 layers to 100 records"),
        "{output}"
    );
    assert!(segments(&place.path("compacted")) == segments(&place.path("whole")));
    let again = place.refused(place.larder(&["compact", "compacted", "--out", "again"]));
    assert!(again.contains("nothing to compact"), "{again}");
}

#[test]
fn an_unusable_base_is_rejected_and_leaves_no_files() {
    let place = Place::new();
    let refused = |args: &[&str]| {
        let output = place.refused(place.build(args));
        assert!(!place.path("out").exists(), "{output}");
        output
    };
    let on = |more: &[&str]| {
        let all = [&["changes.csv", "--out", "out", "--on", "monday"], more].concat();
        refused(&all)
    };
    assert!(on(&["--partitions", "4"]).contains("--partitions is determined by the base version"));
    assert!(on(&["--deleted", "nowhere.csv"]).contains("nowhere.csv"));
    let other = ["changes.csv", "--out", "out", "--on", "monday.csv"];
    assert!(refused(&other).contains("is not a version"));
    place.write("both.csv", "key\nk1\n");
    let both = on(&["--deleted", "both.csv"]);
    assert!(both.contains("two rows have the key \"k1\""), "{both}");
    assert!(
        both.contains("changes.csv") && both.contains("both.csv"),
        "{both}"
    );
    let mut command = place.larder(&["build", "changes.csv", "--store", "other", "--key", "key"]);
    command.args(["--on", "monday", "--out", "out"]);
    assert!(
        place
            .refused(command)
            .contains("is a version of store prices")
    );
    fs::rename(place.path("monday"), place.path("moved")).unwrap();
    let without = place.build(&["changes.csv", "--full", "--out", "out"]);
    assert!(place.refused(without).contains("--on"));

    place.ok(place.build(&["changes.csv", "--on", "moved", "--out", "tuesday"]));
    fs::rename(place.path("moved"), place.path("away")).unwrap();
    let gone = place.refused(place.larder(&["get", "tuesday", "k1"]));
    assert!(
        gone.contains("is a delta, and the version below it"),
        "{gone}"
    );
}

/// Otherwise, some values would be the bytes of one column, and others JSON of all columns.
#[test]
fn a_delta_has_the_keys_and_values_of_its_base() {
    let place = Place::new();
    place.write("wide.csv", "key,other,value\nk1,a,one\n");
    let on = |file: &str, more: &[&str]| {
        let words = ["build", file, "--store", "prices", "--on", "monday"];
        let mut command = place.larder(&words);
        command.args(["--out", "out"]).args(more);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", show(&output));
        assert!(!place.path("out").exists());
        String::from_utf8(output.stderr).unwrap()
    };
    let stdout = on("changes.csv", &["--key", "key"]);
    assert!(stdout.contains("has values of column value, but these options produce values of all other columns as JSON"), "{stdout}");
    let stdout = on("wide.csv", &["--key", "key", "--values", "msgpack"]);
    assert!(stdout.contains("as MessagePack"), "{stdout}");
    let stdout = on("wide.csv", &["--key", "key,other", "--value", "value"]);
    assert!(
        stdout.contains("has keys of key, but these options produce keys of key,other"),
        "{stdout}"
    );
    let collected = ["--value", "value", "--on-duplicate", "collect"];
    let stdout = on("wide.csv", &[&["--key", "key"], &collected[..]].concat());
    assert!(stdout.contains("collected as text"), "{stdout}");

    // A build that only removes keys need not name the value column. The next build still finds its name in the
    // manifest.
    let removed = ["--deleted", "gone.csv", "--on", "monday"];
    let mut command = place.larder(&["build", "--store", "prices", "--key", "key"]);
    command.args(removed).args(["--out", "tuesday"]);
    place.ok(command);
    let next = ["changes.csv", "--on", "tuesday", "--out", "wednesday"];
    place.ok(place.build(&next));
}

/// The base may come from another tool that does not record how it was built.
#[test]
fn a_base_without_a_build_description_is_usable() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    let options = larder_batch::BuildOptions::new("prices".parse().unwrap());
    let builder = larder_batch::Builder::new(options, &base).unwrap();
    let mut writer = builder.writer();
    writer.push(0, b"k1", b"1").unwrap();
    writer.close().unwrap();
    builder.finish(&|_| {}).unwrap();
    fs::write(folder.path().join("changes.csv"), "key,value\nk2,2\n").unwrap();
    let mut command = larder();
    command.current_dir(folder.path());
    command.args(["build", "changes.csv", "--store", "prices", "--key", "key"]);
    let output = command.args(["--on", "base", "--out", "out"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", show(&output));
}

#[test]
fn a_day_without_changes_is_an_empty_delta() {
    let place = Place::new();
    place.write("none.csv", "key,value\n");
    let output = place.ok(place.build(&["none.csv", "--on", "monday", "--out", "tuesday"]));
    assert!(output.contains("built 0 changes, "), "{output}");
    assert_eq!(place.dump("tuesday"), place.dump("monday"));
    let full = ["none.csv", "--on", "monday", "--full", "--out", "full"];
    let output = place.refused(place.build(&full));
    assert!(output.contains("the input has no rows"), "{output}");
}

#[test]
fn a_delta_that_removes_everything_needs_allow_empty() {
    let place = Place::new();
    let delta = ["--deleted", "monday.csv", "--on", "monday", "--out", "out"];
    let output = place.build(&delta).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", show(&output));
    let stdout = String::from_utf8_lossy(&output.stderr);
    assert!(stdout.contains("nothing would be left"), "{stdout}");
    assert!(stdout.contains("--allow-empty"), "{stdout}");
    assert!(!place.path("out").exists());
    place.ok(place.build(&[&delta[..], &["--allow-empty"]].concat()));
    assert_eq!(place.dump("out"), [""; 0]);
}
