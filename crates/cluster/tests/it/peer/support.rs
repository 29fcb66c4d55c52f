//! Two ends of a connection, and the transport between them.

use std::io::IoSlice;

use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{
    Connection, ConnectionEvent, Execution, Options, PeerInfo, Piece, PieceStatus, ReplyEnds,
    Requests, STREAMS_MIN,
};

pub const PIECES_MAX: u32 = 4;

pub fn options(node: u32) -> Options {
    Options {
        cluster: "larder".to_owned(),
        local: PeerInfo {
            node: NodeId(node),
            incarnation: Incarnation(7),
            core: 1,
            epoch: Epoch(40),
            lease_ms: 3_000,
            streams_max: STREAMS_MIN,
            pieces_max: PIECES_MAX,
        },
        ping_every_ms: 1_000,
        margin_ms: 300,
        silence_ms: 5_000,
        greeting_ms: 2_000,
        queued_bytes_max: 1 << 20,
    }
}

pub fn requests(text: &str) -> Requests {
    Requests {
        core: 0,
        execution: Execution::OneByOne,
        proto: 3,
        client: "127.0.0.1:5000".parse().ok(),
        epoch: 7,
        versions: vec![("pymk".to_owned(), 42)],
        batch: text.as_bytes().to_vec().into(),
    }
}

pub fn piece(last: PieceStatus, text: &str) -> Piece {
    Piece {
        status: last,
        moment: None,
        ends: ReplyEnds::new(&[text.len()]),
        bytes: text.as_bytes().to_vec().into(),
    }
}

/// Takes at most this many of the bytes to write.
pub fn written(connection: &mut Connection, most: usize) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 4];
        let count = connection.slices(&mut slices);
        let before = out.len();
        for slice in &slices[..count] {
            let left = most - out.len();
            out.extend_from_slice(&slice[..left.min(slice.len())]);
        }
        let size = out.len() - before;
        connection.record_written(size);
        if size == 0 {
            return out;
        }
    }
}

/// Returns all pending events.
pub fn events(connection: &mut Connection, now_ms: u64) -> Vec<ConnectionEvent> {
    std::iter::from_fn(|| connection.next_event(now_ms)).collect()
}

/// Moves all bytes from one end to the other. Returns the events there.
pub fn carry(from: &mut Connection, to: &mut Connection, now_ms: u64) -> Vec<ConnectionEvent> {
    let bytes = written(from, usize::MAX);
    to.buffer().extend_from_slice(&bytes);
    to.record_received(now_ms);
    events(to, now_ms)
}

/// A connection after the greetings.
pub fn pair(now_ms: u64) -> (Connection, Connection) {
    let mut one = Connection::connect(options(1), NodeId(2), Incarnation(7), now_ms);
    let mut other = Connection::accept(options(2), now_ms);
    let received = carry(&mut one, &mut other, now_ms);
    assert!(
        matches!(&received[..], [ConnectionEvent::Hello(_)]),
        "{received:?}"
    );
    other.admit(Some(Incarnation(7)), Epoch(40), now_ms);
    let received = carry(&mut other, &mut one, now_ms);
    assert!(
        matches!(&received[..], [ConnectionEvent::Ready(_)]),
        "{received:?}"
    );
    (one, other)
}
