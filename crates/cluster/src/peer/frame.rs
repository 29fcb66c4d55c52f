//! The frames that nodes exchange over a peer connection, and their encoding.
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 4 | number of bytes that follow, little-endian |
//! | 4 | 1 | kind |
//! | 5 | rest | body: the fields in the order of [`Frame`], see `larder_types::wire`; a payload takes the remaining bytes |
//!
//! 1. A decoder consumes no bytes of a frame before the frame is complete, and never waits for more than its limit.
//! 2. Invalid bytes are rejected with their position and the reason. Nothing is read from the connection after that.
//! 3. The format number is always the first field of `Hello` and `Welcome`, so that a node with another format can be
//!    distinguished from garbage.
//! 4. A payload is not copied: it references the receive buffer, which lives as long as the payload.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::{Buf, Bytes, BytesMut};
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::greeting::{Hello, Welcome};

/// The bytes before the body: the size and the kind.
pub const HEAD_BYTES: usize = SIZE_BYTES + 1;
/// Maximum size of a frame. A client's request may have 576 MiB.
pub const FRAME_BYTES_MAX: usize = 640 << 20;
/// Maximum size of a frame before the greetings are complete.
pub const GREETING_BYTES_MAX: usize = 4 << 10;
/// Maximum size of a reason.
pub const REASON_BYTES_MAX: usize = 1 << 10;

const SIZE_BYTES: usize = 4;
const END_BYTES: usize = 4;
/// Minimum encoded size of a store with its version.
const VERSION_BYTES_MIN: usize = 12;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const REQUESTS: u8 = 4;
const REPLY: u8 = 5;
const PIECE_ACK: u8 = 6;
const CANCEL: u8 = 7;
const EXCHANGE: u8 = 8;
const REPLICATE: u8 = 9;
const PING: u8 = 10;
const PONG: u8 = 11;

/// Identifies a stream: a batch of requests and its response. The requesting side assigns a place, which is reused, and a turn,
/// which counts the uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub place: u32,
    pub turn: u32,
}

/// The mode in which the requests of another node are executed. Operations that pause all cores are limited to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// Each request separately, like a client's.
    OneByOne,
    /// As one transaction with one reply.
    Transaction,
    /// One request, only to load the rows that a transaction will read.
    Prefetch,
}

/// Commands for a core of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests {
    /// The core to execute them, according to the sender's map.
    pub core: u16,
    pub execution: Execution,
    /// The RESP version of the replies.
    pub proto: u8,
    /// The address of the client, if it has one.
    pub client: Option<SocketAddr>,
    /// The epoch of the sender's map. The receiver executes the commands under this map or a later one.
    pub epoch: u64,
    /// The versions of stores, by name, that the operation started with.
    pub versions: Vec<(String, u64)>,
    /// Encoded by `Batch::encode` of `larder-protocol`.
    pub batch: Bytes,
}

/// The position of a piece in its response: the last one, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceStatus {
    /// More pieces follow.
    Partial,
    /// The last piece of a complete response.
    Complete,
    /// Nothing was executed, and nothing will be. The bytes contain the reason.
    NotDone,
    /// The last piece of an incomplete response: the effect of the remaining requests is unknown. The bytes contain the reason.
    Unknown,
}

/// Some replies, or a part of a long reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub status: PieceStatus,
    /// If the replies were computed at one instant: that instant, in numbers that are comparable only with others of the same
    /// core.
    pub moment: Option<(u64, u64)>,
    pub ends: ReplyEnds,
    pub bytes: Bytes,
}

/// The end offsets of the replies in a piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyEnds(Bytes);

/// Messages between engines, encoded by `EngineMessage::encode` of `larder-join` and concatenated. An empty list announces that
/// the reader starts a conversation, and has discarded everything received in earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    pub from_core: u16,
    pub to_core: u16,
    /// The reader's number of the conversation. It increases whenever the two sides start again.
    pub conversation: u64,
    pub bytes: Bytes,
}

/// A message of `replication` between places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicate {
    pub from_core: u16,
    pub to_core: u16,
    pub bytes: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of the connecting side.
    Hello(Hello),
    /// The first frame of the accepting side.
    Welcome(Welcome),
    /// Ends the connection, with a reason for operators.
    Refused(String),
    Requests(StreamId, Requests),
    Reply(StreamId, Piece),
    /// Acknowledges a piece: one more may be sent.
    PieceAck(StreamId),
    /// Cancels a response. The stream must still be ended, so that its place can be reused.
    Cancel(StreamId),
    Exchange(Exchange),
    Replicate(Replicate),
    /// The sender's clock. Answered in order with the other frames.
    Ping(u64),
    /// The clock value of the ping, and the number of milliseconds for which the sender certainly may serve its slots.
    Pong(u64, u64),
}

