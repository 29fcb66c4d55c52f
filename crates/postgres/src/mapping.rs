//! A mapped table: the conversion of rows to keys and values, and of keys to columns.
//!
//! 1. There is a one-to-one correspondence between a row's key and its slot columns. A row whose columns cannot form a
//!    key is a [`Misfit`] and never gets another row's key. Examples are a text that contains the terminator of its
//!    slot, and a number with too many digits.

use std::collections::BTreeMap;
use std::fmt;

use larder_protocol::config::{MappedTable, PatternPart, Writes};
use serde_json::value::RawValue;

use crate::array;
use crate::pgoutput::Cell;

/// Maximum length of a key.
const KEY_BYTES_MAX: usize = 64 << 10;

/// A table of larder that is stored in a table of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The name in `[tables.<name>]`.
    pub name: String,
    /// The prefix of all keys: the name and its separator.
    pub prefix: Vec<u8>,
    pub pattern: String,
    pub schema: String,
    pub table: String,
    pub parts: Vec<Part>,
    pub slots: Vec<Slot>,
    pub values: Vec<Value>,
    /// The value is a JSON object of several columns.
    pub is_object: bool,
    pub through: bool,
    /// The columns of a unique index that is within the slots' columns; empty until the database has been checked.
    pub unique: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(Vec<u8>),
    Slot(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub name: String,
    pub column: String,
    pub width: Option<usize>,
    pub kind: SlotKind,
    /// The OID of the column's type; 0 until the database has been checked.
    pub type_oid: u32,
    /// The terminator, if the slot has no width and is not the last.
    pub end: Vec<u8>,
}

/// The type of a slot's column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    Text,
    Integer { max: i64 },
    Uuid,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub column: String,
    /// The type of the column, or of an array's elements.
    pub kind: ValueKind,
    /// As [`Slot::type_oid`].
    pub type_oid: u32,
    /// The separator of the elements in PostgreSQL's output. `None` if the column is not an array.
    pub delimiter: Option<u8>,
}

/// The representation of a column in a row's value and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Bytes,
    Integer,
    Number,
    Boolean,
    Json,
}

/// A row that cannot be represented in the mapped table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    pub column: String,
    /// The reason, and what would be valid.
    pub why: String,
}

impl Mapping {
    /// Creates a mapping from the configuration. All types are text until the database has been checked.
    pub fn new(config: &MappedTable) -> Mapping {
        let (schema, table) = config
            .table
            .split_once('.')
            .unwrap_or(("public", &config.table));
        let mut slots: Vec<Slot> = Vec::new();
        let mut parts = Vec::new();
        for part in &config.parts {
            match part {
                PatternPart::Text(text) => {
                    if let (Some(Part::Slot(slot)), bytes) = (parts.last(), text.as_bytes()) {
                        slots[*slot].end = bytes.to_vec();
                    }
                    parts.push(Part::Text(text.clone().into_bytes()));
                }
                PatternPart::Slot { name, width } => {
                    parts.push(Part::Slot(slots.len()));
                    slots.push(Slot {
                        name: name.clone(),
                        column: config.column_of(name).to_owned(),
                        width: *width,
                        kind: SlotKind::Text,
                        type_oid: 0,
                        end: Vec::new(),
                    });
                }
            }
        }
        let value = |column: &String| Value {
            column: column.clone(),
            kind: ValueKind::Text,
            type_oid: 0,
            delimiter: None,
        };
        Mapping {
            name: config.name.clone(),
            prefix: config.prefix().as_bytes().to_vec(),
            pattern: config.pattern.clone(),
            schema: schema.to_owned(),
            table: table.to_owned(),
            parts,
            slots,
            values: config.value.iter().map(value).collect(),
            is_object: config.value.len() > 1,
            through: config.write == Writes::Through,
            unique: Vec::new(),
        }
    }

    /// Returns `schema.table`, for messages.
    pub fn shown(&self) -> String {
        match &*self.schema {
            "public" => self.table.clone(),
            schema => format!("{schema}.{}", self.table),
        }
    }

