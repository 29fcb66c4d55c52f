//! The SQL statements that load and write rows.
//!
//! Statements are texts with quoted values. This allows several statements in one message, and makes PostgreSQL return
//! values in the same output format as in the replication stream.

use std::collections::BTreeMap;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use serde_json::value::RawValue;

use larder_types::KeyRange;

use crate::array;
use crate::mapping::{Mapping, Value, ValueKind};

pub fn identifier(name: &str) -> String {
    escape_identifier(name)
}

pub fn literal(text: &str) -> String {
    escape_literal(text)
}

/// Settings that determine the output format, the same for loads and for replication.
pub const PRINTING: &str = "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c bytea_output=hex \
     -c timezone=UTC -c standard_conforming_strings=on -c xmloption=content -c lc_monetary=C";

/// Starts a load and reads its snapshot, which all statements until its end share. Fails if row security would hide
/// rows.
pub const LOAD_BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL row_security = off; \
     SELECT pg_current_snapshot()::text;";
/// Ends a load. The position is read after the snapshot was taken, so every commit in the snapshot is before it.
pub const LOAD_END: &str = "SELECT pg_current_wal_insert_lsn()::text; COMMIT";

/// A client's write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    Set {
        rows: Vec<(Vec<u8>, Vec<u8>)>,
        when: When,
    },
    Remove {
        keys: Vec<Vec<u8>>,
    },
    Increment {
        key: Vec<u8>,
        by: i64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    IfAbsent,
    IfPresent,
}

impl Write {
    pub fn keys(&self) -> Vec<&[u8]> {
        match self {
            Write::Set { rows, .. } => rows.iter().map(|(key, _)| key.as_slice()).collect(),
            Write::Remove { keys } => keys.iter().map(Vec::as_slice).collect(),
            Write::Increment { key, .. } => vec![key],
        }
    }
}

impl Mapping {
    pub fn qualified(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.table))
    }

    /// Returns the statement that selects the rows of a range, and perhaps more; `None` if there can be none.
    pub fn select(&self, range: &KeyRange, rows_max: u64) -> Option<String> {
        let columns: Vec<String> = self.columns().map(identifier).collect();
        Some(format!(
            // Changes of tables that inherit from this one are sent as changes of those tables.
            "SELECT {} FROM ONLY {}{} LIMIT {};",
            columns.join(", "),
            self.qualified(),
            self.conditions(range)?,
            rows_max.saturating_add(1),
        ))
    }

    /// Returns the statement for the SET of one row.
    ///
    /// # Errors
    /// The key or the value is invalid for this table.
    pub fn set(&self, key: &[u8], value: &[u8], when: When) -> Result<String, String> {
        let keys = self.key_columns(key)?;
        let values = self.value_literals(value)?;
        if when == When::IfPresent {
            let assignments = self.values.iter().zip(&values);
            let assignments: Vec<String> = assignments
                .map(|(value, literal)| format!("{} = {literal}", identifier(&value.column)))
                .collect();
            // An update that changes nothing still reports whether the row exists.
            let assignments = if assignments.is_empty() {
                let column = identifier(&self.slots[0].column);
                format!("{column} = {column}")
            } else {
                assignments.join(", ")
            };
            return Ok(format!(
                "UPDATE {} SET {assignments} WHERE {};",
                self.qualified(),
                self.matches(&keys)
            ));
        }
        let columns: Vec<String> = self.columns().map(identifier).collect();
        let literals = keys.iter().map(|key| literal(key)).chain(values);
        let literals: Vec<String> = literals.collect();
        let others = self
            .columns()
            .filter(|column| !self.unique.iter().any(|other| other == column));
        let others: Vec<String> = others
            .map(|column| format!("{0} = EXCLUDED.{0}", identifier(column)))
            .collect();
        let action = match when {
            When::Always if !others.is_empty() => format!("DO UPDATE SET {}", others.join(", ")),
            _ => "DO NOTHING".to_owned(),
        };
        Ok(format!(
            "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) {action};",
            self.qualified(),
            columns.join(", "),
            literals.join(", "),
            self.conflict_target(),
        ))
    }

    /// Returns the statement for the DEL of one row; `None` if no such row can exist.
    pub fn remove(&self, key: &[u8]) -> Option<String> {
        let keys = self.columns_of(key)?;
        Some(format!(
            "DELETE FROM {} WHERE {};",
            self.qualified(),
            self.matches(&keys)
        ))
    }

    /// Returns the statement for INCRBY, which returns the sum.
    ///
    /// # Errors
    /// The key is invalid for this table, or the value is not an integer column.
    pub fn increment(&self, key: &[u8], by: i64) -> Result<String, String> {
        let keys = self.key_columns(key)?;
        let [
            Value {
                column,
                kind: ValueKind::Integer,
                delimiter: None,
                ..
            },
        ] = &*self.values
        else {
            return Err(format!(
                "the value of table {} is not one column of integers, so nothing can be added to it",
                self.name
            ));
        };
        let columns: Vec<String> = self.columns().map(identifier).collect();
        let literals = keys.iter().map(|key| literal(key));
        let literals: Vec<String> = literals.chain([by.to_string()]).collect();
        let column = identifier(column);
        Ok(format!(
            "INSERT INTO {} AS here ({}) VALUES ({}) ON CONFLICT ({}) \
             DO UPDATE SET {column} = COALESCE(here.{column}, 0) + EXCLUDED.{column} RETURNING {column};",
            self.qualified(),
            columns.join(", "),
            literals.join(", "),
            self.conflict_target(),
        ))
    }

    fn conflict_target(&self) -> String {
        let columns: Vec<String> = self.unique.iter().map(|name| identifier(name)).collect();
        columns.join(", ")
    }

    fn matches(&self, keys: &[String]) -> String {
        let conditions = self.slots.iter().zip(keys);
        let conditions: Vec<String> = conditions.map(|(slot, key)| slot.equals(key)).collect();
        conditions.join(" AND ")
    }

    fn key_columns(&self, key: &[u8]) -> Result<Vec<String>, String> {
        self.columns_of(key).ok_or_else(|| {
            format!(
                "the key '{}' is not of the pattern {}",
                String::from_utf8_lossy(&key[..key.len().min(128)]),
                self.pattern
            )
        })
    }

    fn value_literals(&self, value: &[u8]) -> Result<Vec<String>, String> {
        match &*self.values {
            [] if value.is_empty() => Ok(Vec::new()),
            [] => Err(format!(
                "table {} has no value column (tables.{0}.value), so its values are empty: set ''",
                self.name
            )),
            [one] if !self.is_object && one.delimiter.is_some() => {
                // A null value is read as the empty text.
                if value.is_empty() {
                    return Ok(vec!["NULL".to_owned()]);
                }
                let json = serde_json::from_slice::<Box<RawValue>>(value).ok();
                let array = json.and_then(|json| one.array_literal(&json));
                let expected = || format!("the value of {} must be a JSON array", one.column);
                Ok(vec![array.ok_or_else(expected)??])
            }
            [one] if !self.is_object && one.kind == ValueKind::Bytes => {
                let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                Ok(vec![literal(&format!("\\x{digits}"))])
            }
            [one] if !self.is_object => Ok(vec![text_literal(value)?]),
            several => {
                let names: Vec<&str> = several.iter().map(|value| &*value.column).collect();
                let expected =
                    || format!("the value must be a JSON object of {}", names.join(", "));
                let mut object: BTreeMap<String, Box<RawValue>> =
                    serde_json::from_slice(value).map_err(|_| expected())?;
                let mut literals = Vec::new();
                for value in several {
                    let member = object.remove(&value.column).ok_or_else(expected)?;
                    let array = value.array_literal(&member);
                    literals.push(match array {
                        Some(array) => array?,
                        None => member_literal(member.get(), value.kind)?,
                    });
                }
                if object.is_empty() {
                    Ok(literals)
                } else {
                    Err(expected())
                }
            }
        }
    }
}

