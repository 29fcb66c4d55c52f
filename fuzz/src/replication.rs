//! The messages between nodes about slots, and the journal's records of them.

use std::collections::BTreeMap;

use larder_cluster::map::{Epoch, NodeId, Term};
use larder_cluster::replication::{
    Assignment, ExecutedChange, InMemoryRows, Limits, Message, Outputs, Place, Record, Replication,
    RowStore, SlotCopy,
};

/// The bytes are pieces: a byte for the kind, the size in two bytes (little-endian), and the content. Decoded pieces
/// survive encoding and decoding. A node that owns a slot, replicates another and is given a third receives the
/// messages in sequence. The records form a replica.
pub fn replication(bytes: &[u8]) {
    let mut copy = None;
    let (mut kept, mut host) = (InMemoryRows::default(), Host::new());
    for (kind, piece) in pieces(bytes) {
        match kind % 3 {
            0 => {
                let Ok(record) = Record::decode(piece) else {
                    continue;
                };
                let mut again = Vec::new();
                record.encode(&mut again);
                assert_eq!(Record::decode(&again).as_ref(), Ok(&record));
                SlotCopy::replay(&mut copy, &record, &mut kept);
            }
            from => {
                let Ok(message) = Message::decode(piece) else {
                    continue;
                };
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!(Message::decode(&again).as_ref(), Ok(&message));
                host.receive(place(u32::from(from) + 1), message);
            }
        }
    }
    host.end();
}

/// Returns the number of pieces that are messages or records.
pub fn replication_pieces(bytes: &[u8]) -> usize {
    let is_read = |(kind, piece): &(u8, &[u8])| match kind % 3 {
        0 => Record::decode(piece).is_ok(),
        _ => Message::decode(piece).is_ok(),
    };
    pieces(bytes).filter(is_read).count()
}

fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([kind, low, high], rest) = bytes.split_first_chunk::<3>()?;
        let size = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (piece, rest) = rest.split_at(size);
        bytes = rest;
        Some((*kind, piece))
    })
}

fn place(node: u32) -> Place {
    Place {
        node: NodeId(node),
        core: 0,
    }
}

/// Node 1, with nodes 2 and 3 as its peers.
struct Host {
    replication: Replication,
    table: InMemoryRows,
    logged: u64,
    now_ms: u64,
}

impl Host {
    fn new() -> Host {
        let limits = Limits {
            window_bytes: 100,
            chunk_bytes: 10,
            ..Limits::default()
        };
        let mut host = Host {
            replication: Replication::new(place(1), limits, BTreeMap::new()),
            table: InMemoryRows::default(),
            logged: 0,
            now_ms: 1_000,
        };
        host.replication.owner.set_lease(u64::MAX);
        host.turn(|it, table, out| {
            it.handle_connect(place(2), 1_000);
            it.handle_connect(place(3), 1_000);
            let assigned = |owner: u32, in_sync: &[u32], filling: &[u32]| Assignment {
                term: Term(1),
                owner: Some(place(owner)),
                in_sync: in_sync.iter().map(|node| place(*node)).collect(),
                next_owner: None,
                filling: filling.iter().map(|it| (place(*it), Epoch(1))).collect(),
            };
            let slots = [
                (7, assigned(1, &[2], &[3])),
                (8, assigned(2, &[1], &[3])),
                (9, assigned(3, &[2], &[1])),
            ];
            for (slot, assignment) in slots {
                it.assign(Epoch(1), slot, &assignment, table, 1_000, out);
            }
        });
        host.write();
        host
    }

    /// Writes a transaction of two rows, if writes are admitted.
    fn write(&mut self) {
        let now_ms = self.now_ms;
        self.turn(|it, table, out| {
            use larder_cluster::replication::Admission;
            if it.owner.may_write(7, now_ms) != Admission::Now {
                return;
            }
            for (key, is_open) in [(b"a", true), (b"b", false)] {
                let before = table.get(7, key);
                let value = Some(&b"value"[..]);
                table.set(7, key, value);
                let changed = ExecutedChange {
                    key,
                    value,
                    is_open,
                };
                it.change(7, changed, before, out);
            }
        });
    }

    fn receive(&mut self, from: Place, message: Message) {
        self.now_ms += 50;
        let now_ms = self.now_ms;
        self.turn(|it, table, out| {
            it.receive(from, message, table, now_ms, out);
            it.tick(now_ms, out);
        });
    }

    /// Applies a later map in which the node owns all slots, and then one in which it owns none.
    fn end(&mut self) {
        self.write();
        let now_ms = self.now_ms;
        let mine = Assignment {
            term: Term(2),
            owner: Some(place(1)),
            ..Assignment::default()
        };
        let gone = Assignment {
            term: Term(3),
            owner: Some(place(2)),
            ..Assignment::default()
        };
        for (epoch, assignment) in [(2, mine), (3, gone)] {
            self.turn(|it, table, out| {
                for slot in [7, 8, 9] {
                    it.assign(Epoch(epoch), slot, &assignment, table, now_ms, out);
                }
            });
        }
    }

    fn turn(&mut self, act: impl FnOnce(&mut Replication, &mut InMemoryRows, &mut Outputs)) {
        let mut out = Outputs::default();
        act(&mut self.replication, &mut self.table, &mut out);
        self.replication.flush(&self.table, self.now_ms, &mut out);
        self.logged += out.records.len() as u64;
        self.replication.record_durable(self.logged, &mut out);
        self.replication.flush(&self.table, self.now_ms, &mut out);
        self.logged += out.records.len() as u64;
        out.records.clear();
    }
}
