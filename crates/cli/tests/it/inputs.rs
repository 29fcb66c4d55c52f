//! Inputs that may never end: inputs that are not regular files are rejected by name, and a signal interrupts a read
//! of standard input.

use std::io::Write;
use std::process::Stdio;

use crate::pipe::make_pipe;
use crate::support::{larder, run_failing};

#[test]
fn an_input_that_is_not_a_regular_file_is_rejected_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.csv");
    make_pipe(&pipe);
    for (input, what) in [
        (pipe.to_str().unwrap(), "a pipe"),
        ("/dev/zero", "a device"),
    ] {
        let out = folder.path().join("out");
        let output = run_failing(
            3,
            [
                "build",
                input,
                "--store",
                "s",
                "--key",
                "key",
                "--out",
                out.to_str().unwrap(),
            ],
        );
        assert!(output.contains(what), "{output}");
        assert!(!out.exists());
    }
}

/// The writer of the pipe sends some rows and then stalls.
#[test]
fn a_build_that_waits_for_its_input_ends_on_the_first_signal() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut child = larder()
        .args([
            "build", "-", "--format", "csv", "--store", "s", "--key", "key", "--out",
        ])
        .arg(&out)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than the pipe's buffer holds, so that the write returns only after larder has read some of it.
    let rows: String = (0..200_000).map(|i| format!("k{i},v\n")).collect();
    stdin
        .write_all(format!("key,value\n{rows}").as_bytes())
        .unwrap();
    // SAFETY: sends a signal to this test's own child.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!out.exists());
    drop(stdin);
}
