//! The bytes that another node sends: frames, and the connection that receives them.

use bytes::{Bytes, BytesMut};
use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{
    Connection, ConnectionEvent, Execution, FRAME_BYTES_MAX, Frame, FrameDecoder, FrameError,
    Options, PeerInfo, Piece, PieceStatus, Requests, STREAMS_MIN,
};

/// Bytes in pieces yield the same frames, or an error at the same byte, as all bytes together. Frames survive encoding
/// and decoding. A connection accepts the bytes, or ends exactly once.
pub fn peer(bytes: &[u8]) {
    for frame_bytes_max in [FRAME_BYTES_MAX, 40] {
        let complete = frames(bytes, frame_bytes_max, |_| usize::MAX);
        let one_by_one = frames(bytes, frame_bytes_max, |_| 1);
        // The bytes themselves determine the sizes of the pieces.
        let pieces = |at: usize| usize::from(bytes[at] % 16) + 1;
        assert_eq!(frames(bytes, frame_bytes_max, pieces), complete);
        assert_eq!(one_by_one, complete);
        for frame in &complete.0 {
            let mut again = Vec::new();
            frame.encode(&mut again);
            let (same, error) = frames(&again, FRAME_BYTES_MAX, |_| usize::MAX);
            assert_eq!(
                (same.as_slice(), error),
                (std::slice::from_ref(frame), None)
            );
        }
    }
    for first in [false, true] {
        converse(bytes, first);
    }
}

/// Returns the number of complete frames at the start of the bytes.
pub fn complete_frames(bytes: &[u8]) -> usize {
    frames(bytes, FRAME_BYTES_MAX, |_| usize::MAX).0.len()
}

fn frames(
    bytes: &[u8],
    frame_bytes_max: usize,
    piece: impl Fn(usize) -> usize,
) -> (Vec<Frame>, Option<FrameError>) {
    let (mut decoder, mut buffer) = (FrameDecoder::new(frame_bytes_max), BytesMut::new());
    let (mut frames, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let end = at.saturating_add(piece(at)).min(bytes.len());
        buffer.extend_from_slice(&bytes[at..end]);
        at = end;
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert!(error.at <= at as u64 && !error.to_string().is_empty());
                    return (frames, Some(error));
                }
            }
        }
    }
    (frames, None)
}

fn options(node: u32) -> Options {
    Options {
        cluster: "larder".to_owned(),
        local: PeerInfo {
            node: NodeId(node),
            incarnation: Incarnation(1),
            core: 0,
            epoch: Epoch(1),
            lease_ms: 3_000,
            streams_max: STREAMS_MIN,
            pieces_max: 4,
        },
        ping_every_ms: 1_000,
        margin_ms: 100,
        silence_ms: 9_000,
        greeting_ms: 1_000,
        queued_bytes_max: 1 << 20,
    }
}

fn requests() -> Requests {
    Requests {
        core: 0,
        execution: Execution::OneByOne,
        proto: 2,
        client: None,
        epoch: 7,
        versions: vec![("pymk".to_owned(), 42)],
        batch: Bytes::new(),
    }
}

/// Feeds the bytes to a connection that connects or accepts, with a few outstanding requests.
fn converse(bytes: &[u8], connects: bool) {
    const NOW: u64 = 1_000;
    let mut connection = if connects {
        Connection::connect(options(1), NodeId(2), Incarnation(1), NOW)
    } else {
        Connection::accept(options(2), NOW)
    };
    connection.buffer().extend_from_slice(bytes);
    connection.record_received(NOW);
    let (mut sent, mut ended) = (0, 0);
    while let Some(event) = connection.next_event(NOW) {
        match event {
            ConnectionEvent::Hello(_) => connection.admit(Some(Incarnation(1)), Epoch(1), NOW),
            ConnectionEvent::Requests(stream, _) => {
                let piece = Piece::with_reason(PieceStatus::Unknown, "no");
                connection
                    .send_reply(stream, piece)
                    .expect("it was requested");
            }
            ConnectionEvent::Reply(stream, _) => connection.acknowledge_piece(stream),
            ConnectionEvent::Ended(ended_with) => {
                assert!(ended_with.unsent.len() + ended_with.unknown.len() <= sent);
                ended += 1;
            }
            _ => {}
        }
        sent += usize::from(connection.send_requests(requests()).is_ok());
    }
    assert_eq!(ended, usize::from(connection.is_ended()));
}
