//! Finds requests in the bytes of a connection, as they arrive.
//!
//! A request is an array of bulk strings (`*2\r\n$3\r\nGET\r\n$4\r\na:42\r\n`) or one line of words
//! (`GET a:42\r\n`), as people type it. Errors have Redis's texts. After an error, the following bytes
//! cannot be decoded, and the connection must be closed.
//!
//! Invariants:
//! 1. The requests do not depend on how the bytes are split.
//! 2. Every byte is read only once per request, because the decoder keeps its progress between calls.
//! 3. No memory is reserved for announced lengths. Spans grow only with received bytes.

use std::fmt;

use super::inline::split_words;
use super::request::{Limits, Request, Span};

/// The result of [`Decoder::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A request of this many bytes. [`Decoder::request`] returns it.
    Request(usize),
    /// This many bytes without a request (an empty line, an empty array). The caller skips them.
    Skip(usize),
    /// The input is incomplete. Call again with the same bytes and more, in total at least this many.
    Incomplete(usize),
}

/// An error in the bytes, with Redis's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolError {
    what: String,
    too_long: Option<usize>,
    is_tls: bool,
}

impl ProtocolError {
    /// Returns the minimum size of an argument or a request that exceeds its limit.
    pub fn too_long(&self) -> Option<usize> {
        self.too_long
    }

    /// Returns whether the bytes are the beginning of a TLS connection.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.what)
    }
}

impl std::error::Error for ProtocolError {}

/// The first bytes of a handshake record of any TLS version. No valid request begins with them.
const TLS_PREFIX: [u8; 2] = [0x16, 3];

fn protocol_error(what: &str) -> ProtocolError {
    ProtocolError {
        what: what.to_owned(),
        too_long: None,
        is_tls: false,
    }
}

fn too_long(what: &str, bytes: usize) -> ProtocolError {
    ProtocolError {
        too_long: Some(bytes),
        ..protocol_error(what)
    }
}

/// A decoder of one connection, or of one buffer at a time.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    spans: Vec<Span>,
    /// The arguments of an inline request, without its quotes and escapes.
    unquoted: Vec<u8>,
    inline: bool,
    /// The position up to which the current request is decoded.
    at: usize,
    /// Number of outstanding arguments; `None` before the array's length is read.
    left: Option<usize>,
    /// Length of the argument at `at`, after it is read.
    bulk: Option<usize>,
}

/// Capacity for spans that is reused by the next request. A larger one is freed.
const SPANS_KEPT_MAX: usize = 64;

impl Decoder {
    pub fn new(limits: Limits) -> Decoder {
        Decoder {
            limits,
            spans: Vec::new(),
            unquoted: Vec::new(),
            inline: false,
            at: 0,
            left: None,
            bulk: None,
        }
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns whether no part of a request is decoded. If false, the next call needs the same bytes again.
    pub fn is_between_requests(&self) -> bool {
        self.at == 0
    }

    /// Frees memory. Call it when the connection is idle.
    pub fn release(&mut self) {
        if self.is_between_requests() {
            self.spans = Vec::new();
            self.unquoted = Vec::new();
        }
    }

    /// Returns the memory of an incomplete request, without its bytes.
    pub fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.unquoted.capacity()
    }

    /// Decodes the request at the start of `input`. After [`Step::Request`] and [`Step::Skip`], the next call
    /// begins a new one.
    ///
    /// # Errors
    /// The bytes are not RESP, or exceed the limits. Reply with the text, and close the connection.
    #[inline]
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, ProtocolError> {
        if self.left.is_none() {
            if self.spans.capacity() > SPANS_KEPT_MAX {
                self.spans = Vec::new();
            }
            self.spans.clear();
            match input.first() {
                None => return Ok(Step::Incomplete(1)),
                Some(b'*') => {}
                Some(_) => return self.decode_inline(input),
            }
        }
        self.decode_array(input)
    }

    /// Returns the request of the last [`Step::Request`] in the same `input`.
    #[inline]
    pub fn request<'a>(&'a self, input: &'a [u8]) -> Request<'a> {
        let bytes = if self.inline { &self.unquoted } else { input };
        Request {
            bytes,
            spans: &self.spans,
        }
    }

