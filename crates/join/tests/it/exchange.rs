//! The guarantees of the exchange, message by message: when a change is acknowledged, which changes are atomic, and
//! which requests are ignored.

use larder_join::{Engine, EngineMessage, Exchange, KeyRange, ReadOutcome, Shard};

/// The index of the shard that owns the rows, and of the one that reads them.
const OWNER: u16 = 0;
const READER: u16 = 1;

struct Side {
    engine: Engine,
    exchange: Exchange,
}

impl Side {
    fn new(index: u16) -> Side {
        let shard = Shard::new(index, 2);
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        engine.record_changes(true);
        let exchange = Exchange::new(shard);
        Side { engine, exchange }
    }

    /// Handles received messages. Returns whether there is more to do.
    fn step(&mut self, budget: usize) -> bool {
        self.exchange.step(&mut self.engine, 0, budget).more
    }
}

/// An owner and a reader.
struct Pair {
    owner: Side,
    reader: Side,
}

impl Pair {
    fn new() -> Pair {
        let (owner, reader) = (Side::new(OWNER), Side::new(READER));
        Pair { owner, reader }
    }

    /// Returns a leading column that the owner owns.
    fn user() -> &'static str {
        let mut users = ["ann", "bob", "cid", "dan", "eve"].into_iter();
        let is_owned = |user: &&str| Shard::new(OWNER, 2).owns(format!("p|{user}|").as_bytes());
        users.find(is_owned).expect("one of them is the first's")
    }

    /// Delivers the owner's messages to the reader.
    fn deliver_to_reader(&mut self) {
        for message in self.owner.exchange.drain_outgoing(READER) {
            self.reader.exchange.receive(OWNER, message);
        }
    }

    /// Delivers the reader's messages to the owner, which handles them.
    fn deliver_to_owner(&mut self) {
        for message in self.reader.exchange.drain_outgoing(OWNER) {
            self.owner.exchange.receive(READER, message);
        }
        while self.owner.step(1000) {}
    }

    /// Counts the rows of an output on the reader, and provides what the read needs.
    fn count(&mut self, lo: &str, hi: &str) -> u64 {
        for _ in 0..100 {
            let engine = &mut self.reader.engine;
            let needs = match engine.count(lo.as_bytes(), hi.as_bytes(), 0) {
                Ok(ReadOutcome::Done(rows)) => return rows,
                Ok(ReadOutcome::Needs(needs)) => needs,
                Err(error) => panic!("{error}"),
            };
            self.reader.exchange.request(engine, &needs.remote);
            self.deliver_to_owner();
            self.deliver_to_reader();
            while self.reader.step(1000) {}
        }
        panic!("never answered");
    }

    /// Puts rows on the owner and exports the changes. Returns the sequence number to be acknowledged.
    fn put(&mut self, keys: &[String], atomic: bool) -> u64 {
        for key in keys {
            self.owner.engine.put(key.as_bytes(), b"x", 0).unwrap();
        }
        let changes = self.owner.engine.take_changes();
        self.owner.exchange.export(&changes, atomic);
        self.owner.exchange.sequence()
    }
}

/// Invariant 3 of `exchange`.
#[test]
fn a_change_is_acknowledged_when_the_last_output_reflects_it() {
    let (mut pair, user) = (Pair::new(), Pair::user());
    let followers: Vec<_> = (0..300).map(|n| format!("s|{user}|{n:03}")).collect();
    pair.put(&followers, false);
    let copies = "t|<user>|<follower>|<row> = check s|<user>|<follower> copy p|<user>|<row>";
    pair.reader.engine.create("t", copies, 0).unwrap();
    let (lo, hi) = (format!("t|{user}|"), format!("t|{user}}}"));
    assert_eq!(pair.count(&lo, &hi), 0);

    pair.reader.engine.set_step_rows(Some(10));
    let change = pair.put(&[format!("p|{user}|1")], false);
    pair.deliver_to_reader();
    while pair.reader.step(1000) {}
    pair.deliver_to_owner();
    assert!(!pair.owner.exchange.is_acknowledged(change));
    let mut steps = 0;
    while pair.reader.engine.step(10) {
        steps += 1;
    }
    assert!(steps > 3, "the fan-out took {steps} steps");
    pair.reader.exchange.acknowledge(&pair.reader.engine);
    pair.deliver_to_owner();
    assert!(pair.owner.exchange.is_acknowledged(change));
    assert_eq!(pair.count(&lo, &hi), 300);
}

