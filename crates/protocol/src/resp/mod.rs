//! The Redis serialization protocol, versions 2 and 3: requests in, replies out.
//!
//! `decode` finds requests in a connection's bytes without copying them, or on lines that people typed
//! (`inline`); `request` has them, and those that are kept; `encode` appends replies to a buffer. None reads
//! or writes a socket.

pub mod decode;
pub mod encode;
mod inline;
mod request;

pub use decode::{Decoder, ProtocolError, Step};
pub use encode::{Encoder, Proto};
pub use request::{Limits, OwnedRequest, Request, Span};
