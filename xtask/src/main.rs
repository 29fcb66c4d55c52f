//! The project's tasks, as `cargo xtask <task>`: checks of a change, and generated files.
//!
//! `ci` lists the checks in order, `tidy` contains those that no compiler does, `counts` compares instruction counts,
//! `generate` writes the reference pages, and `fuzz` runs the decoders under libFuzzer.

mod affected;
mod ci;
mod counts;
mod fuzz;
mod generate;
mod tidy;
mod tree;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <task>

  ci            format, lints, tidy and tests: all checks that a change must pass
  test [BASE]   tidy, lints and tests of the crates that the changes since BASE affect (default: since origin/main)
  tidy          check rules that no compiler checks: valid links in documents, dependencies of crates
  prose [AREA]  count the sentences that are not plain English per area, or list those of AREA; --record stores the counts
  counts        compare the instruction counts of hot paths with bench/counts.toml; --record WHY accepts them
  gen           write docs/reference from the tables in larder-protocol
  fuzz [SECS]   fuzz every decoder for SECS seconds each (60); needs nightly Rust and cargo-fuzz
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["ci"] => ci::run(),
        ["test"] => affected::run(None),
        ["test", base] => affected::run(Some(base)),
        ["tidy"] => tidy::run(),
        ["prose"] => tidy::prose::list(None),
        ["prose", "--record"] => tidy::prose::record(),
        ["prose", area] => tidy::prose::list(Some(area)),
        ["counts"] => counts::check(),
        ["counts", "--record", reason] => counts::record(reason),
        ["gen"] => generate::write(),
        ["fuzz"] => fuzz::run("60"),
        ["fuzz", seconds] => fuzz::run(seconds),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("no such task: {}\n\n{HELP}", arguments.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