    /// Returns the columns to load: those of the slots, then those of the value.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let slots = self.slots.iter().map(|slot| &*slot.column);
        slots.chain(self.values.iter().map(|value| &*value.column))
    }

    /// Returns the key of a row; `cells` are those of the slots, in order.
    ///
    /// # Errors
    /// The row cannot be represented in this table.
    pub fn key_of(&self, cells: &[Cell]) -> Result<Vec<u8>, Misfit> {
        let mut key = Vec::with_capacity(32);
        for part in &self.parts {
            match part {
                Part::Text(text) => key.extend_from_slice(text),
                Part::Slot(at) => {
                    let slot = &self.slots[*at];
                    let cell = cells.get(*at).unwrap_or(&Cell::Null);
                    slot.write(cell, &mut key).map_err(|why| Misfit {
                        column: slot.column.clone(),
                        why,
                    })?;
                }
            }
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Misfit {
                column: self.slots[0].column.clone(),
                why: format!(
                    "makes a key of {} bytes; {KEY_BYTES_MAX} are allowed",
                    key.len()
                ),
            });
        }
        Ok(key)
    }

    /// Returns the slots' columns of a key in PostgreSQL's output format. `None` if no row can have this key.
    pub fn columns_of(&self, key: &[u8]) -> Option<Vec<String>> {
        let mut rest = key;
        let mut columns = Vec::with_capacity(self.slots.len());
        for part in &self.parts {
            match part {
                Part::Text(text) => rest = rest.strip_prefix(&**text)?,
                Part::Slot(at) => {
                    let slot = &self.slots[*at];
                    let len = slot.len_in(rest).unwrap_or(rest.len());
                    columns.push(slot.column_value(&rest[..len])?);
                    rest = &rest[len..];
                }
            }
        }
        rest.is_empty().then_some(columns)
    }

    /// Returns the value of a row; `cells` are those of the value's columns, in order. `None` if a cell was not sent.
    pub fn value_of(&self, cells: &[Cell]) -> Option<Vec<u8>> {
        if cells.contains(&Cell::Unchanged) {
            return None;
        }
        if !self.is_object {
            let only = self.values.first().zip(cells.first());
            return Some(only.map_or_else(Vec::new, |(value, cell)| value.plain(cell)));
        }
        self.object(cells, |value, cell| Some(value.json(cell)))
    }

    /// Returns the new value of a row of which some columns were not sent; they are taken from its previous value.
    pub fn patched(&self, before: &[u8], cells: &[Cell]) -> Option<Vec<u8>> {
        if !self.is_object {
            return match cells.first() {
                Some(Cell::Unchanged) => Some(before.to_vec()),
                _ => self.value_of(cells),
            };
        }
        let before: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(before).ok()?;
        self.object(cells, |value, cell| match cell {
            Cell::Unchanged => before.get(&value.column).map(|kept| kept.get().to_owned()),
            cell => Some(value.json(cell)),
        })
    }

    fn object(
        &self,
        cells: &[Cell],
        mut json: impl FnMut(&Value, &Cell) -> Option<String>,
    ) -> Option<Vec<u8>> {
        let mut object = b"{".to_vec();
        for (at, (value, cell)) in self.values.iter().zip(cells).enumerate() {
            if at > 0 {
                object.push(b',');
            }
            object.extend_from_slice(quote(&value.column).as_bytes());
            object.push(b':');
            object.extend_from_slice(json(value, cell)?.as_bytes());
        }
        object.push(b'}');
        Some(object)
    }
}

impl Slot {
    fn write(&self, cell: &Cell, key: &mut Vec<u8>) -> Result<(), String> {
        let Cell::Text(text) = cell else {
            return Err("is null".to_owned());
        };
        let shown = || String::from_utf8_lossy(&text[..text.len().min(64)]);
        if !text.is_empty() && self.kind.parse_printed(text).is_none() {
            return Err(format!(
                "is '{}', which is not of the column's type",
                shown()
            ));
        }
        match (self.kind, self.width) {
            (SlotKind::Integer { .. }, Some(width)) => {
                if text.starts_with(b"-") {
                    return Err(format!("is {}, below 0", shown()));
                }
                if text.len() > width {
                    return Err(format!(
                        "is {}, which has more than {width} digits",
                        shown()
                    ));
                }
                key.resize(key.len() + width - text.len(), b'0');
            }
            (_, Some(width)) if text.len() != width => {
                return Err(format!("is '{}', which has not {width} bytes", shown()));
            }
            (_, Some(_)) => {}
            (_, None) if text.is_empty() => return Err("is empty".to_owned()),
            (_, None) => {
                if let Some(stop) = text.iter().find(|&&byte| self.is_stop(byte)) {
                    let stop = char::from(*stop);
                    return Err(format!("is '{}', which holds '{stop}'", shown()));
                }
            }
        }
        key.extend_from_slice(text);
        Ok(())
    }