    /// Returns argument `index` of the same request, borrowed from `input` only, so that it is valid after the
    /// decoder's next step. `None` for inline requests.
    #[inline]
    pub fn argument_in<'a>(&self, input: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index).filter(|_| !self.inline)?;
        Some(span.of(input))
    }

    fn finish_request(&mut self) -> usize {
        self.left = None;
        self.bulk = None;
        std::mem::take(&mut self.at)
    }

    #[inline]
    fn decode_array(&mut self, input: &[u8]) -> Result<Step, ProtocolError> {
        self.inline = false;
        let mut left = match self.left {
            Some(left) => left,
            None => {
                let number = match self.number(input, 1)? {
                    Line::Number { value, next } => {
                        self.at = next;
                        value
                    }
                    Line::NotANumber => return Err(protocol_error("invalid multibulk length")),
                    Line::TooLong => return Err(protocol_error("too big mbulk count string")),
                    Line::Incomplete => return Ok(Step::Incomplete(input.len() + 1)),
                };
                if number <= 0 {
                    return Ok(Step::Skip(self.finish_request()));
                }
                match usize::try_from(number) {
                    Ok(count) if count <= self.limits.arguments_max => count,
                    _ => return Err(protocol_error("invalid multibulk length")),
                }
            }
        };
        while left > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.bulk_length(input)? {
                    Some(len) => len,
                    None => {
                        self.left = Some(left);
                        return Ok(Step::Incomplete(input.len() + 1));
                    }
                },
            };
            let end = self.at + len;
            if end > self.limits.request_bytes_max {
                return Err(too_long("too big request", end));
            }
            if input.len() < end + 2 {
                self.left = Some(left);
                self.bulk = Some(len);
                return Ok(Step::Incomplete(end + 2));
            }
            if input[end] != b'\r' || input[end + 1] != b'\n' {
                return Err(protocol_error("expected CRLF after a bulk string"));
            }
            self.spans.push(Span {
                start: self.at,
                len,
            });
            self.at = end + 2;
            self.bulk = None;
            left -= 1;
        }
        Ok(Step::Request(self.finish_request()))
    }

    /// Reads `$<length>\r\n` at the position, and advances past it; `None` if it is incomplete.
    #[inline]
    fn bulk_length(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        match input.get(self.at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => {
                let shown = if other.is_ascii_graphic() {
                    char::from(other)
                } else {
                    '?'
                };
                return Err(protocol_error(&format!("expected '$', got '{shown}'")));
            }
        }
        match self.number(input, self.at + 1)? {
            Line::Incomplete => Ok(None),
            Line::TooLong => Err(protocol_error("too big bulk count string")),
            Line::NotANumber => Err(protocol_error("invalid bulk length")),
            Line::Number { value, next } => match usize::try_from(value) {
                Ok(len) if len <= self.limits.argument_bytes_max => {
                    self.at = next;
                    Ok(Some(len))
                }
                Ok(len) => Err(too_long("invalid bulk length", len)),
                Err(_) => Err(protocol_error("invalid bulk length")),
            },
        }
    }

    /// Reads the decimal number from `start` to the end of its line.
    #[inline]
    fn number(&self, input: &[u8], start: usize) -> Result<Line, ProtocolError> {
        let mut value: i64 = 0;
        let mut at = start;
        // The common case has at most nine digits, no sign and a complete line. It needs only one pass.
        while let Some(&byte) = input.get(at) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 || at - start == 9 {
                break;
            }
            value = value * 10 + i64::from(digit);
            at += 1;
        }
        if at > start && input.len() >= at + 2 && input[at] == b'\r' && input[at + 1] == b'\n' {
            return Ok(Line::Number {
                value,
                next: at + 2,
            });
        }
        Ok(self.parse_number_slow(&input[start.min(input.len())..], start))
    }

    #[cold]
    fn parse_number_slow(&self, rest: &[u8], start: usize) -> Line {
        let Some(end) = memchr::memchr(b'\r', rest) else {
            return if rest.len() > self.limits.line_bytes_max {
                Line::TooLong
            } else {
                Line::Incomplete
            };
        };
        match rest.get(end + 1) {
            None => return Line::Incomplete,
            Some(b'\n') => {}
            Some(_) => return Line::NotANumber,
        }
        let digits = std::str::from_utf8(&rest[..end]).unwrap_or("");
        let plain = !digits.starts_with('+');
        match digits.parse() {
            Ok(value) if plain => Line::Number {
                value,
                next: start + end + 2,
            },
            _ => Line::NotANumber,
        }
    }

    fn decode_inline(&mut self, input: &[u8]) -> Result<Step, ProtocolError> {
        if input.starts_with(&TLS_PREFIX) {
            return Err(ProtocolError {
                is_tls: true,
                ..protocol_error(
                    "this is TLS, and this port does not use TLS; connect without TLS, or set server.tls_cert",
                )
            });
        }
        let searched = self.at;
        let Some(end) = memchr::memchr(b'\n', &input[searched..]).map(|found| searched + found)
        else {
            if input.len() > self.limits.line_bytes_max {
                return Err(protocol_error("too big inline request"));
            }
            self.at = input.len();
            return Ok(Step::Incomplete(input.len() + 1));
        };
        self.at = 0;
        if end > self.limits.line_bytes_max {
            return Err(protocol_error("too big inline request"));
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.inline = true;
        self.unquoted.clear();
        split_words(line, &mut self.unquoted, &mut self.spans)
            .ok_or_else(|| protocol_error("unbalanced quotes in request"))?;
        if self.spans.len() > self.limits.arguments_max {
            return Err(protocol_error("invalid multibulk length"));
        }
        Ok(if self.spans.is_empty() {
            Step::Skip(end + 1)
        } else {
            Step::Request(end + 1)
        })
    }
}

