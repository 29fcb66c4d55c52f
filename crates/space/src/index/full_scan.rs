//! Detects full scans: searches that examine every object because no index serves their conditions. A server can be
//! configured to reject them.
//!
//! 1. The classification of a search as a full scan depends only on the definition, not on the data. A search that is
//!    accepted today is not rejected tomorrow.
//!
//! An index may yield any number of objects: `@price:[0 +inf]` is not a full scan in this sense, and neither is a
//! search for the middle part of a word.

use crate::aggregate::Aggregation;
use crate::error::{Refusal, Result};
use crate::query::{Leaf, Pattern, Predicate, Span, Test};
use crate::schema::{Attribute, AttributeId, AttributeKind, Definition};
use crate::search::Search;
use crate::search::request::SortBy;

impl Search {
    /// Rejects a full scan. `*` is accepted if there is an index in result order, because the search then examines
    /// objects in that order and stops at LIMIT.
    ///
    /// # Errors
    /// The search examines every object. The error names a remedy.
    pub fn ensure_no_full_scan(&self, definition: &Definition) -> Result<()> {
        if self.options.keys.is_some() || has_index_access(&self.predicate, definition) {
            return Ok(());
        }
        if !is_all(&self.predicate) {
            return Err(refusal(&self.predicate, definition));
        }
        match self.order.first().map(|first| first.by) {
            Some(SortBy::Attribute(id)) if self.count > 0 => match definition.attribute(id) {
                Some(attribute) if has_order(attribute, definition) => Ok(()),
                attribute => {
                    let name = attribute.map_or("?", |attribute| &attribute.name);
                    Err(full_scan_error(&format!(
                        "an index of {name} would help: declare it SORTABLE"
                    )))
                }
            },
            _ => Ok(()),
        }
    }
}

impl Aggregation {
    /// Rejects a full scan. `*` is accepted with a cursor if the rows are streamed, because each read then examines as
    /// many objects as it returns.
    ///
    /// # Errors
    /// The aggregation examines every object. The error names a remedy.
    pub fn ensure_no_full_scan(&self, definition: &Definition) -> Result<()> {
        if self.options.keys.is_some() || has_index_access(&self.predicate, definition) {
            return Ok(());
        }
        match is_all(&self.predicate) {
            true if self.is_streamed() && self.cursor.is_some() => Ok(()),
            true => Err(full_scan_error(
                "restrict the query, or read the rows WITHCURSOR without GROUPBY, SORTBY and LIMIT",
            )),
            false => Err(refusal(&self.predicate, definition)),
        }
    }

    /// Like [`Aggregation::ensure_no_full_scan`], for a search of the objects to change.
    ///
    /// # Errors
    /// The search examines every object. The error names a remedy.
    pub fn ensure_no_full_scan_for_change(&self, definition: &Definition) -> Result<()> {
        match has_index_access(&self.predicate, definition) {
            true => Ok(()),
            false if is_all(&self.predicate) => Err(full_scan_error("restrict the query")),
            false => Err(refusal(&self.predicate, definition)),
        }
    }
}

fn full_scan_error(what_helps: &str) -> Refusal {
    Refusal::new(format!(
        "this query scans all objects of the space, which spaces.refuse_full_scans forbids: {what_helps}"
    ))
}

fn refusal(predicate: &Predicate, definition: &Definition) -> Refusal {
    let mut without: Vec<&str> = Vec::new();
    predicate.leaves(&mut |leaf: &Leaf| {
        for id in &leaf.attributes {
            if let Some(attribute) = definition.attribute(*id)
                && !leaf_has_index_access(*id, &leaf.test, definition)
                && !without.contains(&&*attribute.name)
            {
                without.push(&attribute.name);
            }
        }
    });
    if !without.is_empty() {
        let names = without.join(", ");
        return full_scan_error(&format!("an index of {names} would help: name it in INDEX"));
    }
    let attributes = definition.attributes.iter();
    let indexed = attributes.filter(|attribute| is_indexed(attribute, definition));
    let names: Vec<&str> = indexed.map(|attribute| attribute.name.as_str()).collect();
    full_scan_error(&format!(
        "a negation alone uses no index; add a positive condition on an attribute with an index ({})",
        names.join(", ")
    ))
}

/// Returns whether the predicate holds for every object.
fn is_all(predicate: &Predicate) -> bool {
    match predicate {
        Predicate::All | Predicate::Optional(_) => true,
        Predicate::And(parts) => parts.iter().all(is_all),
        _ => false,
    }
}

/// Returns whether an index yields the objects for which the predicate may hold.
fn has_index_access(predicate: &Predicate, definition: &Definition) -> bool {
    match predicate {
        Predicate::All | Predicate::Optional(_) => false,
        Predicate::Nothing => true,
        Predicate::And(parts) => parts.iter().any(|part| has_index_access(part, definition)),
        Predicate::Or(parts) => parts.iter().all(|part| has_index_access(part, definition)),
        Predicate::Not(inner) => match &**inner {
            Predicate::Not(inner) => has_index_access(inner, definition),
            Predicate::All | Predicate::Optional(_) => true,
            _ => false,
        },
        Predicate::Leaf(leaf) => {
            let mut attributes = leaf.attributes.iter();
            attributes.all(|id| leaf_has_index_access(*id, &leaf.test, definition))
        }
    }
}

