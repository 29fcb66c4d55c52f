//! Writes values as JSON or MessagePack, without an intermediate tree.
//!
//! In JSON, bytes are base64, and floats that are not numbers in JSON are the strings "NaN", "Infinity" and
//! "-Infinity", as in protobuf's JSON. In MessagePack, bytes are `bin`, and integers have their shortest form.
//!
//! A writer has a size limit, beyond which it is *full*. It may exceed the limit by one item, and its contents are
//! then incomplete.

use arrow_array::types::{ArrowPrimitiveType, Float16Type};
use base64::prelude::{BASE64_STANDARD, Engine};

use crate::cell::non_finite;

/// A writer of nested values. Lengths come first because MessagePack requires them.
pub(crate) trait Emit {
    fn null(&mut self);
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i64);
    fn uint(&mut self, value: u64);
    fn float(&mut self, value: f64);
    fn float32(&mut self, value: f32);
    /// Writes a half-precision number.
    fn float16(&mut self, value: f32);
    fn str(&mut self, value: &str);
    fn bytes(&mut self, value: &[u8]);
    fn array(&mut self, len: usize);
    /// Called before each item, with its index.
    fn item(&mut self, index: usize);
    fn array_end(&mut self);
    fn map(&mut self, len: usize);
    /// Called before each value, with its index and name.
    fn name(&mut self, index: usize, name: &str);
    fn map_end(&mut self);
    /// Returns whether the size limit was exceeded.
    fn is_full(&self) -> bool;
}

pub(crate) struct Json<'a> {
    out: &'a mut Vec<u8>,
    bytes_max: usize,
}

pub(crate) struct MessagePack<'a> {
    out: &'a mut Vec<u8>,
    bytes_max: usize,
}

impl<'a> Json<'a> {
    pub fn new(out: &'a mut Vec<u8>, bytes_max: usize) -> Self {
        Json { out, bytes_max }
    }

    /// Creates a writer without a limit, for numbers and other short values.
    pub fn scalar(out: &'a mut Vec<u8>) -> Self {
        Json::new(out, usize::MAX)
    }

    /// Appends text that is already JSON.
    pub fn raw(&mut self, json: &[u8]) {
        self.out.extend_from_slice(json);
    }
}

impl<'a> MessagePack<'a> {
    pub fn new(out: &'a mut Vec<u8>, bytes_max: usize) -> Self {
        MessagePack { out, bytes_max }
    }
}

/// Writes a number as JSON, which cannot fail in memory.
fn number(out: &mut Vec<u8>, value: impl serde::Serialize) {
    serde_json::to_writer(out, &value).expect("a number has a JSON form and memory takes it");
}

/// Returns the number with the fewest digits that parses as the half-precision number `value`; integers are
/// unchanged.
fn shortest_half(value: f32) -> f32 {
    if value.fract() == 0.0 {
        return value;
    }
    type Half = <Float16Type as ArrowPrimitiveType>::Native;
    // A half has at most five significant digits.
    let mut shorter = (0..5).filter_map(|digits| format!("{value:.digits$e}").parse::<f32>().ok());
    shorter
        .find(|it| Half::from_f32(*it) == Half::from_f32(value))
        .unwrap_or(value)
}

impl Emit for Json<'_> {
    fn null(&mut self) {
        self.out.extend_from_slice(b"null");
    }

    fn bool(&mut self, value: bool) {
        self.out
            .extend_from_slice(if value { b"true" } else { b"false" });
    }

    fn int(&mut self, value: i64) {
        number(self.out, value);
    }

    fn uint(&mut self, value: u64) {
        number(self.out, value);
    }

    fn float(&mut self, value: f64) {
        match non_finite(value) {
            Some(name) => self.str(name),
            None => number(self.out, value),
        }
    }

    fn float32(&mut self, value: f32) {
        match non_finite(f64::from(value)) {
            Some(name) => self.str(name),
            None => number(self.out, value),
        }
    }

    fn float16(&mut self, value: f32) {
        self.float32(shortest_half(value));
    }

    fn str(&mut self, value: &str) {
        json_string(self.out, value, self.bytes_max);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.out.push(b'"');
        base64(self.out, value);
        self.out.push(b'"');
    }

    fn array(&mut self, _len: usize) {
        self.out.push(b'[');
    }

    fn item(&mut self, index: usize) {
        if index > 0 {
            self.out.push(b',');
        }
    }

    fn array_end(&mut self) {
        self.out.push(b']');
    }

    fn map(&mut self, _len: usize) {
        self.out.push(b'{');
    }

    fn name(&mut self, index: usize, name: &str) {
        self.item(index);
        json_string(self.out, name, self.bytes_max);
        self.out.push(b':');
    }

    fn map_end(&mut self) {
        self.out.push(b'}');
    }

    fn is_full(&self) -> bool {
        self.out.len() > self.bytes_max
    }
}

