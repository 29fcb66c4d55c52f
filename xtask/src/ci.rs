//! The checks that a change must pass, cheapest first, so that small mistakes are reported within seconds.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
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
    // One build for all tests and for the Python package, so that no dependency is compiled twice with different features.
    step(
        "build",
        "cargo build --workspace --lib --bins --tests --bench counts --locked --quiet",
    )?;
    test()?;
    python()?;
    println!("ci: all passed in {} s", began.elapsed().as_secs());
    Ok(())
}

/// Runs all tests. At the end, lists the skipped ones, and repeats the output of the failed ones, which is far above by
/// then.
fn test() -> Result<(), String> {
    let skips = tree::root().join("target/skipped-tests.txt");
    // The file of the previous run, if there is one.
    let _ = std::fs::remove_file(&skips);
    let mut all = command("cargo test --workspace --lib --bins --tests --locked --no-fail-fast");
    all.env("LARDER_TEST_SKIPS", &skips).stdout(Stdio::piped());
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        all.env("RUST_TEST_THREADS", test_threads().to_string());
    }
    let mut failures = Failures::default();
    let tested = timed("tests", &mut all, |output| {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("cannot read the output: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            failures.note(&line);
        }
        Ok(())
    });
    let skipped = std::fs::read_to_string(&skips).unwrap_or_default();
    skipped.lines().for_each(|line| println!("ci: {line}"));
    failures.lines.iter().for_each(|line| println!("{line}"));
    tested
}

/// Returns the number of tests to run concurrently: two per processor, because many tests wait for leases, timeouts and
/// other processes.
fn test_threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// The parts of the output of `cargo test` between `failures:` and `test result:`.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    is_inside: bool,
}

impl Failures {
    fn note(&mut self, line: &str) {
        self.is_inside |= line == "failures:";
        self.is_inside &= !line.starts_with("test result:");
        if self.is_inside {
            self.lines.push(line.to_owned());
        }
    }
}

/// Runs the tests of the Python package, if their prerequisites are installed.
fn python() -> Result<(), String> {
    let root = tree::root();
    if !root.join(".venv/bin/pytest").is_file() {
        println!("ci: python: skipped, there is no .venv/bin/pytest; scripts/setup test makes it");
        return Ok(());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let built = target.join("debug/liblarder_python.so");
    let native = root.join("python/larder/_native.abi3.so");
    // Replace the file instead of overwriting it, because a process may have loaded the library.
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

/// Runs a command line at the root of the workspace, with inherited output.
pub fn step(name: &str, line: &str) -> Result<(), String> {
    step_with(name, line, &[])
}

fn step_with(name: &str, line: &str, variables: &[(&str, &OsStr)]) -> Result<(), String> {
    let mut command = command(line);
    command.envs(variables.iter().copied());
    timed(name, &mut command, |_| Ok(()))
}

/// Returns a command at the root of the workspace, from a command line without quotes.
pub fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("split gives at least one word"));
    command.args(words).current_dir(tree::root());
    command
}

/// Runs a command and prints its duration. `read` reads its standard output, if that is piped.
pub fn timed(
    name: &str,
    command: &mut Command,
    read: impl FnOnce(ChildStdout) -> Result<(), String>,
) -> Result<(), String> {
    let line = line_of(command);
    println!("ci: {name}: {line}");
    let began = Instant::now();
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot start `{line}`: {error}"))?;
    if let Some(output) = child.stdout.take() {
        read(output)?;
    }
    let status = child
        .wait()
        .map_err(|error| format!("cannot wait for `{line}`: {error}"))?;
    if !status.success() {
        return Err(format!("{name}: `{line}` failed ({status})"));
    }
    println!(
        "ci: {name}: passed in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// Returns whether `PATH` contains a program with this name.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
