//! A request as it was found in the bytes of a connection, or as it is kept; and how large one may be.

use std::ops::Range;

/// What one client may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub arguments_max: usize,
    pub argument_bytes_max: usize,
    /// All of one request. What exceeds it is refused even if each argument is allowed.
    pub request_bytes_max: usize,
    /// A line without its end: an inline request, or the number after `*` or `$`.
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
    /// What a client that has not given the password may ask for, as in Redis.
    pub fn before_password(self) -> Limits {
        Limits {
            arguments_max: self.arguments_max.min(10),
            argument_bytes_max: self.argument_bytes_max.min(16 << 10),
            ..self
        }
    }
}

/// Where an argument lies: its first byte and its length.
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

/// A complete request: at least one argument, the first being the command's name.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) spans: &'a [Span],
}

impl<'a> Request<'a> {
    /// How many arguments, the name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Never true for what [`Decoder`] gives.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| span.of(self.bytes))
    }

    /// The argument at `index`; empty if there is none. For commands whose arity has been checked.
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    pub fn args(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| span.of(bytes))
    }
}

/// Arguments that are kept: one buffer, and where in it each of them lies. Nothing needs to be decoded again.
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

    /// Appends arguments. What it takes is reserved in one piece, if there was nothing.
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

    /// How many arguments.
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

    /// Some of the arguments.
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
