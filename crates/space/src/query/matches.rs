//! The reference evaluation of a predicate on an object's columns. Every optimized evaluation must return the same
//! result.

use crate::base::words::words;
use crate::query::predicate::{Leaf, Pattern, Predicate, Test};
use crate::value::{Column, Columns};

pub fn matches(predicate: &Predicate, columns: &dyn Columns) -> bool {
    match predicate {
        Predicate::All | Predicate::Optional(_) => true,
        Predicate::Nothing => false,
        Predicate::And(parts) => parts.iter().all(|part| matches(part, columns)),
        Predicate::Or(parts) => parts.iter().any(|part| matches(part, columns)),
        Predicate::Not(inner) => !matches(inner, columns),
        Predicate::Leaf(leaf) => leaf.holds(columns),
    }
}

impl Leaf {
    pub fn holds(&self, columns: &dyn Columns) -> bool {
        self.attributes
            .iter()
            .any(|attribute| self.test.holds(&columns.column(*attribute)))
    }
}

impl Test {
    pub fn holds(&self, column: &Column) -> bool {
        match (self, column) {
            (Test::Missing, column) => column.is_missing(),
            (Test::Within(span), column) => column.scalars().any(|value| span.contains(&value)),
            (Test::Tag(patterns), Column::Tags(tags)) => tags
                .iter()
                .any(|tag| patterns.iter().any(|pattern| pattern.matches(tag))),
            (Test::Word(Pattern::Exact(word)), Column::Texts(texts)) if word.is_empty() => {
                texts.iter().any(Vec::is_empty)
            }
            (Test::Word(pattern), Column::Texts(texts)) => texts
                .iter()
                .any(|text| words(text).any(|word| pattern.matches(&word))),
            (
                Test::Phrase {
                    words: phrase,
                    stopwords,
                },
                Column::Texts(texts),
            ) => texts.iter().any(|text| {
                let words: Vec<_> = words(text)
                    .filter(|word| !stopwords.contains(word))
                    .collect();
                words.windows(phrase.len()).any(|window| window == phrase)
            }),
            (Test::Near(circle), Column::Points(points)) => points
                .iter()
                .any(|point| point.distance_m(circle.center) <= circle.radius_m),
            _ => false,
        }
    }
}
