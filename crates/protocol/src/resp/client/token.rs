//! One piece of a reply, found where it lies in the bytes. Nothing is copied.
//!
//! | begins with | piece | version |
//! |---|---|---|
//! | `+` `-` | a line; an error on a line | 2 |
//! | `:` | an integer | 2 |
//! | `$` `*` | bytes or an array, behind their length; with length -1 there is none | 2 |
//! | `_` `#` `,` `(` | null, a boolean, a double, a number of any size | 3 |
//! | `!` `=` | an error or a text, behind its length | 3 |
//! | `~` `%` `>` | a set, a map, what nobody asked for; the replies in it follow | 3 |
//! | `\|` | remarks on the reply that follows them | 3 |
//!
//! Invariants:
//! 1. A length that a server announces is never taken for bytes that are there.
//! 2. Bytes are refused at the first that is wrong, so that pieces of them are refused for the same reason as the whole.
//! 3. What is said to be needed is not more than the piece takes.
//!
//! What it leaves out: strings and arrays whose length comes last (`$?`), which no server sends.

use std::fmt;

use larder_types::VALUE_BYTES_MAX;

/// A piece of a reply: a value, or the beginning of what several replies are in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A value or an array that is not there.
    Null,
    Bulk(&'a [u8]),
    /// A line such as `OK`.
    Simple(&'a [u8]),
    /// A code such as `ERR`, a space and a message.
    Error(&'a [u8]),
    Integer(i64),
    Double(f64),
    Boolean(bool),
    /// A sign, if it is negative, and digits.
    BigNumber(&'a [u8]),
    /// A text for people, in a format such as `txt`.
    Verbatim {
        format: [u8; 3],
        text: &'a [u8],
    },
    /// So many replies follow that are in it.
    Array(usize),
    Set(usize),
    /// As an array; it answers no request.
    Push(usize),
    /// So many pairs of replies follow.
    Map(usize),
    /// So many pairs of replies follow that are about the one behind them.
    Attribute(usize),
}

impl<'a> Token<'a> {
    /// How many replies follow that belong to it.
    #[inline]
    pub fn children(&self) -> usize {
        match *self {
            Token::Array(count) | Token::Set(count) | Token::Push(count) => count,
            Token::Map(pairs) => pairs.saturating_mul(2),
            Token::Attribute(pairs) => pairs.saturating_mul(2).saturating_add(1),
            _ => 0,
        }
    }

    /// The token that bytes in memory begin with, whatever its size, and how many bytes it takes. `None` if they begin with
    /// none or not with all of it.
    #[inline]
    pub fn first(bytes: &'a [u8]) -> Option<(Token<'a>, usize)> {
        match read(bytes, 0, &ReplyLimits::NONE) {
            Found::Token(token, size) => Some((token, size)),
            Found::Incomplete(_) | Found::Bad(..) => None,
        }
    }
}

/// What a client takes of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Of a value, or of a text or an error with a length.
    pub value_bytes_max: usize,
    /// Of a line: a status, an error, a number.
    pub line_bytes_max: usize,
    /// Replies in a reply and in those in it, all together.
    pub elements_max: usize,
    /// All of it.
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

/// Why bytes are no reply.
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
        let shown = |byte: &u8| match byte.is_ascii_graphic() {
            true => format!("'{}'", char::from(*byte)),
            false => format!("0x{byte:02x}"),
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

/// What bytes begin with.
pub(super) enum Found<'a> {
    /// A token of so many bytes.
    Token(Token<'a>, usize),
    /// At least so many bytes in all are needed.
    Incomplete(usize),
    /// What is wrong, and at which byte.
    Bad(Fault, usize),
}

/// Reads the token that `input` begins with. The first `searched` bytes have been looked at, and hold no end of a line.
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

/// What begins with `kind` and a number, whose line ends before `next`.
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

/// `len` bytes from `begin` on, and the line's end behind them.
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

/// What is wrong or missing, if no line ends at `at`.
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

/// The number behind the first byte.
#[inline]
fn number(input: &[u8]) -> Number {
    // The common case, at most 18 digits and nothing odd, needs no second look.
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
    odd_number(input)
}

/// The same with a sign, or large, or without its end, or wrong.
#[inline(never)]
fn odd_number(input: &[u8]) -> Number {
    const DIGITS_MAX: usize = 19;
    let (begin, is_negative) = match input.get(1) {
        Some(b'-') => (2, true),
        Some(b'+') if input[0] == b':' => (2, false),
        _ => (1, false),
    };
    // Below zero, where there is one number more.
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
    match is_negative {
        true => Number::Value { value, next },
        false => match value.checked_neg() {
            Some(value) => Number::Value { value, next },
            None => too_large,
        },
    }
}

/// What begins with `kind` and has neither a length nor a whole number.
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
    // The line may end behind its first byte and as many others as it may have.
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

/// Where the first CR or LF is. Most lines are so short that a loop finds it sooner than a search of vectors begins.
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
