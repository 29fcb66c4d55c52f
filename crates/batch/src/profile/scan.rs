//! Extracts the top-level columns of one value: a JSON object or a MessagePack map, as builds write them.
//!
//! Only the required parts are decoded; nested values are skipped. After a syntax error, the rest of the row is
//! ignored.

use memchr::memchr2;

/// The value of a column in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell<'a> {
    Null,
    Boolean(bool),
    Number(f64),
    /// A text that is neither empty nor a number. For JSON, in its encoded form with escapes.
    Text(&'a [u8]),
    Empty,
    /// The encoded bytes.
    Nested(&'a [u8]),
}

impl<'a> Cell<'a> {
    /// Returns the cell for a text, or for bytes that may be a text.
    pub fn from_text(text: &'a [u8]) -> Cell<'a> {
        match text {
            [] => Cell::Empty,
            text => parse_number(text).map_or(Cell::Text(text), Cell::Number),
        }
    }
}

/// Parses a text as a number, as CSV has them: only a minus may precede the digits.
fn parse_number(text: &[u8]) -> Option<f64> {
    const LONGEST: usize = 25;
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if text.len() > LONGEST || !digits.first()?.is_ascii_digit() {
        return None;
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Calls `found` with each field of a JSON object; returns false if the value is not an object.
pub fn json_fields<'a>(value: &'a [u8], mut found: impl FnMut(&'a [u8], Cell<'a>)) -> bool {
    let mut at = JsonScanner { value, at: 0 };
    if at.next_byte() != Some(b'{') {
        return false;
    }
    if at.peek_byte() == Some(b'}') {
        return true;
    }
    loop {
        let Some(name) = (at.next_byte() == Some(b'"'))
            .then(|| at.string())
            .flatten()
        else {
            return false;
        };
        if at.next_byte() != Some(b':') {
            return false;
        }
        let Some(cell) = at.cell() else { return false };
        found(name, cell);
        match at.next_byte() {
            Some(b',') => {}
            Some(b'}') => return true,
            _ => return false,
        }
    }
}

/// A position in a JSON text.
struct JsonScanner<'a> {
    value: &'a [u8],
    at: usize,
}

impl<'a> JsonScanner<'a> {
    fn peek_byte(&mut self) -> Option<u8> {
        while self.value.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.value.get(self.at).copied()
    }

    fn next_byte(&mut self) -> Option<u8> {
        let sign = self.peek_byte()?;
        self.at += 1;
        Some(sign)
    }

    /// Returns the text between the quotes; the opening quote was already consumed.
    fn string(&mut self) -> Option<&'a [u8]> {
        let begin = self.at;
        loop {
            self.at += memchr2(b'"', b'\\', self.value.get(self.at..)?)?;
            if self.value[self.at] == b'"' {
                let text = &self.value[begin..self.at];
                self.at += 1;
                return Some(text);
            }
            self.at += 2;
        }
    }

    fn cell(&mut self) -> Option<Cell<'a>> {
        let sign = self.peek_byte()?;
        let begin = self.at;
        if sign == b'"' {
            self.at += 1;
            return self.string().map(Cell::from_text);
        }
        if matches!(sign, b'{' | b'[') {
            self.skip_nested()?;
            return Some(Cell::Nested(&self.value[begin..self.at]));
        }
        let rest = &self.value[begin..];
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
        let word = &rest[..rest.iter().position(ends)?];
        self.at += word.len();
        match word {
            b"null" => Some(Cell::Null),
            b"true" => Some(Cell::Boolean(true)),
            b"false" => Some(Cell::Boolean(false)),
            _ => {
                let number: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
                // A number outside the range of a double is kept as text.
                Some(if number.is_finite() {
                    Cell::Number(number)
                } else {
                    Cell::Text(word)
                })
            }
        }
    }

    fn skip_nested(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.value.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// Like [`json_fields`], for a MessagePack map whose keys are texts.
pub fn msgpack_fields<'a>(value: &'a [u8], mut found: impl FnMut(&'a [u8], Cell<'a>)) -> bool {
    let mut at = MessagePackScanner { rest: value };
    let Some(Item::Map(fields)) = at.item() else {
        return false;
    };
    for _ in 0..fields {
        let Some(Item::Text(name)) = at.item() else {
            return false;
        };
        let before = at.rest;
        let Some(item) = at.item() else { return false };
        let cell = match item {
            Item::Nil => Cell::Null,
            Item::Boolean(value) => Cell::Boolean(value),
            Item::Number(value) if value.is_finite() => Cell::Number(value),
            Item::Number(_) => Cell::Text(&before[..before.len() - at.rest.len()]),
            Item::Text(text) => Cell::from_text(text),
            Item::Bytes(bytes) => Cell::Nested(bytes),
            Item::Array(items) | Item::Map(items) => {
                let each = if matches!(item, Item::Map(_)) { 2 } else { 1 };
                if at.skip_items(items.saturating_mul(each)).is_none() {
                    return false;
                }
                Cell::Nested(&before[..before.len() - at.rest.len()])
            }
        };
        found(name, cell);
    }
    true
}

struct MessagePackScanner<'a> {
    rest: &'a [u8],
}

enum Item<'a> {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// The number of items that follow.
    Array(u64),
    /// The number of pairs that follow.
    Map(u64),
}

