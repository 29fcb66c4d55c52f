//! `[tables.<name>]`: tables whose rows are in PostgreSQL, and the mapping of a row to a key and a value.

use std::collections::BTreeMap;

use super::load::unknown;
use super::{ConfigError, ConfigValue, Writes, suggest};

/// A table that is mapped to a table of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedTable {
    /// The name in `[tables.<name>]`, with which its keys begin.
    pub name: String,
    /// The pattern as text.
    pub pattern: String,
    /// The parsed pattern. The first part is literal text and names the table.
    pub parts: Vec<PatternPart>,
    /// The table in PostgreSQL, optionally with its schema: `schema.table`.
    pub table: String,
    /// The columns of the slots whose names differ from their columns' names.
    pub columns: BTreeMap<String, String>,
    /// The columns of the value.
    pub value: Vec<String>,
    /// The handling of clients' writes.
    pub write: Writes,
}

/// A part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternPart {
    Text(String),
    Slot { name: String, width: Option<usize> },
}

/// A row of the reference of `[tables.<name>]`.
pub struct MappedKey {
    pub name: &'static str,
    pub kind: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
}

/// The keys of `[tables.<name>]`.
pub const MAPPED_KEYS: &[MappedKey] = &[
    MappedKey {
        name: "pattern",
        kind: "text",
        default: "",
        doc: "The format of keys: literal text with `<slots>`, beginning with the table's name and `|` or `:`. Each slot stands for a column. `<time:10>` is a number with leading zeros to 10 digits, or a text of exactly 10 bytes; a slot without a width is a text up to the literal that follows. Required.",
    },
    MappedKey {
        name: "table",
        kind: "text",
        default: "the name in `[tables.<name>]`",
        doc: "The table in PostgreSQL, or `schema.table`; without a schema, in `public`. Its slot columns must hold a unique key.",
    },
    MappedKey {
        name: "columns",
        kind: "table",
        default: "{}",
        doc: "Columns whose names differ from their slots' names, such as `columns = { time = \"posted_us\" }`.",
    },
    MappedKey {
        name: "value",
        kind: "text or list of texts",
        default: "[]",
        doc: "The column that contains the value, as PostgreSQL prints it (`bytea`: its bytes; an array: a JSON array; null: empty). With a list of columns, the value is a JSON object of them. Without this key, values are empty.",
    },
    MappedKey {
        name: "write",
        kind: "word",
        default: "refuse",
        doc: "Handling of clients' writes (SET, DEL and similar commands). `refuse`: reject them; the application writes to PostgreSQL. `through`: execute them in PostgreSQL, and acknowledge them once the change has arrived by replication.",
    },
];

