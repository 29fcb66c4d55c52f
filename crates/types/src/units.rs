//! Sizes in the form in which people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes, written as `512`, `64KiB`, `1GiB` or `10MB`. `MB` is a power of 1000, `MiB` and `m` are powers
/// of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

/// Error for a text that is not a [`ByteSize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteSizeError(String);

impl fmt::Display for ByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a size; write a number and a unit, such as 512KiB, 64MiB or 1GiB",
            self.0
        )
    }
}

impl std::error::Error for ByteSizeError {}

const UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1_000),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1_000_000),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1_000_000_000),
    ("gib", 1 << 30),
    ("tb", 1_000_000_000_000),
    ("tib", 1 << 40),
];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let error = || ByteSizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let number: u64 = trimmed[..digits].parse().map_err(|_| error())?;
        let unit = trimmed[digits..].trim().to_ascii_lowercase();
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(error)?;
        number.checked_mul(*factor).map(ByteSize).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [
            ("TiB", 1u64 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ] {
            if self.0 >= factor {
                return if self.0.is_multiple_of(factor) {
                    write!(f, "{}{unit}", self.0 / factor)
                } else {
                    write!(f, "{:.1}{unit}", self.0 as f64 / factor as f64)
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl TryFrom<String> for ByteSize {
    type Error = ByteSizeError;

    fn try_from(text: String) -> Result<Self, ByteSizeError> {
        text.parse()
    }
}

impl From<ByteSize> for String {
    /// Formats the size exactly, unlike `Display`, so that parsing the result returns the same size.
    fn from(size: ByteSize) -> String {
        let exact = size.to_string();
        if exact.contains('.') {
            size.0.to_string()
        } else {
            exact
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_common_forms() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("1GiB", 1 << 30),
            ("64 MiB", 64 << 20),
            ("10MB", 10_000_000),
            ("2g", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "GiB", "1.5GiB", "-1", "1XB", "99999999999TiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        assert_eq!(ByteSize(1536).to_string(), "1.5KiB");
        assert_eq!(String::from(ByteSize(1537)), "1537");
    }
}
