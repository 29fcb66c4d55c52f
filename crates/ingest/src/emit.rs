//! Writing values as JSON or MessagePack, without a tree in between.
//!
//! JSON: bytes are base64, and a number that JSON cannot say (NaN, infinity) is null.
//! MessagePack: bytes are `bin`, integers take their shortest form.

/// A writer of nested values. Lengths come first because MessagePack needs them.
pub(crate) trait Emit {
    fn null(&mut self);
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i64);
    fn uint(&mut self, value: u64);
    fn float(&mut self, value: f64);
    fn float32(&mut self, value: f32);
    fn str(&mut self, value: &str);
    fn bytes(&mut self, value: &[u8]);
    fn array(&mut self, len: usize);
    /// Before each item, with its index.
    fn item(&mut self, index: usize);
    fn array_end(&mut self);
    fn map(&mut self, len: usize);
    /// Before each value, with its index and name.
    fn name(&mut self, index: usize, name: &str);
    fn map_end(&mut self);
    fn written(&self) -> usize;
}

pub(crate) struct Json<'a>(pub &'a mut Vec<u8>);

pub(crate) struct MessagePack<'a>(pub &'a mut Vec<u8>);

/// Writing a number into memory does not fail.
fn number(out: &mut Vec<u8>, value: impl serde::Serialize) {
    serde_json::to_writer(out, &value).expect("a number has a JSON form and memory takes it");
}

impl Emit for Json<'_> {
    fn null(&mut self) {
        self.0.extend_from_slice(b"null");
    }

    fn bool(&mut self, value: bool) {
        self.0
            .extend_from_slice(if value { b"true" } else { b"false" });
    }

    fn int(&mut self, value: i64) {
        number(self.0, value);
    }

    fn uint(&mut self, value: u64) {
        number(self.0, value);
    }

    fn float(&mut self, value: f64) {
        number(self.0, value);
    }

    fn float32(&mut self, value: f32) {
        number(self.0, value);
    }

    fn str(&mut self, value: &str) {
        json_string(self.0, value);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.0.push(b'"');
        base64(self.0, value);
        self.0.push(b'"');
    }

    fn array(&mut self, _len: usize) {
        self.0.push(b'[');
    }

    fn item(&mut self, index: usize) {
        if index > 0 {
            self.0.push(b',');
        }
    }

    fn array_end(&mut self) {
        self.0.push(b']');
    }

    fn map(&mut self, _len: usize) {
        self.0.push(b'{');
    }

    fn name(&mut self, index: usize, name: &str) {
        self.item(index);
        json_string(self.0, name);
        self.0.push(b':');
    }

    fn map_end(&mut self) {
        self.0.push(b'}');
    }

    fn written(&self) -> usize {
        self.0.len()
    }
}

fn json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut start = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[start..at]);
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

/// Standard base64 with padding.
pub(crate) fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            out.push(if digit <= group.len() {
                DIGITS[index as usize]
            } else {
                b'='
            });
        }
    }
}

impl MessagePack<'_> {
    fn tagged(&mut self, tag: u8, big_endian: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(big_endian);
    }

    /// A length in the shortest of its forms; `tags` are those of 8, 16 and 32 bits.
    fn length(&mut self, fixed: Option<(u8, usize)>, tags: (Option<u8>, u8, u8), len: usize) {
        match (fixed, tags.0) {
            (Some((tag, max)), _) if len <= max => self.0.push(tag | len as u8),
            (_, Some(tag)) if len <= 0xff => self.tagged(tag, &[len as u8]),
            _ if len <= 0xffff => self.tagged(tags.1, &(len as u16).to_be_bytes()),
            // Values are at most 1 GiB, so a length fits 32 bits.
            _ => self.tagged(tags.2, &(len as u32).to_be_bytes()),
        }
    }
}

impl Emit for MessagePack<'_> {
    fn null(&mut self) {
        self.0.push(0xc0);
    }

    fn bool(&mut self, value: bool) {
        self.0.push(if value { 0xc3 } else { 0xc2 });
    }

    fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value as u64),
            -32..0 => self.0.push(value as i8 as u8),
            -0x80..0 => self.tagged(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..0 => self.tagged(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..0 => self.tagged(0xd2, &(value as i32).to_be_bytes()),
            _ => self.tagged(0xd3, &value.to_be_bytes()),
        }
    }

    fn uint(&mut self, value: u64) {
        match value {
            0..0x80 => self.0.push(value as u8),
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

    fn str(&mut self, value: &str) {
        self.length(Some((0xa0, 31)), (Some(0xd9), 0xda, 0xdb), value.len());
        self.0.extend_from_slice(value.as_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.length(None, (Some(0xc4), 0xc5, 0xc6), value.len());
        self.0.extend_from_slice(value);
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

    fn written(&self) -> usize {
        self.0.len()
    }
}

/// A JSON tree, for inputs that come as one.
pub(crate) fn emit_json_value(value: &serde_json::Value, out: &mut impl Emit) {
    use serde_json::Value;
    match value {
        Value::Null => out.null(),
        Value::Bool(value) => out.bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => out.int(value),
            (None, Some(value)) => out.uint(value),
            (None, None) => out.float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => out.str(text),
        Value::Array(items) => {
            out.array(items.len());
            for (index, item) in items.iter().enumerate() {
                out.item(index);
                emit_json_value(item, out);
            }
            out.array_end();
        }
        Value::Object(fields) => {
            out.map(fields.len());
            for (index, (name, value)) in fields.iter().enumerate() {
                out.name(index, name);
                emit_json_value(value, out);
            }
            out.map_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_spellings_say_the_same() {
        let long = "x".repeat(70_000);
        let many: Vec<i64> = (0..70_000).collect();
        for value in [
            json!(null),
            json!(true),
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
            json!({"a": {"b": [1.5, "q\"\\\n\u{1}é"]}, "c": []}),
            json!(long),
            json!(many),
            json!("x".repeat(200)),
        ] {
            let mut text = Vec::new();
            emit_json_value(&value, &mut Json(&mut text));
            assert_eq!(
                serde_json::from_slice::<serde_json::Value>(&text).unwrap(),
                value
            );
            let mut packed = Vec::new();
            emit_json_value(&value, &mut MessagePack(&mut packed));
            assert_eq!(
                rmp_serde::from_slice::<serde_json::Value>(&packed).unwrap(),
                value
            );
        }
    }

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
