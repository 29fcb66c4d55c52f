//! The columns of an object, in memory and as bytes.
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 1 | format: 1 |
//! | 1 | 2 | the number of columns, little-endian |
//! | 3 | 4 each | the end of each column, relative to the start of the first one, little-endian |
//! | then | | the columns, in the format of [`Column::encode`]; a missing column takes no bytes |
//!
//! If a reader knows more attributes than the row has columns, the others are missing: they were added after the row
//! was written.

use std::borrow::Cow;

use larder_types::wire::Malformed;

use super::column::Column;
use crate::schema::AttributeId;

/// Access to the columns of an object, for searches.
pub trait Columns {
    /// Returns [`Column::Missing`] if there is no such column.
    fn column(&self, attribute: AttributeId) -> Cow<'_, Column>;
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Indexed by attribute id.
    pub columns: Vec<Column>,
}

impl Columns for Row {
    fn column(&self, attribute: AttributeId) -> Cow<'_, Column> {
        match self.columns.get(attribute.index()) {
            Some(column) => Cow::Borrowed(column),
            None => Cow::Owned(Column::Missing),
        }
    }
}

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 3;

impl Row {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        let count = u16::try_from(self.columns.len()).expect("attributes are numbered by 16 bits");
        out.extend_from_slice(&count.to_le_bytes());
        let begin = HEAD_BYTES + 4 * self.columns.len();
        out.resize(begin, 0);
        for (index, column) in self.columns.iter().enumerate() {
            column.encode(&mut out);
            let end = u32::try_from(out.len() - begin).expect("an object is far below 4 GiB");
            out[HEAD_BYTES + 4 * index..][..4].copy_from_slice(&end.to_le_bytes());
        }
        out
    }
}

/// A view of an encoded row that decodes columns on demand.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    ends: &'a [u8],
    columns: &'a [u8],
}