/// Escapes may make a text six times as long, so the limit is checked inside.
fn json_string(out: &mut Vec<u8>, text: &str, bytes_max: usize) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut start = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[start..at]);
        if out.len() > bytes_max {
            return;
        }
        start = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[start..]);
    out.push(b'"');
}

/// Appends standard base64 with padding.
pub(crate) fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    BASE64_STANDARD
        .encode_slice(bytes, &mut out[start..])
        .expect("four digits for three bytes, or for what is left of three");
}

impl MessagePack<'_> {
    /// Starts an array or a map of unknown length. See [`MessagePack::close`].
    pub fn open(&self) -> usize {
        self.out.len()
    }

    /// Inserts the header of an array or a map of `len` items before what was written since it was opened.
    pub fn close(&mut self, begin: usize, is_map: bool, len: usize) {
        let end = self.out.len();
        if is_map {
            self.map(len);
        } else {
            self.array(len);
        }
        let head = self.out.len() - end;
        self.out[begin..].rotate_right(head);
    }

    fn tagged(&mut self, tag: u8, big_endian: &[u8]) {
        self.out.push(tag);
        self.out.extend_from_slice(big_endian);
    }

    /// Writes a length in its shortest form; `tags` are those for 8, 16 and 32 bits.
    fn length(&mut self, fixed: Option<(u8, usize)>, tags: (Option<u8>, u8, u8), len: usize) {
        match (fixed, tags.0) {
            (Some((tag, max)), _) if len <= max => self.out.push(tag | len as u8),
            (_, Some(tag)) if len <= 0xff => self.tagged(tag, &[len as u8]),
            _ if len <= 0xffff => self.tagged(tags.1, &(len as u16).to_be_bytes()),
            // Values are at most 1 GiB, so a length fits 32 bits.
            _ => self.tagged(tags.2, &(len as u32).to_be_bytes()),
        }
    }
}

impl Emit for MessagePack<'_> {
    fn null(&mut self) {
        self.out.push(0xc0);
    }

    fn bool(&mut self, value: bool) {
        self.out.push(if value { 0xc3 } else { 0xc2 });
    }

    fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value as u64),
            -32..0 => self.out.push(value as i8 as u8),
            -0x80..0 => self.tagged(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..0 => self.tagged(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..0 => self.tagged(0xd2, &(value as i32).to_be_bytes()),
            _ => self.tagged(0xd3, &value.to_be_bytes()),
        }
    }

    fn uint(&mut self, value: u64) {
        match value {
            0..0x80 => self.out.push(value as u8),
            0x80..=0xff => self.tagged(0xcc, &[value as u8]),
            0x100..=0xffff => self.tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.tagged(0xce, &(value as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &value.to_be_bytes()),
        }
    }

    fn float(&mut self, value: f64) {
        self.tagged(0xcb, &value.to_be_bytes());
    }

    fn float32(&mut self, value: f32) {
        self.tagged(0xca, &value.to_be_bytes());
    }

    fn float16(&mut self, value: f32) {
        self.float32(value);
    }

    fn str(&mut self, value: &str) {
        self.length(Some((0xa0, 31)), (Some(0xd9), 0xda, 0xdb), value.len());
        self.out.extend_from_slice(value.as_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.length(None, (Some(0xc4), 0xc5, 0xc6), value.len());
        self.out.extend_from_slice(value);
    }

    fn array(&mut self, len: usize) {
        self.length(Some((0x90, 15)), (None, 0xdc, 0xdd), len);
    }

    fn item(&mut self, _index: usize) {}

    fn array_end(&mut self) {}

    fn map(&mut self, len: usize) {
        self.length(Some((0x80, 15)), (None, 0xde, 0xdf), len);
    }

    fn name(&mut self, _index: usize, name: &str) {
        self.str(name);
    }

    fn map_end(&mut self) {}

    fn is_full(&self) -> bool {
        self.out.len() > self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            let mut out = Vec::new();
            base64(&mut out, bytes.as_bytes());
            assert_eq!(out, text.as_bytes());
        }
    }
}
