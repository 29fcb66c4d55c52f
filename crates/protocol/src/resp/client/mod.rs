//! The client's side: requests out, replies in.
//!
//! ```text
//!  request ──► a caller's buffer ──► socket
//!
//!  socket ──► Input ── Reader ──► tokens, where they lie ── Replies ──► whole replies, with bytes of their own
//! ```
//!
//! A client that knows what it asked for reads tokens as they come: values lie in the bytes, nothing is allocated, and of a long reply
//! only what has not been taken is kept. One that does not takes whole replies. Read `token` for the bytes, `reader` for their order.
//!
//! Sockets, time-outs and what is sent again are the caller's. A reader belongs to one connection, and is of no use after an error.

mod input;
mod reader;
mod reply;
mod request;
mod token;

pub use input::Input;
pub use reader::{Piece, Reader, ReplyError, Step};
pub use reply::{ErrorReply, Replies, Reply};
pub use request::{argument, argument_of, request, request_head};
pub use token::{ReplyLimits, Token};

#[cfg(test)]
mod tests;
