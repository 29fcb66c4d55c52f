//! A workload: the queries and modifications of a space, their frequencies, and the distribution of values.
//!
//! The text format is TOML:
//!
//! ```toml
//! objects = 256000
//!
//! [[attribute]]
//! name = "city"
//! distinct = 5120
//! hot = [{ objects = 0.02, queries = 0.1 }]
//!
//! [[attribute]]
//! name = "price"
//! ordered = true
//!
//! [[query]]
//! name = "affordable rooms of a city"
//! frequency = 9
//! equal = ["city"]
//! range = { price = 0.1 }
//!
//! [[modification]]
//! name = "prices change"
//! frequency = 1
//! changes = ["price"]
//! ```
//!
//! Frequencies may have any unit. Shares are from 0 to 1, of the objects or of the queries of a class.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The maximum number of attributes of a workload.
pub const ATTRIBUTES_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub objects: u64,
    /// The mean size of one copy of an object.
    #[serde(default = "object_bytes")]
    pub object_bytes: u64,
    /// The frequency of reads by key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gets: f64,
    /// The frequency of operations in classes that a recording omitted, because it keeps only the most frequent
    /// classes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: f64,
    #[serde(default, rename = "attribute")]
    pub attributes: Vec<AttributeProfile>,
    #[serde(default, rename = "query")]
    pub queries: Vec<QueryClass>,
    #[serde(default, rename = "modification")]
    pub modifications: Vec<Modification>,
}

/// The distribution of an attribute's values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttributeProfile {
    pub name: String,
    /// True if the values are ordered, so that queries can use ranges.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// True if an object may have several values, as a `TAG` with a separator. Such objects are in a cell of their own,
    /// which each search for a value contacts too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lists: bool,
    /// The number of distinct values. `None`: each object has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    /// Values of many objects, or of many queries. One of them may represent the objects without a value. The other
    /// values have equal shares of the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<HotValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotValue {
    /// The share of objects with this value.
    pub objects: f64,
    /// The share of queries with this value, among those for one value of the attribute.
    #[serde(default)]
    pub queries: f64,
}

/// Queries with the same constraints on the same attributes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryClass {
    #[serde(default)]
    pub name: String,
    pub frequency: f64,
    /// The attributes constrained to one value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub equal: Vec<String>,
    /// The attributes constrained to one of several values, with the mean number of values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub one_of: BTreeMap<String, f64>,
    /// The attributes constrained to a range, with the share of objects in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub range: BTreeMap<String, f64>,
    /// The share of objects that satisfy an attribute's constraint, if it differs from what the distribution of values
    /// implies.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selectivity: BTreeMap<String, f64>,
    /// The mean number of matches, if it differs from what independent constraints imply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<f64>,
    /// The distribution of the number of matches, if it is skewed. `matches` is its mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<Bucket>,
    /// The number of returned objects, if it is less than the number of matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<f64>,
}

/// The queries of a class with about the same number of matches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The mean number of matches.
    pub matches: f64,
    /// The share of the class's queries.
    pub share: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModificationKind {
    #[default]
    Update,
    Create,
    Delete,
}

/// Writes that change the same attributes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modification {
    #[serde(default)]
    pub name: String,
    pub frequency: f64,
    #[serde(default, skip_serializing_if = "is_update")]
    pub kind: ModificationKind,
    /// The attributes that an update changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

fn object_bytes() -> u64 {
    200
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn is_update(kind: &ModificationKind) -> bool {
    *kind == ModificationKind::Update
}

/// An error in a workload, and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadError {
    /// The key, such as `query[2].range.price`; empty if the text is not TOML, or not a workload.
    pub key: String,
    pub what: String,
}

impl std::fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            write!(f, "workload: {}", self.what.trim_end())
        } else {
            write!(f, "workload: {}: {}", self.key, self.what)
        }
    }
}

impl std::error::Error for WorkloadError {}

impl Workload {
    /// Parses a workload.
    ///
    /// # Errors
    /// The text is not TOML, or contains an unknown key or an invalid value. The error contains the location.
    pub fn from_toml(text: &str) -> Result<Workload, WorkloadError> {
        let workload = Workload::from_toml_unchecked(text)?;
        workload.check()?;
        Ok(workload)
    }

