//! The shape of a column: metadata of its fields beyond their Arrow types, such as that 16 bytes are a UUID. A type
//! without a lossless form is rejected here, before the first row.

use arrow_schema::{DataType, Field};

/// The metadata of a column's fields beyond their Arrow types, level by level.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldShape {
    pub(super) meaning: Meaning,
    /// The items of a list, the fields of a struct or union, or the keys and values of a map.
    children: Vec<FieldShape>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Meaning {
    #[default]
    Plain,
    /// 16 bytes that are a UUID.
    Uuid,
    /// An 8-bit integer that is a boolean.
    Bool,
}

pub(super) static PLAIN: FieldShape = FieldShape {
    meaning: Meaning::Plain,
    children: Vec::new(),
};

/// The note of a decoder on a field of 16 bytes that contains a UUID.
pub(crate) const UUID_NOTE: (&str, &str) = (EXTENSION, "arrow.uuid");
const EXTENSION: &str = "ARROW:extension:name";
/// The note of a decoder on a field that it cannot read without loss: the reason and advice.
pub(crate) const REFUSED_NOTE: &str = "larder:refused";

/// Returns the field with an additional note.
pub(crate) fn with_note(field: &Field, (key, value): (&str, &str)) -> Field {
    let mut notes = field.metadata().clone();
    notes.insert(key, value);
    field.clone().with_metadata(notes)
}

impl FieldShape {
    /// Returns the shape of a column's field.
    ///
    /// # Errors
    /// For a type without a lossless form, with advice.
    pub fn of(field: &Field) -> Result<FieldShape, String> {
        let note = |key: &str| field.metadata().get(key).map(String::as_str);
        if let Some(reason) = note(REFUSED_NOTE) {
            return Err(reason.to_owned());
        }
        let extension = note(EXTENSION);
        if extension == Some("arrow.parquet.variant") {
            return Err(
                "it is of the type Variant, which cannot be read; cast it to text or JSON where it is written".into(),
            );
        }
        let is_uuid = extension == Some(UUID_NOTE.1) || note("logicalType") == Some("uuid");
        let mut shape = FieldShape::of_type(field.data_type())?;
        match encoded_type(field.data_type()) {
            DataType::FixedSizeBinary(16) if is_uuid => shape.meaning = Meaning::Uuid,
            DataType::Int8 if extension == Some("arrow.bool8") => shape.meaning = Meaning::Bool,
            _ => {}
        }
        Ok(shape)
    }

    fn of_type(data_type: &DataType) -> Result<FieldShape, String> {
        let children = match data_type {
            DataType::Dictionary(_, values) => return FieldShape::of_type(values),
            DataType::RunEndEncoded(_, values) => return FieldShape::of(values),
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::FixedSizeList(item, _)
            | DataType::ListView(item)
            | DataType::LargeListView(item) => vec![FieldShape::of(item)?],
            DataType::Struct(fields) => {
                let mut names: Vec<&str> = fields.iter().map(|f| f.name().as_str()).collect();
                names.sort_unstable();
                if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                    return Err(format!(
                        "it is a struct with two fields named {:?}; rename one",
                        twice[0]
                    ));
                }
                fields
                    .iter()
                    .map(|field| FieldShape::of(field))
                    .collect::<Result<_, _>>()?
            }
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(fields) if fields.len() == 2 => {
                    if let Some(what) = nested_name(encoded_type(fields[0].data_type())) {
                        return Err(format!(
                            "it is a map whose keys are {what}; keys of a map must be text, numbers, dates or bytes"
                        ));
                    }
                    vec![FieldShape::of(&fields[0])?, FieldShape::of(&fields[1])?]
                }
                _ => return Err("it is a map whose entries are not a key and a value each".into()),
            },
            DataType::Union(fields, _) => fields
                .iter()
                .map(|(_, field)| FieldShape::of(field))
                .collect::<Result<_, _>>()?,
            _ => Vec::new(),
        };
        Ok(FieldShape {
            meaning: Meaning::Plain,
            children,
        })
    }

    pub(super) fn child(&self, index: usize) -> &FieldShape {
        self.children.get(index).unwrap_or(&PLAIN)
    }
}

/// Returns the type of the values, independent of their encoding.
fn encoded_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => encoded_type(values),
        DataType::RunEndEncoded(_, values) => encoded_type(values.data_type()),
        other => other,
    }
}

/// Returns the common name for values of a nested type, in the plural; `None` for other types.
fn nested_name(data_type: &DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Struct(_) => "structs",
        DataType::Map(..) => "maps",
        DataType::Union(..) => "unions",
        nested if nested.is_nested() => "lists",
        _ => return None,
    })
}
