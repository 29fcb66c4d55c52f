//! JSON lines: one object per line. Values pass through as they are written, so numbers keep all their digits.
//!
//! Objects may differ in their fields; each must hold the key's, unless nulls are skipped. Of a field that is named twice, the last counts.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::csv::{CHUNK_BITS, check_encoding};
use crate::cut::{Boundary, Cutter, Turn};
use crate::emit::{Emit, Json, MessagePack, emit_json_value};
use crate::error::{At, Fault, FaultKind, one_line};
use crate::options::{InputOptions, NullPolicy, ValueSpec};
use crate::rows::Rows;
use crate::run::{Task, Tasks};

pub(crate) struct JsonLinesFile {
    cutter: Cutter,
    begun: bool,
}

impl JsonLinesFile {
    pub fn new(cutter: Cutter) -> JsonLinesFile {
        JsonLinesFile {
            cutter,
            begun: false,
        }
    }
}

impl Tasks for JsonLinesFile {
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        if !self.begun {
            self.begun = true;
            let head = self.cutter.peek()?;
            check_encoding(head)?;
            if head.starts_with(b"\xef\xbb\xbf") {
                head.drain(..3);
            }
        }
        let cut = self.cutter.cut(Boundary::Newline, buffer)?;
        Ok(cut.map(|cut| {
            (
                cut.chunk,
                Box::new(JsonLinesTask {
                    chunk: cut.chunk,
                    _turn: cut.turn,
                }) as Box<dyn Task>,
            )
        }))
    }

    fn failed_at(&self) -> u64 {
        self.cutter.next_chunk
    }
}

struct JsonLinesTask {
    chunk: u64,
    _turn: Option<Turn>,
}

impl Task for JsonLinesTask {
    fn run(self: Box<Self>, file: u64, data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        rows.lines = memchr::memchr_iter(b'\n', data).count() as u64;
        if rows.lines >= 1 << CHUNK_BITS {
            return Err(Fault::data(
                At::Line(1),
                "too many short lines follow a very long one",
            ));
        }
        let seq = (file << 44) | (self.chunk << CHUNK_BITS);
        let mut begin = 0;
        let mut line = 0;
        while begin < data.len() {
            let end = memchr::memchr(b'\n', &data[begin..]).map_or(data.len(), |at| begin + at);
            let text = data[begin..end].trim_ascii();
            if !text.is_empty() {
                push_line(text, seq + line, rows).map_err(|fault| {
                    explain_document(fault, text, self.chunk == 0 && line == 0)
                        .or_at(At::Line(line + 1))
                })?;
            }
            line += 1;
            begin = end + 1;
        }
        Ok(())
    }
}

/// A first line that does not end its value, or is an array, most likely belongs to a whole document.
fn explain_document(fault: Fault, line: &[u8], is_first: bool) -> Fault {
    let opens = matches!(line.first(), Some(b'{' | b'['));
    let unfinished =
        opens && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|e| e.is_eof());
    if is_first && unfinished {
        return Fault::data(
            At::Line(1),
            "this line begins a JSON value and does not end it: the file seems to be one JSON document; \
             JSON lines is needed, one object per line (jq -c '.[]' FILE, or jq -c . FILE)",
        );
    }
    fault
}

fn push_line(line: &[u8], seq: u64, rows: &mut Rows<'_>) -> Result<(), Fault> {
    if line.first() != Some(&b'{') {
        let what = match line.first() {
            Some(b'[') => "an array; ",
            _ => "no object; ",
        };
        return Err(Fault::file(format!(
            "the line holds {what}each line must be one JSON object such as {{\"id\": 1}} (jq -c can turn arrays into objects)"
        )));
    }
    let mut object: Object<'_> = serde_json::from_slice(line)
        .map_err(|e| Fault::file(format!("it is not JSON: {}", one_line(&e))))?;
    object.keep_last_of_each();
    let options = rows.options;
    let (mut key, mut value) = (
        std::mem::take(&mut rows.key),
        std::mem::take(&mut rows.value),
    );
    let made = make(&object, options, &mut key, &mut value);
    let pushed = match made {
        Ok(Made::Row) => rows.push(seq, &key, &value),
        Ok(Made::NullKey(name)) => {
            count_missing(&object, name, rows);
            rows.null_key(&format!("key field {name:?} is null"))
        }
        Ok(Made::NullValue(name)) => {
            count_missing(&object, name, rows);
            rows.null_value(name)
        }
        Err(fault) => Err(fault),
    };
    (rows.key, rows.value) = (key, value);
    pushed
}

