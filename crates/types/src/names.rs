//! Newtypes for names and numbers, so that they cannot be confused with one another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a store: 1 to 64 letters, digits, `_`, `-` and `.`, starting with a letter or a digit. The alphabet is
/// small because the name is also a folder name and the prefix of the store's Redis keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreName(Arc<str>);

/// Error for a text that is not a [`StoreName`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    name: String,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "store name {:?} is not allowed; use 1 to 64 letters, digits, '_', '-' or '.', beginning with a letter or digit",
            self.name
        )
    }
}

impl std::error::Error for NameError {}

impl StoreName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bytes = text.as_bytes();
        let first_ok = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        let rest_ok = bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b));
        if first_ok && rest_ok && bytes.len() <= 64 {
            Ok(StoreName(text.into()))
        } else {
            Err(NameError {
                name: text.chars().take(80).collect(),
            })
        }
    }
}

impl TryFrom<String> for StoreName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<StoreName> for String {
    fn from(name: StoreName) -> String {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreName({})", self.0)
    }
}

/// The number of a store's version. Every pull increments it; 0 is never used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionId(pub u64);

impl VersionId {
    /// Returns the name of this version's folder: `v` and ten digits, so that names sort in numerical order.
    pub fn folder(self) -> String {
        format!("v{:010}", self.0)
    }

    /// Parses a folder name; `None` if it is not spelled exactly as [`VersionId::folder`] spells it.
    pub fn from_folder(folder: &str) -> Option<VersionId> {
        let id = VersionId(folder.strip_prefix('v')?.parse().ok()?);
        (id.0 > 0 && id.folder() == folder).then_some(id)
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A partition of a version: the index of its range of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_names_that_could_leave_their_folder_are_refused() {
        for bad in [
            "",
            "../x",
            "a/b",
            ".hidden",
            "-x",
            "a:b",
            "a|b",
            "a b",
            "é",
            &"a".repeat(65),
        ] {
            let error = bad.parse::<StoreName>().expect_err(bad);
            assert!(error.to_string().contains("is not allowed; use"), "{error}");
        }
        for good in ["pymk", "a", "0", "A.b_c-9", &"a".repeat(64)] {
            assert_eq!(good.parse::<StoreName>().expect(good).as_str(), good);
        }
    }

    #[test]
    fn version_folders_round_trip_and_nothing_else_is_one() {
        assert_eq!(VersionId(7).folder(), "v0000000007");
        assert_eq!(VersionId::from_folder("v0000000007"), Some(VersionId(7)));
        for bad in [
            "v7",
            "v0000000000",
            "v0000000007.pull",
            "0000000007",
            "v+000000007",
        ] {
            assert_eq!(VersionId::from_folder(bad), None, "{bad}");
        }
    }
}