impl<'a> RowView<'a> {
    /// Checks the offsets of the columns, but does not decode them.
    ///
    /// # Errors
    /// The bytes are not an encoded row.
    pub fn new(bytes: &'a [u8]) -> Result<RowView<'a>, Malformed> {
        const BAD: Malformed = Malformed("the bytes are not a row");
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(BAD)?;
        let count = usize::from(u16::from_le_bytes([head[1], head[2]]));
        if head[0] != FORMAT || rest.len() < 4 * count {
            return Err(BAD);
        }
        let (ends, columns) = rest.split_at(4 * count);
        let view = RowView { ends, columns };
        let mut before = 0;
        for index in 0..count {
            let end = view.end(index);
            if end < before || end > columns.len() {
                return Err(BAD);
            }
            before = end;
        }
        if before == columns.len() {
            Ok(view)
        } else {
            Err(BAD)
        }
    }

    pub fn count(&self) -> usize {
        self.ends.len() / 4
    }

    fn end(&self, index: usize) -> usize {
        let bytes = &self.ends[4 * index..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
    }

    /// Decodes one column.
    ///
    /// # Errors
    /// The bytes of the column are damaged.
    pub fn decode(&self, attribute: AttributeId) -> Result<Column, Malformed> {
        let index = attribute.index();
        if index >= self.count() {
            return Ok(Column::Missing);
        }
        let begin = if index == 0 { 0 } else { self.end(index - 1) };
        Column::decode(&self.columns[begin..self.end(index)])
    }

    /// Decodes all columns.
    ///
    /// # Errors
    /// A column is damaged.
    pub fn row(&self) -> Result<Row, Malformed> {
        let ids = (0..self.count()).map(|index| AttributeId(index as u16));
        Ok(Row {
            columns: ids.map(|id| self.decode(id)).collect::<Result<_, _>>()?,
        })
    }
}

/// A damaged column counts as missing. Code that stores rows on disk verifies them first.
impl Columns for RowView<'_> {
    fn column(&self, attribute: AttributeId) -> Cow<'_, Column> {
        Cow::Owned(self.decode(attribute).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::read::column;
    use super::*;
    use crate::object::{Document, Hash, Object};
    use crate::schema::Definition;

    fn definition(text: &str) -> Definition {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        Definition::parse_create(&words).unwrap()
    }

    fn check(kind: &str, value: &str, expected: &str) {
        let definition = definition(&format!("i SCHEMA f {kind}"));
        let object = Object::Hash(Hash::from_iter([("f", value)]));
        shows(&definition, &object, expected);
    }

    fn check_json(kind: &str, value: &str, expected: &str) {
        let definition = definition(&format!("i ON JSON SCHEMA $.f AS f {kind}"));
        let object = Object::Json(Document::parse(value.as_bytes()).unwrap());
        shows(&definition, &object, expected);
    }

    fn shows(definition: &Definition, object: &Object, expected: &str) {
        let text = |list: &[Vec<u8>]| {
            format!(
                "{:?}",
                list.iter()
                    .map(|it| String::from_utf8_lossy(it))
                    .collect::<Vec<_>>()
            )
        };
        let shown = match column(&definition.attributes[0], object) {
            Ok(Column::Tags(list) | Column::Texts(list)) => text(&list),
            Ok(Column::Numbers(list)) => list
                .iter()
                .map(|it| it.print_exact())
                .collect::<Vec<_>>()
                .join(" "),
            Ok(Column::Points(list)) => list
                .iter()
                .map(|it| format!("{},{}", it.longitude, it.latitude))
                .collect::<Vec<_>>()
                .join(" "),
            Ok(column) => format!("{column:?}"),
            Err(message) => format!("! {message}"),
        };
        assert_eq!(shown, expected);
        let (row, faults) = Row::of(definition, object);
        assert_eq!(faults.len(), usize::from(expected.starts_with('!')));
        assert!(
            faults.is_empty() || row.columns[0].is_missing(),
            "a value of the wrong type is missing"
        );
    }

    #[test]
    fn fields_are_parsed_by_attribute_type() {
        check("TAG", "Red, Blue ,", r#"["red", "blue"]"#);
        check(
            "TAG SEPARATOR ; CASESENSITIVE",
            "Red;Blue",
            r#"["Red", "Blue"]"#,
        );
        check("TAG INDEXEMPTY", "", r#"[""]"#);
        check("TEXT", "A b", r#"["A b"]"#);
        check("TEXT", "", "[]");
        check("NUMERIC", "9007199254740993", "9007199254740993");
        check("NUMERIC", "-1.5e3", "-1500");
        check("NUMERIC", "x", "! Invalid numeric value: 'x'");
        check("NUMERIC", "nan", "! Invalid numeric value: 'nan'");
        check("GEO", "-0.5,51.5", "-0.5,51.5");
        check(
            "GEO",
            "0,91",
            "! Invalid geo coordinates: '0,91' is not lon,lat with a latitude within 85.05",
        );
        check("TIMESTAMP", "1970-01-01T00:00:01Z", "Instants([1000000])");
        check("TIMESTAMP", "1.25", "Instants([1250000])");
        check("BOOLEAN", "TRUE", "Flags([true])");
        check(
            "BOOLEAN",
            "yes",
            "! Invalid boolean value: 'yes' is none of true, false, 1 and 0",
        );
    }

    #[test]
    fn json_is_parsed_by_attribute_type() {
        check_json("TAG", r#"{"f":"A, b"}"#, r#"["a, b"]"#);
        check_json("TAG", r#"{"f":["A",null,true]}"#, r#"["a", "true"]"#);
        check_json("TAG", r#"{"f":3}"#, "! Invalid JSON type: 3 is not TAG");
        check_json("TAG", r#"{"f":null}"#, "Missing");
        check_json("TAG", "{}", "Missing");
        check_json("TAG", r#"{"f":[]}"#, "[]");
        check_json(
            "NUMERIC",
            r#"{"f":[1,2.5,9223372036854775807]}"#,
            "1 2.5 9223372036854775807",
        );
        check_json(
            "NUMERIC",
            r#"{"f":"1"}"#,
            "! Invalid JSON type: \"1\" is not NUMERIC",
        );
        check_json("GEO", r#"{"f":"1,2"}"#, "1,2");
        check_json(
            "TEXT",
            r#"{"f":{"a":1}}"#,
            "! Invalid JSON type: {\"a\":1} is not TEXT",
        );
        check_json(
            "TIMESTAMP",
            r#"{"f":[1,"1970-01-01"]}"#,
            "Instants([1000000, 0])",
        );
        check_json(
            "BOOLEAN",
            r#"{"f":[true,0,"false"]}"#,
            "Flags([true, false, false])",
        );
    }

    fn any_column() -> impl Strategy<Value = Column> {
        use crate::base::number::Number;
        use crate::base::point::Point;
        let bytes = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..4), 0..3);
        prop_oneof![
            Just(Column::Missing),
            bytes.clone().prop_map(Column::Tags),
            bytes.prop_map(Column::Texts),
            proptest::collection::vec(any::<i64>().prop_map(Number::Int), 0..3)
                .prop_map(Column::Numbers),
            proptest::collection::vec(any::<i64>(), 0..3).prop_map(Column::Instants),
            proptest::collection::vec(any::<bool>(), 0..3).prop_map(Column::Flags),
            proptest::collection::vec((-180.0..180.0, -85.0..85.0), 0..3).prop_map(|list| {
                Column::Points(
                    list.into_iter()
                        .map(|(x, y)| Point::new(x, y).unwrap())
                        .collect(),
                )
            }),
        ]
    }

    proptest! {
        #[test]
        fn each_column_is_decoded_individually(columns in proptest::collection::vec(any_column(), 0..5)) {
            let row = Row { columns };
            let bytes = row.encode();
            let view = RowView::new(&bytes).unwrap();
            for (index, column) in row.columns.iter().enumerate() {
                prop_assert_eq!(&view.decode(AttributeId(index as u16)).unwrap(), column);
            }
            prop_assert!(view.decode(AttributeId(900)).unwrap().is_missing());
            prop_assert_eq!(view.row().unwrap(), row);
        }

        #[test]
        fn damaged_rows_are_rejected_or_decoded(columns in proptest::collection::vec(any_column(), 0..4), at in any::<u16>(), bits in 1_u8..) {
            let mut bytes = Row { columns }.encode();
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= bits;
            if let Ok(view) = RowView::new(&bytes) {
                let _ = view.row();
            }
            let _ = RowView::new(&bytes[..at]);
        }
    }
}
