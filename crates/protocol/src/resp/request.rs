//! A request as it was found in the bytes of a connection, and how large one may be.

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

    pub fn args(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| span.of(bytes))
    }
}
