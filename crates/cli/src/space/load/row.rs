//! A row of a file: its columns by name, as texts, in the file's order.

use std::collections::BTreeMap;
use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine};
use larder_ingest::SinkError;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Columns of a dump that are not fields: the key; fields without their own column, as JSON; fields that are not UTF-8,
/// in base64; and the expiry time.
pub const KEY: &str = "__key";
pub const FIELDS: &str = "__fields";
pub const BYTES: &str = "__bytes";
pub const EXPIRES_AT: &str = "__expires_at";
/// In the column of bytes, a name with this prefix continues in base64: a field name that is not UTF-8, that equals the
/// key column's name, or that begins with this prefix.
pub const NAME_IN_BASE64: &str = "base64:";
/// The complete document, in a space of documents.
pub const JSON: &str = "__json";

/// The value of a column in one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// No value.
    Null,
    /// Text; numbers and booleans as they are written.
    Text(String),
    /// An array or an object, as JSON.
    Nested(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row(pub Vec<(String, Cell)>);

/// The parts of a dumped row that are not columns of fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Extra {
    pub key: Option<Vec<u8>>,
    /// Fields without a column.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// The document.
    pub json: Option<String>,
    /// Milliseconds since 1970.
    pub expires_at: Option<u64>,
}

impl Row {
    /// # Errors
    /// The text is not a JSON object, or contains a column twice.
    pub fn parse(json: &[u8]) -> Result<Row, SinkError> {
        struct Columns;
        impl<'de> Visitor<'de> for Columns {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry::<String, &RawValue>()? {
                    columns.push(column);
                }
                Ok(columns)
            }
        }
        let mut decoder = serde_json::Deserializer::from_slice(json);
        let columns = (&mut decoder).deserialize_map(Columns)?;
        let cells = columns.into_iter().map(|(name, raw)| {
            let text = raw.get();
            let cell = match text.as_bytes().first() {
                Some(b'n') => Cell::Null,
                Some(b'"') => Cell::Text(serde_json::from_str(text)?),
                Some(b'{' | b'[') => Cell::Nested(text.to_owned()),
                _ => Cell::Text(text.to_owned()),
            };
            Ok((name, cell))
        });
        cells.collect::<Result<_, SinkError>>().map(Row)
    }

    pub fn get(&self, name: &str) -> Option<&Cell> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, cell)| cell)
    }

    /// Returns the text of a column, if it is one.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Cell::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns all columns as fields, unchanged; `None` for fields that the object does not have.
    pub fn fields(&self) -> Vec<(String, Option<String>)> {
        let fields = self.0.iter().map(|(name, cell)| {
            let value = match cell {
                Cell::Null => None,
                Cell::Text(text) | Cell::Nested(text) => Some(text.clone()),
            };
            (name.clone(), value)
        });
        fields.collect()
    }

    /// Removes and returns the parts of a dump that are not fields.
    ///
    /// # Errors
    /// A column with such a name has an invalid value.
    pub fn take_extra(&mut self) -> Result<Extra, SinkError> {
        let mut extra = Extra::default();
        let mut own: Vec<(String, Cell)> = Vec::new();
        let is_own = |(name, _): &mut (String, Cell)| {
            [KEY, FIELDS, BYTES, JSON, EXPIRES_AT].contains(&&**name)
        };
        own.extend(self.0.extract_if(.., is_own));
        for (name, cell) in own {
            let text = match cell {
                Cell::Null => continue,
                Cell::Text(text) | Cell::Nested(text) => text,
            };
            let bad = |why: &dyn fmt::Display| -> SinkError {
                format!("column {name} is not in the format of `larder space dump`: {why}").into()
            };
            match name.as_str() {
                KEY => extra.key = Some(text.into_bytes()),
                JSON => extra.json = Some(text),
                FIELDS => {
                    let fields: BTreeMap<String, String> =
                        serde_json::from_str(&text).map_err(|error| bad(&error))?;
                    let fields = fields.into_iter();
                    extra.fields.extend(
                        fields.map(|(name, value)| (name.into_bytes(), value.into_bytes())),
                    );
                }
                BYTES => {
                    let fields: BTreeMap<String, String> =
                        serde_json::from_str(&text).map_err(|error| bad(&error))?;
                    for (name, value) in fields {
                        let value = BASE64_STANDARD.decode(value).map_err(|error| bad(&error))?;
                        match (name.as_str(), name.strip_prefix(NAME_IN_BASE64)) {
                            (KEY, _) => extra.key = Some(value),
                            (_, None) => extra.fields.push((name.into_bytes(), value)),
                            (_, Some(name)) => {
                                let name = BASE64_STANDARD.decode(name);
                                extra
                                    .fields
                                    .push((name.map_err(|error| bad(&error))?, value));
                            }
                        }
                    }
                }
                _ => extra.expires_at = Some(text.parse().map_err(|error| bad(&error))?),
            }
        }
        Ok(extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_keep_their_source_text() {
        let row = Row::parse(br#"{"a":"x\n","b":1.50,"c":null,"d":[1, 2],"e":true}"#).unwrap();
        let text = |text: &str| Cell::Text(text.to_owned());
        assert_eq!(row.get("a"), Some(&text("x\n")));
        assert_eq!(row.get("b"), Some(&text("1.50")));
        assert_eq!(row.get("c"), Some(&Cell::Null));
        assert_eq!(row.get("d"), Some(&Cell::Nested("[1, 2]".to_owned())));
        assert_eq!(row.get("e"), Some(&text("true")));
        assert_eq!(row.get("f"), None);
    }

    #[test]
    fn dump_columns_that_are_not_fields_are_extracted() {
        let json = br#"{"__key":"h:1","city":"Rome","__fields":"{\"a\":\"\"}","__bytes":"{\"b\":\"/w==\"}","__expires_at":"17"}"#;
        let mut row = Row::parse(json).unwrap();
        let extra = row.take_extra().unwrap();
        assert_eq!(extra.key.as_deref(), Some(&b"h:1"[..]));
        let fields = [(b"a".to_vec(), Vec::new()), (b"b".to_vec(), vec![0xff])];
        assert_eq!(extra.fields, fields);
        assert_eq!(extra.expires_at, Some(17));
        assert_eq!(row.0.len(), 1);
        let mut bad = Row::parse(br#"{"__fields":"no"}"#).unwrap();
        assert!(bad.take_extra().is_err());
    }
}
