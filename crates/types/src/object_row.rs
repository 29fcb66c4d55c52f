//! The table rows that hold the value of a key: its text, or its object (a hash or a JSON document).
//!
//! | key | text row | object row |
//! |---|---|---|
//! | `hotel:7`, `:shop.Hotel:7` | the key | mark, key |
//! | `hotel`, a plain key | mark, mark, `:`, key | mark, mark, `\|`, key |
//!
//! The mark is a zero byte. A key that has no separator, or that begins with the mark, is a plain key. Every row belongs
//! to a table, so the row of a plain key begins with a table name.
//!
//! Invariants:
//! 1. Different keys have different rows: only the rows of plain keys begin with two marks.
//! 2. Both rows of a key have the key's hash slot, and therefore the same owner.

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

/// Returns whether a key belongs to no table: it has no separator, which would end a table's name, or it begins with
/// the mark.
#[inline]
pub fn is_plain(key: &[u8]) -> bool {
    key.first() == Some(&OBJECT_MARK) || !key.iter().any(|byte| matches!(byte, b'|' | b':'))
}

/// Returns the row that holds the text of `key`. Allocates only for plain keys.
#[inline]
pub fn text_row(key: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(key) {
        Cow::Owned([PLAIN_TEXT, key].concat())
    } else {
        Cow::Borrowed(key)
    }
}

/// Calls `with` with the key of the text row. Like [`text_row`], but a short plain key needs no allocation.
#[inline]
pub fn with_text_row<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() > SHORT || !is_plain(key) {
        return with(&text_row(key));
    }
    let mut row = [OBJECT_MARK; PLAIN_TEXT.len() + SHORT];
    let end = PLAIN_TEXT.len() + key.len();
    row[..PLAIN_TEXT.len()].copy_from_slice(PLAIN_TEXT);
    row[PLAIN_TEXT.len()..end].copy_from_slice(key);
    with(&row[..end])
}

/// Returns the client's key of a text row or an object row. The argument must be a row, because a key may look like one.
#[inline]
pub fn row_key(row: &[u8]) -> &[u8] {
    match row {
        [OBJECT_MARK, OBJECT_MARK, b':' | b'|', key @ ..] | [OBJECT_MARK, key @ ..] => key,
        _ => row,
    }
}

/// Returns the prefix before the key in an object row.
fn row_prefix(key: &[u8]) -> &'static [u8] {
    if is_plain(key) {
        NAMELESS
    } else {
        &NAMELESS[..1]
    }
}

/// Returns the prefixes of the rows of all objects whose keys begin with `prefix`.
pub fn object_rows(prefix: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let of_plain_keys = is_plain(prefix).then_some(NAMELESS);
    let of_tables = (prefix.first() != Some(&OBJECT_MARK)).then_some(&NAMELESS[..1]);
    let beginnings = [of_tables, of_plain_keys].into_iter().flatten();
    beginnings.map(move |row_prefix| [row_prefix, prefix].concat())
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
    out.extend_from_slice(row_prefix(key));
    out.extend_from_slice(key);
}

/// Calls `with` with the key of the object row. Like [`object_row`], but a short key needs no allocation.
#[inline]
pub fn with_object_row<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() > SHORT {
        return with(&object_row(key));
    }
    let row_prefix = row_prefix(key);
    let mut row = [OBJECT_MARK; NAMELESS.len() + SHORT];
    let end = row_prefix.len() + key.len();
    row[..row_prefix.len()].copy_from_slice(row_prefix);
    row[row_prefix.len()..end].copy_from_slice(key);
    with(&row[..end])
}

/// Returns the key of the object that this row holds, or `None` for a text row. The argument must be a row, because a key
/// may look like one.
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
            "\0",
            "\0\0",
            "\0a",
            "\0a:b|c",
            "\0:x",
            "\0:{rome}:x",
            "\0\0:x",
            "\0\0|x:y",
            "\0\0:\0\0:x",
            "\0\0|\0a:b|c",
            &"\0\0:".repeat(20_000),
            &long,
            &format!("{long}:"),
            &format!("{long}x"),
            &format!("\0{long}"),
        ] {
            let row = object_row(key.as_bytes());
            assert_eq!(object_key(&row), Some(key.as_bytes()));
            with_object_row(key.as_bytes(), |same| assert_eq!(same, row));
            let text = text_row(key.as_bytes());
            with_text_row(key.as_bytes(), |same| assert_eq!(same, &*text));
            assert!(row.contains(&b'|') || row.contains(&b':'), "{key}");
            assert_eq!(row_slot(&row), row_slot(key.as_bytes()), "{key}");
            let text = text_row(key.as_bytes());
            assert_eq!(row_key(&text), key.as_bytes());
            assert_eq!(row_key(&row), key.as_bytes());
            assert_eq!(object_key(&text), None, "{key}");
            assert!(text.contains(&b'|') || text.contains(&b':'), "{key}");
            assert_eq!(row_slot(&text), row_slot(key.as_bytes()), "{key}");
        }
    }

    #[test]
    fn both_rows_of_every_short_key_have_its_slot() {
        let mut keys = vec![Vec::new()];
        let mut at = 0;
        while keys[at].len() < 6 {
            let longer = b"\0a:|".map(|byte| [&keys[at][..], &[byte]].concat());
            keys.extend(longer);
            at += 1;
        }
        for key in &keys {
            for row in [text_row(key).into_owned(), object_row(key)] {
                assert_eq!(row_key(&row), key);
                assert_eq!(row_slot(&row), row_slot(key), "{key:?}");
            }
        }
    }

    #[test]
    fn keys_whose_bytes_are_those_of_a_row_have_rows_of_their_own() {
        let mut keys: Vec<Vec<u8>> = ["hotel", "h:7", ":7"].map(Vec::from).into();
        // Each round adds the rows of the keys so far, as keys.
        for _ in 0..3 {
            let rows = |key: &Vec<u8>| [text_row(key).into_owned(), object_row(key)];
            let rows: Vec<Vec<u8>> = keys.iter().flat_map(rows).collect();
            keys.extend(rows);
            keys.sort_unstable();
            keys.dedup();
        }
        let rows = |key: &Vec<u8>| [text_row(key).into_owned(), object_row(key)];
        let mut all: Vec<Vec<u8>> = keys.iter().flat_map(rows).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// Journals and snapshots hold these rows.
    #[test]
    fn rows_of_keys_are_as_on_disk() {
        for (key, text, object) in [
            ("hotel", "\0\0:hotel", "\0\0|hotel"),
            ("hotel:7", "hotel:7", "\0hotel:7"),
            (":7", ":7", "\0:7"),
            ("\0hotel:7", "\0\0:\0hotel:7", "\0\0|\0hotel:7"),
        ] {
            assert_eq!(&*text_row(key.as_bytes()), text.as_bytes());
            assert_eq!(object_row(key.as_bytes()), object.as_bytes());
        }
    }

    #[test]
    fn a_prefix_of_keys_finds_the_rows_of_their_objects() {
        for key in [
            "hotel",
            "hotel:7",
            ":7",
            "\0",
            "\0\0",
            "\0hotel:7",
            "\0\0:x",
        ] {
            let row = object_row(key.as_bytes());
            for end in 0..=key.len() {
                let mut rows = object_rows(&key.as_bytes()[..end]);
                assert!(rows.any(|prefix| row.starts_with(&prefix)), "{key} {end}");
            }
        }
        assert_eq!(object_rows(b"\0h|").collect::<Vec<_>>(), [b"\0\0|\0h|"]);
    }
}
