//! A client that makes one random call at a time, and records what it wrote and read.

use std::collections::{BTreeMap, BTreeSet};

use larder_cluster::map::Term;
use larder_cluster::replication::RowStore;
use larder_sim::{Input, NodeId as At, Output, Outputs, Random};
use larder_validate::Span;
use larder_validate::record::{END_STATE, Outcome, Record, RecordKind};
use larder_validate::report::{Level, Plain};
use larder_validate::trace::{Empty, judge};

use super::host::Table;
use super::service::SLOTS;
use super::wire::{Call, Op, Reply, Wire};
use crate::system::joins::home;

/// Keys of a slot below this number hold values, the others counters.
pub const CONTENTS: u8 = 3;
pub const KEYS: u8 = 5;
const TIMEOUT_US: u64 = 300_000;
/// The length of the last period before calls end.
const LAST_US: u64 = 2_000_000;

pub fn item(slot: u16, key: u8) -> u64 {
    let kind = if key < CONTENTS { 1 } else { 2 };
    kind << 56 | u64::from(slot) << 8 | u64::from(key)
}

pub struct Client {
    session: u32,
    servers: usize,
    random: Random,
    number: u64,
    /// The slot of the last call.
    slot: usize,
    under_way: Option<(Call, u64)>,
    owner: [usize; SLOTS as usize],
    pub records: Vec<Record>,
    /// The time of the last completed write per slot.
    pub last_done_us: [u64; SLOTS as usize],
    pub done: u64,
    pub think_us: u64,
    /// No call starts after this time.
    quiet_us: u64,
    /// True if some reads are of outputs.
    pub reads_outputs: bool,
    pub outputs_read: u64,
    /// The nodes that acknowledged writes of a slot, by term.
    pub acknowledged: BTreeMap<(u16, Term), BTreeSet<At>>,
}

