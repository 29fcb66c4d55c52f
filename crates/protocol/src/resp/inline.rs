//! Parses a request on one line, as people type it: words, some of them in quotes.

use super::request::Span;

/// Splits a line into words like Redis: `"..."` with escapes `\n \r \t \b \a \xHH`, `'...'` with
/// `\'`, and a space after a closing quote. `None` if a quote is not closed.
pub(super) fn split_words(line: &[u8], out: &mut Vec<u8>, spans: &mut Vec<Span>) -> Option<()> {
    let is_space = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b;
    let mut at = 0;
    loop {
        while at < line.len() && is_space(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Some(());
        }
        let start = out.len();
        while at < line.len() && !is_space(line[at]) {
            let quote = line[at];
            at += 1;
            if quote != b'"' && quote != b'\'' {
                out.push(quote);
                continue;
            }
            loop {
                let byte = *line.get(at)?;
                at += 1;
                if byte == quote {
                    break;
                }
                if byte != b'\\' {
                    out.push(byte);
                } else if quote == b'\'' {
                    let escaped = line.get(at) == Some(&b'\'');
                    out.push(if escaped { b'\'' } else { b'\\' });
                    at += usize::from(escaped);
                } else {
                    at += unescape(line.get(at..)?, out)?;
                }
            }
            if line.get(at).is_some_and(|&next| !is_space(next)) {
                return None;
            }
        }
        spans.push(Span {
            start,
            len: out.len() - start,
        });
    }
}

/// Appends the byte of an escape sequence, given the text after the backslash. Returns the length of the sequence.
fn unescape(rest: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let first = *rest.first()?;
    if first == b'x'
        && let (Some(high), Some(low)) = (hex(rest.get(1)), hex(rest.get(2)))
    {
        out.push((high * 16 + low) as u8);
        return Some(3);
    }
    out.push(match first {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    });
    Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        let (mut out, mut spans) = (Vec::new(), Vec::new());
        split_words(line.as_bytes(), &mut out, &mut spans)?;
        let text = |span: &Span| String::from_utf8_lossy(span.of(&out)).into_owned();
        Some(spans.iter().map(text).collect())
    }

    #[test]
    fn quotes_and_escapes_are_parsed_as_in_redis() {
        for (line, expected) in [
            ("GET  a:1 ", &["GET", "a:1"][..]),
            ("", &[]),
            (
                r#"SET "a b\x41\n" 'it\'s' "" x"#,
                &["SET", "a bA\n", "it's", "", "x"],
            ),
            (r#""\t\q\x4""#, &["\tqx4"]),
            (r"'\n'", &[r"\n"]),
        ] {
            let expected: Vec<String> = expected.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(words(line), Some(expected), "{line}");
        }
        for open in ["\"a", "'a", "\"a\\", "\"a\"b"] {
            assert_eq!(words(open), None, "{open}");
        }
    }
}
