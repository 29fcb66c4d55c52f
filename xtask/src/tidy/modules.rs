//! Checks the dependencies between the top-level modules of large crates. Each may use some of those below it, and no
//! other.
//!
//! A path counts as a use: `crate::stores::load` in a file of the module `run` is a use of the module `stores`. Files
//! outside these folders are not restricted.

use super::Findings;
use crate::tree::{self, Tree};

/// A module, and those that it may use.
type ModuleRule = (&'static str, &'static [&'static str]);

/// The modules of each such crate, lowest first. A row may name only modules above it in its table.
const MODULES: [(&str, &[ModuleRule]); 4] = [
    (
        "bg",
        &[
            ("model", &[]),
            ("stores", &["model"]),
            ("verdict", &["model", "stores"]),
            ("run", &["model", "stores", "verdict"]),
            ("coordinate", &["stores", "verdict", "run"]),
            ("rate", &["verdict"]),
            (
                "ui",
                &["model", "stores", "verdict", "run", "coordinate", "rate"],
            ),
        ],
    ),
    (
        "join",
        &[
            ("base", &[]),
            ("operators", &["base"]),
            ("language", &["base", "operators"]),
            ("join", &["base", "operators", "language"]),
            ("tables", &["base", "operators", "language", "join"]),
            (
                "propagate",
                &["base", "operators", "language", "join", "tables"],
            ),
            ("memory", &["base", "join", "tables"]),
            (
                "evaluate",
                &[
                    "base",
                    "operators",
                    "language",
                    "join",
                    "tables",
                    "propagate",
                ],
            ),
            ("shard", &["base", "join", "tables", "memory", "evaluate"]),
        ],
    ),
    (
        "space",
        &[
            ("mapping", &[]),
            ("plan", &["mapping"]),
            ("base", &[]),
            ("expression", &["base"]),
            ("object", &["base"]),
            ("schema", &["base", "expression", "object", "mapping"]),
            ("value", &["base", "object", "schema"]),
            ("query", &["base", "object", "schema", "value"]),
            (
                "search",
                &["base", "object", "schema", "value", "query", "mapping"],
            ),
            (
                "aggregate",
                &[
                    "base",
                    "expression",
                    "object",
                    "schema",
                    "value",
                    "query",
                    "search",
                ],
            ),
            (
                "index",
                &[
                    "base",
                    "expression",
                    "object",
                    "schema",
                    "value",
                    "query",
                    "search",
                    "aggregate",
                ],
            ),
            (
                "copies",
                &[
                    "plan", "base", "object", "schema", "value", "query", "search", "mapping",
                    "index",
                ],
            ),
        ],
    ),
    (
        "server",
        &[
            ("clients", &[]),
            ("cluster", &[]),
            ("stores", &["cluster"]),
            ("fetch", &["cluster", "stores"]),
            ("spaces", &[]),
            ("tables", &["clients", "cluster", "spaces"]),
            ("resp", &["clients", "cluster", "spaces", "tables"]),
            ("http", &["cluster", "stores", "fetch", "tables", "resp"]),
        ],
    ),
];

pub fn check(tree: &Tree, findings: &mut Findings) -> Result<(), String> {
    for (krate, modules) in MODULES {
        let source = format!("crates/{krate}/src/");
        for path in tree.with_extension("rs") {
            let Some((folder, _)) = path
                .strip_prefix(&source)
                .and_then(|rest| rest.split_once('/'))
            else {
                continue;
            };
            let Some(module) = modules.iter().find(|(name, _)| *name == folder) else {
                let what = format_args!(
                    "the module {folder} has no row in the table MODULES of xtask/src/tidy/modules.rs; add it there"
                );
                findings.add(path, 0, what);
                continue;
            };
            let text = tree::text(path)?.unwrap_or_default();
            for (index, line) in text.lines().enumerate() {
                check_line(path, index + 1, line, modules, module, findings);
            }
        }
    }
    Ok(())
}

fn check_line(
    path: &str,
    number: usize,
    line: &str,
    modules: &[ModuleRule],
    (module, may): &ModuleRule,
    findings: &mut Findings,
) {
    for (at, root) in line.match_indices("crate::") {
        let rest = &line[at + root.len()..];
        let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let used = &rest[..end.unwrap_or(rest.len())];
        let is_module = modules.iter().any(|(name, _)| *name == used);
        if is_module && used != *module && !may.contains(&used) {
            let what = format_args!("the module {module} must not use {used}; it may use {may:?}");
            findings.add(path, number, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(line: &str) -> usize {
        let modules: [ModuleRule; 2] = [("low", &[]), ("high", &["low"])];
        let mut findings = Findings::default();
        check_line("a.rs", 1, line, &modules, &modules[0], &mut findings);
        findings.0.len()
    }

    #[test]
    fn a_module_uses_only_modules_below_it() {
        assert_eq!(findings_of("use crate::high::Thing;"), 1);
        assert_eq!(
            findings_of("let it = crate::high::make(crate::high::of());"),
            2
        );
        assert_eq!(findings_of("use crate::low::Thing;"), 0);
        assert_eq!(findings_of("use crate::higher::Thing;"), 0);
    }

    #[test]
    fn rows_name_modules_above_them() {
        for (krate, modules) in MODULES {
            for (index, (module, may)) in modules.iter().enumerate() {
                let above = |name: &&str| modules[..index].iter().any(|(other, _)| other == name);
                assert!(may.iter().all(above), "{krate}: {module}");
            }
        }
    }
}