#[test]
fn changes_of_a_transaction_are_applied_atomically_at_any_step_size() {
    for whole in [false, true] {
        let (mut pair, user) = (Pair::new(), Pair::user());
        pair.put(&[format!("p|{user}|00")], false);
        let copies = "t|<user>|<row> = copy p|<user>|<row>";
        pair.reader.engine.create("t", copies, 0).unwrap();
        let (lo, hi) = (format!("t|{user}|"), format!("t|{user}}}"));
        assert_eq!(pair.count(&lo, &hi), 1);

        let rows: Vec<_> = (1..20).map(|n| format!("p|{user}|{n:02}")).collect();
        pair.put(&rows, whole);
        pair.deliver_to_reader();
        let is_more = pair.reader.step(1);
        let seen = pair.reader.engine.count(lo.as_bytes(), hi.as_bytes(), 0);
        let Ok(ReadOutcome::Done(seen)) = seen else {
            panic!("{seen:?}")
        };
        if whole {
            assert!(!is_more && seen == 20, "{seen} rows")
        } else {
            assert!(is_more && seen < 20, "{seen} rows")
        }
    }
}

/// The owner ends a conversation: writes that the reader had to reflect wait until it has dropped the rows.
#[test]
fn an_ended_conversation_blocks_writes_until_the_reader_has_dropped_the_rows() {
    let (mut pair, user) = (Pair::new(), Pair::user());
    pair.put(&[format!("p|{user}|1")], false);
    let count = "n|<user>|<row> = copy p|<user>|<row>";
    pair.reader.engine.create("n", count, 0).unwrap();
    let (lo, hi) = (format!("n|{user}|"), format!("n|{user}}}"));
    assert_eq!(pair.count(&lo, &hi), 1);
    let first = pair.put(&[format!("p|{user}|2")], false);
    pair.deliver_to_reader();
    let last = pair.put(&[format!("p|{user}|3")], false);

    // The second change is never sent.
    pair.owner.exchange.drain_outgoing(READER);
    let upto = pair.owner.exchange.end_reader(READER);
    while pair.reader.step(1000) {}
    pair.deliver_to_owner();
    assert!(
        !pair.owner.exchange.is_acknowledged(first),
        "no other write is acknowledged yet"
    );
    let Side { engine, exchange } = &mut pair.reader;
    exchange.handle_owner_end(engine, OWNER, upto);
    assert!(!pair.owner.exchange.is_acknowledged(last));
    pair.deliver_to_owner();
    assert!(pair.owner.exchange.is_acknowledged(last));
    assert_eq!(pair.count(&lo, &hi), 3);
}

/// Invariant 6 of `exchange`.
#[test]
fn a_request_of_an_earlier_epoch_is_ignored() {
    let (mut pair, user) = (Pair::new(), Pair::user());
    pair.put(&[format!("p|{user}|1")], false);
    let Side { engine, exchange } = &mut pair.owner;
    exchange.change_owners(engine, Shard::new(OWNER, 2), 2);
    for (epoch, answers) in [(1, 0), (2, 1)] {
        let range = KeyRange::prefix(format!("p|{user}|").as_bytes());
        let request = EngineMessage::Request { range, epoch };
        pair.owner.exchange.receive(READER, request);
        while pair.owner.step(1000) {}
        let out = pair.owner.exchange.drain_outgoing(READER);
        let is_answer = |it: &&EngineMessage| matches!(it, EngineMessage::Supply { .. });
        assert_eq!(out.iter().filter(is_answer).count(), answers, "{out:?}");
        let is_later = |it: &EngineMessage| matches!(it, EngineMessage::EpochTooOld(2));
        assert_eq!(out.iter().any(is_later), answers == 0, "{out:?}");
    }
}
