//! Columns in folder names: `day=2024-01-02/part-0.parquet`, the layout of Hive and Spark tables.
//!
//! All of them are text, because a name has no type. Names and values are unescaped as those tools escape them (`%3A`
//! is a colon), and `__HIVE_DEFAULT_PARTITION__` is null. If a file has the column too, the folder's value is used,
//! as in Spark and DuckDB.

use crate::plan::FolderColumns;

const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Returns the columns of a file in these folders.
pub(crate) fn columns_of(folders: &[String]) -> FolderColumns {
    let named = folders.iter().filter_map(|folder| {
        let (name, value) = folder.split_once('=')?;
        if name.is_empty() {
            return None;
        }
        let value = (value != NULL).then(|| unescape(value));
        Some((unescape(name), value))
    });
    named.collect()
}

/// Replaces `%` and two hexadecimal digits by a byte. If the result is not UTF-8, the text is unchanged.
fn unescape(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| *first == b'%');
        let byte = escape
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_become_columns() {
        let columns = |folders: &[&str]| {
            columns_of(&folders.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>())
        };
        let of = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        assert_eq!(
            columns(&["day=2024-01-02", "at=10%3A30=x", "plain", "=x"]),
            [of("day", "2024-01-02"), of("at", "10:30=x")]
        );
        assert_eq!(
            columns(&["c=__HIVE_DEFAULT_PARTITION__", "e="]),
            [("c".to_owned(), None), of("e", "")]
        );
        assert_eq!(
            columns(&["p=100%", "q=%ff"]),
            [of("p", "100%"), of("q", "%ff")]
        );
    }
}
