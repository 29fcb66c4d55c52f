//! A request that is borrowed from the bytes of a connection, an owned request, and the limits of requests.

use std::ops::Range;

/// The limits of a client's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub arguments_max: usize,
    pub argument_bytes_max: usize,
    /// Maximum size of a complete request, even if each argument is within its limit.
    pub request_bytes_max: usize,
    /// Maximum size of a line without its end: an inline request, or the number after `*` or `$`.
    pub line_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            arguments_max: 1 << 20,
            argument_bytes_max: 512 << 20,
            request_bytes_max: 576 << 20,
            line_bytes_max: 64 << 10,
        }
    }
}

impl Limits {
    /// Returns the limits of a client before it authenticates, as in Redis.
    pub fn before_password(self) -> Limits {
        Limits {
            arguments_max: self.arguments_max.min(10),
            argument_bytes_max: self.argument_bytes_max.min(16 << 10),
            ..self
        }
    }
}

/// The position of an argument: the offset of its first byte, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub len: usize,
}

impl Span {
    #[inline]
    pub fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start..self.start + self.len]
    }
}

/// A complete request with at least one argument. The first is the command's name.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) spans: &'a [Span],
}

impl<'a> Request<'a> {
    /// Returns the number of arguments, including the name.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Never true for a request of the decoder.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| span.of(self.bytes))
    }

    /// Returns the argument at `index`; empty if it is absent. For commands whose arity was checked.
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    pub fn args(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| span.of(bytes))
    }
}

/// A request with its own copy of the arguments in one buffer, and the position of each. It needs no further decoding.
#[derive(Debug, Clone, Default)]
pub struct OwnedRequest {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedRequest {
    pub fn of<'a>(args: impl Iterator<Item = &'a [u8]> + Clone) -> OwnedRequest {
        let mut request = OwnedRequest::default();
        request.extend(args);
        request
    }

    /// Appends arguments. The memory for all of them is reserved in one step.
    pub fn extend<'a>(&mut self, args: impl Iterator<Item = &'a [u8]> + Clone) {
        let (count, bytes) = args
            .clone()
            .fold((0, 0), |(count, bytes), arg| (count + 1, bytes + arg.len()));
        self.bytes.reserve(bytes);
        self.spans.reserve(count);
        for arg in args {
            let (start, len) = (self.bytes.len(), arg.len());
            self.bytes.extend_from_slice(arg);
            self.spans.push(Span { start, len });
        }
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    #[inline]
    pub fn request(&self) -> Request<'_> {
        self.part(0..self.spans.len())
    }

    /// Returns some of the arguments as a request.
    #[inline]
    pub fn part(&self, arguments: Range<usize>) -> Request<'_> {
        Request {
            bytes: &self.bytes,
            spans: &self.spans[arguments],
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}
