//! Translates a range of keys to the SQL condition that selects its rows.
//!
//! 1. The condition selects all rows of the range, and perhaps more; the caller drops rows whose keys are outside. A
//!    bound that SQL cannot express is therefore omitted.
//! 2. Leading slots that the range determines become equalities on columns, which any index on these columns supports.

use larder_types::key_range::{KeyRange, common_prefix};

use crate::mapping::{Mapping, Part, Slot, SlotKind};
use crate::sql::{identifier, literal};

impl Mapping {
    /// Returns the `WHERE` clause of a range, empty for all rows. `None` if the range cannot contain rows.
    pub fn conditions(&self, range: &KeyRange) -> Option<String> {
        if range.is_empty() {
            return None;
        }
        let (common, is_point) = common_prefix(&range.lo, &range.hi);
        let mut conditions: Vec<String> = Vec::new();
        let mut at = 0;
        for part in &self.parts {
            let rest = &common[at..];
            match part {
                Part::Text(text) => {
                    let len = text.len().min(rest.len());
                    if text[..len] != rest[..len] || (is_point && len < text.len()) {
                        return None;
                    }
                    if len < text.len() {
                        break;
                    }
                    at += len;
                }
                Part::Slot(slot) => {
                    let slot = &self.slots[*slot];
                    let len = slot.len_in(rest).or(is_point.then_some(rest.len()));
                    let Some(len) = len else {
                        let lo = range.lo.get(at..).unwrap_or_default();
                        let hi = range.hi.strip_prefix(&common[..at]);
                        conditions.extend(slot.bounds(lo, hi));
                        break;
                    };
                    let value = slot.column_value(&rest[..len])?;
                    conditions.push(slot.equals(&value));
                    at += len;
                }
            }
        }
        if conditions.is_empty() {
            return Some(String::new());
        }
        Some(format!(" WHERE {}", conditions.join(" AND ")))
    }
}

impl Slot {
    pub fn equals(&self, value: &str) -> String {
        match self.kind {
            SlotKind::Integer { .. } => format!("{} = {value}", identifier(&self.column)),
            SlotKind::Uuid => {
                format!("{} = {}::uuid", identifier(&self.column), literal(value))
            }
            SlotKind::Text => format!("{} = {}", identifier(&self.column), literal(value)),
        }
    }

    /// Returns conditions that hold for all keys whose remaining bytes are between `lo` and `hi`.
    fn bounds(&self, lo: &[u8], hi: Option<&[u8]>) -> Vec<String> {
        match (self.kind, self.width) {
            (SlotKind::Integer { .. }, Some(width)) => {
                let column = identifier(&self.column);
                let least = number_min(lo, width).filter(|least| *least > 0);
                let least = least.map(|least| format!("{column} >= {least}"));
                let most = hi.and_then(|hi| number_max(hi, width));
                let most = most.map(|most| format!("{column} <= {most}"));
                least.into_iter().chain(most).collect()
            }
            (SlotKind::Uuid, _) => Vec::new(),
            (kind, _) => {
                let column = identifier(&self.column);
                let column = match kind {
                    SlotKind::Text => column,
                    _ => format!("{column}::text"),
                };
                let end = if self.width.is_some() {
                    &[][..]
                } else {
                    &self.end
                };
                let expression = match std::str::from_utf8(end) {
                    Ok("") | Err(_) => column,
                    Ok(end) => format!("({column} || {})", literal(end)),
                };
                let least = text_min(through_end(lo, end));
                let least = (!least.is_empty())
                    .then(|| format!("{expression} COLLATE \"C\" >= {}", literal(least)));
                let most = hi.and_then(|hi| text_max(through_end(hi, end)));
                let most =
                    most.map(|most| format!("{expression} COLLATE \"C\" <= {}", literal(most)));
                least.into_iter().chain(most).collect()
            }
        }
    }
}

/// Cuts a bound after the end of the slot. The rest belongs to later slots.
fn through_end<'a>(bound: &'a [u8], end: &[u8]) -> &'a [u8] {
    if end.is_empty() {
        return bound;
    }
    let found = bound.windows(end.len()).position(|part| part == end);
    found.map_or(bound, |at| &bound[..at + end.len()])
}

/// Returns a text that is less than or equal to a bound.
fn text_min(bound: &[u8]) -> &str {
    let valid = bound.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    valid.split('\0').next().unwrap_or_default()
}

/// Returns a text that is greater than or equal to every text below a bound, if there is one.
fn text_max(bound: &[u8]) -> Option<&str> {
    match bound.iter().position(|&byte| byte == 0) {
        // Texts of PostgreSQL contain no zero byte, so the greatest one below the bound is the part before the zero.
        Some(zero) => std::str::from_utf8(&bound[..zero]).ok(),
        None => std::str::from_utf8(bound).ok(),
    }
}

/// Returns the smallest number whose digits, with any bytes after them, may be greater than or equal to `lo`.
fn number_min(lo: &[u8], width: usize) -> Option<u64> {
    let digits = &lo[..lo.len().min(width)];
    let odd = digits.iter().position(|byte| !byte.is_ascii_digit());
    match odd {
        None => pad(digits, width, b'0'),
        Some(at) if digits[at] > b'9' => pad(&digits[..at], width, b'9'),
        Some(at) => pad(&digits[..at], width, b'0'),
    }
}

