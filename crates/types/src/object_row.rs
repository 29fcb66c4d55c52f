//! The table rows that hold the value of a key: its text, or its object (a hash or a JSON document).
//!
//! | key | text row | object row |
//! |---|---|---|
//! | `hotel:7`, `:shop.Hotel:7` | the key | mark, key |
//! | `hotel`, a plain key (it has no separator) | mark, mark, `:`, key | mark, mark, `\|`, key |
//!
//! Every row belongs to a table, so the row of a plain key begins with a table name. The mark is a zero byte; client
//! keys do not begin with one. Both rows of a key have the key's hash slot, and therefore the same owner.

use std::borrow::Cow;

use crate::KEY_BYTES_MAX;

/// First byte of an object row.
pub const OBJECT_MARK: u8 = 0;

/// Prefix of the object rows of plain keys: the name of their table.
pub const NAMELESS: &[u8] = &[OBJECT_MARK, OBJECT_MARK, b'|'];

/// Prefix of the text rows of plain keys: the name of their table.
pub const PLAIN_TEXT: &[u8] = &[OBJECT_MARK, OBJECT_MARK, b':'];

/// Maximum length of a key that a client may write. RENAME and COPY can give a key a value of any kind, so the limit
/// is the same for all keys: the longest row of a key fits [`KEY_BYTES_MAX`].
pub const CLIENT_KEY_BYTES_MAX: usize = KEY_BYTES_MAX - NAMELESS.len();

/// Maximum key length for which a row key is built without an allocation.
const SHORT: usize = 125;

/// Returns whether a key has a separator, which ends its table's name. A key without one is a plain key.
#[inline]
pub fn has_separator(key: &[u8]) -> bool {
    key.iter().any(|byte| matches!(byte, b'|' | b':'))
}

/// Returns the row that holds the text of `key`. Allocates only for plain keys.
#[inline]
pub fn text_row(key: &[u8]) -> Cow<'_, [u8]> {
    match has_separator(key) {
        true => Cow::Borrowed(key),
        false => Cow::Owned([PLAIN_TEXT, key].concat()),
    }
}

/// Calls `with` with the key of the text row. Like [`text_row`], but a short plain key needs no allocation.
#[inline]
pub fn with_text_row<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() > SHORT || has_separator(key) {
        return with(&text_row(key));
    }
    let mut row = [OBJECT_MARK; PLAIN_TEXT.len() + SHORT];
    let end = PLAIN_TEXT.len() + key.len();
    row[..PLAIN_TEXT.len()].copy_from_slice(PLAIN_TEXT);
    row[PLAIN_TEXT.len()..end].copy_from_slice(key);
    with(&row[..end])
}

/// Returns the client's key of a text row or an object row.
#[inline]
pub fn row_key(row: &[u8]) -> &[u8] {
    match row {
        [OBJECT_MARK, OBJECT_MARK, b':' | b'|', key @ ..] | [OBJECT_MARK, key @ ..] => key,
        _ => row,
    }
}

/// Returns the prefix before the key in an object row.
fn beginning(key: &[u8]) -> &'static [u8] {
    match has_separator(key) {
        true => &NAMELESS[..1],
        false => NAMELESS,
    }
}

/// Returns the prefixes of the rows of all objects whose keys begin with `prefix`.
pub fn object_rows(prefix: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let nameless = (!has_separator(prefix)).then_some(NAMELESS);
    let beginnings = [Some(&NAMELESS[..1]), nameless].into_iter().flatten();
    beginnings.map(move |beginning| [beginning, prefix].concat())
}

/// Returns the row that holds the object of `key`.
pub fn object_row(key: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(NAMELESS.len() + key.len());
    put_object_row(key, &mut row);
    row
}

/// Appends the result of [`object_row`] to `out`.
#[inline]
pub fn put_object_row(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(beginning(key));
    out.extend_from_slice(key);
}

/// Calls `with` with the key of the object row. Like [`object_row`], but a short key needs no allocation.
#[inline]
pub fn with_object_row<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() > SHORT {
        return with(&object_row(key));
    }
    let beginning = beginning(key);
    let mut row = [OBJECT_MARK; NAMELESS.len() + SHORT];
    let end = beginning.len() + key.len();
    row[..beginning.len()].copy_from_slice(beginning);
    row[beginning.len()..end].copy_from_slice(key);
    with(&row[..end])
}

/// Returns the key of the object that this row holds, or `None` for a text row.
#[inline]
pub fn object_key(row: &[u8]) -> Option<&[u8]> {
    match row {
        [OBJECT_MARK, OBJECT_MARK, b':', ..] => None,
        [OBJECT_MARK, ..] => Some(row_key(row)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row_slot;

    #[test]
    fn both_rows_of_a_key_have_its_slot_and_name_a_table() {
        let long = "x".repeat(SHORT);
        for key in [
            "hotel:7",
            "hotel|{rome}7|x",
            "hotel",
            "{rome}7",
            "|",
            ":m:1",
            ":m:{rome}1",
            "|m",
            "",
            &long,
            &format!("{long}:"),
            &format!("{long}x"),
        ] {
            let row = object_row(key.as_bytes());
            assert_eq!(object_key(&row), Some(key.as_bytes()));
            assert_eq!(object_key(key.as_bytes()), None);
            with_object_row(key.as_bytes(), |same| assert_eq!(same, row));
            let text = text_row(key.as_bytes());
            with_text_row(key.as_bytes(), |same| assert_eq!(same, &*text));
            assert!(row.contains(&b'|') || row.contains(&b':'), "{key}");
            assert_eq!(row_slot(&row), row_slot(key.as_bytes()), "{key}");
            let text = text_row(key.as_bytes());
            assert_eq!(row_key(&text), key.as_bytes());
            assert_eq!(row_key(&row), key.as_bytes());
            assert_eq!(object_key(&text), None, "{key}");
            assert!(has_separator(&text), "{key}");
            assert_eq!(row_slot(&text), row_slot(key.as_bytes()), "{key}");
        }
    }
}
