//! What must pass before a change lands, cheapest first, so that a slip is told within seconds.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Instant;

use crate::{tidy, tree};

pub fn run() -> Result<(), String> {
    let began = Instant::now();
    step("format", "cargo fmt --all --check")?;
    tidy::run()?;
    step(
        "lints",
        "cargo clippy --workspace --all-targets --locked --quiet -- --deny warnings",
    )?;
    if installed("cargo-deny") {
        step(
            "licences and bans",
            "cargo deny --offline check licenses bans sources",
        )?;
    }
    test()?;
    python()?;
    println!("ci: all passed in {} s", began.elapsed().as_secs());
    Ok(())
}

/// Runs all tests, and tells at the end which were skipped.
fn test() -> Result<(), String> {
    let skips = tree::root().join("target/skipped-tests.txt");
    // It is of the last time, if it is there.
    let _ = std::fs::remove_file(&skips);
    let all = "cargo test --workspace --locked --no-fail-fast";
    let tested = step_with("tests", all, &[("LARDER_TEST_SKIPS", skips.as_os_str())]);
    let told = std::fs::read_to_string(&skips).unwrap_or_default();
    told.lines().for_each(|line| println!("ci: {line}"));
    tested
}

/// Runs the tests of the Python package, where what they need is installed.
fn python() -> Result<(), String> {
    let root = tree::root();
    if !root.join(".venv/bin/pytest").is_file() {
        println!("ci: python: skipped, there is no .venv/bin/pytest; scripts/setup test makes it");
        return Ok(());
    }
    step(
        "python: build",
        "cargo build --locked --package larder-python --package larder-cli",
    )?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let built = target.join("debug/liblarder_python.so");
    let native = root.join("python/larder/_native.abi3.so");
    // A library that a process has open is not written to.
    let _ = std::fs::remove_file(&native);
    std::fs::copy(&built, &native)
        .map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    let path = root.join("python");
    let larder = target.join("debug/larder");
    let variables = [
        ("PYTHONPATH", path.as_os_str()),
        ("LARDER", larder.as_os_str()),
    ];
    step_with("python", ".venv/bin/pytest -q python", &variables)
}

/// Runs one command line at the root of the workspace; its output goes where ours goes.
pub fn step(name: &str, line: &str) -> Result<(), String> {
    step_with(name, line, &[])
}

fn step_with(name: &str, line: &str, variables: &[(&str, &OsStr)]) -> Result<(), String> {
    println!("ci: {name}: {line}");
    let began = Instant::now();
    let mut words = line.split(' ');
    let program = words.next().expect("split gives at least one word");
    let status = Command::new(program)
        .args(words)
        .envs(variables.iter().copied())
        .current_dir(tree::root())
        .status()
        .map_err(|error| format!("cannot start `{program}`: {error}"))?;
    if !status.success() {
        return Err(format!("{name}: `{line}` failed ({status})"));
    }
    println!(
        "ci: {name}: passed in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Whether a program of this name is in `PATH`.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
