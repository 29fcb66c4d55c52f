//! The Redis serialization protocol, versions 2 and 3, on both sides. Nothing here reads or writes a socket.
//!
//! The server's: `decode` finds requests in a connection's bytes without copying them, or on lines that people typed
//! (`inline`); `request` has them, and those that are kept; `encode` appends replies to a buffer.
//!
//! The client's, in `client`: requests are appended to a buffer, and replies found in a connection's bytes.

pub mod client;
pub mod decode;
pub mod digits;
pub mod encode;
mod inline;
mod request;

pub use decode::{Decoder, ProtocolError, Step};
pub use encode::{Encoder, Proto};
pub use request::{Limits, OwnedRequest, Request, Span};
