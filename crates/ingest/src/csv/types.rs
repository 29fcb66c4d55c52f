//! Column types for CSV, which determine how a cell is encoded in a JSON or MessagePack value. Keys, and values of one
//! column, are the cell's text, whatever its type.

use std::str::FromStr;

use serde_json::value::RawValue;

use crate::emit::{Emit, Json, MessagePack};
use crate::error::json_reason;
use crate::json_text::pack;

/// The type of a CSV column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CellType {
    #[default]
    Text,
    /// Like text, but an empty cell is null.
    TextOrNull,
    /// A 64-bit integer, signed or unsigned.
    Int,
    /// A double; `NaN`, `inf` and `-inf` are numbers too.
    Float,
    /// `true` or `false`, also `t`, `f`, `1` and `0`, in upper or lower case.
    Bool,
    /// JSON, which is included in the value unchanged.
    Json,
}

impl FromStr for CellType {
    type Err = String;

    fn from_str(text: &str) -> Result<CellType, String> {
        Ok(match text {
            "text" => CellType::Text,
            "int" => CellType::Int,
            "float" => CellType::Float,
            "bool" => CellType::Bool,
            "json" => CellType::Json,
            _ => {
                return Err(format!(
                    "{text:?} is no type of a CSV column; use text, int, float, bool or json"
                ));
            }
        })
    }
}

/// A writer that accepts JSON text.
pub(crate) trait EmitJson: Emit {
    /// Writes JSON text, which must be valid.
    fn json(&mut self, json: &str) -> Result<(), String>;
}

impl EmitJson for Json<'_> {
    fn json(&mut self, json: &str) -> Result<(), String> {
        self.raw(json.as_bytes());
        Ok(())
    }
}

impl EmitJson for MessagePack<'_> {
    fn json(&mut self, json: &str) -> Result<(), String> {
        pack(json, self)
    }
}

impl CellType {
    /// Writes a cell. An empty one is null, unless it is text.
    pub(crate) fn emit(self, text: &str, out: &mut impl EmitJson) -> Result<(), String> {
        let shown = || text.chars().take(60).collect::<String>();
        let refused = |what: &str| {
            format!(
                "{:?} is no {what}; correct it, or give another type",
                shown()
            )
        };
        match self {
            CellType::Text => out.str(text),
            _ if text.is_empty() => out.null(),
            CellType::TextOrNull => out.str(text),
            CellType::Int => {
                if let Ok(value) = text.parse() {
                    out.int(value);
                } else {
                    out.uint(
                        text.parse()
                            .map_err(|_| refused("whole number of 64 bits"))?,
                    );
                }
            }
            CellType::Float => {
                let value: f64 = text.parse().map_err(|_| refused("number"))?;
                // Infinity has no digits; a number with digits is merely too large.
                if value.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) {
                    return Err(refused("number that fits a double"));
                }
                out.float(value);
            }
            CellType::Bool => out.bool(match text.to_ascii_lowercase().as_str() {
                "true" | "t" | "1" => true,
                "false" | "f" | "0" => false,
                _ => return Err(refused("boolean")),
            }),
            CellType::Json => {
                let json: &RawValue = serde_json::from_str(text)
                    .map_err(|e| format!("it is not JSON: {}", json_reason(&e)))?;
                out.json(json.get())?;
            }
        }
        Ok(())
    }
}
