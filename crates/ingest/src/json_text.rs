//! Converts valid JSON text to MessagePack without an intermediate tree, which would take many times the size of a
//! line.
//!
//! Integers keep all their digits or are rejected; other numbers become the nearest double.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::emit::{Emit, MessagePack};
use crate::error::one_line;

const DEPTH_MAX: u32 = 128;

/// Writes one value. Stops when `out` is full.
///
/// # Errors
/// For values that MessagePack or its readers do not support: an integer beyond 64 bits, a duplicate name in an
/// object, or excessive nesting.
pub(crate) fn pack(json: &str, out: &mut MessagePack<'_>) -> Result<(), String> {
    let mut text = JsonParser { json, at: 0 };
    text.value(out, 0)
}

struct JsonParser<'j> {
    json: &'j str,
    at: usize,
}

impl<'j> JsonParser<'j> {
    fn peek(&mut self) -> Result<u8, String> {
        let bytes = self.json.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            if !byte.is_ascii_whitespace() {
                return Ok(*byte);
            }
            self.at += 1;
        }
        Err("it ends within a value".into())
    }

    /// Consumes the next byte that is not whitespace.
    fn next(&mut self) -> Result<u8, String> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    fn value(&mut self, out: &mut MessagePack<'_>, depth: u32) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} levels deep"));
        }
        match self.peek()? {
            b'n' => {
                self.at += 4;
                out.null();
            }
            b't' => {
                self.at += 4;
                out.bool(true);
            }
            b'f' => {
                self.at += 5;
                out.bool(false);
            }
            b'"' => out.str(&self.string()?),
            b'[' => self.items(out, depth)?,
            b'{' => self.fields(out, depth)?,
            _ => self.number(out)?,
        }
        Ok(())
    }

    fn items(&mut self, out: &mut MessagePack<'_>, depth: u32) -> Result<(), String> {
        self.at += 1;
        let begin = out.open();
        let mut len = 0;
        if self.peek()? == b']' {
            self.at += 1;
        } else {
            loop {
                if out.is_full() {
                    return Ok(());
                }
                self.value(out, depth + 1)?;
                len += 1;
                if out.is_full() {
                    return Ok(());
                }
                if self.next()? == b']' {
                    break;
                }
            }
        }
        out.close(begin, false, len);
        Ok(())
    }

    fn fields(&mut self, out: &mut MessagePack<'_>, depth: u32) -> Result<(), String> {
        self.at += 1;
        let begin = out.open();
        let mut names = HashSet::new();
        if self.peek()? == b'}' {
            self.at += 1;
        } else {
            loop {
                self.peek()?;
                let name = self.string()?;
                out.str(&name);
                self.next()?;
                self.value(out, depth + 1)?;
                if out.is_full() {
                    return Ok(());
                }
                if let Some(twice) = names.replace(name) {
                    return Err(format!("an object has the name {twice:?} twice"));
                }
                if self.next()? == b'}' {
                    break;
                }
            }
        }
        out.close(begin, true, names.len());
        Ok(())
    }

    /// Parses the string that begins here.
    fn string(&mut self) -> Result<Cow<'j, str>, String> {
        let begin = self.at;
        let bytes = self.json.as_bytes();
        let mut at = begin + 1;
        let mut is_escaped = false;
        loop {
            let found = bytes
                .get(at..)
                .and_then(|rest| memchr::memchr2(b'"', b'\\', rest));
            at += found.ok_or("a string is not closed")?;
            if bytes[at] == b'"' {
                break;
            }
            is_escaped = true;
            at += 2;
        }
        self.at = at + 1;
        if is_escaped {
            return serde_json::from_str(&self.json[begin..=at])
                .map(Cow::Owned)
                .map_err(|e| one_line(&e));
        }
        Ok(Cow::Borrowed(&self.json[begin + 1..at]))
    }

    fn number(&mut self, out: &mut MessagePack<'_>) -> Result<(), String> {
        let rest = &self.json.as_bytes()[self.at..];
        let length = rest
            .iter()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
            .count();
        let number = &self.json[self.at..self.at + length];
        self.at += length;
        let is_integer = number != "-0" && !number.contains(['.', 'e', 'E']);
        if is_integer {
            if let Ok(value) = number.parse() {
                out.int(value);
            } else if let Ok(value) = number.parse() {
                out.uint(value);
            } else {
                return Err(format!(
                    "the number {number} does not fit 64 bits; keep it with JSON values, or write it as text"
                ));
            }
            return Ok(());
        }
        match number.parse::<f64>() {
            Ok(value) if value.is_finite() => out.float(value),
            _ => return Err(format!("the number {number} does not fit a double")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn packed(json: &str) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        pack(json, &mut MessagePack::new(&mut bytes, usize::MAX))?;
        Ok(bytes)
    }

    #[test]
    fn json_and_messagepack_encode_the_same_values() {
        let long = "x".repeat(70_000);
        let many: Vec<i64> = (0..70_000).collect();
        for value in [
            json!(null),
            json!([true, false, [], {}]),
            json!([
                1, -1, 127, 128, 255, 256, 65_535, 65_536, -32, -33, -128, -129
            ]),
            json!([
                i64::MAX,
                i64::MIN,
                u64::MAX,
                4_294_967_295_u64,
                4_294_967_296_u64,
                -32_768,
                -32_769,
                -2_147_483_649_i64
            ]),
            json!({"a": {"b": [1.5, -0.0, 1e300, "q\"\\\n\u{1}é"]}, "c\"": []}),
            json!(long),
            json!(many),
            json!("x".repeat(200)),
        ] {
            for text in [value.to_string(), format!("{value:#}")] {
                let bytes = packed(&text).unwrap();
                assert_eq!(
                    rmp_serde::from_slice::<serde_json::Value>(&bytes).unwrap(),
                    value
                );
            }
        }
    }

    #[test]
    fn json_without_a_messagepack_form_is_rejected() {
        for (json, part) in [
            ("[18446744073709551616]", "64 bits"),
            ("1e400", "double"),
            (r#"{"a":1,"a":2}"#, "twice"),
            (&"[".repeat(200), "deep"),
        ] {
            let error = packed(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
