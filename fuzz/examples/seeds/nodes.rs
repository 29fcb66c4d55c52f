//! The messages between nodes.

use std::fs;

use larder_cluster::map::{Epoch, Incarnation, NodeId, Term};
use larder_cluster::peer::{
    Exchange, Execution, FORMAT, Frame, Hello, PeerInfo, Piece, PieceStatus, Replicate, ReplyEnds,
    Requests, STREAMS_MIN, StreamId, Welcome,
};
use larder_cluster::replication::{
    Begin, BeginKind, LogEntry as Change, Message, Position, Record as SlotRecord, ReplicaReply,
    Row, SlotChanges, StreamPart,
};
use larder_join::{EngineMessage, KeyRange};

use super::folder;

/// The frames that each side of a connection sends, and one that is rejected.
pub fn peers() -> std::io::Result<()> {
    let from = |node| PeerInfo {
        node: NodeId(node),
        incarnation: Incarnation(1),
        core: 3,
        epoch: Epoch(2),
        lease_ms: 3_000,
        streams_max: STREAMS_MIN,
        pieces_max: 4,
    };
    let hello = |format| {
        Frame::Hello(Hello {
            format,
            cluster: "larder".to_owned(),
            receiver: NodeId(2),
            from: from(1),
        })
    };
    let stream = |place| StreamId { place, turn: 1 };
    let requests = |place, execution, client: &str| {
        let requests = Requests {
            core: 1,
            execution,
            proto: 3,
            client: client.parse().ok(),
            epoch: 7,
            versions: vec![("pymk".to_owned(), 42)],
            batch: b"\x01\0\0\0\x01\0\0\0\x04\0\0\0PING"[..].into(),
        };
        Frame::Requests(stream(place), requests)
    };
    let piece = |place, last, ends: &[usize], moment| {
        let piece = Piece {
            status: last,
            moment,
            ends: ReplyEnds::new(ends),
            bytes: b"+PONG\r\n+PO"[..].into(),
        };
        Frame::Reply(stream(place), piece)
    };
    let exchange = Exchange {
        from_core: 0,
        to_core: 1,
        conversation: 9,
        bytes: b"\x06"[..].into(),
    };
    let replicate = Replicate {
        from_core: 1,
        to_core: 0,
        bytes: b"journal"[..].into(),
    };
    let requests = vec![
        hello(FORMAT),
        requests(0, Execution::OneByOne, "127.0.0.1:80"),
        Frame::Ping(1_000),
        requests(1, Execution::Transaction, "[::1]:9"),
        requests(2, Execution::Prefetch, ""),
        Frame::Exchange(exchange),
        Frame::Replicate(replicate),
        Frame::PieceAck(stream(1)),
        Frame::Cancel(stream(2)),
        Frame::Pong(1_000, 700),
    ];
    let welcome = Frame::Welcome(Welcome {
        format: FORMAT,
        from: from(2),
    });
    let answers = vec![
        welcome,
        Frame::Pong(1_000, 700),
        piece(0, PieceStatus::Partial, &[7], Some((4, 5))),
        piece(0, PieceStatus::Complete, &[3, 10], None),
        piece(1, PieceStatus::NotDone, &[], None),
        piece(2, PieceStatus::Unknown, &[], None),
    ];
    let refused = vec![hello(FORMAT + 1), Frame::Refused("no".to_owned())];
    let seeds = [
        ("asks", requests),
        ("answers", answers),
        ("refused", refused),
    ];
    for (name, frames) in seeds {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        fs::write(folder("peer")?.join(format!("{name}.seed")), bytes)?;
    }
    Ok(())
}