enum Line {
    Number { value: i64, next: usize },
    NotANumber,
    TooLong,
    Incomplete,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resp::client::request;

    type Args = Vec<Vec<u8>>;

    /// Feeds `bytes` in pieces of the given lengths, like a connection. Unconsumed bytes stay in its buffer.
    fn feed(bytes: &[u8], pieces: &[usize], limits: Limits) -> Result<Vec<Args>, String> {
        let mut decoder = Decoder::new(limits);
        let mut requests = Vec::new();
        let (mut start, mut end) = (0, 0);
        let mut pieces = pieces.iter().copied().cycle();
        while end < bytes.len() {
            end = bytes
                .len()
                .min(end + pieces.next().unwrap_or(usize::MAX).max(1));
            loop {
                let input = &bytes[start..end];
                match decoder.decode(input).map_err(|error| error.to_string())? {
                    Step::Incomplete(needed) => {
                        assert!(needed > input.len());
                        break;
                    }
                    Step::Skip(size) => start += size,
                    Step::Request(size) => {
                        requests.push(decoder.request(input).args().map(<[u8]>::to_vec).collect());
                        start += size;
                    }
                }
            }
        }
        Ok(requests)
    }

    fn decode_all(bytes: &[u8]) -> Result<Vec<Args>, String> {
        feed(bytes, &[usize::MAX], Limits::default())
    }

    fn encode(args: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        request(&mut bytes, args);
        bytes
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: &[&[&str]]) {
        let expected: Vec<Args> = expected
            .iter()
            .map(|args| args.iter().map(|arg| arg.as_bytes().to_vec()).collect())
            .collect();
        assert_eq!(decode_all(bytes), Ok(expected));
    }

