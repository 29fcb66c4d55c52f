//! The encoding of messages and records: a round trip preserves them, and no input makes the decoder panic.

use larder_cluster::map::{Epoch, Term};
use larder_cluster::replication::{
    Begin, BeginKind, LogEntry, Message, Position, Record, ReplicaReply, Row, SlotChanges,
    StreamPart,
};
use larder_sim::Random;

fn number(random: &mut Random) -> u64 {
    let bits = random.below(65);
    match bits {
        0 => 0,
        bits => random.word() >> (64 - bits),
    }
}

fn slot(random: &mut Random) -> u16 {
    random.below(16_384) as u16
}

fn position(random: &mut Random) -> Position {
    Position {
        term: Term(number(random)),
        number: number(random) >> 1,
    }
}

fn row(random: &mut Random) -> Row {
    let key: Vec<u8> = (0..random.below(5)).map(|_| random.word() as u8).collect();
    let value: Vec<u8> = (0..random.below(300))
        .map(|_| random.word() as u8)
        .collect();
    Row::new(&key, (random.below(4) > 0).then_some(&value))
}

fn list<T>(random: &mut Random, one: impl Fn(&mut Random) -> T) -> Vec<T> {
    (0..random.below(4)).map(|_| one(random)).collect()
}

fn entry(random: &mut Random) -> LogEntry {
    LogEntry {
        at: position(random),
        row: row(random),
        is_open: random.one_in(2),
    }
}

fn part(random: &mut Random) -> StreamPart {
    let (slot_, term) = (slot(random), Term(number(random)));
    match random.below(6) {
        0 => StreamPart::Begin(Begin {
            slot: slot_,
            term,
            kind: match random.below(3) {
                0 => BeginKind::InSync,
                1 => BeginKind::Fill(Epoch(number(random))),
                _ => BeginKind::ResumeFill(Epoch(number(random))),
            },
            floor: position(random),
            history: list(random, position),
        }),
        1 => StreamPart::Changes(list(random, |random| SlotChanges {
            slot: slot(random),
            term: Term(number(random)),
            settled: number(random),
            entries: list(random, entry),
        })),
        2 => StreamPart::Rows {
            slot: slot_,
            term,
            rows: list(random, row),
        },
        3 => StreamPart::Filled {
            slot: slot_,
            term,
            at: position(random),
        },
        4 => StreamPart::Confirm(list(random, |random| (slot(random), Term(number(random))))),
        _ => StreamPart::Heartbeat,
    }
}

fn message(random: &mut Random) -> Message {
    let sequence = number(random);
    match random.below(4) {
        0 => Message::Acknowledged { sequence },
        1 => Message::Reply {
            slot: slot(random),
            term: Term(number(random)),
            reply: match random.below(4) {
                0 => ReplicaReply::At(position(random)),
                1 => ReplicaReply::Rejected(Term(number(random))),
                2 => ReplicaReply::MissingChanges,
                _ => ReplicaReply::Ahead(position(random)),
            },
        },
        _ => Message::Stream {
            sequence,
            part: part(random),
        },
    }
}

fn record(random: &mut Random) -> Record {
    let slot = slot(random);
    match random.below(8) {
        0 => Record::Term {
            slot,
            term: Term(number(random)),
        },
        1 => Record::Clear { slot },
        2 => Record::Rows {
            slot,
            rows: list(random, row),
        },
        3 => Record::Filled {
            slot,
            at: position(random),
        },
        4 => Record::Change {
            slot,
            entry: entry(random),
        },
        5 => Record::Settled {
            slot,
            number: number(random),
        },
        6 => Record::Cut {
            slot,
            number: number(random),
        },
        _ => Record::Gone { slot },
    }
}

/// Flips, cuts and repeats bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(3) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.word() as u8),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
}

#[test]
fn messages_round_trip_and_damage_is_an_error_or_another_message() {
    let mut random = Random::stream(1, 1);
    let (mut refused, mut cut) = (0, 0);
    for _ in 0..20_000 {
        let (message, record) = (message(&mut random), record(&mut random));
        let (mut one, mut other) = (Vec::new(), Vec::new());
        message.encode(&mut one);
        record.encode(&mut other);
        assert_eq!(Message::decode(&one).as_ref(), Ok(&message));
        assert_eq!(Record::decode(&other).as_ref(), Ok(&record));
        let shorter = random.below(one.len() as u64) as usize;
        cut += u64::from(Message::decode(&one[..shorter]).is_err());
        damage(&mut one, &mut random);
        damage(&mut other, &mut random);
        refused += u64::from(Message::decode(&one).is_err());
        refused += u64::from(Record::decode(&other).is_err());
    }
    assert_eq!(cut, 20_000, "no message is the beginning of another");
    assert!(refused > 10_000);
}

#[test]
fn the_length_of_a_list_is_limited_by_its_bytes() {
    // A message that claims changes of 2^60 slots.
    let mut bytes = vec![1, 0];
    bytes.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
    let error = Message::decode(&bytes).expect_err("too many");
    assert_eq!(error.what, "a list length beyond the end of the input");
}
