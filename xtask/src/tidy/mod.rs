//! What no compiler checks. Every finding names a file, a line where there is one, and what to do.
//!
//! * `docs`: what the docs name exists; generated pages are current.
//! * `anchors`: links into pages lead to a heading or an anchor; every word of the glossary can be linked to, and is.
//! * `sources`: no unfinished marks, no tests that never run, no crowded files, nothing of this machine.
//! * `crates`: names and dependency directions, and which crate alone may link which library.
//! * `rooms`: which folders of a large crate may know which.

mod anchors;
mod crates;
mod docs;
mod rooms;
mod sources;

use crate::generate;
use crate::tree::Tree;

/// What a check found wrong, one sentence each.
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
    rooms::check(&tree, &mut findings)?;
    docs::check(&tree, &mut findings)?;
    anchors::check(&tree, &mut findings)?;
    for page in generate::stale()? {
        findings.add(page, 0, "is not what the tables say; run `cargo xtask gen`");
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