impl ReplyEnds {
    pub fn new(ends: &[usize]) -> ReplyEnds {
        let number = |end: &usize| u32::try_from(*end).expect("a piece is smaller than 4 GiB");
        ReplyEnds(
            ends.iter()
                .flat_map(|end| number(end).to_le_bytes())
                .collect(),
        )
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        let (ends, _) = self.0.as_chunks::<END_BYTES>();
        ends.iter().map(|end| u32::from_le_bytes(*end) as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Piece {
    /// An end with a reason.
    pub fn with_reason(last: PieceStatus, why: &str) -> Piece {
        Piece {
            status: last,
            moment: None,
            ends: ReplyEnds::default(),
            bytes: Bytes::copy_from_slice(truncate_reason(why).as_bytes()),
        }
    }
}

/// Truncates a text to the size allowed in a frame.
pub(super) fn truncate_reason(words: &str) -> &str {
    &words[..words.floor_char_boundary(REASON_BYTES_MAX)]
}

impl Frame {
    /// Appends the frame except for its payload, which the caller must append next.
    ///
    /// # Panics
    /// The frame exceeds the maximum size.
    pub fn encode_head(&self, out: &mut Vec<u8>) -> Bytes {
        let begin = out.len();
        out.extend_from_slice(&[0; SIZE_BYTES]);
        let payload = self.encode_body(out);
        let size = out.len() - begin - SIZE_BYTES + payload.len();
        assert!(
            size <= FRAME_BYTES_MAX,
            "the frame has {size} bytes, more than the limit"
        );
        let size = u32::try_from(size).expect("the size is below the limit");
        out[begin..begin + SIZE_BYTES].copy_from_slice(&size.to_le_bytes());
        payload
    }

    /// Appends the complete frame.
    ///
    /// # Panics
    /// Like [`Frame::encode_head`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let payload = self.encode_head(out);
        out.extend_from_slice(&payload);
    }

    fn encode_body(&self, out: &mut Vec<u8>) -> Bytes {
        match self {
            Frame::Hello(hello) => {
                out.push(HELLO);
                hello.encode(out);
            }
            Frame::Welcome(welcome) => {
                out.push(WELCOME);
                welcome.encode(out);
            }
            Frame::Refused(words) => {
                out.push(REFUSED);
                out.extend_from_slice(truncate_reason(words).as_bytes());
            }
            Frame::Requests(stream, requests) => {
                out.push(REQUESTS);
                stream.encode(out);
                out.extend_from_slice(&requests.core.to_le_bytes());
                out.push(requests.execution.number());
                out.push(requests.proto);
                encode_address(out, requests.client);
                out.extend_from_slice(&requests.epoch.to_le_bytes());
                put_count(out, requests.versions.len());
                for (store, version) in &requests.versions {
                    put_text(out, store);
                    out.extend_from_slice(&version.to_le_bytes());
                }
                return requests.batch.clone();
            }
            Frame::Reply(stream, piece) => {
                out.push(REPLY);
                stream.encode(out);
                out.push(piece.status.number());
                out.push(u8::from(piece.moment.is_some()));
                if let Some((one, other)) = piece.moment {
                    out.extend_from_slice(&one.to_le_bytes());
                    out.extend_from_slice(&other.to_le_bytes());
                }
                put_count(out, piece.ends.iter().len());
                out.extend_from_slice(&piece.ends.0);
                return piece.bytes.clone();
            }
            Frame::PieceAck(stream) => {
                out.push(PIECE_ACK);
                stream.encode(out);
            }
            Frame::Cancel(stream) => {
                out.push(CANCEL);
                stream.encode(out);
            }
            Frame::Exchange(exchange) => {
                out.push(EXCHANGE);
                out.extend_from_slice(&exchange.from_core.to_le_bytes());
                out.extend_from_slice(&exchange.to_core.to_le_bytes());
                out.extend_from_slice(&exchange.conversation.to_le_bytes());
                return exchange.bytes.clone();
            }
            Frame::Replicate(replicate) => {
                out.push(REPLICATE);
                out.extend_from_slice(&replicate.from_core.to_le_bytes());
                out.extend_from_slice(&replicate.to_core.to_le_bytes());
                return replicate.bytes.clone();
            }
            Frame::Ping(time) => {
                out.push(PING);
                out.extend_from_slice(&time.to_le_bytes());
            }
            Frame::Pong(time, acts_for_ms) => {
                out.push(PONG);
                out.extend_from_slice(&time.to_le_bytes());
                out.extend_from_slice(&acts_for_ms.to_le_bytes());
            }
        }
        Bytes::new()
    }

    fn decode_body(body: &Bytes) -> Result<Frame, Malformed> {
        let mut reader = WireReader::new(body);
        let bytes = &mut reader;
        // The payload is the rest of the same buffer.
        let payload = |bytes: &WireReader<'_>| body.slice(body.len() - bytes.rest().len()..);
        let frame = match bytes.u8()? {
            HELLO => Frame::Hello(Hello::decode(bytes)?),
            WELCOME => Frame::Welcome(Welcome::decode(bytes)?),
            REFUSED => {
                let words = text(bytes.rest(), REASON_BYTES_MAX)?;
                return Ok(Frame::Refused(words.to_owned()));
            }
            REQUESTS => {
                let stream = StreamId::decode(bytes)?;
                let requests = Requests {
                    core: bytes.u16()?,
                    execution: Execution::decode(bytes)?,
                    proto: bytes.u8()?,
                    client: decode_address(bytes)?,
                    epoch: bytes.u64()?,
                    versions: versions(bytes)?,
                    batch: payload(bytes),
                };
                return Ok(Frame::Requests(stream, requests));
            }
            REPLY => return decode_reply(bytes, body),
            PIECE_ACK => Frame::PieceAck(StreamId::decode(bytes)?),
            CANCEL => Frame::Cancel(StreamId::decode(bytes)?),
            EXCHANGE => {
                let exchange = Exchange {
                    from_core: bytes.u16()?,
                    to_core: bytes.u16()?,
                    conversation: bytes.u64()?,
                    bytes: payload(bytes),
                };
                return Ok(Frame::Exchange(exchange));
            }
            REPLICATE => {
                let replicate = Replicate {
                    from_core: bytes.u16()?,
                    to_core: bytes.u16()?,
                    bytes: payload(bytes),
                };
                return Ok(Frame::Replicate(replicate));
            }
            PING => Frame::Ping(bytes.u64()?),
            PONG => Frame::Pong(bytes.u64()?, bytes.u64()?),
            _ => {
                return Err(Malformed(
                    "the kind of the frame is unknown to this version",
                ));
            }
        };
        bytes.end()?;
        Ok(frame)
    }
}

fn versions(bytes: &mut WireReader<'_>) -> Result<Vec<(String, u64)>, Malformed> {
    let count = bytes.count(VERSION_BYTES_MIN)?;
    let version = |_| {
        Ok((
            text(bytes.bytes()?, REASON_BYTES_MAX)?.to_owned(),
            bytes.u64()?,
        ))
    };
    (0..count).map(version).collect()
}

fn decode_reply(bytes: &mut WireReader<'_>, body: &Bytes) -> Result<Frame, Malformed> {
    let stream = StreamId::decode(bytes)?;
    let last = PieceStatus::decode(bytes)?;
    let moment = if bytes.flag()? {
        Some((bytes.u64()?, bytes.u64()?))
    } else {
        None
    };
    let ends_bytes = bytes.count(END_BYTES)? * END_BYTES;
    let at = body.len() - bytes.rest().len();
    let ends = ReplyEnds(body.slice(at..at + ends_bytes));
    let bytes = body.slice(at + ends_bytes..);
    let mut before = 0;
    for end in ends.iter() {
        if end < before || end > bytes.len() {
            return Err(Malformed("a reply ends outside of its piece"));
        }
        before = end;
    }
    if matches!(last, PieceStatus::NotDone | PieceStatus::Unknown) {
        text(&bytes, REASON_BYTES_MAX)?;
        if !ends.is_empty() {
            return Err(Malformed("a piece with a reason contains replies"));
        }
    }
    let piece = Piece {
        status: last,
        moment,
        ends,
        bytes,
    };
    Ok(Frame::Reply(stream, piece))
}

impl StreamId {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.place.to_le_bytes());
        out.extend_from_slice(&self.turn.to_le_bytes());
    }

