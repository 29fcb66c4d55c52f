//! Chooses the order in which a join's sources are read.
//!
//! A join is computed by nested scans: for each row of the first source, the matching rows of the second, and so on.
//! Maintained joins read the value's source last, because most writes change its rows. Among the checked sources, the
//! next is the one with the most leading columns known by then; ties are resolved in the order of the text. In a `pull`
//! join, a check after the value's source is a filter, so the sources are read in the order of the text.

use crate::base::pattern::Element;
use crate::language::definition::Definition;
use crate::language::grammar::JoinMode;

/// Returns the order as indexes of the definition's sources.
pub fn plan_order(definition: &Definition) -> Vec<usize> {
    let written: Vec<usize> = (0..definition.sources.len()).collect();
    let filters = definition.value + 1 < definition.sources.len();
    if definition.mode == JoinMode::Pull && filters {
        return written;
    }
    let mut left: Vec<usize> = written
        .into_iter()
        .filter(|&s| s != definition.value)
        .collect();
    let mut bound = first_slot(definition);
    let mut order = Vec::new();
    while !left.is_empty() {
        let known = |&s: &usize| definition.sources[s].pattern.elements_bound(bound);
        let best = (0..left.len())
            .max_by_key(|&at| (known(&left[at]), std::cmp::Reverse(at)))
            .expect("the list is not empty");
        let source = left.remove(best);
        bound |= definition.sources[source].pattern.slots;
        order.push(source);
    }
    order.push(definition.value);
    order
}

/// A read of an output usually fixes its first slot.
fn first_slot(definition: &Definition) -> u32 {
    let first = definition
        .shape
        .output
        .elements
        .iter()
        .find_map(|e| match e {
            Element::Slot(id) => Some(1 << id),
            Element::Text(_) => None,
        });
    first.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order_of(text: &str) -> Vec<usize> {
        plan_order(&Definition::parse(text).unwrap())
    }

    #[test]
    fn the_value_is_read_last_unless_a_pull_filters() {
        assert_eq!(
            order_of("t|<u>|<t>|<p> = copy p|<p>|<t> check s|<u>|<p>"),
            [1, 0]
        );
        assert_eq!(
            order_of("t|<u>|<t>|<p> = pull copy p|<p>|<t> check s|<u>|<p>"),
            [0, 1]
        );
        assert_eq!(
            order_of("t|<u>|<t>|<p> = pull check s|<u>|<p> copy p|<p>|<t>"),
            [0, 1]
        );
    }

    #[test]
    fn checks_that_bind_fewer_slots_come_first() {
        assert_eq!(
            order_of("o|<a>|<c> = check z|<b>|<c> check x|<a>|<b> copy y|<c>"),
            [1, 0, 2]
        );
    }
}
