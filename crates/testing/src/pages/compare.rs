//! Compares the output of commands with the output that a page shows.

/// Returns whether the output is the one that a page shows, where `...` matches any text, and on a line of its own any
/// number of lines.
pub fn matches(output: &str, shown: &str) -> bool {
    let (output, shown) = (
        without_spaces_at_ends(output),
        without_spaces_at_ends(shown),
    );
    let mut pieces = Vec::new();
    let mut is_own_line = false;
    for piece in shown.split("...") {
        let piece = if is_own_line {
            piece.strip_prefix('\n').unwrap_or(piece)
        } else {
            piece
        };
        // The next `...` is on a line of its own if it begins a line, and ends it.
        is_own_line = piece.ends_with('\n') || (pieces.is_empty() && piece.is_empty());
        pieces.push(piece);
    }
    let [first, rest @ ..] = &pieces[..] else {
        unreachable!("split returns one piece at least");
    };
    let Some((last, middle)) = rest.split_last() else {
        return output == *first;
    };
    let Some(mut left) = output.strip_prefix(first) else {
        return false;
    };
    for piece in middle {
        let Some((_, after)) = left.split_once(piece) else {
            return false;
        };
        left = after;
    }
    left.ends_with(last)
}

/// Removes spaces at the ends of lines, and empty lines at the end.
fn without_spaces_at_ends(text: &str) -> String {
    let lines = text.trim_end().lines();
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Removes durations and rates, and the scale of a duration's unit, which differ between runs.
pub fn without_times(text: &str) -> String {
    let is_time = |word: &str| {
        let unit = word.trim_end_matches([')', ',', ':']);
        matches!(unit, "µs" | "ms" | "s" | "records/s" | "objects/s")
    };
    let words = text.split(' ').collect::<Vec<_>>();
    let kept = (0..words.len()).filter(|&at| {
        let next = words.get(at + 1).and_then(|word| word.lines().next());
        !next.is_some_and(is_time)
    });
    // On a busy machine, milliseconds replace the microseconds of the page.
    let without_scale = |word: &str| {
        if word.lines().next().is_some_and(is_time) {
            word.trim_start_matches(['µ', 'm']).to_owned()
        } else {
            word.to_owned()
        }
    };
    let kept = kept.map(|at| without_scale(words[at]));
    kept.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_may_omit_output_but_not_change_it() {
        assert!(matches("a\nb\nc", "a\nb\nc"));
        assert!(matches("a\nb\nc", "...\nb\n..."));
        assert!(matches("a\nb\nc", "a\n...\nc"));
        assert!(matches("a\nc", "a\n...\nc"));
        assert!(matches("a b c\nd", "a ... c\nd"));
        assert!(matches("a b c\nd", "a ...\nd"));
        assert!(!matches("a\nb\nc", "a\nb"));
        assert!(!matches("a\nb\nc", "...\nb"));
        assert!(!matches("a\nb\nc", "...\nd\n..."));
        assert!(!matches("a b c\nd", "a ... d\nd"));
    }

    #[test]
    fn durations_and_rates_may_differ() {
        let page = "built 2 records, in 7.04 ms (283 records/s)\n";
        assert_eq!(
            without_times(page),
            without_times("built 2 records, in 9 µs (1,283 records/s)\n")
        );
        assert_ne!(
            without_times(page),
            without_times("built 3 records, in 7.04 ms (283 records/s)\n")
        );
    }
}
