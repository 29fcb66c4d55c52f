//! Decodes one piece of a reply, without copying bytes.
//!
//! | begins with | piece | version |
//! |---|---|---|
//! | `+` `-` | a line; an error on a line | 2 |
//! | `:` | an integer | 2 |
//! | `$` `*` | bytes or an array, after their length; length -1 means null | 2 |
//! | `_` `#` `,` `(` | null, a boolean, a double, a number of any size | 3 |
//! | `!` `=` | an error or a text, after its length | 3 |
//! | `~` `%` `>` | a set, a map, a push message; its elements follow | 3 |
//! | `\|` | attributes of the reply that follows them | 3 |
//!
//! Invariants:
//! 1. No access or allocation relies on a length that a server announces before the bytes are received.
//! 2. Bytes are rejected at the first wrong one. Parts of a reply are therefore rejected for the same reason as the complete reply.
//! 3. The number of needed bytes is never more than the size of the piece.
//!
//! Not supported: strings and arrays of unknown length (`$?`), which no server sends.

use std::fmt;

use larder_types::VALUE_BYTES_MAX;

/// A piece of a reply: a value, or the head of a reply that contains others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A null value or array.
    Null,
    Bulk(&'a [u8]),
    /// A line such as `OK`.
    Simple(&'a [u8]),
    /// A code such as `ERR`, a space and a message.
    Error(&'a [u8]),
    Integer(i64),
    Double(f64),
    Boolean(bool),
    /// Digits, after a sign if the number is negative.
    BigNumber(&'a [u8]),
    /// A text for people, in a format such as `txt`.
    Verbatim {
        format: [u8; 3],
        text: &'a [u8],
    },
    /// The number of elements, which follow.
    Array(usize),
    Set(usize),
    /// Like an array, but not the reply to a request.
    Push(usize),
    /// The number of pairs of a key and a value, which follow.
    Map(usize),
    /// The number of pairs that describe the next reply. The pairs and that reply follow.
    Attribute(usize),
}

impl<'a> Token<'a> {
    /// Returns the number of following replies that belong to the token.
    #[inline]
    pub fn children(&self) -> usize {
        match *self {
            Token::Array(count) | Token::Set(count) | Token::Push(count) => count,
            Token::Map(pairs) => pairs.saturating_mul(2),
            Token::Attribute(pairs) => pairs.saturating_mul(2).saturating_add(1),
            _ => 0,
        }
    }

    /// Returns the token at the start of bytes in memory, of any size, and its number of bytes. `None` if the bytes do not
    /// begin with a complete token.
    #[inline]
    pub fn first(bytes: &'a [u8]) -> Option<(Token<'a>, usize)> {
        match read(bytes, 0, &ReplyLimits::NONE) {
            Found::Token(token, size) => Some((token, size)),
            Found::Incomplete(_) | Found::Bad(..) => None,
        }
    }
}

/// The limits of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Maximum size of a value, or of a text or an error with a length.
    pub value_bytes_max: usize,
    /// Maximum size of a line: a status, an error or a number.
    pub line_bytes_max: usize,
    /// Maximum number of elements at all levels of a reply together.
    pub elements_max: usize,
    /// Maximum size of the complete reply.
    pub reply_bytes_max: u64,
}

impl ReplyLimits {
    const NONE: ReplyLimits = ReplyLimits {
        value_bytes_max: usize::MAX,
        line_bytes_max: usize::MAX,
        elements_max: usize::MAX,
        reply_bytes_max: u64::MAX,
    };
}

impl Default for ReplyLimits {
    fn default() -> ReplyLimits {
        ReplyLimits {
            value_bytes_max: VALUE_BYTES_MAX as usize,
            line_bytes_max: 64 << 10,
            elements_max: 1 << 24,
            reply_bytes_max: 4 << 30,
        }
    }
}

/// The reason why bytes are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Kind(u8),
    Digit(u8),
    LineEnd(u8),
    Number,
    Negative(i64),
    Boolean(u8),
    Double,
    BigNumber,
    Verbatim,
    Value { bytes: u64, max: usize },
    Line { max: usize },
    Elements { max: usize },
    Depth { max: usize },
    Reply { max: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |byte: &u8| {
            if byte.is_ascii_graphic() {
                format!("'{}'", char::from(*byte))
            } else {
                format!("0x{byte:02x}")
            }
        };
        match self {
            Fault::Kind(byte) => write!(f, "no reply begins with {}", shown(byte)),
            Fault::Digit(byte) => write!(f, "expected a digit, got {}", shown(byte)),
            Fault::LineEnd(byte) => write!(f, "expected CR LF, got {}", shown(byte)),
            Fault::Number => f.write_str("a number that does not fit 64 bits"),
            Fault::Negative(length) => write!(f, "a length of {length}"),
            Fault::Boolean(byte) => write!(f, "expected 't' or 'f', got {}", shown(byte)),
            Fault::Double => f.write_str("no number with a fraction"),
            Fault::BigNumber => f.write_str("expected digits only"),
            Fault::Verbatim => f.write_str("a text without its format"),
            Fault::Value { bytes, max } => write!(f, "a value of {bytes} bytes, of at most {max}"),
            Fault::Line { max } => write!(f, "a line of more than {max} bytes"),
            Fault::Elements { max } => write!(f, "more than {max} replies in one"),
            Fault::Depth { max } => write!(f, "replies nested deeper than {max}"),
            Fault::Reply { max } => write!(f, "a reply of more than {max} bytes"),
        }
    }
}

/// The result of reading a token.
pub(super) enum Found<'a> {
    /// A token, and its number of bytes.
    Token(Token<'a>, usize),
    /// The input is incomplete. At least this many bytes are needed in total.
    Incomplete(usize),
    /// An error, and the offset of the wrong byte.
    Bad(Fault, usize),
}

/// Reads the token at the start of `input`. The first `searched` bytes are known to contain no line end.
#[inline]
pub(super) fn read<'a>(input: &'a [u8], searched: usize, limits: &ReplyLimits) -> Found<'a> {
    let Some(&kind) = input.first() else {
        return Found::Incomplete(1);
    };
    match kind {
        b'$' | b'*' | b':' | b'!' | b'=' | b'~' | b'%' | b'>' | b'|' => match number(input) {
            Number::Value { value, next } => numbered(kind, value, next, input, limits),
            Number::Incomplete(needed) => Found::Incomplete(needed),
            Number::Bad(fault, at) => Found::Bad(fault, at),
        },
        _ => unnumbered(kind, input, searched, limits),
    }
}

