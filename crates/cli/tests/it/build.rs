//! `larder build`: the records built from rows, and the errors of invalid input.

use std::path::Path;

use crate::support::{run_failing, run_ok, show};

/// A folder with an input file, and `larder build` of that file with a test's arguments.
struct Build {
    folder: tempfile::TempDir,
    input: String,
    built: usize,
}

impl Build {
    fn of(name: &str, bytes: &[u8]) -> Build {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join(name);
        std::fs::write(&input, bytes).unwrap();
        Build {
            input: input.to_str().unwrap().to_owned(),
            folder,
            built: 0,
        }
    }

    fn command(&mut self, arguments: &[&str]) -> (Vec<String>, String) {
        self.built += 1;
        let out = self.folder.path().join(format!("built-{}", self.built));
        let out = out.to_str().unwrap().to_owned();
        let common = [
            "build",
            &self.input,
            "--store",
            "s",
            "--key",
            "k",
            "--out",
            &out,
        ];
        let all = common.iter().chain(arguments);
        (all.map(|word| (*word).to_owned()).collect(), out)
    }

    /// Builds the file and returns the folder of the version.
    #[track_caller]
    fn ok(&mut self, arguments: &[&str]) -> String {
        let (command, out) = self.command(arguments);
        run_ok(command);
        out
    }

    #[track_caller]
    fn refused(&mut self, code: i32, arguments: &[&str]) -> String {
        let (command, out) = self.command(arguments);
        let error = run_failing(code, command);
        assert!(!Path::new(&out).exists(), "nothing is left behind");
        error
    }
}

fn get(out: &str, key: &str) -> Vec<u8> {
    let mut value = crate::support::run(["get", out, key]).stdout;
    assert_eq!(value.pop(), Some(b'\n'));
    value
}

