//! The encoding of messages and records: a round trip preserves them, and no input makes the decoder panic.

use larder_cluster::map::{Epoch, Term};
use larder_cluster::replication::{
    Answer, Begin, Entry, Kind, Message, Part, Position, Record, Row, SlotChanges,
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

fn entry(random: &mut Random) -> Entry {
    Entry {
        at: position(random),
        row: row(random),
        is_open: random.one_in(2),
    }
}

fn part(random: &mut Random) -> Part {
    let (slot_, term) = (slot(random), Term(number(random)));
    match random.below(6) {
        0 => Part::Begin(Begin {
            slot: slot_,
            term,
            kind: match random.below(3) {
                0 => Kind::InSync,
                1 => Kind::Fill(Epoch(number(random))),
                _ => Kind::FillOn(Epoch(number(random))),
            },
            floor: position(random),
            history: list(random, position),
        }),
        1 => Part::Changes(list(random, |random| SlotChanges {
            slot: slot(random),
            term: Term(number(random)),
            settled: number(random),
            entries: list(random, entry),
        })),
        2 => Part::Rows {
            slot: slot_,
            term,
            rows: list(random, row),
        },
        3 => Part::Filled {
            slot: slot_,
            term,
            at: position(random),
        },
        4 => Part::Confirm(list(random, |random| (slot(random), Term(number(random))))),
        _ => Part::Beat,
    }
}

fn message(random: &mut Random) -> Message {
    let sequence = number(random);
    match random.below(4) {
        0 => Message::Acknowledged { sequence },
        1 => Message::Answer {
            slot: slot(random),
            term: Term(number(random)),
            answer: match random.below(4) {
                0 => Answer::At(position(random)),
                1 => Answer::Refused(Term(number(random))),
                2 => Answer::Lacks,
                _ => Answer::Ahead(position(random)),
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
fn what_is_written_is_read_again_and_damage_is_an_error_or_another_message() {
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
fn a_list_is_not_believed_to_be_longer_than_its_bytes() {
    // A message that claims changes of 2^60 slots.
    let mut bytes = vec![1, 0];
    bytes.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
    let error = Message::decode(&bytes).expect_err("too many");
    assert_eq!(error.what, "more in a list than there are bytes for");
}