/// Returns the greatest number whose digits, with any bytes after them, may be less than `hi`.
fn number_max(hi: &[u8], width: usize) -> Option<u64> {
    let digits = &hi[..hi.len().min(width)];
    let odd = digits.iter().position(|byte| !byte.is_ascii_digit());
    match odd {
        None => pad(digits, width, b'0'),
        Some(at) if digits[at] > b'9' => pad(&digits[..at], width, b'9'),
        Some(at) => pad(&digits[..at], width, b'0'),
    }
}

/// Pads digits to `width` and parses them. `None` if the number exceeds the range of every column type.
fn pad(digits: &[u8], width: usize, filler: u8) -> Option<u64> {
    let all = digits.iter().copied();
    let all = all.chain(std::iter::repeat_n(filler, width - digits.len()));
    let mut number: u64 = 0;
    for digit in all {
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    (number <= i64::MAX as u64).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mapping::tests::{posts, text};

    fn conditions(lo: &str, hi: &str) -> Option<String> {
        posts().conditions(&KeyRange::new(lo.as_bytes(), hi.as_bytes()))
    }

    #[test]
    fn fixed_columns_of_a_range_become_equalities() {
        let check = |lo: &str, hi: &str, expected: &str| {
            assert_eq!(conditions(lo, hi).as_deref(), Some(expected), "{lo} {hi}");
        };
        check("post|", "post}", "");
        check("post|bob|", "post|bob}", r#" WHERE "author" = 'bob'"#);
        check(
            "post|bob|0000000100",
            "post|bob|0000000100\0",
            r#" WHERE "author" = 'bob' AND "time" = 100"#,
        );
        check(
            "post|bob|0000000100",
            "post|bob|00000002",
            r#" WHERE "author" = 'bob' AND "time" >= 100 AND "time" <= 200"#,
        );
        check(
            "post|bob|0000000100\0",
            "post|bob}",
            r#" WHERE "author" = 'bob' AND "time" >= 100"#,
        );
        check(
            "post|b",
            "post|c",
            r#" WHERE ("author" || '|') COLLATE "C" >= 'b' AND ("author" || '|') COLLATE "C" <= 'c'"#,
        );
        check(
            "post|o'n|5",
            "post|o'x|",
            r#" WHERE ("author" || '|') COLLATE "C" >= 'o''n|' AND ("author" || '|') COLLATE "C" <= 'o''x|'"#,
        );
        assert_eq!(conditions("post|bob|x", "post|bob|x\0"), None);
        assert_eq!(conditions("post||5", "post||6"), None);
        assert_eq!(conditions("post|b", "post|a"), None);
    }

    /// Evaluates the conditions of `posts` as PostgreSQL would.
    fn holds(conditions: &str, author: &str, time: u64) -> bool {
        let Some(conditions) = conditions.strip_prefix(" WHERE ") else {
            return true;
        };
        conditions.split(" AND ").all(|condition| {
            let value = condition.rsplit(' ').next().unwrap();
            let quoted = value.trim_matches('\'');
            let ended = format!("{author}|");
            match condition {
                c if c.starts_with("\"author\" =") => author == quoted,
                c if c.starts_with("\"time\" =") => time == value.parse::<u64>().unwrap(),
                c if c.starts_with("\"time\" >=") => time >= value.parse::<u64>().unwrap(),
                c if c.starts_with("\"time\" <=") => time <= value.parse::<u64>().unwrap(),
                c if c.contains(">=") => *ended >= *quoted,
                c if c.contains("<=") => *ended <= *quoted,
                c => panic!("{c}"),
            }
        })
    }

    proptest! {
        /// Invariant 1.
        #[test]
        fn every_row_of_a_range_is_selected(
            lo in "post\\|([ab]{0,2}|[ab]{1,2}\\|[0-9:/]{0,11})\u{0}?",
            hi in "post[|}]([ab]{0,2}|[ab]{1,2}[|}][0-9:/]{0,11})\u{0}?",
            author in "[ab]{1,2}",
            time in prop_oneof![0u64..200, 0u64..10_000_000_000],
        ) {
            let posts = posts();
            let range = KeyRange::new(lo.as_bytes(), hi.as_bytes());
            let key = posts.key_of(&[text(&author), text(&time.to_string())]).unwrap();
            if range.contains(&key) {
                let conditions = posts.conditions(&range);
                prop_assert!(conditions.is_some_and(|c| holds(&c, &author, time)));
            }
        }

        #[test]
        fn a_row_near_a_bound_is_selected(author in "[ab]{1,2}", time in 0u64..10_000_000_000, cut in 5usize..20, last in "[0-9|:/}]") {
            let posts = posts();
            let key = posts.key_of(&[text(&author), text(&time.to_string())]).unwrap();
            let mut near = key[..cut.min(key.len())].to_vec();
            near.extend_from_slice(last.as_bytes());
            let range = if near <= key { KeyRange::new(&near, b"post}") } else { KeyRange::new(b"post|", &near) };
            prop_assert!(range.contains(&key));
            prop_assert!(posts.conditions(&range).is_some_and(|c| holds(&c, &author, time)));
        }
    }
}
