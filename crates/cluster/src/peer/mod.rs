//! Connections between nodes: what crosses them, and what is known when one breaks.
//!
//! ```text
//!   ask, answer, exchange ──►┌────────────┐                    ┌────────────┐──► Event::Requests, Answer, Exchange
//!                            │ Connection │ ═══ frames ══════► │ Connection │
//!   Event::Answer, Ended ◄───└────────────┘ ◄══════════ frames └────────────┘◄── answer, exchange
//! ```
//!
//! Read `connection` first. `frame` has the bytes, `greeting` who is refused, `streams` what was asked and what is answered, `outbox`
//! what waits to be written, and `lease` until when rows of another node may be trusted.

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