impl Client {
    pub fn new(session: u32, servers: usize, seed: u64, think_us: u64, quiet_us: u64) -> Client {
        Client {
            session,
            servers,
            random: Random::stream(seed, 7),
            number: 0,
            slot: 0,
            under_way: None,
            owner: [1; SLOTS as usize],
            records: Vec::new(),
            last_done_us: [0; SLOTS as usize],
            done: 0,
            think_us,
            quiet_us,
            reads_outputs: false,
            outputs_read: 0,
            acknowledged: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        match input {
            Input::Tick => {
                match self.under_way {
                    Some((_, began)) if now_us >= began + TIMEOUT_US => {
                        self.end(now_us, None);
                        self.guess(now_us);
                    }
                    Some(_) => {}
                    None if now_us > self.quiet_us => {}
                    None => self.begin(now_us, out),
                }
                let think = self.random.between(1, self.think_us * 2);
                out.push(Output::Wake(now_us + think));
            }
            Input::Message(from, Wire::Reply(number, reply))
                if number == self.number && self.under_way.is_some() =>
            {
                if let Reply::Done(term) = reply {
                    let slot = self.slot as u16;
                    self.acknowledged
                        .entry((slot, term))
                        .or_default()
                        .insert(from);
                }
                self.end(now_us, Some(reply));
                if reply == Reply::NotDone {
                    self.guess(now_us);
                }
            }
            _ => {}
        }
    }

    /// Chooses a random server, so that all are tried. In the last period, chooses the next server in turn, so that the owner is
    /// found.
    fn guess(&mut self, now_us: u64) {
        let owner = &mut self.owner[self.slot];
        *owner = if now_us + LAST_US > self.quiet_us {
            1 + *owner % self.servers
        } else {
            1 + self.random.index(self.servers)
        };
    }

    fn begin(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        self.number += 1;
        let slot = self.random.below(SLOTS.into()) as u16;
        let key = self.random.below(KEYS.into()) as u8;
        let what = match self.random.below(5) {
            0 | 1 if self.reads_outputs && self.random.one_in(2) => Op::Shown,
            0 | 1 => Op::Get,
            _ if key >= CONTENTS => Op::Add(1 + self.random.below(3) as i32),
            2 => Op::Delete,
            _ => Op::Set(u64::from(self.session) << 32 | self.number),
        };
        let call = Call { slot, key, what };
        self.slot = match what {
            Op::Shown => home(usize::from(slot)),
            _ => usize::from(slot),
        };
        self.under_way = Some((call, now_us));
        // Usually the server that worked before.
        let mut to = self.owner[self.slot];
        if self.random.one_in(8) {
            to = 1 + self.random.index(self.servers);
        }
        self.owner[self.slot] = to;
        out.push(Output::Send(At(to), Wire::Request(self.number, call)));
    }

    /// `None` if no reply arrived.
    fn end(&mut self, now_us: u64, reply: Option<Reply>) {
        let (call, began) = self.under_way.take().expect("under way");
        let outcome = match reply {
            Some(Reply::NotDone) => Outcome::NotDone,
            Some(_) => Outcome::Done,
            None => Outcome::Unknown,
        };
        let span = match outcome {
            Outcome::Unknown => Span::unanswered(began),
            _ => Span::new(began, now_us).expect("time goes on"),
        };
        let value = match reply {
            Some(Reply::Value(value)) => value,
            _ => 0,
        };
        let what = match call.what {
            Op::Get | Op::Shown if call.key < CONTENTS => RecordKind::ReadContent(value),
            Op::Get | Op::Shown => RecordKind::ReadCount(value as i64),
            Op::Set(content) => RecordKind::WriteContent(content),
            Op::Delete => RecordKind::WriteContent(0),
            Op::Add(by) => RecordKind::AddCount(by),
        };
        if outcome == Outcome::Done {
            self.done += 1;
            if call.what == Op::Shown {
                self.outputs_read += 1;
            } else if call.what != Op::Get {
                self.last_done_us[usize::from(call.slot)] = now_us;
            }
        }
        self.records.push(Record {
            item: item(call.slot, call.key),
            span,
            session: self.session,
            action: 0,
            outcome,
            what,
        });
    }

    /// Records the call that was in progress at the end.
    pub fn unanswered(&self) -> Option<Record> {
        let mut rest = Client {
            under_way: self.under_way,
            records: Vec::new(),
            random: self.random.clone(),
            acknowledged: BTreeMap::new(),
            ..*self
        };
        rest.under_way?;
        rest.end(u64::MAX, None);
        rest.records.pop()
    }
}

/// Checks that only one node acknowledges writes in one term of a slot.
pub fn check_one_owner_a_term<'a>(clients: impl Iterator<Item = &'a Client>) {
    let mut all: BTreeMap<(u16, Term), BTreeSet<At>> = BTreeMap::new();
    for client in clients {
        for (of, by) in &client.acknowledged {
            all.entry(*of).or_default().extend(by);
        }
    }
    for ((slot, term), by) in all {
        assert_eq!(
            by.len(),
            1,
            "slot {slot} in term {term}: {by:?} acknowledge"
        );
    }
}

/// Checks that some order of the writes explains every read and the final rows. `slots` maps the clients' slot numbers to slots.
pub fn check_history<'a>(
    clients: impl Iterator<Item = &'a Client>,
    slots: &[u16],
    end: &Table,
    end_us: u64,
) {
    let mut records: Vec<Record> = Vec::new();
    for client in clients {
        records.extend(&client.records);
        records.extend(client.unanswered());
    }
    let span = Span::new(end_us, end_us).expect("a moment");
    for (slot, &real) in (0..).zip(slots) {
        for key in 0..KEYS {
            let row = end.get(real, &[b'k', key]);
            let value = row.map_or(0, |it| {
                u64::from_le_bytes(it.as_slice().try_into().expect("8 bytes"))
            });
            records.push(Record {
                item: item(slot, key),
                span,
                session: u32::MAX,
                action: END_STATE,
                outcome: Outcome::Done,
                what: if key < CONTENTS {
                    RecordKind::ReadContent(value)
                } else {
                    RecordKind::ReadCount(value as i64)
                },
            });
        }
    }
    let options = larder_validate::trace::Options {
        seed: 7,
        cores: 1,
        witnesses_max: 5,
    };
    let report = judge(&records, &Empty, &options);
    let witnesses: Vec<String> = report
        .witnesses
        .iter()
        .map(|it| it.describe(&Plain))
        .collect();
    let refused = report.total.unpredictable() + report.level(Level::Atomic).refused;
    let end = report.end_state;
    assert_eq!((refused, report.total.undecided), (0, 0), "{witnesses:#?}");
    assert_eq!(end.acceptable, end.reads, "the end: {witnesses:#?}");
    assert!(report.total.reads > 0);
}
