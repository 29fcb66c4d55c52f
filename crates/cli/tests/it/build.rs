//! `larder build`: what rows become, and what is refused.

use std::path::Path;
use std::process::Command;

use crate::support::{run_failing, run_ok, show, text};

/// The commands of the guide's section on stores that begins with this heading, and what it says they print.
fn example_of_the_guide(heading: &str) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/stores.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let section = &guide[guide.find(heading).expect("the section is there")..];
    section.split("```").nth(1).unwrap().trim().to_owned()
}

#[test]
fn the_guides_example_of_collected_values_is_what_happens() {
    let example = example_of_the_guide("### Several values for one key");
    let folder = tempfile::tempdir().unwrap();
    let mut lines = example.lines().peekable();
    let mut checked = 0;
    while let Some(line) = lines.next() {
        let command = line.strip_prefix("$ ").expect("a command");
        let mut shown = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
            shown.push(line);
        }
        if let Some(file) = command.strip_prefix("cat ") {
            std::fs::write(folder.path().join(file), shown.join("\n") + "\n").unwrap();
            continue;
        }
        let larder = env!("CARGO_BIN_EXE_larder");
        let script = command.replacen("larder ", &format!("{larder} "), 1);
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", show(&output));
        if !shown.is_empty() {
            assert_eq!(text(&output.stdout).trim_end(), shown.join("\n"));
            checked += 1;
        }
    }
    assert_eq!(checked, 3);
}

/// A folder, and `larder build` of a file in it with arguments of a test's own.
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

    /// The folder of what was built.
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
fn collected_bytes_come_out_as_they_went_in() {
    // Latin-1, which is not UTF-8: it was once replaced by U+FFFD.
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
fn a_way_to_collect_that_does_not_fit_is_refused() {
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
