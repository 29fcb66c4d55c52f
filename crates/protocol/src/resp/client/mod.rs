//! The client's side of the protocol: encodes requests and decodes replies.
//!
//! ```text
//!  request ──► a caller's buffer ──► socket
//!
//!  socket ──► Input ── Reader ──► tokens, borrowed ── Replies ──► complete replies, owned
//! ```
//!
//! A client that knows the form of its replies reads tokens as they arrive. Values are borrowed from the buffer without any
//! allocation, and only the unread part of a long reply is in memory. Other clients read complete replies. `token` has the
//! encoding, and `reader` the order of tokens.
//!
//! The caller handles sockets, timeouts and retries. A reader belongs to one connection, and is unusable after an error.

mod input;
mod reader;
mod reply;
mod request;
mod token;

pub use input::Input;
pub use reader::{Piece, Reader, ReplyError, Step};
pub use reply::{ErrorReply, Replies, Reply};
pub use request::{argument, argument_with, request, request_head};
pub use token::{ReplyLimits, Token};

#[cfg(test)]
mod tests;