/// Reads `[tables.<name>]`.
pub(super) fn read(
    name: &str,
    table: &toml::Table,
    origin: &str,
) -> Result<MappedTable, ConfigError> {
    let wrong = |key: &str, expected: &str| {
        Err(ConfigError(format!(
            "{origin}: tables.{name}.{key} must be {expected}"
        )))
    };
    let mut mapped = MappedTable {
        name: name.to_owned(),
        pattern: String::new(),
        parts: Vec::new(),
        table: name.to_owned(),
        columns: BTreeMap::new(),
        value: Vec::new(),
        write: Writes::Refused,
    };
    for (key, value) in table {
        match (key.as_str(), value) {
            ("pattern", toml::Value::String(text)) => mapped.pattern.clone_from(text),
            ("table", toml::Value::String(text)) if !text.is_empty() => {
                mapped.table.clone_from(text);
            }
            ("columns", toml::Value::Table(columns)) => {
                for (slot, column) in columns {
                    let Some(column) = column.as_str().filter(|column| !column.is_empty()) else {
                        return wrong(&format!("columns.{slot}"), "a column's name in quotes");
                    };
                    mapped.columns.insert(slot.clone(), column.to_owned());
                }
            }
            ("value", toml::Value::String(column)) if !column.is_empty() => {
                mapped.value = vec![column.clone()];
            }
            ("value", toml::Value::Array(columns)) => {
                for column in columns {
                    let Some(column) = column.as_str().filter(|column| !column.is_empty()) else {
                        return wrong("value", "a column's name, or a list of them");
                    };
                    mapped.value.push(column.to_owned());
                }
                // A list of one column would be an object with one field; see `is_object`.
                if mapped.value.len() == 1 {
                    return wrong("value", "a column's name, or a list of two or more");
                }
            }
            ("write", value) => match Writes::from_toml(value) {
                Ok(write) => mapped.write = write,
                Err(expected) => {
                    return Err(ConfigError(format!(
                        "{origin}: tables.{name}.write is {value}; it must be {expected}"
                    )));
                }
            },
            ("pattern" | "table", _) => return wrong(key, "a text in quotes"),
            ("columns", _) => return wrong(key, "columns by slot, as in { time = \"posted_us\" }"),
            ("value", _) => return wrong(key, "a column's name, or a list of them"),
            _ => {
                let near = suggest::nearest(key, MAPPED_KEYS.iter().map(|key| key.name));
                let path = format!("tables.{name}.{key}");
                let near = near.map(|near| format!("tables.{name}.{near}"));
                return Err(unknown(origin, "key", &path, near));
            }
        }
    }
    if mapped.pattern.is_empty() {
        return wrong("pattern", "given, such as post|<author>|<time:10>");
    }
    match parts_of(name, &mapped.pattern) {
        Ok(parts) => mapped.parts = parts,
        Err(why) => {
            let shown = &mapped.pattern;
            return Err(ConfigError(format!(
                "{origin}: tables.{name}.pattern is {shown}; {why}"
            )));
        }
    }
    for slot in mapped.columns.keys() {
        if !mapped.slots().any(|(name, _)| name == slot) {
            return Err(ConfigError(format!(
                "{origin}: tables.{name}.columns names the slot {slot}, which {} does not have",
                mapped.pattern
            )));
        }
    }
    Ok(mapped)
}

