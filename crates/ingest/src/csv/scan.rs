//! Finds the end of the last complete record in text with quotes.
//!
//! Counting quotes is not enough: a quote in an unquoted field (`5" pipe`) is an ordinary character, and would shift
//! the count for the rest. The scan therefore goes from quote to quote.

use memchr::{memchr, memchr2, memrchr};

use crate::csv::Syntax;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The position just after the last newline outside quotes.
    pub records_end: Option<usize>,
    /// The position of a quote that is open at the end.
    pub open_quote: Option<usize>,
}

/// Scans `data`, which begins at the start of a record. Quotes in comments are ordinary characters.
pub(crate) fn scan(data: &[u8], syntax: Syntax) -> Scan {
    let Syntax {
        delimiter,
        escape,
        comment,
    } = syntax;
    let mut records_end = None;
    let mut at = 0;
    loop {
        let quote = memchr(b'"', &data[at..]).map_or(data.len(), |found| at + found);
        if let Some(newline) = memrchr(b'\n', &data[at..quote]) {
            records_end = Some(at + newline + 1);
        }
        if comment.is_some()
            && quote < data.len()
            && data.get(records_end.unwrap_or(0)).copied() == comment
        {
            let Some(newline) = memchr(b'\n', &data[quote..]) else {
                return Scan {
                    records_end,
                    open_quote: None,
                };
            };
            at = quote + newline + 1;
            records_end = Some(at);
            continue;
        }
        if quote == data.len() {
            return Scan {
                records_end,
                open_quote: None,
            };
        }
        let opens = quote == 0 || data[quote - 1] == delimiter || data[quote - 1] == b'\n';
        if !opens {
            at = quote + 1;
            continue;
        }
        match closing_quote(data, quote + 1, escape) {
            Some(closing) => at = closing + 1,
            None => {
                return Scan {
                    records_end,
                    open_quote: Some(quote),
                };
            }
        }
    }
}

/// Returns the quote that ends a quoted field whose text begins at `from`. Doubled or escaped quotes are text.
pub(crate) fn closing_quote(data: &[u8], from: usize, escape: Option<u8>) -> Option<usize> {
    let mut at = from;
    if let Some(escape) = escape {
        loop {
            let found = at + memchr2(b'"', escape, &data[at..])?;
            if data[found] == b'"' {
                return Some(found);
            }
            at = match data.get(found + 1) {
                Some(next) if *next == b'"' || *next == escape => found + 2,
                _ => found + 1,
            };
        }
    }
    loop {
        let quote = at + memchr(b'"', &data[at..])?;
        if data.get(quote + 1) != Some(&b'"') {
            return Some(quote);
        }
        at = quote + 2;
    }
}

/// Returns the positions of a record's bytes outside quotes, without the quotes themselves. Quotes are counted, so
/// text after a quote in an unquoted field is treated as quoted.
pub(crate) fn outside_quotes(text: &[u8], escape: Option<u8>) -> impl Iterator<Item = usize> + '_ {
    let (mut in_quotes, mut is_escaped) = (false, false);
    text.iter().enumerate().filter_map(move |(at, byte)| {
        if std::mem::take(&mut is_escaped) {
            return None;
        }
        is_escaped = in_quotes && Some(*byte) == escape;
        if *byte == b'"' {
            in_quotes = !in_quotes;
            return None;
        }
        (!in_quotes).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax(escape: Option<u8>, comment: Option<u8>) -> Syntax {
        Syntax {
            delimiter: b',',
            escape,
            comment,
        }
    }

    #[test]
    fn an_escaped_quote_does_not_end_a_field() {
        let end = |text: &[u8]| scan(text, syntax(Some(b'\\'), None)).records_end;
        assert_eq!(end(b"a,\"x\\\"\ny\"\nb"), Some(10));
        assert_eq!(end(b"a,\"x\\\\\"\n\"y\n"), Some(8));
        assert_eq!(end(b"a\\\"\nb,\"\\n\"\n"), Some(11));
    }

    #[test]
    fn newlines_in_quotes_do_not_end_records() {
        let scan = |text: &[u8]| scan(text, syntax(None, None));
        let end = |text: &str| scan(text.as_bytes()).records_end;
        assert_eq!(end("a,\"x\ny\"\nb,\"p"), Some(8));
        assert_eq!(end("5\" pipe,a\n\"x\ny\",b"), Some(10));
        assert_eq!(end("\"a\"\"\n\""), None);
        assert_eq!(end("a\n\"\"\nb"), Some(5));
        assert_eq!(scan(b"a\n\"b").open_quote, Some(2));
        assert_eq!(scan(b"a\nb\"").open_quote, None);
        assert_eq!(scan(b"\"a\"\"").open_quote, Some(0));
    }

    #[test]
    fn quotes_in_comments_do_not_open_a_field() {
        let text = b"#\"open\na,\"x\ny\"\n# it's \"\nb,\"c";
        let found = scan(text, syntax(None, Some(b'#')));
        assert_eq!(found.open_quote, Some(text.len() - 2));
        assert_eq!(found.records_end, Some(text.len() - 4));
    }
}
