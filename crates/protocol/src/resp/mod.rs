//! The Redis serialization protocol, versions 2 and 3: requests in, replies out.
//!
//! `decode` finds requests in a connection's bytes without copying them, `encode` appends replies
//! to a buffer. Neither reads or writes a socket.

pub mod decode;
pub mod encode;

pub use decode::{Decoder, Limits, ProtocolError, Request, Span, Step};
pub use encode::{Encoder, Proto};