impl<'a> MessagePackScanner<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn unsigned(&mut self, bytes: u64) -> Option<u64> {
        let bytes = self.take(bytes)?;
        Some(
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let tag = self.take(1)?[0];
        Some(match tag {
            0x00..=0x7f => Item::Number(f64::from(tag)),
            0xe0..=0xff => Item::Number(f64::from(tag as i8)),
            0x80..=0x8f => Item::Map(u64::from(tag & 15)),
            0x90..=0x9f => Item::Array(u64::from(tag & 15)),
            0xa0..=0xbf => Item::Text(self.take(u64::from(tag & 31))?),
            0xc0 => Item::Nil,
            0xc2 => Item::Boolean(false),
            0xc3 => Item::Boolean(true),
            0xc4..=0xc6 => {
                let size = self.unsigned(1 << (tag - 0xc4))?;
                Item::Bytes(self.take(size)?)
            }
            0xca => Item::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => Item::Number(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xcf => Item::Number(self.unsigned(1 << (tag - 0xcc))? as f64),
            0xd0..=0xd3 => {
                let bytes = 1 << (tag - 0xd0);
                let shift = 64 - 8 * bytes as u32;
                Item::Number((((self.unsigned(bytes)? << shift) as i64) >> shift) as f64)
            }
            0xd9..=0xdb => {
                let size = self.unsigned(1 << (tag - 0xd9))?;
                Item::Text(self.take(size)?)
            }
            0xdc | 0xdd => Item::Array(self.unsigned(2 << (tag - 0xdc))?),
            0xde | 0xdf => Item::Map(self.unsigned(2 << (tag - 0xde))?),
            // Builds never write extensions.
            _ => return None,
        })
    }

    fn skip_items(&mut self, mut items: u64) -> Option<()> {
        while items > 0 {
            items -= 1;
            match self.item()? {
                Item::Array(more) => items = items.checked_add(more)?,
                Item::Map(more) => items = items.checked_add(more.checked_mul(2)?)?,
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(text: &str) -> (Vec<(String, String)>, bool) {
        let mut all = Vec::new();
        let complete = json_fields(text.as_bytes(), |name, cell| {
            let cell = match cell {
                Cell::Text(text) => format!("text {}", String::from_utf8_lossy(text)),
                Cell::Nested(bytes) => format!("nested {}", String::from_utf8_lossy(bytes)),
                cell => format!("{cell:?}"),
            };
            all.push((String::from_utf8_lossy(name).into_owned(), cell));
        });
        (all, complete)
    }

    #[test]
    fn fields_of_objects() {
        let (found, complete) = of_json(
            r#"{"a":1, "b" : "x\"y","c":null,"d":{"e":[1,"}"]},"f":"","g":"-12.5","h":true,"i":"007","j":"1x"}"#,
        );
        assert!(complete);
        let said: Vec<String> = found
            .iter()
            .map(|(name, cell)| format!("{name}={cell}"))
            .collect();
        assert_eq!(
            said,
            [
                "a=Number(1.0)",
                "b=text x\\\"y",
                "c=Null",
                "d=nested {\"e\":[1,\"}\"]}",
                "f=Empty",
                "g=Number(-12.5)",
                "h=Boolean(true)",
                "i=Number(7.0)",
                "j=text 1x",
            ]
        );
        assert_eq!(of_json("{}"), (Vec::new(), true));
        for bad in [
            "",
            "[1]",
            "7",
            "{",
            "{\"a\"}",
            "{\"a\":",
            "{\"a\":\"",
            "{\"a\":[",
            "{\"a\":1",
            "{\"a\":\"\\",
        ] {
            assert!(!of_json(bad).1, "{bad}");
        }
    }

    #[test]
    fn fields_of_maps() {
        let packed = b"\x88\xa1a\x07\xa1b\xd1\xff\x00\xa1c\xc0\xa1d\x92\x01\x81\xa1x\x02\xa1e\xc4\x02zz\xa1f\xcb\x3f\xf8\0\0\0\0\0\0\xa1g\xa0\xa1h\xc2";
        let mut found = Vec::new();
        assert!(msgpack_fields(packed, |name, cell| found.push((name, cell))));
        let expected: [(&[u8], Cell<'_>); 8] = [
            (b"a", Cell::Number(7.0)),
            (b"b", Cell::Number(-256.0)),
            (b"c", Cell::Null),
            (b"d", Cell::Nested(b"\x92\x01\x81\xa1x\x02")),
            (b"e", Cell::Nested(b"zz")),
            (b"f", Cell::Number(1.5)),
            (b"g", Cell::Empty),
            (b"h", Cell::Boolean(false)),
        ];
        assert_eq!(found, expected);
        for cut in 0..packed.len() {
            assert!(!msgpack_fields(&packed[..cut], |_, _| {}), "{cut}");
        }
    }

    /// Arbitrary bytes are skipped without reading past their end.
    #[test]
    fn arbitrary_bytes_are_skipped() {
        let mut random = larder_types::Random::new(3);
        let signs = b"{}[]\":,\\ntrue0.5-\xc4\xdf\xff\x81\x92\xa1";
        for _ in 0..20_000 {
            let size = random.index(24);
            let bytes: Vec<u8> = (0..size)
                .map(|_| signs[random.index(signs.len())])
                .collect();
            json_fields(&bytes, |_, _| {});
            msgpack_fields(&bytes, |_, _| {});
        }
    }
}
