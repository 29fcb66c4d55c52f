//! A posting list: the rows with one tag or word, by number. In an attribute with many tags, most tags have one row,
//! which needs no allocation.

use super::sorted::Sorted;

/// Lists with more rows are stored in pages.
const FEW_MAX: usize = 128;

#[derive(Debug, Clone, Default)]
pub(super) enum Postings {
    #[default]
    None,
    One(u32),
    Few(Vec<u32>),
    Many(Box<Sorted>),
}

impl Postings {
    /// Creates a list from ascending rows.
    pub fn of(rows: Vec<u32>) -> Postings {
        match rows[..] {
            [] => Postings::None,
            [only] => Postings::One(only),
            _ if rows.len() <= FEW_MAX => Postings::Few(rows),
            _ => Postings::Many(Box::new(Sorted::of(&rows))),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Postings::None => 0,
            Postings::One(_) => 1,
            Postings::Few(rows) => rows.len(),
            Postings::Many(rows) => rows.len(),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Postings::None | Postings::One(_) => 0,
            Postings::Few(rows) => rows.capacity() * 4,
            Postings::Many(rows) => size_of::<Sorted>() + rows.heap_bytes(),
        }
    }

    /// Adds a row, which must not be present.
    pub fn insert(&mut self, row: u32) {
        match self {
            Postings::None => *self = Postings::One(row),
            Postings::One(other) => *self = Postings::Few(vec![row.min(*other), row.max(*other)]),
            Postings::Few(rows) => {
                let at = rows.partition_point(|other| *other < row);
                rows.insert(at, row);
                if rows.len() > FEW_MAX {
                    *self = Postings::Many(Box::new(Sorted::of(rows)));
                }
            }
            Postings::Many(rows) => rows.insert(row, |other| other < row),
        }
    }

    /// Removes a row, which must be present.
    pub fn remove(&mut self, row: u32) {
        match self {
            Postings::None => {}
            Postings::One(_) => *self = Postings::None,
            Postings::Few(rows) => {
                let at = rows.partition_point(|other| *other < row);
                rows.remove(at);
                if let &[only] = &rows[..] {
                    *self = Postings::One(only);
                }
            }
            Postings::Many(rows) => {
                rows.remove(row, |other| other < row);
                // The threshold is half of that for splitting, so the list does not oscillate.
                if rows.len() <= FEW_MAX / 2 {
                    *self = Postings::Few(rows.iter().collect());
                }
            }
        }
    }

    pub fn copy_to(&self, out: &mut Vec<u32>) {
        match self {
            Postings::None => {}
            Postings::One(row) => out.push(*row),
            Postings::Few(rows) => out.extend_from_slice(rows),
            Postings::Many(rows) => rows.copy_between(0, rows.len(), out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_and_removed_at_all_sizes() {
        let mut postings = Postings::default();
        let rows: Vec<u32> = (0..300).map(|n| n * 37 % 301).collect();
        let listed = |postings: &Postings| {
            let mut out = Vec::new();
            postings.copy_to(&mut out);
            assert_eq!(postings.len(), out.len());
            out
        };
        let mut known = Vec::new();
        for row in &rows {
            postings.insert(*row);
            known.push(*row);
            known.sort_unstable();
            assert_eq!(listed(&postings), known);
        }
        for row in &rows {
            postings.remove(*row);
            known.retain(|other| other != row);
            assert_eq!(listed(&postings), known);
        }
        assert!(matches!(postings, Postings::None));
    }
}