    #[test]
    fn arrays_inline_commands_and_empty_input_are_decoded() {
        check(b"*2\r\n$3\r\nGET\r\n$4\r\na:42\r\n", &[&["GET", "a:42"]]);
        check(
            b"PING\r\nGET  a:1 \n\r\n\n*0\r\n*-1\r\nPING\n",
            &[&["PING"], &["GET", "a:1"], &["PING"]],
        );
        check(b"*1\r\n$0\r\n\r\n", &[&[""]]);
        check(br#"SET "a b\x41\n" 'it\'s' "" x"#, &[]);
        check(
            b"SET \"a b\\x41\\n\" 'it\\'s' \"\" x\n",
            &[&["SET", "a bA\n", "it's", "", "x"]],
        );
        check(b"", &[]);
    }

    #[test]
    fn malformed_bytes_are_refused_with_redis_errors() {
        for (bytes, text) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (b"*1\r\nGET\r\n", "expected '$', got 'G'"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
            (b"GET \"a\r\n", "unbalanced quotes in request"),
            (b"GET \"a\"b\r\n", "unbalanced quotes in request"),
        ] {
            assert_eq!(
                decode_all(bytes),
                Err(format!("Protocol error: {text}")),
                "{bytes:?}"
            );
        }
        let long = vec![b'1'; 70_000];
        let with_end = [&long[..], b"\r\n"].concat();
        assert_eq!(
            decode_all(&with_end),
            Err("Protocol error: too big inline request".into())
        );
        assert_eq!(
            decode_all(&long),
            Err("Protocol error: too big inline request".into())
        );
        assert_eq!(
            decode_all(&[b"*", &long[..]].concat()),
            Err("Protocol error: too big mbulk count string".into())
        );
        assert_eq!(
            decode_all(&[b"*1\r\n$", &long[..]].concat()),
            Err("Protocol error: too big bulk count string".into())
        );
    }

    #[test]
    fn a_request_may_not_exceed_the_total_limit_in_allowed_arguments() {
        let limits = Limits {
            request_bytes_max: 100,
            ..Limits::default()
        };
        let request = encode(&[vec![b'a'; 60], vec![b'b'; 60]]);
        assert_eq!(
            feed(&request, &[1000], limits),
            Err("Protocol error: too big request".into())
        );
        let tight = Limits::default().before_password();
        assert!(feed(&encode(&vec![vec![b'a']; 11]), &[1000], tight).is_err());
        assert!(feed(&encode(&vec![vec![b'a']; 10]), &[1000], tight).is_ok());
    }

    /// The error has the size, so that the server can report the remedy before it receives the bytes.
    #[test]
    fn an_oversized_request_reports_its_size() {
        let limits = Limits {
            argument_bytes_max: 60,
            request_bytes_max: 100,
            ..Limits::default()
        };
        let too_long = |bytes: &[u8]| {
            let error = Decoder::new(limits).decode(bytes).unwrap_err();
            error.too_long()
        };
        assert_eq!(too_long(b"*2\r\n$3\r\nSET\r\n$61\r\n"), Some(61));
        let two = encode(&[vec![b'a'; 60], vec![b'b'; 60]]);
        // The size of the request up to the end of the argument that exceeds the limit.
        assert_eq!(too_long(&two[..80]), Some(two.len() - 2));
        assert_eq!(too_long(b"*1\r\n$-7\r\n"), None);
        assert_eq!(too_long(b"*x\r\n"), None);
    }

    #[test]
    fn an_incomplete_argument_reports_its_size_and_reserves_nothing() {
        let mut decoder = Decoder::new(Limits::default());
        let input = b"*1048576\r\n$1000\r\nab";
        assert_eq!(decoder.decode(input), Ok(Step::Incomplete(17 + 1000 + 2)));
        assert!(decoder.spans.capacity() <= 8);
    }

    proptest! {
        #[test]
        fn splitting_the_input_does_not_change_the_requests(
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 0..8),
            pieces in prop::collection::vec(1usize..30, 1..20),
        ) {
            let bytes: Vec<u8> = requests.iter().flat_map(|args| encode(args)).collect();
            prop_assert_eq!(decode_all(&bytes), Ok(requests.clone()));
            prop_assert_eq!(feed(&bytes, &pieces, Limits::default()), Ok(requests));
        }

        #[test]
        fn splitting_any_bytes_does_not_change_the_result(
            bytes in prop::collection::vec(prop::sample::select(b"*$0123\r\nab \"'\\x-".to_vec()), 0..60),
            pieces in prop::collection::vec(1usize..9, 1..9),
        ) {
            prop_assert_eq!(feed(&bytes, &pieces, Limits::default()), decode_all(&bytes));
        }
    }
}
