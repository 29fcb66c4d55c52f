//! Connections between nodes: the frames, and the outcome of requests when a connection breaks.
//!
//! ```text
//!   send_requests, send_reply, exchange ──►┌────────────┐                    ┌────────────┐──► ConnectionEvent::Requests, Reply, Exchange
//!                            │ Connection │ ═══ frames ══════► │ Connection │
//!   ConnectionEvent::Reply, Ended ◄───└────────────┘ ◄══════════ frames └────────────┘◄── send_reply, exchange
//! ```
//!
//! Start with `connection`. The other modules:
//!
//! - `frame` encodes the frames.
//! - `greeting` contains the checks that reject a node.
//! - `streams` tracks requests and responses.
//! - `outbox` queues the bytes to write.
//! - `lease` computes until when rows of another node may be trusted.

mod connection;
mod frame;
mod greeting;
mod lease;
mod outbox;
mod streams;

pub use connection::{Connection, ConnectionEnd, ConnectionEvent, Options, STREAMS_MIN, SendError};
pub use frame::{
    Exchange, Execution, FRAME_BYTES_MAX, Frame, FrameDecoder, FrameError, GREETING_BYTES_MAX,
    HEAD_BYTES, Piece, PieceStatus, REASON_BYTES_MAX, Replicate, ReplyEnds, Requests, StreamId,
};
pub use greeting::{FORMAT, Hello, PeerInfo, Welcome};
pub use lease::SubscriptionLease;