/// Parses a pattern.
fn parts_of(name: &str, pattern: &str) -> Result<Vec<PatternPart>, String> {
    let mut parts: Vec<PatternPart> = Vec::new();
    let mut rest = pattern;
    while !rest.is_empty() {
        if let Some(slot) = rest.strip_prefix('<') {
            let end = slot
                .find('>')
                .ok_or("a slot is not closed: write <name> or <name:width>")?;
            let (slot, after) = (&slot[..end], &slot[end + 1..]);
            rest = after;
            let (slot, width) = match slot.split_once(':') {
                None => (slot, None),
                Some((slot, width)) => {
                    let width = width
                        .parse::<usize>()
                        .ok()
                        .filter(|width| (1..=1024).contains(width));
                    let width = width
                        .ok_or_else(|| format!("the width of <{slot}> must be from 1 to 1024"))?;
                    (slot, Some(width))
                }
            };
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if slot.is_empty() || !slot.chars().all(is_word) {
                return Err("a slot's name has letters, digits and _".to_owned());
            }
            if parts
                .iter()
                .any(|part| matches!(part, PatternPart::Slot { name, .. } if name == slot))
            {
                return Err(format!("the slot <{slot}> occurs twice"));
            }
            if let Some(PatternPart::Slot { name, width: None }) = parts.last() {
                return Err(format!(
                    "<{name}> needs a width, or a text between it and <{slot}>"
                ));
            }
            parts.push(PatternPart::Slot {
                name: slot.to_owned(),
                width,
            });
        } else {
            let end = rest.find('<').unwrap_or(rest.len());
            parts.push(PatternPart::Text(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    let begins = |parts: &[PatternPart]| match parts.first() {
        Some(PatternPart::Text(text)) => {
            let end = text.find(['|', ':']);
            end.is_some_and(|end| text[..end] == *name)
        }
        _ => false,
    };
    if !begins(&parts) {
        return Err(format!("it must begin with {name}| or {name}:"));
    }
    if parts.len() < 2 {
        return Err("it must have a slot".to_owned());
    }
    Ok(parts)
}

impl MappedTable {
    /// Returns the slots and their widths, in order.
    pub fn slots(&self) -> impl Iterator<Item = (&str, Option<usize>)> {
        self.parts.iter().filter_map(|part| match part {
            PatternPart::Slot { name, width } => Some((name.as_str(), *width)),
            PatternPart::Text(_) => None,
        })
    }

    /// Returns the column of a slot.
    pub fn column_of<'a>(&'a self, slot: &'a str) -> &'a str {
        self.columns.get(slot).map_or(slot, String::as_str)
    }

    /// Returns the common prefix of all keys: the name and its separator.
    pub fn prefix(&self) -> &str {
        match self.parts.first() {
            Some(PatternPart::Text(text)) => &text[..=self.name.len().min(text.len() - 1)],
            _ => "",
        }
    }

    /// Returns its configuration keys, one per line.
    pub(super) fn to_toml(&self) -> String {
        let mut table = toml::Table::new();
        let text = |text: &str| toml::Value::String(text.to_owned());
        table.insert("pattern".to_owned(), text(&self.pattern));
        table.insert("table".to_owned(), text(&self.table));
        if !self.columns.is_empty() {
            let columns = self.columns.iter();
            let columns = columns.map(|(slot, column)| (slot.clone(), text(column)));
            table.insert("columns".to_owned(), toml::Value::Table(columns.collect()));
        }
        match &*self.value {
            [] => {}
            [one] => {
                table.insert("value".to_owned(), text(one));
            }
            several => {
                let several = several.iter().map(|column| text(column)).collect();
                table.insert("value".to_owned(), toml::Value::Array(several));
            }
        }
        table.insert("write".to_owned(), self.write.to_toml());
        let lines = table
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"));
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fsync, ServerConfig};

    fn load(toml: &str) -> Result<ServerConfig, String> {
        let mut config = ServerConfig::default();
        let applied = config.apply_toml(toml, "larder.toml");
        applied
            .and_then(|()| config.check())
            .map(|()| config)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn mapped_tables_round_trip() {
        let config = load(
            "[postgres]\nurl = 'postgres://localhost/x'\n[tables]\nfsync = 'no'\n[tables.post]\npattern = 'post|<author>|<time:10>'\n\
             table = 'blog.posts'\nvalue = ['body', 'title']\ncolumns = { time = 'at' }\nwrite = 'through'\n",
        )
        .unwrap();
        let post = &config.mapped[0];
        assert_eq!(post.prefix(), "post|");
        assert_eq!(
            post.slots().collect::<Vec<_>>(),
            [("author", None), ("time", Some(10))]
        );
        assert_eq!(
            (post.column_of("author"), post.column_of("time")),
            ("author", "at")
        );
        let again = load(&config.to_toml()).unwrap();
        assert_eq!(again.mapped, config.mapped);
        assert_eq!(again.tables.fsync, Fsync::No);
    }

    #[test]
    fn invalid_mappings_are_reported() {
        for (lines, expected) in [
            (
                "",
                "larder.toml: tables.t.pattern must be given, such as post|<author>|<time:10>",
            ),
            (
                "pattern = 'u|<a>'",
                "larder.toml: tables.t.pattern is u|<a>; it must begin with t| or t:",
            ),
            (
                "pattern = 't|x'",
                "larder.toml: tables.t.pattern is t|x; it must have a slot",
            ),
            (
                "pattern = 't|<a><b>'",
                "larder.toml: tables.t.pattern is t|<a><b>; <a> needs a width, or a text between it and <b>",
            ),
            (
                "pattern = 't|<a>|<a>'",
                "larder.toml: tables.t.pattern is t|<a>|<a>; the slot <a> occurs twice",
            ),
            (
                "pattern = 't|<a:0>'",
                "larder.toml: tables.t.pattern is t|<a:0>; the width of <a> must be from 1 to 1024",
            ),
            (
                "pattern = 't|<a>'\nvalues = 'x'",
                "larder.toml: no key is called tables.t.values; did you mean tables.t.value?",
            ),
            (
                "pattern = 't|<a>'\nwrite = 'maybe'",
                "larder.toml: tables.t.write is \"maybe\"; it must be refuse or through",
            ),
            (
                "pattern = 't|<a>'\ncolumns = { b = 'x' }",
                "larder.toml: tables.t.columns names the slot b, which t|<a> does not have",
            ),
            (
                "pattern = 't|<a>'",
                "postgres.url is empty; it must be a PostgreSQL address, because [tables.t] is in PostgreSQL, such as postgres://larder@127.0.0.1/shop",
            ),
        ] {
            assert_eq!(load(&format!("[tables.t]\n{lines}")).unwrap_err(), expected);
        }
    }
}