    fn decode(bytes: &mut WireReader<'_>) -> Result<StreamId, Malformed> {
        Ok(StreamId {
            place: bytes.u32()?,
            turn: bytes.u32()?,
        })
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place, self.turn)
    }
}

impl Execution {
    fn number(self) -> u8 {
        match self {
            Execution::OneByOne => 0,
            Execution::Transaction => 1,
            Execution::Prefetch => 2,
        }
    }

    fn decode(bytes: &mut WireReader<'_>) -> Result<Execution, Malformed> {
        match bytes.u8()? {
            0 => Ok(Execution::OneByOne),
            1 => Ok(Execution::Transaction),
            2 => Ok(Execution::Prefetch),
            _ => Err(Malformed(
                "the execution mode of the requests is unknown to this version",
            )),
        }
    }
}

impl PieceStatus {
    fn number(self) -> u8 {
        match self {
            PieceStatus::Partial => 0,
            PieceStatus::Complete => 1,
            PieceStatus::NotDone => 2,
            PieceStatus::Unknown => 3,
        }
    }

    fn decode(bytes: &mut WireReader<'_>) -> Result<PieceStatus, Malformed> {
        match bytes.u8()? {
            0 => Ok(PieceStatus::Partial),
            1 => Ok(PieceStatus::Complete),
            2 => Ok(PieceStatus::NotDone),
            3 => Ok(PieceStatus::Unknown),
            _ => Err(Malformed(
                "the status of the piece is unknown to this version",
            )),
        }
    }
}

