//! Tests that the document on the trace format is sufficient: an independent reader, written only from that document,
//! finds the same results as bg.

use std::path::Path;
use std::process::Command;

use larder_testing::report_missing;
use serde_json::Value;

fn json(command: &mut Command) -> Value {
    let output = command.output().expect("it runs");
    let error_output = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error_output}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_reader_written_from_the_format_page_reads_every_record() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        return report_missing("Python");
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/trace.py");
    let folder = tempfile::tempdir().expect("a folder");
    for (shape, mix) in [
        ("lattice", "symmetric-high-write"),
        ("zipf", "comments"),
        ("zipf", "feeds"),
    ] {
        let trace = folder.path().join(format!("{shape}-{mix}"));
        let mut run = Command::new(env!("CARGO_BIN_EXE_bg"));
        run.args([
            "run",
            "--store",
            "memory",
            "--duration",
            "50ms",
            "--json",
            "--quiet",
        ]);
        run.args(["--friendships", shape, "--mix", mix, "--threads", "3"]);
        run.args(["--members", "500", "--friends", "8", "--invitations", "2"]);
        run.args(["--resources", "6", "--comments", "2", "--between", "1ms"]);
        json(run.arg("--trace").arg(&trace));
        let mut bg = Command::new(env!("CARGO_BIN_EXE_bg"));
        let judged = json(bg.args(["validate", "--json"]).arg(&trace));
        let read = json(Command::new("python3").arg(&program).arg(&trace));
        assert_eq!(read["reads"], judged["total"]["reads"]);
        assert_eq!(read["writes"], judged["writes"]);
        for (number, name) in [
            ("1", "friends"),
            ("2", "invitations"),
            ("3", "comments"),
            ("4", "wall"),
            ("5", "posts"),
        ] {
            let reads = |of: &Value| of.as_u64().unwrap_or(0);
            let theirs = reads(&read["reads_by_kind"][number]);
            assert_eq!(theirs, reads(&judged["kinds"][name]["reads"]), "{name}");
        }
        let profiles = &judged["actions"]["view-profile"]["reads"];
        assert_eq!(read["reads_by_action"]["0"].as_u64(), profiles.as_u64());
        assert!(read["untouched"].as_u64().expect("a count") > 0, "{read}");
        assert_eq!(read["not_as_before"], 0, "{shape} {mix}: {read}");
        // A flipped bit in a record is detected.
        let file = trace.join("worker-000.trace");
        let mut bytes = std::fs::read(&file).expect("read");
        bytes[64 + 9] ^= 1;
        std::fs::write(&file, &bytes).expect("written");
        let output = Command::new("python3").arg(&program).arg(&trace).output();
        assert!(!output.expect("it runs").status.success());
    }
}
