//! JSON lines: one object per line. Values are passed through unchanged, so numbers keep all their digits.
//!
//! Objects may have different fields. Each must have the key's fields, unless nulls are skipped. An object with a
//! duplicate field is rejected.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::chunk::{Boundary, Cutter, LongChunkGuard};
use crate::csv::{CHUNK_BITS, LONE_CR, check_encoding};
use crate::emit::{Emit, Json, MessagePack};
use crate::error::{At, Fault, FaultKind, json_reason};
use crate::json_text::pack;
use crate::key::end_part;
use crate::options::{InputOptions, NullPolicy, ValueSpec};
use crate::plan::FolderColumns;
use crate::rows::{AssembledRow, Rows};
use crate::run::{Task, Tasks};

pub(crate) struct JsonLinesFile {
    cutter: Cutter,
    started: bool,
    folder: Arc<FolderFields>,
}

/// The folder's columns as fields.
type FolderFields = Vec<(String, Box<RawValue>)>;

impl JsonLinesFile {
    pub fn new(cutter: Cutter, folder: &FolderColumns) -> JsonLinesFile {
        let field = |value: &Option<String>| {
            serde_json::value::to_raw_value(value).expect("a text is always JSON")
        };
        let fields = folder
            .iter()
            .map(|(name, value)| (name.clone(), field(value)));
        JsonLinesFile {
            cutter,
            started: false,
            folder: Arc::new(fields.collect()),
        }
    }
}

impl Tasks for JsonLinesFile {
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        if !self.started {
            self.started = true;
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
                    folder: Arc::clone(&self.folder),
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
    folder: Arc<FolderFields>,
    _turn: Option<LongChunkGuard>,
}

impl Task for JsonLinesTask {
    fn run(self: Box<Self>, file: u64, data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let lines = memchr::memchr_iter(b'\n', data).count() as u64;
        rows.lines = Some(lines);
        if lines >= 1 << CHUNK_BITS {
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
            if !text.is_empty()
                && let Err(fault) = push_line(text, &self.folder, seq + line, rows)
            {
                if self.chunk == 0 && line == 0 && is_incomplete_value(text) {
                    return Err(one_document());
                }
                rows.malformed(seq + line, fault.or_at(At::Line(line + 1)))?;
            }
            line += 1;
            begin = end + 1;
        }
        Ok(())
    }
}

/// Returns whether the first line does not complete the value that it begins: it is then most likely part of a
/// document of several lines.
fn is_incomplete_value(line: &[u8]) -> bool {
    let opens = matches!(line.first(), Some(b'{' | b'['));
    opens && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|e| e.is_eof())
}

fn one_document() -> Fault {
    Fault::data(
        At::Line(1),
        "this line begins a JSON value and does not end it: the file seems to be one JSON document; \
         JSON lines is needed, one object per line (jq -c '.[]' FILE, or jq -c . FILE)",
    )
}

fn push_line(
    line: &[u8],
    folder: &FolderFields,
    seq: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    if line.first() != Some(&b'{') {
        let what = match line.first() {
            Some(b'[') => "an array; ",
            _ => "no object; ",
        };
        return Err(Fault::file(format!(
            "the line holds {what}each line must be one JSON object such as {{\"id\": 1}} (jq -c can turn arrays into objects)"
        )));
    }
    let mut object: Object<'_> = serde_json::from_slice(line).map_err(|e| not_json(line, &e))?;
    if let Some(name) = object.find_duplicate() {
        return Err(Fault::file(format!(
            "the object has the field {name:?} twice, which is ambiguous; remove one"
        )));
    }
    object.put_folder(folder);
    if object.0.len() > FIELDS_MAX {
        return Err(Fault::file(format!(
            "the object has {} fields, at most {FIELDS_MAX} are allowed; nest some of them",
            object.0.len()
        )));
    }
    let options = rows.options;
    let is_missing = Cell::new(false);
    let skipped = rows.skipped;
    rows.assemble(seq, |key, value, bytes_max| {
        assemble_row(&object, options, &is_missing, key, value, bytes_max)
    })?;
    if rows.skipped > skipped && is_missing.get() {
        rows.skipped_missing += 1;
    }
    Ok(())
}

