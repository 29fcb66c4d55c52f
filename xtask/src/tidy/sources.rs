//! Checks that sources contain no unfinished work, no tests that never run, and nothing specific to one machine.

use super::Findings;
use crate::tree::{self, Tree};

const LINES_MAX: usize = 800;

/// Marks of unfinished work. Each is written in two halves, so that this file passes its own check.
const UNFINISHED: [(&str, &str); 5] = [
    ("todo", "!("),
    ("unimplemented", "!("),
    ("FIX", "ME"),
    ("XX", "X:"),
    ("#[ig", "nore"),
];

pub fn check(tree: &Tree, findings: &mut Findings) -> Result<(), String> {
    let outside = paths_outside();
    for path in &tree.paths {
        if path.ends_with(".lock") || path == "LICENSE" {
            continue;
        }
        let Some(text) = tree::text(path)? else {
            continue;
        };
        let is_rust = path.ends_with(".rs");
        if is_rust && text.lines().count() > LINES_MAX {
            let lines = text.lines().count();
            findings.add(
                path,
                0,
                format_args!("has {lines} lines; split it by idea, {LINES_MAX} is the most"),
            );
        }
        for (index, line) in text.lines().enumerate() {
            if is_rust {
                for (head, tail) in UNFINISHED {
                    if line.contains(&format!("{head}{tail}")) {
                        findings.add(
                            path,
                            index + 1,
                            format_args!("holds `{head}{tail}`; finish it, or take it out"),
                        );
                    }
                }
            }
            for place in &outside {
                if line.contains(place) {
                    findings.add(
                        path,
                        index + 1,
                        format_args!("names {place}, which only one machine has"),
                    );
                }
            }
        }
    }
    Ok(())
}

/// Returns prefixes of absolute paths that are specific to one machine.
fn paths_outside() -> Vec<String> {
    let mut places = vec![format!("/{}/", "root"), format!("/{}/", "home")];
    if let Some(above) = tree::root()
        .parent()
        .filter(|above| above.components().count() > 1)
        // Examples may name the folder for temporary files, which every machine has.
        .filter(|above| *above != std::env::temp_dir())
    {
        places.push(format!("{}/", above.display()));
    }
    places
}
