//! The region of an object in a subspace, and the regions that a search contacts.
//!
//! 1. A search contacts the region of every object that its predicate holds for.
//!
//! Values are assigned to cells by their ordered bytes; texts by the complete text, folded. An object without a value
//! of an attribute, or with several (a list of tags), is in the cell of missing values. A search by an attribute that
//! may have several values contacts that cell too.

use std::ops::Bound;

use larder_types::key_hash;

use crate::base::ordered::Scalar;
use crate::mapping::{CellSet, CellValue, Constraint, Contacts, Cut, Region, Subspace};
use crate::query::{Predicate, Span, ValueDomain, is_unconstrained, value_domain};
use crate::schema::{AttributeId, Definition};
use crate::value::Columns;

/// Longer values are truncated in samples, because all nodes store the resulting cuts.
const SAMPLED_BYTES_MAX: usize = 64;

/// Returns the region of the object under this key.
pub fn region(subspace: &Subspace, columns: &dyn Columns, key: &[u8]) -> Region {
    let places: Vec<(u16, Vec<u8>)> = subspace
        .dimensions()
        .iter()
        .filter_map(|dimension| {
            let id = dimension.attribute.0;
            Some((id, only_value(columns, AttributeId(id))?))
        })
        .collect();
    let place = |attribute: crate::mapping::Attribute| {
        let found = places.iter().find(|(id, _)| *id == attribute.0);
        found.map_or(CellValue::Missing, |(_, bytes)| CellValue::Ordered(bytes))
    };
    subspace.region(place, key_hash(key))
}

/// Returns the value of an object in a sample for partitioning. It is empty if the object is in the cell of missing
/// values.
pub fn sample_value(columns: &dyn Columns, attribute: AttributeId) -> Vec<u8> {
    let mut value = only_value(columns, attribute).unwrap_or_default();
    value.truncate(SAMPLED_BYTES_MAX);
    value
}

/// Returns the ordered bytes of the value that determines the cell, if there is exactly one.
fn only_value(columns: &dyn Columns, attribute: AttributeId) -> Option<Vec<u8>> {
    let column = columns.column(attribute);
    let mut values = column.scalars();
    match (values.next(), values.next()) {
        (Some(only), None) => Some(only.encoded()),
        _ => None,
    }
}

/// Returns the regions that contain all objects the predicate holds for.
pub fn contacts(subspace: &Subspace, predicate: &Predicate, definition: &Definition) -> Contacts {
    let sets = subspace.dimensions().iter().map(|dimension| {
        let cut = &dimension.cut;
        let id = AttributeId(dimension.attribute.0);
        let set = match definition.attribute(id) {
            None => CellSet::all(cut.bits()),
            Some(_) if is_unconstrained(predicate, id) => CellSet::all(cut.bits()),
            Some(attribute) => cells(
                cut,
                &value_domain(predicate, attribute),
                attribute.is_single_valued(),
            ),
        };
        (cut.bits(), set)
    });
    Contacts::new(sets.collect())
}

fn cells(cut: &Cut, domain: &ValueDomain, is_single_valued: bool) -> CellSet {
    let mut sets: Vec<CellSet> = domain
        .spans
        .iter()
        .map(|span| span_cells(cut, span))
        .collect();
    let may_be_missing = domain.missing || (!is_single_valued && !domain.spans.is_empty());
    if may_be_missing {
        sets.push(cut.contacts(&Constraint::Equal(CellValue::Missing)));
    }
    CellSet::of(sets.iter().flat_map(|set| set.runs().iter().copied()))
}

