//! Finds the line of a key in a TOML text, for error messages.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Returns the line, counted from 1, of a key such as `query[2].range.price`. For a missing key, returns the line of
/// the table that lacks it. `None` if the text is not TOML.
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut at = None;
    let mut rest = key;
    let mut inner = table.get_ref();
    while !rest.is_empty() {
        let Some((name, value)) = longest(inner, rest) else {
            break;
        };
        at = Some(name.span().start);
        rest = &rest[name.get_ref().len()..];
        let mut value = value;
        while let Some(index) = rest.strip_prefix('[')
            && let Some((index, behind)) = index.split_once(']')
            && let DeValue::Array(items) = value.get_ref()
            && let Some(item) = index.parse().ok().and_then(|index: usize| items.get(index))
        {
            (at, value, rest) = (Some(item.span().start), item, behind);
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        match value.get_ref() {
            DeValue::Table(table) => inner = table,
            _ => break,
        }
    }
    let before = &text.as_bytes()[..at?];
    Some(1 + before.iter().filter(|byte| **byte == b'\n').count())
}

/// Finds the longest name that is a prefix of the key, because names may contain periods and brackets.
fn longest<'t, 'a>(
    table: &'t DeTable<'a>,
    key: &str,
) -> Option<(
    &'t Spanned<std::borrow::Cow<'a, str>>,
    &'t Spanned<DeValue<'a>>,
)> {
    let is_complete = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    let fits = table
        .iter()
        .filter(|(name, _)| key.strip_prefix(&**name.get_ref()).is_some_and(is_complete));
    fits.max_by_key(|(name, _)| name.get_ref().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_tables_lists_and_within_a_line() {
        let text = "objects = 1\n[[query]]\nfrequency = 1\n[[query]]\nfrequency = 2\nequal = [\n  \"a\",\n  \"b\"]\n\
                    range = { \"x.y\" = 2, x = 1 }\n[costs]\nget_us = 3\n";
        for (key, line) in [
            ("objects", 1),
            ("query[0].frequency", 3),
            ("query[1]", 4),
            ("query[1].equal[1]", 8),
            ("query[1].range.x.y", 9),
            ("query[1].selectivity.x", 4),
            ("costs.get_us", 11),
        ] {
            assert_eq!(line_of(text, key), Some(line), "{key}");
        }
        assert_eq!(line_of(text, "absent"), None);
        assert_eq!(line_of("= no", "objects"), None);
    }
}