    /// Like [`Workload::from_toml`], but accepts invalid values, such as an empty workload.
    ///
    /// # Errors
    /// The text is not TOML, or contains an unknown key.
    pub fn from_toml_unchecked(text: &str) -> Result<Workload, WorkloadError> {
        toml::from_str(text).map_err(|error| WorkloadError {
            key: String::new(),
            what: error.to_string(),
        })
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a workload has only what TOML has")
    }

    /// Returns the index of an attribute.
    pub fn attribute(&self, name: &str) -> Option<usize> {
        self.attributes.iter().position(|it| it.name == name)
    }

    /// Checks all names and numbers.
    ///
    /// # Errors
    /// A name is unknown or a duplicate, or a number is invalid.
    pub fn check(&self) -> Result<(), WorkloadError> {
        if self.objects == 0 {
            return refuse("objects", "must be at least 1");
        }
        if self.attributes.len() > ATTRIBUTES_MAX {
            let count = self.attributes.len();
            return refuse(
                "attribute",
                &format!("{count} attributes; the maximum is {ATTRIBUTES_MAX}"),
            );
        }
        check_frequency("gets", self.gets)?;
        check_frequency("unrecorded", self.unrecorded)?;
        let mut names = BTreeSet::new();
        for (at, attribute) in self.attributes.iter().enumerate() {
            let key = format!("attribute[{at}]");
            if attribute.name.is_empty() {
                return refuse(&format!("{key}.name"), "must not be empty");
            }
            if attribute.name.contains(',') {
                let name = &attribute.name;
                let what = format!(
                    "{name:?} has a comma, which separates attributes in SUBSPACES and INDEX: declare it under another name with AS, or leave it out"
                );
                return refuse(&format!("{key}.name"), &what);
            }
            if crate::mapping::looks_like_cut(&attribute.name) {
                let name = &attribute.name;
                let what = format!(
                    "{name:?} looks like a cut of SUBSPACES: declare it under another name with AS, or leave it out"
                );
                return refuse(&format!("{key}.name"), &what);
            }
            if !names.insert(&attribute.name) {
                return refuse(
                    &format!("{key}.name"),
                    &format!("{:?} occurs twice", attribute.name),
                );
            }
            attribute.check(&key)?;
        }
        for (at, query) in self.queries.iter().enumerate() {
            self.check_query(&format!("query[{at}]"), query)?;
        }
        for (at, modification) in self.modifications.iter().enumerate() {
            let key = format!("modification[{at}]");
            check_frequency(&format!("{key}.frequency"), modification.frequency)?;
            for (number, name) in modification.changes.iter().enumerate() {
                let key = format!("{key}.changes[{number}]");
                self.check_name(&key, name)?;
                if modification.changes[..number].contains(name) {
                    return refuse(&key, &format!("{name:?} occurs twice"));
                }
            }
            if modification.kind != ModificationKind::Update && !modification.changes.is_empty() {
                return refuse(
                    &format!("{key}.changes"),
                    "a create or a delete concerns every attribute; leave it out",
                );
            }
        }
        if self.frequency() <= 0.0 {
            return refuse(
                "query",
                "the workload is empty: add queries or modifications",
            );
        }
        Ok(())
    }

    /// Returns the sum of all frequencies.
    pub fn frequency(&self) -> f64 {
        let queries: f64 = self.queries.iter().map(|it| it.frequency).sum();
        let modifications: f64 = self.modifications.iter().map(|it| it.frequency).sum();
        self.gets + queries + modifications
    }

