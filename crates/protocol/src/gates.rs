//! Gates: the conditions that a version must meet before it goes live, in requests and in configurations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The conditions that a new version must meet before it goes live. The server's configured value replaces an absent gate, and
/// an absent limit of a column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gates {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_records: Option<u64>,
    /// Maximum decrease of the number of records from the live version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_shrink_percent: Option<f64>,
    /// Maximum increase of the number of records from the live version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_growth_percent: Option<f64>,
    /// Allows a version without records to replace one with records. By default, that is rejected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
    /// Keys (without the store's prefix) that must have exactly these values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub canary: Vec<Canary>,
    /// Maximum percentage of rows with a null in a column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max_nulls: Vec<ColumnLimit>,
    /// Maximum percentage of rows with an empty text in a column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max_empty: Vec<ColumnLimit>,
    /// Maximum shift of a column's values from the live version's, as a population stability index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max_shift: Vec<ColumnLimit>,
}

/// A key that must have this value. With `null`, the key must exist and may have any value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canary {
    pub key: String,
    #[serde(default)]
    pub value: Option<String>,
}

/// A limit of one column, or of `*`: all columns without a limit of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnLimit {
    pub column: String,
    pub limit: f64,
}

impl ColumnLimit {
    pub const EVERY: &str = "*";

    /// Returns the limits of a request, and those of `others` for columns without a limit in the request.
    pub fn merge(requested: Vec<ColumnLimit>, others: &[ColumnLimit]) -> Vec<ColumnLimit> {
        let mut all = requested;
        for other in others {
            if !all.iter().any(|it| it.column == other.column) {
                all.push(other.clone());
            }
        }
        all
    }
}

/// Parses `COLUMN:LIMIT`, or a limit alone for every column. A column's name may contain colons. A limit may end with a percent sign.
impl FromStr for ColumnLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<ColumnLimit, String> {
        let (column, number) = text.rsplit_once(':').unwrap_or((ColumnLimit::EVERY, text));
        let number = number.trim().trim_end_matches('%').trim_end();
        match number.parse::<f64>() {
            Ok(limit) if limit >= 0.0 && limit.is_finite() && !column.is_empty() => {
                Ok(ColumnLimit {
                    column: column.to_owned(),
                    limit,
                })
            }
            _ => Err(format!(
                "{text:?} is not a limit such as 5, or of one column such as price:5"
            )),
        }
    }
}

/// A limit of a column of one store, or of `*`: every store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreLimit {
    pub store: String,
    pub limit: ColumnLimit,
}

impl StoreLimit {
    /// Returns the limits of a store among the entries of a valid configuration. Limits that name the store are first.
    pub fn for_store(entries: &[String], store: &str) -> Vec<ColumnLimit> {
        let parsed: Vec<StoreLimit> = entries.iter().filter_map(|it| it.parse().ok()).collect();
        let of = |name: &str| -> Vec<ColumnLimit> {
            let some = parsed.iter().filter(|it| it.store == name);
            some.map(|it| it.limit.clone()).collect()
        };
        ColumnLimit::merge(of(store), &of(ColumnLimit::EVERY))
    }
}

/// Parses `STORE/COLUMN:LIMIT`.
impl FromStr for StoreLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreLimit, String> {
        let parts = text.split_once('/');
        let parsed = parts.and_then(|(store, rest)| Some((store, rest.parse().ok()?)));
        match parsed {
            Some((store, limit))
                if store == "*" || store.parse::<larder_types::StoreName>().is_ok() =>
            {
                Ok(StoreLimit {
                    store: store.to_owned(),
                    limit,
                })
            }
            _ => Err(format!(
                "{text:?} is not STORE/COLUMN:LIMIT, such as prices/price:5, with * for every store or column"
            )),
        }
    }
}

impl fmt::Display for ColumnLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.column, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_applies_to_a_column_or_to_all() {
        for (text, column, limit) in [
            ("5", "*", 5.0),
            ("0.25", "*", 0.25),
            ("price:5%", "price", 5.0),
            ("a:b:0", "a:b", 0.0),
            ("*:1", "*", 1.0),
        ] {
            let parsed: ColumnLimit = text.parse().expect(text);
            assert_eq!((parsed.column.as_str(), parsed.limit), (column, limit));
        }
        for bad in [
            "",
            "price",
            "price:",
            ":5",
            "price:-1",
            "price:nan",
            "price:inf",
            "5 5",
        ] {
            assert!(bad.parse::<ColumnLimit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_of_a_store_precede_limits_of_all_stores() {
        let entries: Vec<String> = ["*/*:20", "prices/price:5", "other/price:1", "*/price:9"]
            .map(str::to_owned)
            .to_vec();
        let shown = |store| -> Vec<String> {
            let limits = StoreLimit::for_store(&entries, store);
            limits.iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown("prices"), ["price:5", "*:20"]);
        assert_eq!(shown("third"), ["*:20", "price:9"]);
        for bad in ["price:5", "/price:5", "a b/price:5", "prices/price"] {
            assert!(bad.parse::<StoreLimit>().is_err(), "{bad}");
        }
    }
}
