//! The text form of the map: compact JSON with a format number.

use std::fmt;

use super::{InvariantViolation, Map};

/// The format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// The reason why a text is not a usable map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextError {
    /// It was written by another version of the program.
    Format { found: u64 },
    /// It is not JSON, or a field is missing or unknown.
    Malformed(String),
    /// It violates an invariant.
    Broken(InvariantViolation),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Format { found } => write!(
                f,
                "the cluster map has format {found}, and this version of larder reads format {FORMAT}; run the version that wrote it"
            ),
            TextError::Malformed(what) => write!(f, "the cluster map cannot be read: {what}"),
            TextError::Broken(broken) => {
                write!(f, "the cluster map violates an invariant: {broken}")
            }
        }
    }
}

impl std::error::Error for TextError {}

impl Map {
    /// Encodes the map as one line of JSON. Equal maps have equal texts.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("the map is always serializable")
    }

    /// Decodes a text of [`Map::to_text`] and checks its invariants.
    ///
    /// # Errors
    ///
    /// The map is unusable, and an operator must intervene.
    pub fn from_text(text: &str) -> Result<Map, TextError> {
        let malformed = |error: serde_json::Error| TextError::Malformed(error.to_string());
        #[derive(serde::Deserialize)]
        struct Head {
            format: u64,
        }
        // A map of another format usually does not decode at all; its format number then explains why.
        let read = serde_json::from_str::<Map>(text);
        let format = match &read {
            Ok(map) => u64::from(map.format),
            Err(_) => {
                serde_json::from_str::<Head>(text)
                    .map_err(malformed)?
                    .format
            }
        };
        if format != u64::from(FORMAT) {
            return Err(TextError::Format { found: format });
        }
        let map = read.map_err(malformed)?;
        map.check().map_err(TextError::Broken)?;
        Ok(map)
    }
}