/// Reads a token that begins with `kind` and the number `value`. Its first line ends before `next`.
#[inline]
fn numbered<'a>(
    kind: u8,
    value: i64,
    next: usize,
    input: &'a [u8],
    limits: &ReplyLimits,
) -> Found<'a> {
    if kind == b':' {
        return Found::Token(Token::Integer(value), next);
    }
    let Ok(count) = usize::try_from(value) else {
        return match (value, kind) {
            (-1, b'$' | b'*') => Found::Token(Token::Null, next),
            _ => Found::Bad(Fault::Negative(value), 1),
        };
    };
    let token = match kind {
        b'$' | b'!' | b'=' => return string(kind, count, next, input, limits),
        b'*' => Token::Array(count),
        b'~' => Token::Set(count),
        b'>' => Token::Push(count),
        b'%' => Token::Map(count),
        _ => Token::Attribute(count),
    };
    Found::Token(token, next)
}

/// Reads `len` bytes from `begin`, and the line end after them.
#[inline]
fn string<'a>(
    kind: u8,
    len: usize,
    begin: usize,
    input: &'a [u8],
    limits: &ReplyLimits,
) -> Found<'a> {
    if len > limits.value_bytes_max {
        let (bytes, max) = (len as u64, limits.value_bytes_max);
        return Found::Bad(Fault::Value { bytes, max }, 1);
    }
    let end = begin.saturating_add(len);
    let size = end.saturating_add(2);
    if input.len() < size {
        return Found::Incomplete(size);
    }
    if let Some(missing) = line_end(input, end) {
        return missing;
    }
    let bytes = &input[begin..end];
    let token = match (kind, bytes) {
        (b'$', _) => Token::Bulk(bytes),
        (b'!', _) => Token::Error(bytes),
        (_, [a, b, c, b':', text @ ..]) => Token::Verbatim {
            format: [*a, *b, *c],
            text,
        },
        _ => return Found::Bad(Fault::Verbatim, begin),
    };
    Found::Token(token, size)
}

/// Returns the error, or the number of needed bytes, if there is no line end at `at`.
#[inline]
fn line_end(input: &[u8], at: usize) -> Option<Found<'static>> {
    match input.get(at..) {
        Some([b'\r', b'\n', ..]) => None,
        Some([b'\r', other, ..]) => Some(Found::Bad(Fault::LineEnd(*other), at + 1)),
        Some([other, ..]) if *other != b'\r' => Some(Found::Bad(Fault::LineEnd(*other), at)),
        _ => Some(Found::Incomplete(at + 2)),
    }
}

enum Number {
    Value { value: i64, next: usize },
    Incomplete(usize),
    Bad(Fault, usize),
}