fn span_cells(cut: &Cut, span: &Span) -> CellSet {
    let encoded = |bound: &Bound<Scalar>| match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(value) => Bound::Included(value.encoded()),
        Bound::Excluded(value) => Bound::Excluded(value.encoded()),
    };
    let (low, high) = (encoded(&span.low), encoded(&span.high));
    let low = low.as_ref().map(Vec::as_slice);
    let high = high.as_ref().map(Vec::as_slice);
    cut.contacts(&Constraint::Range(low, high))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mapping::{Attribute, Dimension};
    use crate::object::{Hash, Object};
    use crate::query::{Params, matches, parse};
    use crate::value::Row;

    fn space() -> Definition {
        let text = "i SCHEMA n NUMERIC INDEXMISSING t TAG x TEXT";
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        Definition::parse_create(&words).unwrap()
    }

    fn quantiles(bits: u8, values: impl Iterator<Item = Scalar>) -> Cut {
        let values: Vec<Vec<u8>> = values.map(|value| value.encoded()).collect();
        let weights: Vec<(&[u8], u64)> = values.iter().map(|value| (&value[..], 1)).collect();
        Cut::by_weights(bits, &weights).unwrap()
    }

    fn subspace(n_bits: u8, t_bits: u8, by_hash: bool) -> Subspace {
        use crate::base::number::Number;
        let (n, t) = if by_hash {
            (Cut::by_hash(n_bits).unwrap(), Cut::by_hash(t_bits).unwrap())
        } else {
            (
                quantiles(n_bits, (-4..5).map(|n| Scalar::Number(Number::Int(n)))),
                quantiles(
                    t_bits,
                    ["a", "ab", "b", "ba"]
                        .iter()
                        .map(|t| Scalar::Bytes(t.as_bytes().to_vec())),
                ),
            )
        };
        let dimensions = vec![
            Dimension {
                attribute: Attribute(0),
                cut: n,
            },
            Dimension {
                attribute: Attribute(1),
                cut: t,
            },
        ];
        Subspace::new(dimensions).unwrap()
    }

    #[test]
    fn equality_constraints_contact_few_regions() {
        let space = space();
        let count = |query: &str| {
            let predicate = parse(query.as_bytes(), &space, &Params::default()).unwrap();
            contacts(&subspace(3, 2, false), &predicate, &space).count()
        };
        assert_eq!(count("*"), 32);
        assert_eq!(count("@n==2"), 4);
        // The tag's cell, and the cell of objects with several tags or none.
        assert_eq!(count("@n==2 @t:{ba}"), 2);
        assert_eq!(count("@n:[0 1] @n:[2 3]"), 0);
        assert!(count("@n:[-4 -2]") < count("@n:[-4 2]"));
    }

    #[test]
    fn an_unsplit_tag_is_in_one_region() {
        let words: [&[u8]; 5] = [b"i", b"SCHEMA", b"t", b"TAG", b"SEPARATOR"];
        let words = [&words[..], &[b""]].concat();
        let space = Definition::parse_create(&words).unwrap();
        let cut = Dimension {
            attribute: Attribute(0),
            cut: Cut::by_hash(4).unwrap(),
        };
        let subspace = Subspace::new(vec![cut]).unwrap();
        let predicate = parse(b"@t:{a\\,b}", &space, &Params::default()).unwrap();
        let contacted = contacts(&subspace, &predicate, &space);
        let mut hash = Hash::default();
        hash.set(b"t", "a,b");
        let (row, _) = Row::of(&space, &Object::Hash(hash));
        assert!(matches(&predicate, &row));
        assert_eq!(contacted.count(), 1);
        assert!(contacted.contains(region(&subspace, &row, b"k")));
    }

    proptest! {
        #[test]
        fn a_search_contacts_the_regions_of_all_matches(
            query in proptest::sample::select(vec![
                "*", "@n==1", "@n:[-2 (2]", "-@n:[0 1]", "@n>1 | @t:{a}", "@t:{a|b*}", "@t:{a} @t:{b}", "-@t:{a}", "ismissing(@n)", "@n!=2 @t:{ab}",
                "@t:[\"a\" (\"b\"]", "w | @n==3", "@n:[0 3] -@n==2 @t:{*a*}",
            ]),
            n in proptest::option::of(-5_i32..6), t in proptest::option::of("[ab]{0,2}(,[ab]{1,2})?"), key in "[a-z]{1,4}",
            bits in (0_u8..4, 0_u8..3), by_hash in any::<bool>(),
        ) {
            let space = space();
            let mut hash = Hash::default();
            n.map(|n| hash.set(b"n", n.to_string()));
            t.as_ref().map(|t| hash.set(b"t", t.as_bytes()));
            hash.set(b"x", "w");
            let (row, _) = Row::of(&space, &Object::Hash(hash));
            let subspace = subspace(bits.0, bits.1, by_hash);
            let predicate = parse(query.as_bytes(), &space, &Params::default()).unwrap();
            let own_region = region(&subspace, &row, key.as_bytes());
            if matches(&predicate, &row) {
                prop_assert!(contacts(&subspace, &predicate, &space).contains(own_region));
            }
        }
    }
}
