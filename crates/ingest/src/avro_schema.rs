//! Checks the schema of an Avro file before its decoder does: its values must be records, no record may contain
//! itself, and columns without a lossless text form are marked.
//!
//! An unknown logical type is ignored, as Avro's specification requires: its values are those of the underlying type.
//! The exceptions are types whose stored form is meaningless without the logical type: these columns are rejected.

use std::collections::{BTreeMap, HashMap};

use arrow_schema::Fields;
use serde_json::Value;

use crate::cell::{REFUSED_NOTE, with_note};
use crate::error::{Fault, one_line};

/// The columns that cannot be read, by name, and the reasons.
#[derive(Debug, Default)]
pub(crate) struct RefusedColumns(BTreeMap<String, String>);

impl RefusedColumns {
    /// # Errors
    /// For a schema of which no column can be read.
    pub fn of(schema: &str) -> Result<RefusedColumns, Fault> {
        let parsed: Value = serde_json::from_str(schema).map_err(|e| {
            Fault::file(format!(
                "its schema is not JSON: {}; the file is damaged",
                one_line(&e)
            ))
        })?;
        let record = record_of(&parsed)?;
        let mut walk = Walk::default();
        let mut refused = BTreeMap::new();
        let (full_name, namespace) = names_of(record, "");
        walk.open.push(full_name);
        for field in fields_of(record) {
            let column = field["name"].as_str().unwrap_or_default();
            match walk.find_reason(&field["type"], &namespace) {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    refused.insert(column.to_owned(), reason);
                }
                Err(RecursiveRecord(record)) => {
                    return Err(Fault::file(format!(
                        "column {column:?} cannot be read: its type is the record {record:?}, which holds itself, and a file \
                         with such a column is not read at all; write it without that column, or with as many levels as it has"
                    )));
                }
            }
        }
        Ok(RefusedColumns(refused))
    }

    /// Returns the file's columns, with notes on rejected ones.
    pub fn annotate(&self, fields: &Fields) -> Fields {
        let noted = fields.iter().map(|field| match self.0.get(field.name()) {
            Some(reason) => with_note(field, (REFUSED_NOTE, reason.as_str())),
            None => field.as_ref().clone(),
        });
        noted.collect()
    }
}

/// Checks that the schema is a record. In other files values have no names, and none can be a key.
fn record_of(schema: &Value) -> Result<&Value, Fault> {
    let what = match schema {
        Value::Object(fields) => match fields.get("type") {
            Some(Value::String(name)) if name == "record" => return Ok(schema),
            Some(Value::String(name)) => name.as_str(),
            // A type may be nested in another type object.
            Some(inner @ Value::Object(_)) => return record_of(inner),
            _ => "of no type",
        },
        Value::String(name) => name.as_str(),
        Value::Array(_) => "union",
        _ => "of no type",
    };
    Err(Fault::file(format!(
        "its schema is not a record but {:?}, so its values have no names; write records with a field for the key",
        what.chars().take(60).collect::<String>()
    )))
}

/// The full name of a record that contains itself, at any depth.
struct RecursiveRecord(String);

/// Collects named types in the order of the schema.
#[derive(Default)]
struct Walk {
    /// The full names of the records that enclose the current position.
    open: Vec<String>,
    /// For each type visited, the reason why it cannot be read, if there is one.
    met: HashMap<String, Option<String>>,
}

impl Walk {
    /// Returns the reason why a type cannot be read, if there is one. The JSON parser bounds the depth.
    fn find_reason(
        &mut self,
        node: &Value,
        namespace: &str,
    ) -> Result<Option<String>, RecursiveRecord> {
        match node {
            Value::String(name) => {
                let full_name = full_name(name, namespace);
                if self.open.contains(&full_name) {
                    return Err(RecursiveRecord(full_name));
                }
                Ok(self.met.get(&full_name).cloned().flatten())
            }
            Value::Array(branches) => self.find_first_reason(branches.iter(), namespace),
            Value::Object(_) => self.find_object_reason(node, namespace),
            _ => Ok(None),
        }
    }

    fn find_object_reason(
        &mut self,
        node: &Value,
        namespace: &str,
    ) -> Result<Option<String>, RecursiveRecord> {
        let (full_name, inner) = names_of(node, namespace);
        let own = node["logicalType"].as_str().and_then(logical_type_reason);
        if own.is_some() {
            self.met.insert(full_name, own.clone());
            return Ok(own);
        }
        match node["type"].as_str() {
            Some("record" | "error") => {
                self.open.push(full_name);
                let types = fields_of(node).map(|field| &field["type"]);
                let reason = self.find_first_reason(types, &inner)?;
                let full_name = self.open.pop().expect("it was just pushed");
                self.met.insert(full_name, reason.clone());
                Ok(reason)
            }
            Some("array") => self.find_reason(&node["items"], namespace),
            Some("map") => self.find_reason(&node["values"], namespace),
            _ => self.find_reason(&node["type"], namespace),
        }
    }

    fn find_first_reason<'v>(
        &mut self,
        types: impl Iterator<Item = &'v Value>,
        namespace: &str,
    ) -> Result<Option<String>, RecursiveRecord> {
        let mut first = None;
        for node in types {
            let reason = self.find_reason(node, namespace)?;
            first = first.or(reason);
        }
        Ok(first)
    }
}

/// Returns the reason why a logical type cannot be read, if its stored form is meaningless by itself.
fn logical_type_reason(name: &str) -> Option<String> {
    match name {
        "big-decimal" => Some(
            "it is of the type big-decimal, in which each value has a scale of its own; write it as a decimal, or as text"
                .into(),
        ),
        // Numbers of a different width.
        "arrow.int8" | "arrow.int16" | "arrow.uint8" | "arrow.uint16" | "arrow.uint32" => None,
        // Values with a different in-memory encoding.
        "arrow.run-end-encoded" => None,
        _ if name.starts_with("arrow.") => Some(format!(
            "it is of the type {:?}, which is no type of Avro's; write it without the writer's custom types",
            name.chars().take(60).collect::<String>()
        )),
        _ => None,
    }
}

fn fields_of(record: &Value) -> impl Iterator<Item = &Value> {
    record["fields"].as_array().into_iter().flatten()
}

/// Returns a named type's full name, and the namespace of its contents.
fn names_of(node: &Value, namespace: &str) -> (String, String) {
    let name = node["name"].as_str().unwrap_or_default();
    let namespace = match name.rsplit_once('.') {
        Some((own, _)) => own,
        None => node["namespace"].as_str().unwrap_or(namespace),
    };
    (full_name(name, namespace), namespace.to_owned())
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}.{name}")
    }
}