#[test]
fn collected_bytes_are_unchanged() {
    // The file is Latin-1, which is not valid UTF-8. Its bytes must not be replaced by U+FFFD.
    let mut build = Build::of("in.csv", b"k,v\na,caf\xe9\na,01234\nb,\x01\n");
    let collect = ["--value", "v", "--on-duplicate", "collect"];
    let with = |more: &[&'static str]| [&collect[..], more].concat();
    let error = build.refused(1, &with(&[]));
    assert!(
        error.contains("is not UTF-8 text; collect as bytes"),
        "{error}"
    );
    let error = build.refused(1, &with(&["--collect-as", "json"]));
    assert!(error.contains("is not JSON"), "{error}");
    let out = build.ok(&with(&["--collect-as", "bytes"]));
    assert_eq!(get(&out, "a"), b"\x92\xc4\x04caf\xe9\xc4\x0501234");
    assert_eq!(get(&out, "b"), b"\x91\xc4\x01\x01");
}

#[test]
fn maps_of_message_pack_are_collected_as_message_pack() {
    let mut build = Build::of(
        "in.jsonl",
        b"{\"k\":\"a\",\"n\":1}\n{\"k\":\"a\",\"n\":-1}\n",
    );
    let msgpack = ["--values", "msgpack", "--on-duplicate", "collect"];
    let out = build.ok(&msgpack);
    assert_eq!(get(&out, "a"), b"\x92\x81\xa1n\x01\x81\xa1n\xff");
}

#[test]
fn an_incompatible_collect_format_is_rejected() {
    let mut build = Build::of("in.csv", b"k,v\na,1\n");
    let error = build.refused(2, &["--collect-as", "text"]);
    assert!(error.contains("--on-duplicate collect"), "{error}");
    let collect = ["--on-duplicate", "collect", "--collect-as"];
    let error = build.refused(2, &[&collect[..], &["bytes"]].concat());
    assert!(error.contains("--value COLUMN"), "{error}");
    let error = build.refused(2, &[&collect[..], &["msgpack", "--value", "v"]].concat());
    assert!(error.contains("--collect-as bytes"), "{error}");
    let error = build.refused(2, &[&collect[..], &["xml"]].concat());
    assert!(
        error.contains("use json, text, msgpack or bytes"),
        "{error}"
    );
}

#[test]
fn a_file_without_rows_needs_allow_empty() {
    for (name, bytes) in [
        ("in.csv", &b"k,v\n"[..]),
        ("in.csv", b""),
        ("in.jsonl", b"\n"),
    ] {
        let mut build = Build::of(name, bytes);
        let error = build.refused(4, &[]);
        assert!(error.contains("the input has no rows"), "{error}");
        assert!(error.contains("--allow-empty"), "{error}");
        let out = build.ok(&["--allow-empty"]);
        assert_eq!(run_ok(["dump", &out]), "");
    }
    let mut build = Build::of("in.csv", b"key,v\n");
    let error = build.refused(2, &["--allow-empty"]);
    assert!(error.contains("there is no column \"k\""), "{error}");
}

#[test]
fn skip_nulls_skips_and_counts_rows_without_a_key() {
    let rows = b"{\"k\":\"a\",\"v\":1}\n{\"v\":2}\n{\"k\":null,\"v\":3}\n{\"k\":\"b\"}\n";
    let mut build = Build::of("in.jsonl", rows);
    let error = build.refused(2, &[]);
    assert!(error.contains("\"k\""), "{error}");
    let (command, _) = build.command(&["--skip-nulls", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&run_ok(command)).unwrap();
    assert_eq!(
        (&report["record_count"], &report["skipped_rows"]),
        (&2.into(), &2.into())
    );
    let (command, out) = build.command(&["--skip-nulls", "--value", "v"]);
    let output = run_ok(command);
    assert!(
        output.contains("3 rows with a null key or value were left out"),
        "{output}"
    );
    assert_eq!(get(&out, "a"), b"1");
}

#[test]
fn an_empty_key_is_not_null() {
    let mut build = Build::of("in.csv", b"k,v\na,1\n,2\n");
    let error = build.refused(1, &["--skip-nulls"]);
    assert!(error.contains("the key (k) is empty"), "{error}");
}

#[test]
fn a_key_column_that_no_row_has_is_an_error() {
    let mut build = Build::of("in.jsonl", b"{\"key\":\"a\"}\n{\"key\":\"b\"}\n");
    for more in [&["--skip-nulls"][..], &["--skip-nulls", "--allow-empty"]] {
        let error = build.refused(2, more);
        assert!(
            error.contains("none of the 2 rows has the fields"),
            "{error}"
        );
    }
    let mut build = Build::of("in.jsonl", b"{\"k\":null}\n");
    let error = build.refused(4, &["--skip-nulls"]);
    assert!(error.contains("left out all 1 rows"), "{error}");
}

/// Returns the manifest of a version.
fn manifest(out: &str) -> serde_json::Value {
    let bytes = std::fs::read(Path::new(out).join("manifest.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn a_manifest_records_the_inputs_and_options_of_the_build() {
    let mut build = Build::of("in.csv", b"k,v\na,1\n");
    let out = build.ok(&[
        "--value",
        "v",
        "--on-duplicate",
        "last",
        "--compress",
        "zstd",
    ]);
    let built = &manifest(&out)["built"];
    assert_eq!(built["inputs"], serde_json::json!([build.input]));
    assert_eq!(built["key"], serde_json::json!(["k"]));
    assert_eq!(
        (&built["value"], &built["value_column"]),
        (&"column".into(), &"v".into())
    );
    assert_eq!(
        built["options"],
        serde_json::json!({ "compress": "zstd", "on-duplicate": "last" })
    );
    assert!(built["by"].as_str().unwrap().starts_with("larder "));
    assert!(built["at"].as_u64().unwrap() > 1_700_000_000);
    let out = build.ok(&[
        "--on-duplicate",
        "collect",
        "--no-filter",
        "--memory",
        "64MiB",
    ]);
    let built = &manifest(&out)["built"];
    assert_eq!(
        (&built["value"], &built["collect_as"]),
        (&"json".into(), &"json".into())
    );
    assert_eq!(built["options"]["on-duplicate"], "collect");
    assert!(built["options"]["no-filter"].is_string(), "{built}");
    assert!(
        built["options"]["memory"].is_null(),
        "it does not bear on the version"
    );
}

#[test]
fn a_build_at_a_fixed_time_is_reproducible() {
    let mut build = Build::of("in.csv", b"k,v\na,1\nb,2\n");
    let mut built = |threads: &str| {
        let (command, out) = build.command(&["--threads", threads]);
        let output = crate::support::larder()
            .args(command)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", show(&output));
        std::fs::read(Path::new(&out).join("manifest.json")).unwrap()
    };
    assert_eq!(built("1"), built("2"));
}

#[test]
fn a_built_version_is_rejected_as_an_input() {
    let mut build = Build::of("in.csv", b"k,v\na,1\n");
    let out = build.ok(&[]);
    let error = build.refused(2, &[&out]);
    assert!(error.contains("is a built version"), "{error}");
}

#[test]
fn an_error_for_a_missing_key_option_lists_the_columns() {
    for (name, bytes) in [
        ("in.csv", &b"member,people\na,1\n"[..]),
        ("in.jsonl", b"{\"member\":1,\"people\":2}\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join(name);
        std::fs::write(&input, bytes).unwrap();
        let out = folder.path().join("built");
        let build = ["build", input.to_str().unwrap(), "--store", "s", "--out"];
        let error = run_failing(2, build.iter().chain(&[out.to_str().unwrap()]));
        assert!(
            error.contains("--key is missing") && error.contains("of member, people"),
            "{error}"
        );
    }
}

#[test]
fn a_key_signs_a_version_and_is_never_overwritten() {
    let build = Build::of("recs.csv", b"member,list\nann,1\nbob,2\n");
    let key = build.folder.path().join("release.key");
    let key = key.to_str().unwrap();
    let public = run_ok(["keygen", key]);
    assert!(public.starts_with("ed25519:"), "{public}");
    assert_eq!(run_ok(["keygen", key, "--public"]), public);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(run_failing(1, ["keygen", key]).contains("exists"));

    let out = build.folder.path().join("signed");
    let options = [
        "--store",
        "recs",
        "--key",
        "member",
        "--out",
        out.to_str().unwrap(),
        "--sign",
        key,
    ];
    run_ok(["build", &build.input].iter().chain(&options));
    let manifest = std::fs::read_to_string(out.join("manifest.json")).unwrap();
    assert!(
        manifest.contains(public.trim()) && !manifest.contains("release.key"),
        "{manifest}"
    );

    // If the key file is invalid, the error does not contain any of its text, and nothing is built.
    let out = build.folder.path().join("unsigned");
    let options = [
        "--store",
        "recs",
        "--key",
        "member",
        "--out",
        out.to_str().unwrap(),
        "--sign",
        &build.input,
    ];
    let output = run_failing(2, ["build", &build.input].iter().chain(&options));
    assert!(
        output.contains("contains no key") && !output.contains("bob"),
        "{output}"
    );
    assert!(!out.exists());
}
