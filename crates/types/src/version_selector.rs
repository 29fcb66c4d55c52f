//! The text form in which people and programs name a version of a store.
//!
//! `7`, `v7` and the folder name `v0000000007` are equivalent. `live` is the version that serves reads; `previous` is
//! the version to which a rollback without an argument returns. In JSON, a number is also accepted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::VersionId;

/// A reference to a version; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionSelector {
    Number(VersionId),
    Live,
    Previous,
}

impl From<u64> for VersionSelector {
    fn from(number: u64) -> VersionSelector {
        VersionSelector::Number(VersionId(number))
    }
}

impl fmt::Display for VersionSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionSelector::Number(id) => id.fmt(f),
            VersionSelector::Live => f.write_str("live"),
            VersionSelector::Previous => f.write_str("previous"),
        }
    }
}

impl FromStr for VersionSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<VersionSelector, String> {
        match text {
            "live" => return Ok(VersionSelector::Live),
            "previous" => return Ok(VersionSelector::Previous),
            _ => {}
        }
        let digits = text.strip_prefix('v').unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(number) if is_number => Ok(VersionSelector::Number(VersionId(number))),
            _ => {
                let shown: String = text.chars().take(40).collect();
                Err(format!(
                    "{shown:?} is not a version; write a number such as 7 (v7 and v0000000007 are the same), previous or live"
                ))
            }
        }
    }
}

impl Serialize for VersionSelector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            VersionSelector::Number(id) => serializer.serialize_u64(id.0),
            word => serializer.collect_str(word),
        }
    }
}

impl<'de> Deserialize<'de> for VersionSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VersionSelector, D::Error> {
        struct NumberOrText;
        impl de::Visitor<'_> for NumberOrText {
            type Value = VersionSelector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a version: a number such as 7, \"v7\", \"previous\" or \"live\"")
            }

            fn visit_u64<E>(self, number: u64) -> Result<VersionSelector, E> {
                Ok(number.into())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<VersionSelector, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NumberOrText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_a_version_are_equal() {
        for text in ["7", "v7", "v0000000007", "0000000007"] {
            assert_eq!(text.parse(), Ok(VersionSelector::from(7)), "{text}");
        }
        assert_eq!("live".parse(), Ok(VersionSelector::Live));
        assert_eq!("previous".parse(), Ok(VersionSelector::Previous));
        for bad in ["", "v", "-1", "+7", "7.0", "latest", "99999999999999999999"] {
            let error = bad.parse::<VersionSelector>().unwrap_err();
            assert!(error.contains("is not a version"), "{error}");
        }
    }
}