    /// Returns whether a slot without a width cannot contain this byte.
    pub fn is_stop(&self, byte: u8) -> bool {
        byte == b'|' || self.end.first() == Some(&byte)
    }

    /// Returns the length of this slot in the rest of a key; `None` if `rest` ends before the slot does.
    pub fn len_in(&self, rest: &[u8]) -> Option<usize> {
        match self.width {
            Some(width) => (rest.len() >= width).then_some(width),
            None => rest.iter().position(|&byte| self.is_stop(byte)),
        }
    }

    /// Returns the column's value for a slot's bytes, in PostgreSQL's output format; `None` if no row can have it.
    pub fn column_value(&self, bytes: &[u8]) -> Option<String> {
        if self.width.is_some_and(|width| width != bytes.len()) || bytes.is_empty() {
            return None;
        }
        let text = match (self.kind, self.width) {
            (SlotKind::Integer { .. }, Some(_)) if bytes.contains(&b'-') => return None,
            // Leading zeros are padding, except in 0 itself.
            (SlotKind::Integer { .. }, Some(_)) => {
                let zeros = bytes.iter().take_while(|&&byte| byte == b'0').count();
                &bytes[zeros.min(bytes.len() - 1)..]
            }
            _ => bytes,
        };
        self.kind.parse_printed(text).map(str::to_owned)
    }
}

impl SlotKind {
    /// Returns the text if it is a possible output of PostgreSQL for this type.
    fn parse_printed(self, bytes: &[u8]) -> Option<&str> {
        let text = std::str::from_utf8(bytes).ok()?;
        let is_printed = match self {
            SlotKind::Text => !bytes.contains(&0),
            SlotKind::Uuid => {
                bytes.len() == 36
                    && bytes.iter().enumerate().all(|(at, byte)| match at {
                        8 | 13 | 18 | 23 => *byte == b'-',
                        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
                    })
            }
            SlotKind::Integer { max } => {
                let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
                let is_canonical = match digits {
                    [b'0', ..] => text == "0",
                    _ => digits.iter().all(u8::is_ascii_digit),
                };
                let number = text.parse::<i64>().ok().filter(|_| is_canonical);
                number.is_some_and(|number| (-max - 1..=max).contains(&number))
            }
        };
        is_printed.then_some(text)
    }
}

