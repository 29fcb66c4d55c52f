//! Conditions of SET and DELEX on the current value of a key.

use larder_protocol::errors::Code;
use larder_types::key_hash;

use crate::tables::Refusal;

/// The condition under which SET writes and DELEX removes.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition<'a> {
    #[default]
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(&'a [u8]),
    /// Also met by an absent key.
    IfDifferent(&'a [u8]),
    IfDigest(u64),
    IfOtherDigest(u64),
}

impl<'a> Condition<'a> {
    /// Returns the condition that a word in upper case names. `value` returns the next argument. `None` if the word
    /// names no condition.
    ///
    /// # Errors
    /// The value is missing or is not a digest.
    pub fn parse(
        word: &[u8],
        value: impl FnOnce() -> Result<&'a [u8], Refusal>,
    ) -> Result<Option<Condition<'a>>, Refusal> {
        Ok(Some(match word {
            b"IFEQ" => Condition::IfEqual(value()?),
            b"IFNE" => Condition::IfDifferent(value()?),
            b"IFDEQ" => Condition::IfDigest(parse_digest(value()?)?),
            b"IFDNE" => Condition::IfOtherDigest(parse_digest(value()?)?),
            _ => return Ok(None),
        }))
    }

    /// Returns whether the condition compares the value, so that the key must not hold an object.
    pub fn compares_value(self) -> bool {
        !matches!(
            self,
            Condition::Always | Condition::IfAbsent | Condition::IfPresent
        )
    }

    /// Returns whether the condition is met by a key with this text, or with an object.
    pub fn is_met(self, text: Option<&[u8]>, is_object: bool) -> bool {
        match self {
            Condition::Always => true,
            Condition::IfAbsent => text.is_none() && !is_object,
            Condition::IfPresent => text.is_some() || is_object,
            Condition::IfEqual(value) => text == Some(value),
            Condition::IfDifferent(value) => text != Some(value),
            Condition::IfDigest(digest) => text.map(key_hash) == Some(digest),
            Condition::IfOtherDigest(digest) => text.map(key_hash) != Some(digest),
        }
    }
}

/// Returns the reply of DIGEST: the XXH3 hash of a value, in hexadecimal.
pub(in crate::resp) fn digest(value: &[u8]) -> String {
    format!("{:016x}", key_hash(value))
}

fn parse_digest(text: &[u8]) -> Result<u64, Refusal> {
    let is_hex = text.len() == 16 && text.iter().all(u8::is_ascii_hexdigit);
    let digest = std::str::from_utf8(text).ok().filter(|_| is_hex);
    let digest = digest.and_then(|text| u64::from_str_radix(text, 16).ok());
    digest.ok_or_else(|| {
        let message = "a digest is 16 hexadecimal digits, as returned by DIGEST".to_owned();
        (Code::BadRequest, message)
    })
}
