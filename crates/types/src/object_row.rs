//! Where an object (a hash, a JSON document) is kept among the rows of tables: under its key, behind a mark.
//!
//! The mark is the first byte of the table's name, and no key that a client sends begins with it. The leading column stays the same, so an
//! object has the slot and the owner that a row of the same key has.

/// What the row of an object begins with.
pub const OBJECT_MARK: u8 = 0;

/// Keys that are no longer than this have their row's made without an allocation.
const SHORT: usize = 127;

/// The row that keeps the object with this key.
pub fn object_row(key: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + key.len());
    row.push(OBJECT_MARK);
    row.extend_from_slice(key);
    row
}

/// As [`object_row`], for as long as `with` takes.
#[inline]
pub fn with_object_row<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() > SHORT {
        return with(&object_row(key));
    }
    let mut row = [OBJECT_MARK; 1 + SHORT];
    row[1..=key.len()].copy_from_slice(key);
    with(&row[..=key.len()])
}

/// The key of the object that is kept in this row. `None`: it is a row like any other.
#[inline]
pub fn object_key(row: &[u8]) -> Option<&[u8]> {
    row.strip_prefix(&[OBJECT_MARK])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row_slot;

    #[test]
    fn an_object_has_the_slot_of_a_row_of_the_same_key() {
        let long = "x".repeat(SHORT);
        for key in [
            "hotel:7",
            "hotel|{rome}7|x",
            "hotel",
            ":m:1",
            "",
            &long,
            &format!("{long}:"),
        ] {
            let row = object_row(key.as_bytes());
            assert_eq!(object_key(&row), Some(key.as_bytes()));
            assert_eq!(object_key(key.as_bytes()), None);
            with_object_row(key.as_bytes(), |same| assert_eq!(same, row));
            if key.contains([':', '|']) {
                assert_eq!(row_slot(&row), row_slot(key.as_bytes()), "{key}");
            }
        }
    }
}
