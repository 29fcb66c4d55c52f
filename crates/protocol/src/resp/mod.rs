//! The Redis serialization protocol, versions 2 and 3, on both sides. This module does not read or write sockets.
//!
//! The server's side: `decode` finds requests in a connection's bytes without copying them. `inline` parses lines that people
//! typed. `request` has the types of requests. `encode` appends replies to a buffer.
//!
//! The client's side, in `client`, appends requests to a buffer, and finds replies in a connection's bytes.

pub mod client;
pub mod decode;
pub mod digits;
pub mod encode;
mod inline;
mod request;

pub use decode::{Decoder, ProtocolError, Step};
pub use encode::{Encoder, Proto};
pub use request::{Limits, OwnedRequest, Request, Span};