fn encode_address(out: &mut Vec<u8>, address: Option<SocketAddr>) {
    match address.map(|it| it.ip()) {
        None => return out.push(0),
        Some(IpAddr::V4(ip)) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    let port = address.map_or(0, |it| it.port());
    out.extend_from_slice(&port.to_le_bytes());
}

fn decode_address(bytes: &mut WireReader<'_>) -> Result<Option<SocketAddr>, Malformed> {
    let ip: IpAddr = match bytes.u8()? {
        0 => return Ok(None),
        4 => bytes.array::<4>()?.into(),
        6 => bytes.array::<16>()?.into(),
        _ => {
            return Err(Malformed(
                "the kind of the client's address is unknown to this version",
            ));
        }
    };
    Ok(Some(SocketAddr::new(ip, bytes.u16()?)))
}

/// Decodes a text of at most `bytes_max` bytes.
pub(super) fn text(bytes: &[u8], bytes_max: usize) -> Result<&str, Malformed> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= bytes_max => Ok(text),
        Ok(_) => Err(Malformed("a text is too long")),
        Err(_) => Err(Malformed("a text is not UTF-8")),
    }
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// An invalid frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameError {
    /// The offset of the frame, from the first byte of the connection.
    pub at: u64,
    /// The kind byte, if present.
    pub kind: Option<u8>,
    /// The size field.
    pub size: usize,
    pub what: &'static str,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid frame at byte {}", self.at)?;
        if let Some(kind) = self.kind {
            write!(f, " (kind {kind}, {} bytes)", self.size)?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for FrameError {}

/// Splits the received bytes into frames, each as soon as it is complete.
#[derive(Debug)]
pub struct FrameDecoder {
    at: u64,
    frame_bytes_max: usize,
}

impl FrameDecoder {
    pub fn new(frame_bytes_max: usize) -> FrameDecoder {
        FrameDecoder {
            at: 0,
            frame_bytes_max,
        }
    }

    /// Sets the maximum size from the next frame on.
    pub fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Decodes one frame; `None` if it is not complete yet.
    ///
    /// # Errors
    /// The bytes are not a frame. Nothing that follows can be decoded.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some((size, rest)) = buffer.split_first_chunk::<SIZE_BYTES>() else {
            return Ok(None);
        };
        let size = u32::from_le_bytes(*size) as usize;
        let (at, kind) = (self.at, rest.first().copied().filter(|_| size > 0));
        let wrong = |what| FrameError {
            at,
            kind,
            size,
            what,
        };
        if size == 0 {
            return Err(wrong("it is empty"));
        }
        // The size is checked first, so that the result does not depend on how the bytes are fragmented.
        if size > self.frame_bytes_max && kind.is_some() {
            return Err(wrong(
                "it exceeds the size limit; is this another protocol, or TLS on one side only?",
            ));
        }
        if rest.len() < size {
            return Ok(None);
        }
        buffer.advance(SIZE_BYTES);
        let body = buffer.split_to(size).freeze();
        let frame = Frame::decode_body(&body).map_err(|Malformed(what)| wrong(what))?;
        self.at += (SIZE_BYTES + size) as u64;
        Ok(Some(frame))
    }
}
