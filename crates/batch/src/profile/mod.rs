//! The profile of a version: what its columns hold, in numbers. It is taken while rows are built, kept in the manifest (`built.profile`), and judged
//! before a version goes live.
//!
//! ```text
//!  rows ─► Collector (one a thread): counts of all rows (`scan`, `distinct`), a bounded sample (`sample`)
//!            └─ merged, from other processes as bytes (`transfer`) ─► Profile ─► `shift`: how far from another version's ─► `judge`: gates
//! ```
//!
//! Of all rows: how many there are, nulls, empty texts, kinds, how many different values, least and most. Of a sample: mean, quantiles, most frequent
//! values. The columns are those of the values, as JSON and MessagePack have them at their top, or the one column that is the value; the key is a column
//! of its own. A text that reads as a number counts as one, since CSV knows no others.
//!
//! 1. A profile depends on the rows, not on their order, the threads or the memory.
//! 2. It takes bounded memory: [`COLUMNS_MAX`] columns, and [`sample::CELLS_MAX`] sampled cells a thread.

mod collect;
mod distinct;
mod judge;
mod sample;
mod scan;
mod shift;
mod transfer;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

pub use collect::{Collector, Shape};
pub use judge::{Before, ColumnLimit, Limits, Verdict, judge};
pub use shift::{Bin, By, Shift, shift};

/// A profile of more columns tells none.
pub const COLUMNS_MAX: usize = 256;

/// So many parts a distribution is cut into: there is one quantile more.
pub const QUANTILE_PARTS: usize = 64;

/// The most frequent values that are kept of a column.
pub const TOP_MAX: usize = 24;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Rows that were read: as many as records, but for those that share a key.
    pub rows: u64,
    /// Of which mean, quantiles and most frequent values are.
    pub sample_rows: u64,
    /// Rows whose value is no object, so that it has no columns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rows_without_columns: u64,
    pub key: Column,
    /// By name.
    pub columns: Vec<Column>,
    /// There are more than [`COLUMNS_MAX`], so none is told: which of them came first would depend on the threads.
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
    /// Rows in which it is null, or missing.
    pub nulls: u64,
    /// Texts without a letter.
    pub empty: u64,
    pub numbers: u64,
    /// Those that are empty or no numbers.
    pub texts: u64,
    pub booleans: u64,
    /// Arrays, objects, and bytes.
    pub nested: u64,
    /// How many different values there are, to some 3 percent; exactly where the sample is of all rows.
    pub distinct: u64,
    /// Of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Exact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Exact>,
    /// Of the numbers in the sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Exact>,
    /// Values in the sample that are not null.
    pub sampled: u64,
    /// Of the sampled numbers, or of the lengths in bytes where most values are none: [`QUANTILE_PARTS`] and one, the least first. Empty without values.
    pub quantiles: Vec<Exact>,
    /// The most frequent values of the sample, the first the most frequent.
    pub top: Vec<Frequent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frequent {
    pub value: String,
    pub sampled: u64,
}

/// What most of a column's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    Number,
    Text,
    Boolean,
    Nested,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nothing => "nothing but nulls",
            Kind::Number => "numbers",
            Kind::Text => "texts",
            Kind::Boolean => "booleans",
            Kind::Nested => "nested values",
        }
    }
}

impl Column {
    pub fn kind(&self) -> Kind {
        let counts = [
            (self.numbers, Kind::Number),
            (self.texts, Kind::Text),
            (self.booleans, Kind::Boolean),
            (self.nested, Kind::Nested),
        ];
        let most = counts.iter().map(|(count, _)| *count).max();
        let first = counts.iter().find(|(count, _)| Some(*count) == most);
        match first {
            Some((1.., kind)) => *kind,
            _ => Kind::Nothing,
        }
    }

    /// 0 to 1; 0 of no rows.
    pub fn null_share(&self, rows: u64) -> f64 {
        self.nulls as f64 / rows.max(1) as f64
    }

    /// Of the sampled values, the share of those that are listed.
    pub fn top_share(&self) -> f64 {
        let listed: u64 = self.top.iter().map(|it| it.sampled).sum();
        listed as f64 / self.sampled.max(1) as f64
    }
}

impl Profile {
    /// The column of this name, of the value or the key.
    pub fn column(&self, name: &str) -> Option<&Column> {
        let found = self
            .columns
            .binary_search_by(|it| it.name.as_str().cmp(name));
        match found {
            Ok(at) => Some(&self.columns[at]),
            Err(_) => (self.key.name == name).then_some(&self.key),
        }
    }

    /// The key, and then the others.
    pub fn all_columns(&self) -> impl Iterator<Item = &Column> {
        std::iter::once(&self.key).chain(&self.columns)
    }
}

/// A finite number that is read as it was written: serde_json's own reading of one may be off by its last bit.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(transparent)]
pub struct Exact(f64);

impl Exact {
    /// `None` for infinities and what is no number. There is one zero.
    pub fn new(value: f64) -> Option<Exact> {
        value.is_finite().then_some(Exact(value + 0.0))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Exact) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Exact {}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Exact, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let number = text.get().parse().ok().and_then(Exact::new);
        number.ok_or_else(|| serde::de::Error::custom("it is no number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_to_the_last_bit() {
        let mut random = larder_types::Random::new(7);
        for _ in 0..20_000 {
            let Some(number) = Exact::new(f64::from_bits(random.word())) else {
                continue;
            };
            let text = serde_json::to_string(&number).expect("a number is JSON");
            let back: Exact = serde_json::from_str(&text).expect("it was written so");
            assert_eq!(back, number, "{text}");
            assert_eq!(serde_json::to_string(&back).expect("JSON"), text);
        }
        assert!(serde_json::from_str::<Exact>("\"1\"").is_err());
        assert!(serde_json::from_str::<Exact>("1e999").is_err());
    }
}
