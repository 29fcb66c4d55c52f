//! Patterns of keys and names, as Redis has them.

/// Redis's patterns: `*`, `?`, `[abc]`, `[^a-z]` and `\` before a character that is meant as such.
/// Takes time of at most the pattern's length times the text's.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star does not fit: one character further.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match (text.get(t), pattern.get(p)) {
            (None, None) => return true,
            (Some(&byte), Some(_)) => {
                if let Some(len) = one(&pattern[p..], byte) {
                    p += len;
                    t += 1;
                    continue;
                }
            }
            _ => {}
        }
        match star {
            Some((after, from)) if from < text.len() => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            _ => return false,
        }
    }
}

/// Length of the pattern's first element, if it fits the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', ..] => {
            let negated = pattern.get(1) == Some(&b'^');
            let (mut at, mut inside) = (1 + usize::from(negated), false);
            loop {
                match &pattern[at.min(pattern.len())..] {
                    [] => break,
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [b'\\', escaped, ..] => {
                        inside |= *escaped == byte;
                        at += 2;
                    }
                    [from, b'-', to, ..] => {
                        let (low, high) = (from.min(to), from.max(to));
                        inside |= (low..=high).contains(&&byte);
                        at += 3;
                    }
                    [single, ..] => {
                        inside |= *single == byte;
                        at += 1;
                    }
                }
            }
            (inside != negated).then_some(at)
        }
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_redis() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a:*", "a:1", true),
            ("a:*", "b:1", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxbxxa", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("", "a", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                fits,
                "{pattern} {text}"
            );
        }
        assert!(!matches(&b"*a".repeat(50), &[b'b'; 10_000]));
    }
}