fn count_missing(object: &Object<'_>, name: &str, rows: &mut Rows<'_>) {
    rows.skipped_missing += u64::from(object.field(name).is_none());
}

enum Made<'o> {
    Row,
    NullKey(&'o str),
    NullValue(&'o str),
}

fn make<'o>(
    object: &Object<'_>,
    options: &'o InputOptions,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
) -> Result<Made<'o>, Fault> {
    key.clear();
    value.clear();
    for (index, name) in options.key.iter().enumerate() {
        if index > 0 {
            key.extend_from_slice(options.key_separator.as_bytes());
        }
        match object.scalar(name, options.null_key)? {
            Scalar::Null => return Ok(Made::NullKey(name)),
            Scalar::Text(text) => key.extend_from_slice(text.as_bytes()),
            Scalar::Nested(_) => {
                return Err(Fault::file(format!(
                    "key field {name:?} is an array or object; a key is made of text, numbers or booleans"
                )));
            }
        }
    }
    let others = || {
        object
            .0
            .iter()
            .filter(|(name, _)| !options.key.iter().any(|key| key == name))
    };
    match &options.value {
        ValueSpec::Column(name) => match object.scalar(name, options.null_value)? {
            Scalar::Null => return Ok(Made::NullValue(name)),
            Scalar::Text(text) => value.extend_from_slice(text.as_bytes()),
            Scalar::Nested(text) => value.extend_from_slice(text.as_bytes()),
        },
        ValueSpec::Json => {
            Json(value).map(0);
            for (index, (name, field)) in others().enumerate() {
                Json(value).name(index, name);
                value.extend_from_slice(field.get().as_bytes());
            }
            Json(value).map_end();
        }
        ValueSpec::MessagePack => {
            let mut out = MessagePack(value);
            out.map(others().count());
            for (index, (name, field)) in others().enumerate() {
                let tree: serde_json::Value = serde_json::from_str(field.get())
                    .map_err(|e| Fault::file(format!("field {name:?}: {}", one_line(&e))))?;
                out.name(index, name);
                emit_json_value(&tree, &mut out);
            }
        }
    }
    Ok(Made::Row)
}

/// The fields of a line, in its order.
struct Object<'l>(Vec<(Cow<'l, str>, &'l RawValue)>);

enum Scalar<'l> {
    Null,
    Text(Cow<'l, str>),
    Nested(&'l str),
}

impl<'l> Object<'l> {
    fn field(&self, name: &str) -> Option<&'l RawValue> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, raw)| *raw)
    }

    /// The field's text: a string without quotes and escapes, or a number as it is written. A field that is missing
    /// is as one that is null where nulls are skipped; else it is an error, since the name seems wrong.
    fn scalar(&self, name: &str, nulls: NullPolicy) -> Result<Scalar<'l>, Fault> {
        let Some(raw) = self.field(name) else {
            if nulls == NullPolicy::Skip {
                return Ok(Scalar::Null);
            }
            return Err(Fault {
                at: At::File,
                kind: FaultKind::Column {
                    wanted: name.to_owned(),
                    have: self
                        .0
                        .iter()
                        .map(|(own, _)| own.clone().into_owned())
                        .collect(),
                },
            });
        };
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'n') => Scalar::Null,
            Some(b'{' | b'[') => Scalar::Nested(text),
            Some(b'"') => {
                let text: Text<'l> = serde_json::from_str(text)
                    .map_err(|e| Fault::file(format!("field {name:?}: {}", one_line(&e))))?;
                Scalar::Text(text.0)
            }
            _ => Scalar::Text(Cow::Borrowed(text)),
        })
    }

    fn keep_last_of_each(&mut self) {
        let mut seen = std::collections::HashSet::new();
        let mut keep: Vec<bool> = self
            .0
            .iter()
            .rev()
            .map(|(name, _)| seen.insert(name.as_ref()))
            .collect();
        if keep.iter().all(|keep| *keep) {
            return;
        }
        drop(seen);
        self.0.retain(|_| keep.pop().unwrap_or(true));
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Object<'l> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    fields.push((name.0, map.next_value()?));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields).map(Object)
    }
}

/// A string that borrows from the line unless it holds escapes.
struct Text<'l>(Cow<'l, str>);

impl<'de: 'l, 'l> Deserialize<'de> for Text<'l> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Borrow).map(Text)
    }
}
