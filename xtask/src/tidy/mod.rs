//! Checks that no compiler does. Every finding contains a file, a line if there is one, and a remedy.
//!
//! * `docs`: the docs refer to existing things, and generated pages are current.
//! * `anchors`: links lead to existing headings or anchors; every term of the glossary has an anchor that is used.
//! * `sources`: no marks of unfinished work, no tests that never run, no oversized files, nothing specific to one
//!   machine.
//! * `crates`: names and dependency directions of crates, and the libraries that only certain crates may use.
//! * `prose`: the number of sentences that are not plain English. In each area it may only decrease.
//! * `modules`: the dependencies between the modules of a large crate.

mod anchors;
mod crates;
mod docs;
mod modules;
pub mod prose;
mod sources;

use crate::generate;
use crate::tree::Tree;

/// The findings of the checks, one sentence each.
#[derive(Default)]
pub struct Findings(Vec<String>);

impl Findings {
    fn add(&mut self, path: &str, line: usize, what: impl std::fmt::Display) {
        match line {
            0 => self.0.push(format!("{path}: {what}")),
            _ => self.0.push(format!("{path}:{line}: {what}")),
        }
    }
}

pub fn run() -> Result<(), String> {
    let tree = Tree::read()?;
    let mut findings = Findings::default();
    sources::check(&tree, &mut findings)?;
    crates::check(&tree, &mut findings)?;
    modules::check(&tree, &mut findings)?;
    docs::check(&tree, &mut findings)?;
    anchors::check(&tree, &mut findings)?;
    prose::check(&tree, &mut findings)?;
    for page in generate::stale()? {
        findings.add(page, 0, "differs from the tables; run `cargo xtask gen`");
    }
    for finding in &findings.0 {
        eprintln!("tidy: {finding}");
    }
    match findings.0.len() {
        0 => {
            println!("tidy: {} files in order", tree.paths.len());
            Ok(())
        }
        count => Err(format!("tidy found {count} things to mend")),
    }
}
