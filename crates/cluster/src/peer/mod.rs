//! Connections between nodes: the frames, and the outcome of requests when a connection breaks.
//!
//! ```text
//!   ask, answer, exchange ──►┌────────────┐                    ┌────────────┐──► Event::Requests, Answer, Exchange
//!                            │ Connection │ ═══ frames ══════► │ Connection │
//!   Event::Answer, Ended ◄───└────────────┘ ◄══════════ frames └────────────┘◄── answer, exchange
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

pub use connection::{Connection, Ended, Event, NotSent, Options, STREAMS_MIN};
pub use frame::{
    Ends, Exchange, Execution, FRAME_BYTES_MAX, Frame, FrameDecoder, FrameError,
    GREETING_BYTES_MAX, HEAD_BYTES, Last, Piece, Replicate, Requests, StreamId, WORDS_BYTES_MAX,
};
pub use greeting::{FORMAT, Hello, Peer, Welcome};
pub use lease::SubscriptionLease;
