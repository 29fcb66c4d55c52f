//! Checks that the docs refer to existing things: linked files, paths in backticks, `make` targets and `cargo xtask`
//! tasks.
//!
//! A path in backticks is checked if it begins with a folder of the root or ends with `.rs`. A `.rs` path may omit its
//! start (`segment/writer.rs`). Text in code fences is not checked.

use super::Findings;
use crate::tree::{self, Tree};

pub fn check(tree: &Tree, findings: &mut Findings) -> Result<(), String> {
    let makefile = make_targets(tree)?;
    for path in tree.with_extension("md") {
        let Some(text) = tree::text(path)? else {
            continue;
        };
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                check_links(tree, path, index + 1, line, findings);
                check_named(tree, path, index + 1, line, &makefile, findings);
            }
        }
    }
    for path in tree.with_extension("rs") {
        let Some(text) = tree::text(path)? else {
            continue;
        };
        for (index, line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.trim_start().starts_with("//!"))
        {
            check_named(tree, path, index + 1, line, &makefile, findings);
        }
    }
    Ok(())
}

fn make_targets(tree: &Tree) -> Result<Vec<String>, String> {
    let mut targets = Vec::new();
    for path in tree
        .paths
        .iter()
        .filter(|path| *path == "Makefile" || path.ends_with(".mk"))
    {
        for line in tree::text(path)?.unwrap_or_default().lines() {
            if let Some((target, _)) = line.split_once(':').filter(|(target, _)| is_word(target)) {
                targets.push(target.to_owned());
            }
        }
    }
    Ok(targets)
}

/// Checks links `[text](target)`. A target that is not a URL must be a file relative to the page, or to the root.
fn check_links(tree: &Tree, page: &str, line_number: usize, line: &str, findings: &mut Findings) {
    for (at, _) in line.match_indices("](") {
        let rest = &line[at + 2..];
        let Some(end) = rest.find([')', ' ']) else {
            continue;
        };
        let target = rest[..end].split('#').next().unwrap_or_default();
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        if !resolve(folder, target).is_some_and(|path| path.is_empty() || tree.has(&path)) {
            findings.add(
                page,
                line_number,
                format_args!("links to {target}, which does not exist"),
            );
        }
    }
}

/// Resolves `target` relative to `folder`. Returns `None` if it is outside of the project.
pub fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn check_named(
    tree: &Tree,
    page: &str,
    line_number: usize,
    line: &str,
    make: &[String],
    findings: &mut Findings,
) {
    for code in line.split('`').skip(1).step_by(2) {
        if let Some(target) = code
            .strip_prefix("make ")
            .and_then(|rest| rest.split(' ').next())
        {
            if is_word(target) && !make.iter().any(|known| known == target) {
                findings.add(
                    page,
                    line_number,
                    format_args!("names `make {target}`, which the Makefile does not have"),
                );
            }
        } else if is_path(code) && !path_exists(tree, code) {
            findings.add(
                page,
                line_number,
                format_args!("names `{code}`, which does not exist"),
            );
        }
    }
}

fn path_exists(tree: &Tree, code: &str) -> bool {
    let code = code.strip_prefix("./").unwrap_or(code);
    tree.has(code) || (code.ends_with(".rs") && tree.has_ending(code))
}

fn is_path(code: &str) -> bool {
    const FOLDERS: [&str; 11] = [
        "crates/",
        "docs/",
        "xtask/",
        "fuzz/",
        "scripts/",
        "testdata/",
        "console/",
        "bench/",
        "examples/",
        "python/",
        ".ci/",
    ];
    // Created by running, and ignored by git.
    const MADE: [&str; 3] = ["fuzz/corpus", "fuzz/artifacts", "bench/peers/target"];
    let plain = code
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    let ours = FOLDERS.iter().any(|folder| code.starts_with(folder))
        || (code.ends_with(".rs") && code.len() > 3);
    plain && ours && !MADE.iter().any(|made| code.starts_with(made))
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(page: &str, line: &str) -> Vec<String> {
        let paths = [
            "README.md",
            "docs/guide/start.md",
            "crates/batch/src/segment/writer.rs",
        ];
        let tree = Tree {
            paths: paths.map(str::to_owned).to_vec(),
        };
        let make = ["demo".to_owned()];
        let mut findings = Findings::default();
        check_links(&tree, page, 1, line, &mut findings);
        check_named(&tree, page, 1, line, &make, &mut findings);
        findings.0
    }

    #[test]
    fn existing_files_may_be_named() {
        let line = "[start](guide/start.md#a), [up](../README.md), [out](https://example.com), `segment/writer.rs`, \
                    `crates/batch`, `docs/guide/`, `make demo`, `a/b`, `.rs`";
        assert_eq!(findings_of("docs/index.md", line), [""; 0]);
    }

    #[test]
    fn missing_files_are_reported() {
        for line in [
            "[x](guide/none.md)",
            "[x](../../out.md)",
            "`segment/reader.rs`",
            "`crates/none`",
            "`make nothing`",
        ] {
            assert_eq!(findings_of("docs/index.md", line).len(), 1, "{line}");
        }
    }
}