    fn check_query(&self, key: &str, query: &QueryClass) -> Result<(), WorkloadError> {
        check_frequency(&format!("{key}.frequency"), query.frequency)?;
        let mut constrained = BTreeSet::new();
        let mut constrain = |key: &str, name: &String| {
            if constrained.insert(name.clone()) {
                self.check_name(key, name)
            } else {
                refuse(key, &format!("{name:?} is constrained twice"))
            }
        };
        for (number, name) in query.equal.iter().enumerate() {
            constrain(&format!("{key}.equal[{number}]"), name)?;
        }
        for (name, &count) in &query.one_of {
            let key = format!("{key}.one_of.{name}");
            constrain(&key, name)?;
            if !(1.0..=1e9).contains(&count) {
                return refuse(&key, &format!("{count} values; at least 1"));
            }
        }
        for (name, &share) in &query.range {
            let key = format!("{key}.range.{name}");
            constrain(&key, name)?;
            check_share(&key, share)?;
            if !self
                .attribute(name)
                .is_some_and(|it| self.attributes[it].ordered)
            {
                let what =
                    format!("{name:?} is not ordered; write `ordered = true` at the attribute");
                return refuse(&key, &what);
            }
        }
        for (name, &share) in &query.selectivity {
            let key = format!("{key}.selectivity.{name}");
            check_share(&key, share)?;
            if !constrained.contains(name) {
                return refuse(&key, &format!("the query does not constrain {name:?}"));
            }
        }
        let mut shares = 0.0;
        for (at, bucket) in query.histogram.iter().enumerate() {
            let key = format!("{key}.histogram[{at}]");
            if !(0.0..=NUMBER_MAX).contains(&bucket.matches) {
                let what = format!("{} objects; 0 to {NUMBER_MAX:e}", bucket.matches);
                return refuse(&format!("{key}.matches"), &what);
            }
            check_share(&format!("{key}.share"), bucket.share)?;
            shares += bucket.share;
        }
        if !query.histogram.is_empty() && (shares - 1.0).abs() > 1e-6 {
            let what = format!("the shares are {shares} together, not 1");
            return refuse(&format!("{key}.histogram"), &what);
        }
        for (name, number) in [("matches", query.matches), ("results", query.results)] {
            if let Some(number) = number.filter(|it| !(0.0..=NUMBER_MAX).contains(it)) {
                let what = format!("{number} objects; 0 to {NUMBER_MAX:e}");
                return refuse(&format!("{key}.{name}"), &what);
            }
        }
        Ok(())
    }

    fn check_name(&self, key: &str, name: &str) -> Result<(), WorkloadError> {
        match self.attribute(name) {
            Some(_) => Ok(()),
            None => refuse(
                key,
                &format!("no attribute {name:?}; add it as an [[attribute]]"),
            ),
        }
    }
}

impl AttributeProfile {
    fn check(&self, key: &str) -> Result<(), WorkloadError> {
        if self.distinct == Some(0) {
            return refuse(&format!("{key}.distinct"), "must be at least 1");
        }
        let (mut objects, mut queries) = (0.0, 0.0);
        for (at, hot) in self.hot.iter().enumerate() {
            let key = format!("{key}.hot[{at}]");
            check_share(&format!("{key}.objects"), hot.objects)?;
            check_share(&format!("{key}.queries"), hot.queries)?;
            objects += hot.objects;
            queries += hot.queries;
        }
        if objects > 1.0 + 1e-9 || queries > 1.0 + 1e-9 {
            let what = "the shares of these values are more than 1 together";
            return refuse(&format!("{key}.hot"), what);
        }
        let values = self.hot.len() as u64;
        match self.distinct {
            Some(distinct) if values > distinct => refuse(
                &format!("{key}.hot"),
                &format!("{values} values, of {distinct} distinct ones"),
            ),
            _ => Ok(()),
        }
    }
}

/// The maximum number of objects, and of operations. Larger numbers are mistakes, and their sums could overflow.
const NUMBER_MAX: f64 = 1e15;

fn check_frequency(key: &str, frequency: f64) -> Result<(), WorkloadError> {
    if (0.0..=NUMBER_MAX).contains(&frequency) {
        Ok(())
    } else {
        refuse(
            key,
            &format!("{frequency} is not a frequency; 0 to {NUMBER_MAX:e}"),
        )
    }
}

fn check_share(key: &str, share: f64) -> Result<(), WorkloadError> {
    if (0.0..=1.0).contains(&share) {
        Ok(())
    } else {
        refuse(key, &format!("{share} is not a share; from 0 to 1"))
    }
}

fn refuse(key: &str, what: &str) -> Result<(), WorkloadError> {
    Err(WorkloadError {
        key: key.to_owned(),
        what: what.to_owned(),
    })
}
