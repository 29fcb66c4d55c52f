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
            add_literal(&mut found.literals, line, &rest[start..end]);
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

/// Adds the prose of a literal. SQL and markup are not prose. An indented line, such as an example command or a row of
/// a table, is a passage of its own.
fn add_literal(literals: &mut Vec<Passage>, mut line: usize, literal: &str) {
    let text = unescaped(literal);
    let first = text.split_whitespace().next().unwrap_or_default();
    if SQL.contains(&first) || text.starts_with('<') {
        return;
    }
    let mut passage = String::new();
    for part in text.split_inclusive('\n') {
        if part.starts_with("  ") && !passage.is_empty() {
            let breaks = passage.matches('\n').count();
            literals.push(Passage {
                line,
                text: std::mem::take(&mut passage),
            });
            line += breaks;
        }
        passage.push_str(part);
    }
    literals.push(Passage {
        line,
        text: passage,
    });
}

/// The words that begin a statement of SQL, or a part of one.
const SQL: [&str; 7] = [
    "CREATE", "DELETE", "DROP", "INSERT", "SELECT", "WHERE", "WITH",
];

/// Returns the text of a literal. The indentation after a continued line is not part of it.
fn unescaped(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let mut text = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        text.push('\n');
        text.push_str(line.trim_start());
    }
    text.replace("\\n", "\n")
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

/// The prose of an HTML or JavaScript page: comments, texts between tags, and string literals of several words.
pub fn page(source: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    let mut in_script = false;
    for (index, raw) in source.lines().enumerate() {
        let text = raw.trim();
        let mut add = |text: &str| {
            if text.contains(' ') {
                passages.push(Passage {
                    line: index + 1,
                    text: text.to_owned(),
                });
            }
        };
        in_script |= text.starts_with("<script");
        if let Some((_, comment)) = text.split_once("// ") {
            add(comment);
        } else if text.starts_with(['*', '/']) {
            add(text.trim_start_matches(['/', '*', ' ']));
        }
        if in_script {
            let literals = text.split(['"', '`']).skip(1).step_by(2);
            literals
                .filter(|it| it.split(' ').count() >= 4)
                .for_each(&mut add);
        } else {
            let texts = text.split('>').filter_map(|it| it.split('<').next());
            texts.for_each(&mut add);
        }
        in_script &= !text.contains("</script");
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
    fn examples_in_a_literal_are_passages_and_sql_is_none() {
        let source =
            "f(\"Examples:\\n  one two\\n  three\", \"goes \\\n     on\", \"SELECT a FROM b\")";
        let found = rust(source).literals;
        assert_eq!(
            texts(found),
            ["Examples:\n", "  one two\n", "  three", "goes \non"]
        );
    }

    #[test]
    fn texts_of_a_page_are_read_without_its_tags_and_code() {
        let source = "<p class=\"a b\">One <b>two words</b></p>\n<script>\n// a note\nsaid.push(`no data for ${x} yet`, \"said\");\n</script>";
        assert_eq!(
            texts(page(source)),
            ["One ", "two words", "a note", "no data for ${x} yet"]
        );
    }

    #[test]
    fn pages_are_read_without_their_code() {
        let page = "# Title\n\nOne\ntwo.\n\n```sh\ncode\n```\n- item\n  goes on\n\n| a | b |\n";
        let all = ["# Title", "One\ntwo.", "- item\ngoes on", "a", "b"];
        assert_eq!(texts(markdown(page)), all);
    }
}