#[cold]
fn not_json(line: &[u8], error: &serde_json::Error) -> Fault {
    let lone_cr = match memchr::memchr(b'\r', line) {
        Some(_) => format!("; the line {LONE_CR}"),
        None => String::new(),
    };
    Fault::file(format!("it is not JSON: {}{lone_cr}", json_reason(error)))
}

/// Each field takes some dozens of bytes in addition to its text.
const FIELDS_MAX: usize = 1 << 18;

fn assemble_row<'o>(
    object: &'o Object<'_>,
    options: &'o InputOptions,
    is_missing: &Cell<bool>,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<AssembledRow<'o>, Fault> {
    for (index, name) in options.key.iter().enumerate() {
        let begin = key.len();
        match object.scalar(name, options.null_key)? {
            Scalar::Null => {
                is_missing.set(object.field(name).is_none());
                return Ok(AssembledRow::NullKey(format!("key field {name:?} is null")));
            }
            Scalar::Text(text) => key.extend_from_slice(text.as_bytes()),
            Scalar::Nested(_) => {
                return Err(Fault::file(format!(
                    "key field {name:?} is an array or object; a key is made of text, numbers or booleans"
                )));
            }
        }
        if index + 1 < options.key.len() {
            end_part(key, begin, options.key_separator);
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
            Scalar::Null => {
                is_missing.set(object.field(name).is_none());
                return Ok(AssembledRow::NullValue(name));
            }
            Scalar::Text(Cow::Borrowed(text)) | Scalar::Nested(text) => {
                return Ok(AssembledRow::Borrowed(text.as_bytes()));
            }
            Scalar::Text(Cow::Owned(text)) => value.extend_from_slice(text.as_bytes()),
        },
        ValueSpec::Json => {
            let mut out = Json::new(value, bytes_max);
            out.map(0);
            for (index, (name, field)) in others().enumerate() {
                out.name(index, name);
                out.raw(field.get().as_bytes());
                if out.is_full() {
                    return Ok(AssembledRow::Row);
                }
            }
            out.map_end();
        }
        ValueSpec::MessagePack => {
            let mut out = MessagePack::new(value, bytes_max);
            out.map(others().count());
            for (index, (name, field)) in others().enumerate() {
                out.name(index, name);
                pack(field.get(), &mut out)
                    .map_err(|reason| Fault::file(format!("field {name:?}: {reason}")))?;
                if out.is_full() {
                    return Ok(AssembledRow::Row);
                }
            }
        }
    }
    Ok(AssembledRow::Row)
}

/// The fields of a line, in order.
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

    /// Returns the field's text: a string without quotes and escapes, or a number as written. If nulls are skipped, a
    /// missing field is null; otherwise it is an error, because the name is probably wrong.
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
                let text: JsonString<'l> = serde_json::from_str(text)
                    .map_err(|e| Fault::file(format!("field {name:?}: {}", json_reason(&e))))?;
                Scalar::Text(text.0)
            }
            _ => Scalar::Text(Cow::Borrowed(text)),
        })
    }

    fn find_duplicate(&self) -> Option<&str> {
        let mut seen = std::collections::HashSet::new();
        let mut names = self.0.iter().map(|(name, _)| name.as_ref());
        names.find(|name| !seen.insert(*name))
    }

    /// Adds the folder's columns, and replaces fields with the same names.
    fn put_folder(&mut self, folder: &'l FolderFields) {
        for (name, value) in folder {
            self.0.retain(|(own, _)| own != name);
            self.0.push((Cow::Borrowed(name), value));
        }
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
                while let Some(name) = map.next_key::<JsonString<'de>>()? {
                    fields.push((name.0, map.next_value()?));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields).map(Object)
    }
}

/// A string that borrows from the line unless it contains escapes.
struct JsonString<'l>(Cow<'l, str>);

impl<'de: 'l, 'l> Deserialize<'de> for JsonString<'l> {
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
        deserializer.deserialize_str(Borrow).map(JsonString)
    }
}
