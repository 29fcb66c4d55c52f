//! Extracts prose: the comments and messages of Rust sources, and the paragraphs of Markdown pages.

/// A run of prose and the line on which it begins.
#[derive(Debug, PartialEq)]
pub struct Passage {
    pub line: usize,
    pub text: String,
}

/// The comments of a Rust source, with adjacent lines joined, and its string literals.
pub struct Rust {
    pub comments: Vec<Passage>,
    pub literals: Vec<Passage>,
}

/// Splits a Rust source. Code is skipped; an attribute `#[doc = "..."]` counts as a literal.
pub fn rust(source: &str) -> Rust {
    let mut found = Rust {
        comments: Vec::new(),
        literals: Vec::new(),
    };
    let bytes = source.as_bytes();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &source[at..];
        let end = if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            let before = source[..at].rsplit('\n').next().unwrap_or_default();
            let is_alone = before.trim().is_empty();
            add_comment(&mut found.comments, line, &rest[..end], is_alone);
            end
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some((start, end, whole)) = literal(rest) {
            let text = unescaped(&rest[start..end]);
            found.literals.push(Passage { line, text });
            whole
        } else if let Some(end) = character(rest) {
            end
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        line += source[at..at + end].matches('\n').count();
        at += end;
    }
    found
}

/// Joins a comment line to the comment of the line before it. A comment after code, an empty comment line, a list item, a heading or a table row begins a new passage.
fn add_comment(comments: &mut Vec<Passage>, line: usize, comment: &str, is_alone: bool) {
    let text = comment.trim_start_matches(['/', '!']).trim();
    let is_block = !is_alone || text.is_empty() || begins_block(text);
    let lines = |passage: &Passage| passage.line + passage.text.matches('\n').count() + 1;
    match comments.last_mut() {
        Some(last) if !is_block && lines(last) == line => {
            last.text.push('\n');
            last.text.push_str(text);
        }
        _ => comments.push(Passage {
            line,
            text: text.to_owned(),
        }),
    }
}

fn begins_block(text: &str) -> bool {
    let marker = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.starts_with(['#', '|', '*', '-', '>', '`']) || marker.starts_with(". ")
}

/// Returns the start and the end of a string literal's contents, and the end of the literal.
fn literal(rest: &str) -> Option<(usize, usize, usize)> {
    let plain = rest.strip_prefix('b').unwrap_or(rest);
    let prefix = rest.len() - plain.len();
    if let Some(raw) = plain.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if !raw[hashes..].starts_with('"') {
            return None;
        }
        let start = prefix + 1 + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = start + rest[start..].find(&close)?;
        return Some((start, end, end + close.len()));
    }
    if !plain.starts_with('"') {
        return None;
    }
    let start = prefix + 1;
    let mut is_escaped = false;
    for (at, c) in rest[start..].char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some((start, start + at, start + at + 1)),
            _ => {}
        }
    }
    None
}

/// The length of a character literal, so that `'"'` begins no string. A lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let length = match inner.strip_prefix('\\') {
        Some(escaped) => 1 + escaped.find('\'').filter(|at| *at > 0).or(Some(1))?,
        None => inner.chars().next()?.len_utf8(),
    };
    inner
        .get(length..)
        .is_some_and(|after| after.starts_with('\''))
        .then_some(length + 2)
}

/// Line breaks within a literal, and the indentation after a continued line, become spaces.
fn unescaped(literal: &str) -> String {
    literal.replace("\\n", "\n").replace("\\\n", "\n")
}

/// The paragraphs, headings, list items and table cells of a Markdown page, without its code.
pub fn markdown(page: &str) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let (mut in_code, mut continues) = (false, false);
    for (index, raw) in page.lines().enumerate() {
        let text = raw.trim();
        if text.starts_with("```") {
            in_code = !in_code;
            continues = false;
            continue;
        }
        if in_code || text.is_empty() || text.starts_with('<') {
            continues = false;
            continue;
        }
        if text.starts_with('|') {
            for cell in text
                .split('|')
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
            {
                passages.push(Passage {
                    line: index + 1,
                    text: cell.to_owned(),
                });
            }
            continues = false;
            continue;
        }
        match passages.last_mut() {
            Some(last) if continues && !begins_block(text) => {
                last.text.push('\n');
                last.text.push_str(text);
            }
            _ => passages.push(Passage {
                line: index + 1,
                text: text.to_owned(),
            }),
        }
        continues = !text.starts_with('#');
    }
    passages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(passages: Vec<Passage>) -> Vec<String> {
        passages.into_iter().map(|it| it.text).collect()
    }

    #[test]
    fn comments_are_joined_and_literals_are_found_beside_quotes() {
        let source = "/// One\n/// two.\n///\n/// - three\nfn f<'a>(x: &'a str) { g('\"', \"a \\\"b\\\"\", r#\"c \" d\"#); } // four\n";
        let found = rust(source);
        assert_eq!(texts(found.comments), ["One\ntwo.", "", "- three", "four"]);
        assert_eq!(texts(found.literals), ["a \\\"b\\\"", "c \" d"]);
    }

    #[test]
    fn pages_are_read_without_their_code() {
        let page = "# Title\n\nOne\ntwo.\n\n```sh\ncode\n```\n- item\n  goes on\n\n| a | b |\n";
        let all = ["# Title", "One\ntwo.", "- item\ngoes on", "a", "b"];
        assert_eq!(texts(markdown(page)), all);
    }
}
