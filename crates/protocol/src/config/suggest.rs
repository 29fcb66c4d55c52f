//! Suggests an existing name for one that does not exist.

/// Returns the candidate with the smallest edit distance from `name`, if the distance is small enough for a typing error.
pub(super) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::levenshtein(name, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= 2.max(candidate.len() / 4))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_matched_and_unrelated_names_are_not() {
        assert_eq!(
            nearest("thread", ["threads", "data"].into_iter()),
            Some("threads")
        );
        assert_eq!(nearest("elephant", ["threads", "data"].into_iter()), None);
    }
}
