//! Counts sentences that are not plain technical English, and type names that a crate defines too often. Each area's count may only fall:
//! `xtask/prose.txt` records it.
//!
//! | area | what is read |
//! |---|---|
//! | `docs` | Markdown pages outside `bench/runs` |
//! | `comments NAME` | comments of the Rust sources of a crate, of `xtask` or of `fuzz` |
//! | `messages NAME` | string literals of four words or more in `src` of a crate: errors, `--help`, logs, the console's texts |
//! | `console` | HTML and JavaScript pages: comments, texts between tags, and string literals of four words or more |
//! | `commits` | subjects of the commits after the one in `commits.rs`; they also name an area and have at most 72 characters |
//! | `types NAME` | names that three or more types of a crate share |

mod commits;
mod extract;
mod phrases;

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Findings;
use crate::tree::{self, Tree};
use phrases::Finding;

/// The recorded counts, a line for each area: `count area`.
const RECORD: &str = "xtask/prose.txt";

/// Maximum number of definitions of a type name in one crate.
const DEFINITIONS_MAX: usize = 2;

/// The findings of each area, each with the path of its file.
type Areas = BTreeMap<String, Vec<(String, Finding)>>;

pub fn check(tree: &Tree, findings: &mut Findings) -> Result<(), String> {
    let areas = read(tree)?;
    let recorded = recorded()?;
    for (area, found) in &areas {
        let most = recorded.get(area).copied().unwrap_or(0);
        if found.len() > most {
            findings.add(
                RECORD,
                0,
                format_args!(
                    "{area}: {} sentences are not plain English, {most} are recorded; `cargo xtask prose '{area}'` lists them",
                    found.len()
                ),
            );
        }
    }
    Ok(())
}

/// Prints the findings of one area, or the counts of all.
pub fn list(area: Option<&str>) -> Result<(), String> {
    let areas = read(&Tree::read()?)?;
    let Some(area) = area else {
        for (area, found) in &areas {
            println!("{:6} {area}", found.len());
        }
        return Ok(());
    };
    let found = areas.get(area);
    let found = found.ok_or_else(|| format!("{area} has no findings, or is no area"))?;
    for (path, it) in found {
        println!("{path}:{}: {}: {}", it.line, it.rule, it.sentence);
    }
    Ok(())
}

/// Records the counts. Refuses a count that is higher than the recorded one.
pub fn record() -> Result<(), String> {
    let areas = read(&Tree::read()?)?;
    let before = recorded()?;
    let mut text = String::new();
    for (area, found) in areas.iter().filter(|(_, found)| !found.is_empty()) {
        let most = before.get(area).copied().unwrap_or(0);
        if !before.is_empty() && found.len() > most {
            return Err(format!(
                "{area} has {} findings and {most} are recorded; rewrite the new sentences",
                found.len()
            ));
        }
        writeln!(text, "{} {area}", found.len()).expect("a string takes all");
    }
    std::fs::write(tree::root().join(RECORD), text)
        .map_err(|error| format!("cannot write {RECORD}: {error}"))
}

fn recorded() -> Result<BTreeMap<String, usize>, String> {
    let text = match std::fs::read_to_string(tree::root().join(RECORD)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("cannot read {RECORD}: {error}")),
    };
    let entry = |line: &str| {
        let (count, area) = line.split_once(' ')?;
        Some((area.to_owned(), count.parse().ok()?))
    };
    let wrong = |line| format!("{RECORD}: `{line}` is not `count area`");
    let lines = text.lines();
    lines
        .map(|line| entry(line).ok_or_else(|| wrong(line)))
        .collect()
}

fn read(tree: &Tree) -> Result<Areas, String> {
    let mut areas = Areas::new();
    let mut types: BTreeMap<(String, String), Vec<(String, usize)>> = BTreeMap::new();
    for path in &tree.paths {
        let Some(kind) = path.rsplit_once('.').map(|(_, kind)| kind) else {
            continue;
        };
        // The phrases themselves stand in this folder.
        if path.starts_with("bench/runs/") || path.starts_with("xtask/src/tidy/prose/") {
            continue;
        }
        let part = part_of(path);
        let mut add = |area: String, passages: &[extract::Passage]| {
            let mut found = Vec::new();
            passages
                .iter()
                .for_each(|it| phrases::check(it, &mut found));
            let found = found.into_iter().map(|it| (path.clone(), it));
            areas.entry(area).or_default().extend(found);
        };
        match kind {
            "md" => {
                let text = tree::text(path)?.unwrap_or_default();
                add("docs".to_owned(), &extract::markdown(&text));
            }
            "rs" => {
                let text = tree::text(path)?.unwrap_or_default();
                let source = extract::rust(&text);
                add(format!("comments {part}"), &source.comments);
                if path.contains("/src/") {
                    let is_message = |it: &&extract::Passage| it.text.split(' ').count() >= 4;
                    let messages = source.literals.into_iter();
                    let messages: Vec<_> = messages.filter(|it| is_message(&it)).collect();
                    add(format!("messages {part}"), &messages);
                    for (line, name) in type_names(&text) {
                        let places = types.entry((part.to_owned(), name.to_owned()));
                        places.or_default().push((path.clone(), line));
                    }
                }
            }
            "html" | "js" if path.contains("/src/") => {
                let text = tree::text(path)?.unwrap_or_default();
                add("console".to_owned(), &extract::page(&text));
            }
            _ => {}
        }
    }
    let commits = commits::check()
        .into_iter()
        .map(|it| ("git log".to_owned(), it));
    areas.insert("commits".to_owned(), commits.collect());
    for ((part, name), places) in types {
        if places.len() <= DEFINITIONS_MAX {
            continue;
        }
        let (path, line) = places[0].clone();
        let finding = Finding {
            line,
            rule: "is the name of too many types; give each its own",
            sentence: format!("{name} ({} definitions)", places.len()),
        };
        let area = areas.entry(format!("types {part}")).or_default();
        area.push((path, finding));
    }
    Ok(areas)
}

/// The crate of a path, or its first folder.
fn part_of(path: &str) -> &str {
    let inner = path.strip_prefix("crates/").unwrap_or(path);
    inner.split('/').next().unwrap_or(inner)
}

/// Lines that define a type at the top level of a module, and its name.
fn type_names(source: &str) -> impl Iterator<Item = (usize, &str)> {
    source.lines().enumerate().filter_map(|(index, line)| {
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let kinds = ["struct ", "enum ", "union ", "trait "];
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        Some((index + 1, &rest[..end.unwrap_or(rest.len())]))
    })
}