/// Reads the number after the first byte.
#[inline]
fn number(input: &[u8]) -> Number {
    // The common case has at most 18 digits, no sign and a complete line. It needs only one pass.
    let (mut value, mut at) = (0_i64, 1);
    while let Some(&byte) = input.get(at) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 || at > 18 {
            break;
        }
        value = value * 10 + i64::from(digit);
        at += 1;
    }
    if at > 1 && input.len() >= at + 2 && input[at] == b'\r' && input[at + 1] == b'\n' {
        return Number::Value {
            value,
            next: at + 2,
        };
    }
    parse_number_slow(input)
}

/// Reads a number with a sign, a large one, an incomplete one or an invalid one.
#[inline(never)]
fn parse_number_slow(input: &[u8]) -> Number {
    const DIGITS_MAX: usize = 19;
    let (begin, is_negative) = match input.get(1) {
        Some(b'-') => (2, true),
        Some(b'+') if input[0] == b':' => (2, false),
        _ => (1, false),
    };
    // Counts downwards, because there is one more negative number than positive ones.
    let (mut value, mut at) = (0_i64, begin);
    let too_large = Number::Bad(Fault::Number, 1);
    while let Some(digit @ b'0'..=b'9') = input.get(at) {
        let more = value.checked_mul(10);
        match more.and_then(|more| more.checked_sub(i64::from(digit - b'0'))) {
            Some(more) if at - begin < DIGITS_MAX => value = more,
            _ => return too_large,
        }
        at += 1;
    }
    match input.get(at) {
        None if at == begin => return Number::Incomplete(at + 3),
        None => return Number::Incomplete(at + 2),
        Some(b'\r') if at > begin => {}
        Some(&other) => return Number::Bad(Fault::Digit(other), at),
    }
    match line_end(input, at) {
        Some(Found::Bad(fault, at)) => return Number::Bad(fault, at),
        Some(_) => return Number::Incomplete(at + 2),
        None => {}
    }
    let next = at + 2;
    if is_negative {
        Number::Value { value, next }
    } else {
        match value.checked_neg() {
            Some(value) => Number::Value { value, next },
            None => too_large,
        }
    }
}

/// Reads a token that begins with `kind` and has neither a length nor an integer.
fn unnumbered<'a>(kind: u8, input: &'a [u8], searched: usize, limits: &ReplyLimits) -> Found<'a> {
    let (token, end) = match kind {
        b'+' | b'-' | b',' | b'(' => return line(kind, input, searched, limits),
        b'_' => (Token::Null, 1),
        b'#' => match input.get(1) {
            Some(b't') => (Token::Boolean(true), 2),
            Some(b'f') => (Token::Boolean(false), 2),
            Some(&other) => return Found::Bad(Fault::Boolean(other), 1),
            None => return Found::Incomplete(4),
        },
        other => return Found::Bad(Fault::Kind(other), 0),
    };
    line_end(input, end).unwrap_or(Found::Token(token, end + 2))
}

fn line<'a>(kind: u8, input: &'a [u8], searched: usize, limits: &ReplyLimits) -> Found<'a> {
    // The line end may be as late as after the first byte and the maximum number of other bytes.
    let last = limits.line_bytes_max.saturating_add(1);
    let window = &input[..input.len().min(last.saturating_add(1))];
    let from = searched.clamp(1, window.len());
    let Some(end) = line_break(&window[from..]).map(|found| from + found) else {
        if window.len() > last {
            let max = limits.line_bytes_max;
            return Found::Bad(Fault::Line { max }, 0);
        }
        return Found::Incomplete(input.len() + 2);
    };
    if let Some(missing) = line_end(input, end) {
        return missing;
    }
    let text = &input[1..end];
    let token = match kind {
        b'+' => Token::Simple(text),
        b'-' => Token::Error(text),
        b',' => match std::str::from_utf8(text).map(str::parse) {
            Ok(Ok(number)) => Token::Double(number),
            _ => return Found::Bad(Fault::Double, 1),
        },
        _ => {
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Found::Bad(Fault::BigNumber, 1);
            }
            Token::BigNumber(text)
        }
    };
    Found::Token(token, end + 2)
}

/// Returns the position of the first CR or LF. For short lines, which are the most frequent, a loop is faster than the start of a
/// SIMD search.
#[inline]
fn line_break(bytes: &[u8]) -> Option<usize> {
    const SHORT: usize = 16;
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let (short, rest) = bytes.split_at(bytes.len().min(SHORT));
    match short.iter().position(is_break) {
        Some(found) => Some(found),
        None => memchr::memchr2(b'\r', b'\n', rest).map(|found| SHORT + found),
    }
}
