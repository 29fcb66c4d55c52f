//! Checks links to a part of a page: `page.md#part`, or `#part` on the same page.
//!
//! A part is a heading, with the name that GitHub derives from it, or an anchor `<a id="part">`. The terms of the
//! glossary have anchors, because table rows have none by default. Every row must have one, and some page must link to
//! it.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::docs::resolve;
use crate::tree::{self, Tree};

const GLOSSARY: &str = "docs/glossary.md";

/// The parts of each page.
type Parts = BTreeMap<String, BTreeSet<String>>;

pub fn check(tree: &Tree, findings: &mut Findings) -> Result<(), String> {
    let mut pages = Vec::new();
    for path in tree.with_extension("md") {
        if let Some(text) = tree::text(path)? {
            pages.push((path.to_owned(), text));
        }
    }
    check_pages(&pages, findings);
    Ok(())
}

fn check_pages(pages: &[(String, String)], findings: &mut Findings) {
    let parts: Parts = pages
        .iter()
        .map(|(path, text)| (path.clone(), parts_of(text)))
        .collect();
    let mut linked = BTreeSet::new();
    for (path, text) in pages {
        for (line_number, line) in unfenced(text) {
            for (target, part) in links(path, line) {
                // `docs` reports links to missing pages.
                let Some(there) = parts.get(&target) else {
                    continue;
                };
                if !there.contains(part) {
                    let what = format_args!("links to #{part}, which {target} does not have");
                    findings.add(path, line_number, what);
                }
                if target == GLOSSARY {
                    linked.insert(part);
                }
            }
        }
    }
    let glossary = pages.iter().find(|(path, _)| path == GLOSSARY);
    for (line_number, line) in glossary.into_iter().flat_map(|(_, text)| unfenced(text)) {
        check_word(line_number, line, &linked, findings);
    }
}

/// Checks that a row of the glossary has an anchor, and that some page links to it.
fn check_word(line_number: usize, line: &str, linked: &BTreeSet<&str>, findings: &mut Findings) {
    let is_row = line.starts_with("| ") && !line.starts_with("| word |");
    if !is_row {
        return;
    }
    let anchors = anchors(line);
    if anchors.is_empty() {
        findings.add(
            GLOSSARY,
            line_number,
            "the word has no anchor; begin its row with <a id=\"word\"></a>",
        );
    } else if !anchors.iter().any(|anchor| linked.contains(anchor)) {
        let what = format_args!("no page links to #{}", anchors[0]);
        findings.add(GLOSSARY, line_number, what);
    }
}

/// Returns the lines outside of code fences, with their numbers.
fn unfenced(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let numbered = (1..).zip(text.lines());
    numbered.filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

fn parts_of(text: &str) -> BTreeSet<String> {
    let mut parts = BTreeSet::new();
    for (_, line) in unfenced(text) {
        parts.extend(anchors(line).into_iter().map(str::to_owned));
        if let Some(heading) = line.trim_start_matches('#').strip_prefix(' ')
            && line.starts_with('#')
        {
            let name = heading_name(heading);
            let again = (1..).map(|number| format!("{name}-{number}"));
            let mut names = std::iter::once(name.clone()).chain(again);
            parts.extend(names.find(|name| !parts.contains(name)));
        }
    }
    parts
}

/// Returns the ids of `<a id="...">` in a line.
fn anchors(line: &str) -> Vec<&str> {
    let begins = line.split("<a id=\"").skip(1);
    begins.filter_map(|rest| rest.split('"').next()).collect()
}

/// Derives the name of a heading like GitHub: lower case, spaces as hyphens, and no punctuation other than `-` and `_`.
fn heading_name(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ if c.is_alphanumeric() => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Returns the page and the part for each link in a line to a part of one of our pages.
fn links<'l>(page: &str, line: &'l str) -> Vec<(String, &'l str)> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let targets = line.match_indices("](").filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        let target = &rest[..rest.find([')', ' '])?];
        let (target, part) = target.split_once('#')?;
        let page = match target {
            "" => page.to_owned(),
            _ if target.contains("://") => return None,
            _ => resolve(folder, target)?,
        };
        Some((page, part))
    });
    targets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "\
# The words

| word | means |
|---|---|
| <a id=\"core\"></a>core | a thread |
";

    fn findings_of(page: &str, words: &str) -> Vec<String> {
        let pages = [
            ("docs/guide/start.md", page),
            (GLOSSARY, words),
            (
                "README.md",
                "# larder\n\n## A `session`, and more\n\n## Again\n\n## Again\n",
            ),
        ];
        let mut findings = Findings::default();
        let pages = pages.map(|(path, text)| (path.to_owned(), text.to_owned()));
        check_pages(&pages, &mut findings);
        findings.0
    }

    const LINKED: &str = "A [core](../glossary.md#core).\n";

    #[test]
    fn links_lead_to_headings_and_anchors() {
        let page = format!(
            "{LINKED}# Here\n[a](../../README.md#a-session-and-more) [b](#here) [c](../../README.md#again-1) \
             [d](https://example.com/#x) [e](../glossary.md)\n```\n[f](#none)\n```\n"
        );
        assert_eq!(findings_of(&page, WORDS), [""; 0]);
    }

    #[test]
    fn broken_links_are_reported() {
        for link in [
            "#none",
            "../../README.md#none",
            "../glossary.md#crate",
            "../../README.md#again-2",
        ] {
            let page = format!("{LINKED}[x]({link})\n");
            assert_eq!(findings_of(&page, WORDS).len(), 1, "{link}");
        }
    }

    #[test]
    fn a_word_without_an_anchor_or_a_link_is_reported() {
        assert_eq!(findings_of("no link\n", WORDS).len(), 1);
        let words = format!("{WORDS}| owner | a core |\n");
        assert_eq!(findings_of(LINKED, &words).len(), 1);
    }
}