impl Value {
    /// Returns the representation as the complete value of a row.
    fn plain(&self, cell: &Cell) -> Vec<u8> {
        match (cell, self.kind) {
            (Cell::Text(_), _) if self.delimiter.is_some() => self.json(cell).into_bytes(),
            (Cell::Text(text), ValueKind::Bytes) => {
                decode_hex(text).unwrap_or_else(|| text.to_vec())
            }
            (Cell::Text(text), _) => text.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns the representation as a member of a JSON object.
    fn json(&self, cell: &Cell) -> String {
        let Cell::Text(text) = cell else {
            return "null".to_owned();
        };
        let text = String::from_utf8_lossy(text);
        let Some(delimiter) = self.delimiter else {
            return self.kind.json(&text);
        };
        let array = array::to_json(&text, delimiter, |element| self.kind.json(element));
        array.unwrap_or_else(|| quote(&text))
    }
}

impl ValueKind {
    /// Converts a value in PostgreSQL's output format to JSON.
    fn json(self, text: &str) -> String {
        match self {
            ValueKind::Boolean => if text == "t" { "true" } else { "false" }.to_owned(),
            ValueKind::Integer | ValueKind::Json => text.to_owned(),
            // Numbers that JSON cannot represent, such as NaN, become strings.
            ValueKind::Number if serde_json::from_str::<&RawValue>(text).is_ok() => text.to_owned(),
            _ => quote(text),
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.column, self.why)
    }
}

/// Returns a text as a JSON string.
fn quote(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// Decodes the bytes of `\x0aff`.
fn decode_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(b"\\x")?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits
        .chunks(2)
        .map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use larder_protocol::config::ServerConfig;
    use proptest::prelude::*;

    use super::*;

    /// Returns a mapping as declared by `[tables.<name>]`, with the types of its slots and values.
    pub fn mapping(lines: &str, slots: &[SlotKind], values: &[ValueKind]) -> Mapping {
        let mut config = ServerConfig::default();
        let name = lines.split(['\'', '|', ':']).nth(1).unwrap_or_default();
        config
            .apply_toml(&format!("[tables.{name}]\n{lines}"), "test")
            .unwrap();
        let mut mapping = Mapping::new(&config.mapped[0]);
        for (slot, kind) in mapping.slots.iter_mut().zip(slots) {
            slot.kind = *kind;
        }
        for (value, kind) in mapping.values.iter_mut().zip(values) {
            value.kind = *kind;
        }
        mapping
    }

    pub const INTEGER: SlotKind = SlotKind::Integer { max: i64::MAX };

    pub fn posts() -> Mapping {
        mapping(
            "pattern = 'post|<author>|<time:10>'\nvalue = 'body'",
            &[SlotKind::Text, INTEGER],
            &[ValueKind::Text],
        )
    }

    pub fn text(text: &str) -> Cell {
        Cell::Text(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn keys_round_trip() {
        let posts = posts();
        let key = posts.key_of(&[text("bob"), text("100")]).unwrap();
        assert_eq!(key, b"post|bob|0000000100");
        assert_eq!(posts.columns_of(&key).unwrap(), ["bob", "100"]);
        for absent in [
            &b"post|bob|100"[..],
            b"post|bob|000000010x",
            b"post||0000000100",
            b"post|bob|0000000100x",
        ] {
            assert_eq!(posts.columns_of(absent), None);
        }
    }

    #[test]
    fn an_unmappable_row_reports_the_reason() {
        let posts = posts();
        for (author, time, expected) in [
            (text("a|b"), text("1"), "author is 'a|b', which holds '|'"),
            (text(""), text("1"), "author is empty"),
            (Cell::Null, text("1"), "author is null"),
            (text("a"), text("-1"), "time is -1, below 0"),
            (
                text("a"),
                text("12345678901"),
                "time is 12345678901, which has more than 10 digits",
            ),
        ] {
            assert_eq!(
                posts.key_of(&[author, time]).unwrap_err().to_string(),
                expected
            );
        }
    }

    #[test]
    fn several_columns_make_an_object_and_can_be_changed_one_by_one() {
        let page = mapping(
            "pattern = 'page|<id>'\nvalue = ['title', 'likes', 'open', 'extra']",
            &[INTEGER],
            &[
                ValueKind::Text,
                ValueKind::Integer,
                ValueKind::Boolean,
                ValueKind::Json,
            ],
        );
        let value = page
            .value_of(&[text("a \"b\""), text("3"), text("t"), text("{\"x\": 1}")])
            .unwrap();
        let shown = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        assert_eq!(
            shown(&value),
            r#"{"title":"a \"b\"","likes":3,"open":true,"extra":{"x": 1}}"#
        );
        let cells = [Cell::Unchanged, text("4"), Cell::Null, Cell::Unchanged];
        assert_eq!(page.value_of(&cells), None);
        assert_eq!(
            shown(&page.patched(&value, &cells).unwrap()),
            r#"{"title":"a \"b\"","likes":4,"open":null,"extra":{"x": 1}}"#
        );
    }

    #[test]
    fn bytea_yields_its_bytes_and_null_an_empty_value() {
        let blob = mapping("pattern = 'b|<id>'\nvalue = 'x'", &[], &[ValueKind::Bytes]);
        assert_eq!(blob.value_of(&[text("\\x00ff0a")]), Some(vec![0, 255, 10]));
        assert_eq!(blob.value_of(&[Cell::Null]), Some(Vec::new()));
    }

    proptest! {
        /// Invariant 1.
        #[test]
        fn keys_and_columns_determine_one_another(author in "[a-c|é]{0,4}", time in -5i64..20_000_000_000) {
            let posts = posts();
            match posts.key_of(&[text(&author), text(&time.to_string())]) {
                Ok(key) => prop_assert_eq!(posts.columns_of(&key), Some(vec![author, time.to_string()])),
                Err(_) => prop_assert!(author.is_empty() || author.contains('|') || !(0..10_000_000_000).contains(&time)),
            }
        }
    }
}
