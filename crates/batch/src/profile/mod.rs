//! The profile of a version: statistics of its columns. It is collected during the build, stored in the manifest
//! (`built.profile`), and evaluated by gates before a version becomes live.
//!
//! ```text
//!  rows ─► Collector (one per thread): counts of all rows (`scan`, `distinct`), a bounded sample (`sample`)
//!            └─ merged, serialized between processes (`transfer`) ─► Profile ─► `shift`: distance from another version ─► `judge`: gates
//! ```
//!
//! Statistics of all rows: their number, nulls, empty texts, kinds, distinct values, minimum and maximum. Statistics
//! of a sample: mean, quantiles and most frequent values. The columns are the top-level fields of JSON and
//! MessagePack values, or the one column that is the value. The key is a column of its own. A text that parses as a
//! number counts as one, because CSV has only texts.
//!
//! 1. A profile depends on the rows, but not on their order, the threads or the memory.
//! 2. It uses bounded memory: [`COLUMNS_MAX`] columns, and [`sample::CELLS_MAX`] sampled cells per thread.

mod collect;
mod distinct;
mod gates;
mod sample;
mod scan;
mod shift;
mod transfer;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

pub use collect::{Collector, Shape};
pub use gates::{ColumnLimit, Limits, PreviousVersion, Verdict, evaluate_gates};
pub use shift::{Bin, Shift, ShiftBasis, shift};

/// Maximum number of columns; with more, a profile has no columns.
pub const COLUMNS_MAX: usize = 256;

/// The number of intervals of a distribution. There is one more quantile.
pub const QUANTILE_PARTS: usize = 64;

/// Maximum number of most frequent values per column.
pub const TOP_MAX: usize = 24;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Rows that were read. Differs from the number of records if rows share a key.
    pub rows: u64,
    /// The number of sampled rows, from which mean, quantiles and most frequent values are computed.
    pub sample_rows: u64,
    /// Rows whose value is not an object and therefore has no columns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rows_without_columns: u64,
    pub key: Column,
    /// Ordered by name.
    pub columns: Vec<Column>,
    /// The rows have more than [`COLUMNS_MAX`] columns. None is listed, because the threads would determine which
    /// ones came first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_too_many_columns: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    pub name: String,
    /// Rows in which the column is null or missing.
    pub nulls: u64,
    /// Texts of length 0.
    pub empty: u64,
    pub numbers: u64,
    /// Texts that are empty or not numbers.
    pub texts: u64,
    pub booleans: u64,
    /// Arrays, objects and byte strings.
    pub nested: u64,
    /// The number of distinct values, with an error of about 3 percent; exact if the sample has all rows.
    pub distinct: u64,
    /// Minimum and maximum of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<ExactNumber>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<ExactNumber>,
    /// Mean of the numbers in the sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<ExactNumber>,
    /// The number of values in the sample that are not null.
    pub sampled: u64,
    /// Quantiles of the sampled numbers, or of the lengths in bytes if most values are not numbers:
    /// [`QUANTILE_PARTS`] plus one, in ascending order. Empty without values.
    pub quantiles: Vec<ExactNumber>,
    /// The most frequent values of the sample, in descending order of frequency.
    pub top: Vec<FrequentValue>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrequentValue {
    pub value: String,
    pub sampled: u64,
}

/// The kind of most of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Nothing,
    Number,
    Text,
    Boolean,
    Nested,
}

impl ValueKind {
    pub fn name(self) -> &'static str {
        match self {
            ValueKind::Nothing => "nothing but nulls",
            ValueKind::Number => "numbers",
            ValueKind::Text => "texts",
            ValueKind::Boolean => "booleans",
            ValueKind::Nested => "nested values",
        }
    }
}

impl Column {
    pub fn kind(&self) -> ValueKind {
        let counts = [
            (self.numbers, ValueKind::Number),
            (self.texts, ValueKind::Text),
            (self.booleans, ValueKind::Boolean),
            (self.nested, ValueKind::Nested),
        ];
        let most = counts.iter().map(|(count, _)| *count).max();
        let first = counts.iter().find(|(count, _)| Some(*count) == most);
        match first {
            Some((1.., kind)) => *kind,
            _ => ValueKind::Nothing,
        }
    }

    /// Returns the share of nulls, from 0 to 1; 0 without rows.
    pub fn null_share(&self, rows: u64) -> f64 {
        self.nulls as f64 / rows.max(1) as f64
    }

    /// Returns the share of the sampled values that are listed in `top`.
    pub fn top_share(&self) -> f64 {
        let listed: u64 = self.top.iter().map(|it| it.sampled).sum();
        listed as f64 / self.sampled.max(1) as f64
    }
}

impl Profile {
    /// Returns the column with this name, of the value or the key.
    pub fn column(&self, name: &str) -> Option<&Column> {
        let found = self
            .columns
            .binary_search_by(|it| it.name.as_str().cmp(name));
        match found {
            Ok(at) => Some(&self.columns[at]),
            Err(_) => (self.key.name == name).then_some(&self.key),
        }
    }

    /// Returns the key and then the other columns.
    pub fn all_columns(&self) -> impl Iterator<Item = &Column> {
        std::iter::once(&self.key).chain(&self.columns)
    }
}

/// A finite number that survives serialization exactly. Plain serde_json parsing may change the last bit.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(transparent)]
pub struct ExactNumber(f64);

impl ExactNumber {
    /// Returns `None` for infinities and NaN. Negative zero becomes zero.
    pub fn new(value: f64) -> Option<ExactNumber> {
        value.is_finite().then_some(ExactNumber(value + 0.0))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for ExactNumber {
    fn eq(&self, other: &ExactNumber) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for ExactNumber {}

impl<'de> Deserialize<'de> for ExactNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ExactNumber, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let number = text.get().parse().ok().and_then(ExactNumber::new);
        number.ok_or_else(|| serde::de::Error::custom("it is no number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_exactly() {
        let mut random = larder_types::Random::new(7);
        for _ in 0..20_000 {
            let Some(number) = ExactNumber::new(f64::from_bits(random.word())) else {
                continue;
            };
            let text = serde_json::to_string(&number).expect("a number is JSON");
            let back: ExactNumber = serde_json::from_str(&text).expect("it was written so");
            assert_eq!(back, number, "{text}");
            assert_eq!(serde_json::to_string(&back).expect("JSON"), text);
        }
        assert!(serde_json::from_str::<ExactNumber>("\"1\"").is_err());
        assert!(serde_json::from_str::<ExactNumber>("1e999").is_err());
    }
}