/// The messages that a node receives for a slot that it owns, for one that it replicates, and for one that it is given;
/// and the records of a replica. `fuzz/src/replication.rs` describes the division into pieces.
pub fn replication() -> std::io::Result<()> {
    let position = |term, number| Position {
        term: Term(term),
        number,
    };
    let entry = |number, is_open| Change {
        at: position(1, number),
        row: Row::new(b"t|a|1", (number % 2 > 0).then_some(&b"value"[..])),
        is_open,
    };
    let changes = |slot, entries| {
        StreamPart::Changes(vec![SlotChanges {
            slot,
            term: Term(1),
            settled: 1,
            entries,
        }])
    };
    let begin = |slot, kind| {
        StreamPart::Begin(Begin {
            slot,
            term: Term(1),
            kind,
            floor: position(0, 0),
            history: Vec::new(),
        })
    };
    let rows = vec![
        Row::new(b"t|b|1", Some(b"v")),
        Row::new(b"t|b|2", Some(b"")),
    ];
    let answer = |answer| Message::Reply {
        slot: 7,
        term: Term(1),
        reply: answer,
    };
    let stream = |(at, part): (usize, StreamPart)| Message::Stream {
        sequence: at as u64 + 1,
        part,
    };
    let copies = [
        begin(8, BeginKind::InSync),
        changes(8, vec![entry(1, false), entry(2, true), entry(3, false)]),
        StreamPart::Confirm(vec![(8, Term(1)), (7, Term(2))]),
        StreamPart::Heartbeat,
        changes(8, vec![entry(4, true)]),
    ];
    let filled = [
        begin(9, BeginKind::Fill(Epoch(1))),
        StreamPart::Rows {
            slot: 9,
            term: Term(1),
            rows: rows.clone(),
        },
        changes(9, vec![entry(2, false)]),
        StreamPart::Filled {
            slot: 9,
            term: Term(1),
            at: position(1, 2),
        },
        begin(9, BeginKind::ResumeFill(Epoch(1))),
    ];
    let owned = [
        answer(ReplicaReply::At(position(0, 0))),
        Message::Acknowledged { sequence: 1 },
        Message::Acknowledged { sequence: 3 },
        answer(ReplicaReply::MissingChanges),
        answer(ReplicaReply::Rejected(Term(2))),
        answer(ReplicaReply::Ahead(position(2, 9))),
    ];
    let slot = 8;
    let records = [
        SlotRecord::Clear { slot },
        SlotRecord::Rows { slot, rows },
        SlotRecord::Filled {
            slot,
            at: position(1, 1),
        },
        SlotRecord::Term {
            slot,
            term: Term(2),
        },
        SlotRecord::Change {
            slot,
            entry: entry(2, false),
        },
        SlotRecord::Change {
            slot,
            entry: entry(3, true),
        },
        SlotRecord::Settled { slot, number: 2 },
        SlotRecord::Cut { slot, number: 2 },
        SlotRecord::Gone { slot },
    ];
    let spoken = |from, messages: Vec<Message>| {
        let bytes = |message: &Message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes
        };
        pieces(from, messages.iter().map(bytes))
    };
    let recorded = records.iter().map(|record| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    });
    let folder = folder("replication")?;
    let copied = copies.into_iter().enumerate().map(stream);
    let given = filled.into_iter().enumerate().map(stream);
    fs::write(folder.join("owned.seed"), spoken(1, owned.into()))?;
    fs::write(folder.join("copied.seed"), spoken(1, copied.collect()))?;
    fs::write(folder.join("filled.seed"), spoken(2, given.collect()))?;
    fs::write(folder.join("records.seed"), pieces(0, recorded))
}

fn pieces(kind: u8, of: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in of {
        bytes.push(kind);
        bytes.extend((piece.len() as u16).to_le_bytes());
        bytes.extend(piece);
    }
    bytes
}

/// Commands forwarded to another node, and each message between engines.
pub fn wire() -> std::io::Result<()> {
    let folder = folder("wire")?;
    let text = |parts: &[&str]| {
        let mut bytes = (parts.len() as u32).to_le_bytes().to_vec();
        for part in parts {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
        bytes
    };
    let commands = [
        text(&["SET", "t|a|1", "v"]),
        text(&["MGET", "t|a|1", "t|a|2"]),
        text(&["RANGE", "t|a|", "t|a}"]),
    ];
    let mut batch = (commands.len() as u32).to_le_bytes().to_vec();
    commands.iter().for_each(|it| batch.extend(it));
    fs::write(folder.join("commands.seed"), batch)?;
    let range = || KeyRange::prefix(b"t|a|");
    let messages = [
        EngineMessage::Request {
            range: range(),
            epoch: 7,
        },
        EngineMessage::Unsubscribe(range()),
        EngineMessage::Supply {
            range: range(),
            rows: vec![(b"t|a|1"[..].into(), b"v"[..].into())],
            epoch: 7,
        },
        EngineMessage::Changes {
            rows: [
                (b"t|a|1"[..].into(), Some(b"w"[..].into())),
                (b"t|a|2"[..].into(), None),
            ]
            .into(),
            mark: 9,
            atomic: true,
        },
        EngineMessage::Ack(9),
        EngineMessage::Processed,
    ];
    for (at, message) in messages.iter().enumerate() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        fs::write(folder.join(format!("message-{at}.seed")), bytes)?;
    }
    Ok(())
}
