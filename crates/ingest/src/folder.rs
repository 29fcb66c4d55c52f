//! Columns that stand in the names of folders: `day=2024-01-02/part-0.parquet`, as Hive and Spark write tables.
//!
//! All of them are text: a name does not say a type. Names and values are unescaped as those tools escape them (`%3A` is a colon), and
//! `__HIVE_DEFAULT_PARTITION__` is null. A column that a file has itself too is taken from the folder, as Spark and DuckDB do.

use crate::plan::FolderColumns;

const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The columns of a file that lies in these folders.
pub(crate) fn columns_of(folders: &[String]) -> FolderColumns {
    let named = folders.iter().filter_map(|folder| {
        let (name, value) = folder.split_once('=')?;
        if name.is_empty() {
            return None;
        }
        let value = (value != NULL).then(|| unescaped(value));
        Some((unescaped(name), value))
    });
    named.collect()
}

/// `%` and two hexadecimal digits are a byte; what would not be text then stays as it is.
fn unescaped(text: &str) -> String {
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
    fn names_of_folders_are_columns() {
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
