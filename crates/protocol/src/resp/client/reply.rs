//! Complete replies, assembled from their pieces.
//!
//! Invariant: the memory of a reply depends on the received bytes, and not on the lengths that they announce.

use super::input::Input;
use super::reader::{Reader, ReplyError, Step};
use super::token::{ReplyLimits, Token};

/// A reply, without its attributes.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A null value or array. As the reply of a read: the key is absent.
    Null,
    /// `+OK`
    Simple(String),
    /// `-ERR unknown command`
    Error(ErrorReply),
    /// `:42`
    Integer(i64),
    /// `$5`
    Bulk(Vec<u8>),
    /// `*2`
    Array(Vec<Reply>),
    /// `,1.5` (this and the following variants are of version 3)
    Double(f64),
    /// `#t`
    Boolean(bool),
    /// `(12345678901234567890`
    BigNumber(String),
    /// `=9`: a text for people, in a format such as `txt`.
    Verbatim { format: [u8; 3], text: Vec<u8> },
    /// `%1`
    Map(Vec<(Reply, Reply)>),
    /// `~2`
    Set(Vec<Reply>),
    /// `>2`: a push message, which is not the reply to a request.
    Push(Vec<Reply>),
}

/// An error as the server spelled it: `code` is the first word, such as `ERR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    pub code: String,
    pub message: String,
}

impl Reply {
    /// Returns the reply at the start of `bytes`, and its number of bytes. `None` if it is incomplete.
    ///
    /// # Errors
    /// The bytes do not begin with a reply.
    pub fn first(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ReplyError> {
        let (mut reader, mut open, mut at) = (Reader::default(), OpenReplies::default(), 0);
        while let Step::Piece(piece) = reader.next(&bytes[at..])? {
            at += piece.size;
            if let Some(reply) = open.put(piece.token) {
                return Ok(Some((reply, at)));
            }
        }
        Ok(None)
    }
}

/// The replies of one connection.
#[derive(Debug)]
pub struct Replies {
    input: Input,
    reader: Reader,
    open: OpenReplies,
}

/// The size of the input buffer, and thus of one read of a socket.
const INPUT_BYTES: usize = 64 << 10;

impl Default for Replies {
    fn default() -> Replies {
        Replies::new(ReplyLimits::default())
    }
}

impl Replies {
    pub fn new(limits: ReplyLimits) -> Replies {
        Replies {
            input: Input::new(INPUT_BYTES),
            reader: Reader::new(limits),
            open: OpenReplies::default(),
        }
    }

    /// Returns the buffer for bytes from the server. The caller reads into its room, and marks the bytes as filled.
    pub fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    /// Returns the next reply; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are not a reply. The caller must close the connection.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ReplyError> {
        while let Step::Piece(piece) = self.reader.next(self.input.bytes())? {
            let reply = self.open.put(piece.token);
            self.input.consume(piece.size);
            if reply.is_some() {
                return Ok(reply);
            }
        }
        Ok(None)
    }
}

/// The incomplete replies, innermost last.
#[derive(Debug, Default)]
struct OpenReplies(Vec<OpenReply>);

#[derive(Debug)]
struct OpenReply {
    holder: Holder,
    children: Vec<Reply>,
    left: usize,
}

#[derive(Debug, Clone, Copy)]
enum Holder {
    Array,
    Set,
    Push,
    Map,
    /// Only the last element is used: the reply that the attribute describes.
    Attribute,
}

impl OpenReplies {
    /// Adds a token. Returns the reply that ends with it, if one does.
    fn put(&mut self, token: Token<'_>) -> Option<Reply> {
        let mut reply = match begin(token) {
            Ok(reply) => reply,
            Err(holder) if token.children() == 0 => holder.close(Vec::new()),
            Err(holder) => {
                self.0.push(OpenReply {
                    holder,
                    children: Vec::new(),
                    left: token.children(),
                });
                return None;
            }
        };
        while let Some(innermost) = self.0.last_mut() {
            innermost.children.push(reply);
            innermost.left -= 1;
            if innermost.left > 0 {
                return None;
            }
            let ended = self.0.pop()?;
            reply = ended.holder.close(ended.children);
        }
        Some(reply)
    }
}

/// Returns a complete reply, or the kind of a reply that contains others.
fn begin(token: Token<'_>) -> Result<Reply, Holder> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(match token {
        Token::Null => Reply::Null,
        Token::Simple(line) => Reply::Simple(text(line)),
        Token::Error(bytes) => {
            let line = text(bytes);
            let (code, message) = line.split_once(' ').unwrap_or((&line, ""));
            Reply::Error(ErrorReply {
                code: code.to_owned(),
                message: message.to_owned(),
            })
        }
        Token::Integer(number) => Reply::Integer(number),
        Token::Bulk(bytes) => Reply::Bulk(bytes.to_vec()),
        Token::Double(number) => Reply::Double(number),
        Token::Boolean(value) => Reply::Boolean(value),
        Token::BigNumber(digits) => Reply::BigNumber(text(digits)),
        Token::Verbatim { format, text } => Reply::Verbatim {
            format,
            text: text.to_vec(),
        },
        Token::Array(_) => return Err(Holder::Array),
        Token::Set(_) => return Err(Holder::Set),
        Token::Push(_) => return Err(Holder::Push),
        Token::Map(_) => return Err(Holder::Map),
        Token::Attribute(_) => return Err(Holder::Attribute),
    })
}

impl Holder {
    fn close(self, mut children: Vec<Reply>) -> Reply {
        match self {
            Holder::Array => Reply::Array(children),
            Holder::Set => Reply::Set(children),
            Holder::Push => Reply::Push(children),
            Holder::Attribute => children.pop().unwrap_or(Reply::Null),
            Holder::Map => {
                let mut pairs = Vec::with_capacity(children.len() / 2);
                let mut children = children.into_iter();
                while let Some((key, value)) = children.next().zip(children.next()) {
                    pairs.push((key, value));
                }
                Reply::Map(pairs)
            }
        }
    }
}
