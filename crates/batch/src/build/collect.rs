//! The arrays of `OnDuplicate::Collect`: each contains the values of one key, byte for byte.
//!
//! | as | array | element | rejected |
//! |---|---|---|---|
//! | `json` | JSON | the value, unchanged | a value that is not JSON |
//! | `text` | JSON | a string whose content is the value | a value that is not UTF-8 |
//! | `msgpack` | MessagePack | the value, unchanged, which must be one MessagePack item | nothing |
//! | `bytes` | MessagePack | a `bin` whose content is the value | nothing |
//!
//! The encoding is chosen once per build and does not depend on the values: a text that looks like a number stays a
//! text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The encoding of values in an array; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectAs {
    Json,
    #[default]
    Text,
    #[serde(rename = "msgpack")]
    MessagePack,
    Bytes,
}

impl CollectAs {
    pub fn name(self) -> &'static str {
        match self {
            CollectAs::Json => "json",
            CollectAs::Text => "text",
            CollectAs::MessagePack => "msgpack",
            CollectAs::Bytes => "bytes",
        }
    }
}

impl fmt::Display for CollectAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CollectAs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [
            CollectAs::Json,
            CollectAs::Text,
            CollectAs::MessagePack,
            CollectAs::Bytes,
        ];
        let found = all.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| {
            format!("{text:?} is no way to collect values; use json, text, msgpack or bytes")
        })
    }
}

/// An array under construction.
pub struct ArrayBuilder {
    framing: CollectAs,
    array: Vec<u8>,
    is_first: bool,
}

impl ArrayBuilder {
    /// Creates an array for `count` values.
    pub fn new(framing: CollectAs, count: usize) -> ArrayBuilder {
        let mut array = Vec::new();
        match framing {
            CollectAs::Json | CollectAs::Text => array.push(b'['),
            CollectAs::MessagePack | CollectAs::Bytes => push_array_header(&mut array, count),
        }
        ArrayBuilder {
            framing,
            array,
            is_first: true,
        }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// The reason why the array cannot contain it.
    pub fn push(&mut self, value: &[u8]) -> Result<(), &'static str> {
        let is_json = matches!(self.framing, CollectAs::Json | CollectAs::Text);
        if is_json && !std::mem::take(&mut self.is_first) {
            self.array.push(b',');
        }
        match self.framing {
            CollectAs::Json => {
                // The parser skips strings without checking that they are UTF-8.
                let text = std::str::from_utf8(value).ok();
                let parsed = text.map(serde_json::from_str::<serde::de::IgnoredAny>);
                if !matches!(parsed, Some(Ok(_))) {
                    return Err("is not JSON; collect as text, or as bytes");
                }
                self.array.extend_from_slice(value);
            }
            CollectAs::Text => {
                let text = std::str::from_utf8(value);
                let text = text.map_err(|_| "is not UTF-8 text; collect as bytes")?;
                serde_json::to_writer(&mut self.array, text).expect("a string is always JSON");
            }
            CollectAs::MessagePack => self.array.extend_from_slice(value),
            CollectAs::Bytes => {
                push_bin_header(&mut self.array, value.len());
                self.array.extend_from_slice(value);
            }
        }
        Ok(())
    }

    /// Returns the length so far, in bytes.
    pub fn len(&self) -> usize {
        self.array.len()
    }

    pub fn finish(mut self) -> Vec<u8> {
        if matches!(self.framing, CollectAs::Json | CollectAs::Text) {
            self.array.push(b']');
        }
        self.array
    }
}

fn push_array_header(out: &mut Vec<u8>, count: usize) {
    match count {
        0..=15 => out.push(0x90 | count as u8),
        16..=0xffff => {
            out.push(0xdc);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        }
        // A bucket has fewer than 2^32 rows.
        _ => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
}

fn push_bin_header(out: &mut Vec<u8>, size: usize) {
    match size {
        0..=0xff => out.extend_from_slice(&[0xc4, size as u8]),
        0x100..=0xffff => {
            out.push(0xc5);
            out.extend_from_slice(&(size as u16).to_be_bytes());
        }
        // A value has at most 1 GiB.
        _ => {
            out.push(0xc6);
            out.extend_from_slice(&(size as u32).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(framing: CollectAs, values: &[&[u8]], expected: &[u8]) {
        let mut collected = ArrayBuilder::new(framing, values.len());
        for value in values {
            collected.push(value).unwrap();
        }
        assert_eq!(collected.finish(), expected);
    }

    #[test]
    fn any_text_is_encoded_as_a_text() {
        check(
            CollectAs::Text,
            &[
                b"01234",
                b"10001",
                b"\"a title\"",
                b"null",
                b"",
                "é\n".as_bytes(),
            ],
            "[\"01234\",\"10001\",\"\\\"a title\\\"\",\"null\",\"\",\"é\\n\"]".as_bytes(),
        );
        let mut collected = ArrayBuilder::new(CollectAs::Text, 1);
        assert!(collected.push(b"\xff").unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn only_valid_json_is_embedded_unchanged() {
        check(
            CollectAs::Json,
            &[b"1.50", b"{\"a\": [1]}", b"\"x\""],
            b"[1.50,{\"a\": [1]},\"x\"]",
        );
        for bad in [&b"01234"[..], b"", b"text", b"1 2", b"\"\xff\""] {
            let mut collected = ArrayBuilder::new(CollectAs::Json, 1);
            assert!(collected.push(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn arbitrary_bytes_round_trip() {
        check(
            CollectAs::Bytes,
            &[b"\x81\xa1a\x01", b"", b"\xff\xfe"],
            b"\x93\xc4\x04\x81\xa1a\x01\xc4\x00\xc4\x02\xff\xfe",
        );
        check(
            CollectAs::MessagePack,
            &[b"\x81\xa1a\x01", b"\xc0"],
            b"\x92\x81\xa1a\x01\xc0",
        );
        let long = vec![7; 70_000];
        let sizes = [255, 256, 65_535, 65_536].map(|size| &long[..size]);
        let mut collected = ArrayBuilder::new(CollectAs::Bytes, 4);
        for value in sizes {
            collected.push(value).unwrap();
        }
        let array = collected.finish();
        assert_eq!(array[1..3], [0xc4, 255]);
        assert_eq!(array[258..261], [0xc5, 1, 0]);
        assert_eq!(
            ArrayBuilder::new(CollectAs::Bytes, 16).finish(),
            [0xdc, 0, 16]
        );
        let many = ArrayBuilder::new(CollectAs::Bytes, 65_536).finish();
        assert_eq!(many, [0xdd, 0, 1, 0, 0]);
    }
}
