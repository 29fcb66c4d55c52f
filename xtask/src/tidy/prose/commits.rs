//! Checks the subjects of commits.

use super::extract::Passage;
use super::phrases::{self, Finding};
use crate::tree;

/// The last commit before the rule; older subjects are not checked.
const BASE: &str = "3b0caa1f";

const LENGTH_MAX: usize = 72;

/// Returns the findings of all commits since `BASE`. A clone without that commit, such as a shallow one, has none.
pub fn check() -> Vec<Finding> {
    let range = format!("{BASE}..HEAD");
    let log = ["log", "--no-merges", "--format=%s", &range];
    let subjects = tree::git(tree::root(), &log).unwrap_or_default();
    subjects.lines().flat_map(findings).collect()
}

fn findings(subject: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let passage = Passage {
        line: 0,
        text: subject.to_owned(),
    };
    phrases::check(&passage, &mut found);
    let mut add = |rule| {
        found.push(Finding {
            line: 0,
            rule,
            sentence: subject.to_owned(),
        });
    };
    if subject.chars().count() > LENGTH_MAX {
        add("is longer than 72 characters");
    }
    if subject
        .split_once(": ")
        .is_none_or(|(area, _)| area.contains(' '))
    {
        add("does not begin with an area and a colon");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_names_its_area_and_is_short_and_plain() {
        let count = |subject: &str| findings(subject).len();
        assert_eq!(count("space: look up region coverage in constant time"), 0);
        assert_eq!(count("Look up region coverage"), 1);
        assert_eq!(count("space: what a region is asked"), 2);
        assert_eq!(count(&format!("space: {}", "look up ".repeat(9))), 1);
    }
}