impl Value {
    /// Returns the literal of a JSON array for an array column; `None` if either is not an array.
    fn array_literal(&self, json: &RawValue) -> Option<Result<String, String>> {
        let array = array::from_json(json, self.delimiter?, self.kind == ValueKind::Json)?;
        Some(text_literal(array.as_bytes()))
    }
}

fn text_literal(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).ok();
    let text = text.filter(|text| !text.contains('\0'));
    text.map(literal)
        .ok_or_else(|| "the value is no text of PostgreSQL's: UTF-8 without zero bytes".to_owned())
}

fn member_literal(json: &str, kind: ValueKind) -> Result<String, String> {
    if json == "null" {
        return Ok("NULL".to_owned());
    }
    match serde_json::from_str::<String>(json) {
        Ok(text) if kind != ValueKind::Json => text_literal(text.as_bytes()),
        _ => Ok(literal(json)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::tests::{INTEGER, mapping, posts};

    #[test]
    fn values_are_quoted() {
        let mut posts = posts();
        posts.unique = vec!["author".to_owned(), "time".to_owned()];
        assert_eq!(
            posts
                .set(b"post|o'n|0000000007", br"it's \n", When::Always)
                .unwrap(),
            r#"INSERT INTO "public"."post" ("author", "time", "body") VALUES ('o''n', '7',  E'it''s \\n') ON CONFLICT ("author", "time") DO UPDATE SET "body" = EXCLUDED."body";"#
        );
        assert_eq!(
            posts.remove(b"post|bob|0000000007").unwrap(),
            r#"DELETE FROM "public"."post" WHERE "author" = 'bob' AND "time" = 7;"#
        );
        assert!(posts.set(b"post|bob|7", b"x", When::Always).is_err());
        assert!(
            posts
                .set(b"post|bob|0000000007", b"\xff", When::Always)
                .is_err()
        );
        assert!(posts.increment(b"post|bob|0000000007", 1).is_err());
    }

    #[test]
    fn an_object_sets_each_of_its_columns() {
        let page = mapping(
            "pattern = 'page|<id>'\nvalue = ['title', 'likes']",
            &[INTEGER],
            &[ValueKind::Text, ValueKind::Integer],
        );
        assert_eq!(
            page.set(b"page|5", br#"{"likes":null,"title":"x"}"#, When::IfPresent)
                .unwrap(),
            r#"UPDATE "public"."page" SET "title" = 'x', "likes" = NULL WHERE "id" = 5;"#
        );
        for wrong in [&b"x"[..], b"{}", br#"{"likes":1,"title":"x","more":1}"#] {
            assert_eq!(
                page.set(b"page|5", wrong, When::Always).unwrap_err(),
                "the value must be a JSON object of title, likes"
            );
        }
    }
}