fn leaf_has_index_access(id: AttributeId, test: &Test, definition: &Definition) -> bool {
    let Some(attribute) = definition.attribute(id) else {
        // The attribute was dropped.
        return *test != Test::Missing;
    };
    let is_indexed = is_indexed(attribute, definition);
    match test {
        Test::Missing => attribute.options.index_missing && is_listed(attribute, definition),
        Test::Near(_) => is_indexed,
        Test::Word(Pattern::Exact(word)) if word.is_empty() => false,
        Test::Word(_) | Test::Phrase { .. } => is_indexed,
        Test::Tag(patterns) => {
            let is_bounded = |pattern: &Pattern| pattern.span() != Span::all();
            is_indexed || (starts_composite(id, definition) && patterns.iter().all(is_bounded))
        }
        Test::Within(span) => {
            let has_index = match attribute.kind {
                AttributeKind::Tag { .. } => is_indexed,
                AttributeKind::Text { .. } => {
                    attribute.options.sortable && !attribute.sorts_unfolded()
                }
                _ => has_order(attribute, definition),
            };
            has_index || (starts_composite(id, definition) && *span != Span::all())
        }
    }
}

/// Returns whether the attribute has an index of its own: INDEX names it, or is omitted.
fn is_listed(attribute: &Attribute, definition: &Definition) -> bool {
    match &definition.layout.indexes {
        // INDEX cannot name a GEO attribute.
        Some(lists) if attribute.kind != AttributeKind::Geo => {
            lists.iter().any(|list| list[..] == [attribute.id])
        }
        _ => true,
    }
}

fn is_indexed(attribute: &Attribute, definition: &Definition) -> bool {
    is_listed(attribute, definition) && !attribute.options.no_index
}

/// Returns whether there is an index in the order of the attribute's values.
fn has_order(attribute: &Attribute, definition: &Definition) -> bool {
    match attribute.kind {
        AttributeKind::Geo => false,
        AttributeKind::Tag { .. } | AttributeKind::Text { .. } => attribute.options.sortable,
        _ => attribute.options.sortable || is_indexed(attribute, definition),
    }
}

/// Returns whether a composite index starts with the attribute.
fn starts_composite(id: AttributeId, definition: &Definition) -> bool {
    let lists = definition.layout.indexes.iter().flatten();
    let mut several = lists.filter(|list| list.len() > 1);
    several.any(|list| list.first() == Some(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str =
        "s SCHEMA city TAG price NUMERIC note TEXT SORTABLE place GEO u NUMERIC NOINDEX";
    const LISTED: &str = "s INDEX 2 city,price n SCHEMA city TAG price NUMERIC SORTABLE n NUMERIC note TEXT place GEO";

    fn definition(text: &str) -> Definition {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        Definition::parse_create(&words).expect("valid input")
    }

    /// Returns the error message of a rejected search.
    fn search(of: &str, line: &str) -> Option<String> {
        let definition = definition(of);
        let words: Vec<&[u8]> = line.split('#').map(str::as_bytes).collect();
        let search = Search::parse(&words, &definition).expect("a search");
        let refused = search.ensure_no_full_scan(&definition).err()?;
        Some(refused.message)
    }

    fn aggregation(line: &str) -> Option<String> {
        let definition = definition(PLAIN);
        let words: Vec<&[u8]> = line.split('#').map(str::as_bytes).collect();
        let aggregation = Aggregation::parse(&words, &definition).expect("an aggregation");
        let refused = aggregation.ensure_no_full_scan(&definition).err()?;
        Some(refused.message)
    }

    #[test]
    fn a_query_with_index_access_is_no_full_scan() {
        for query in [
            "@city:{rome}",
            "@price:[1 +inf]",
            "sun",
            "@place:[1 2 3 km]",
            "@city:{rome} -@price:[1 2]",
            "@city:{rome} | @price:[1 2]",
            "-@city:{rome} sun",
            "*",
            "*#SORTBY#price",
            "*#SORTBY#note",
            "*#SORTBY#city#LIMIT#0#0",
            "-@city:{rome}#INKEYS#1#a",
        ] {
            assert_eq!(search(PLAIN, query), None, "{query}");
        }
        for query in ["@city:{rome}", "@city:{ro*}", "@price:[1 2]", "@n:[1 2]"] {
            assert_eq!(search(LISTED, query), None, "{query}");
        }
        assert_eq!(aggregation("@price:[1 2]#GROUPBY#1#@city"), None);
        assert_eq!(aggregation("*#LOAD#1#@city#WITHCURSOR"), None);
    }

    #[test]
    fn a_full_scan_is_rejected_with_advice() {
        for (of, query, helps) in [
            (
                PLAIN,
                "-@city:{rome}",
                "on an attribute with an index (city, price, note, place)",
            ),
            (
                PLAIN,
                "@city:{rome} | -@price:[1 2]",
                "add a positive condition",
            ),
            (
                PLAIN,
                "*#SORTBY#city",
                "an index of city would help: declare it SORTABLE",
            ),
            (
                LISTED,
                "@city:{*me}",
                "an index of city would help: name it in INDEX",
            ),
            (LISTED, "@note:sun", "an index of note would help"),
            (
                LISTED,
                "@city:{rome} | @note:sun",
                "an index of note would help",
            ),
        ] {
            let why = search(of, query).unwrap_or_else(|| panic!("{query}"));
            assert!(
                why.contains(helps) && why.contains("spaces.refuse_full_scans"),
                "{query}: {why}"
            );
        }
        for line in [
            "*#GROUPBY#1#@city",
            "*#SORTBY#1#@price",
            "*#LOAD#1#@city",
            "-@city:{rome}#WITHCURSOR",
        ] {
            assert!(aggregation(line).is_some(), "{line}");
        }
    }
}
