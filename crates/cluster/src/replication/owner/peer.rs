//! A replica's place: its connection, the messages in flight to it, and what must be sent next.

use std::collections::{BTreeSet, VecDeque};

use crate::map::Term;

use super::super::change::Place;
use super::super::message::{Message, StreamPart};
use super::super::outputs::Outputs;
use super::ReplicationStats;

/// The contents of a sent message, to interpret its acknowledgement.
pub(super) struct SentMessage {
    sequence: u64,
    sent_ms: u64,
    bytes: usize,
    is_filling: bool,
    upto: Vec<CarriedChanges>,
}

/// For a slot in a term: changes up to this number, or the end of a fill as of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct CarriedChanges {
    pub slot: u16,
    pub term: Term,
    pub number: u64,
    pub is_filled: bool,
}

pub(super) struct Peer {
    pub is_connected: bool,
    /// The number of this connection.
    pub connection: u64,
    pub acknowledged: u64,
    sequence: u64,
    sent: VecDeque<SentMessage>,
    pub bytes_in_flight: usize,
    /// The part of these that belongs to fills.
    pub fill_bytes_in_flight: usize,
    /// Slots that may have something to send.
    pub dirty: BTreeSet<u16>,
    /// Slots whose fill must begin or continue.
    pub filling: BTreeSet<u16>,
    /// Slots with a settled position that the replica has not received.
    pub settled: BTreeSet<u16>,
    pub last_received_ms: u64,
    sent_ms: u64,
    pub is_heartbeat_due: bool,
}

impl Peer {
    pub fn new(now_ms: u64) -> Peer {
        Peer {
            is_connected: false,
            connection: 0,
            acknowledged: 0,
            sequence: 0,
            sent: VecDeque::new(),
            bytes_in_flight: 0,
            fill_bytes_in_flight: 0,
            dirty: BTreeSet::new(),
            filling: BTreeSet::new(),
            settled: BTreeSet::new(),
            last_received_ms: now_ms,
            sent_ms: 0,
            is_heartbeat_due: false,
        }
    }

    pub fn connect(&mut self, now_ms: u64) {
        self.is_connected = true;
        self.connection += 1;
        self.last_received_ms = now_ms;
    }

    pub fn disconnect(&mut self) {
        self.is_connected = false;
        self.acknowledged = 0;
        self.sequence = 0;
        self.sent.clear();
        self.bytes_in_flight = 0;
        self.fill_bytes_in_flight = 0;
        self.filling.clear();
        self.settled.clear();
    }

    /// The time for which the place has owed an acknowledgement without sending anything, less the time that the bytes take at
    /// the slowest rate.
    pub fn silent_ms(&self, now_ms: u64, slowest_bytes_per_second: u64) -> u64 {
        let oldest = self.sent.front();
        oldest.map_or(0, |first| {
            let takes_ms = first.bytes as u64 * 1_000 / slowest_bytes_per_second.max(1);
            let since_ms = first.sent_ms.max(self.last_received_ms);
            now_ms.saturating_sub(since_ms.saturating_add(takes_ms))
        })
    }

    pub fn tick(&mut self, now_ms: u64, heartbeat_ms: u64) {
        self.is_heartbeat_due |= self.is_connected && now_ms >= self.sent_ms + heartbeat_ms;
    }

    pub fn send(
        &mut self,
        to: Place,
        part: StreamPart,
        bytes: usize,
        upto: Vec<CarriedChanges>,
        now_ms: u64,
        out: &mut Outputs,
    ) -> u64 {
        self.sequence += 1;
        self.bytes_in_flight += bytes;
        let is_filling = matches!(part, StreamPart::Rows { .. });
        if is_filling {
            self.fill_bytes_in_flight += bytes;
        }
        self.sent_ms = now_ms;
        self.is_heartbeat_due = false;
        let sequence = self.sequence;
        self.sent.push_back(SentMessage {
            sequence,
            sent_ms: now_ms,
            bytes,
            is_filling,
            upto,
        });
        out.messages.push((to, Message::Stream { sequence, part }));
        sequence
    }

    /// Handles an acknowledgement. Returns what is now in the place's log.
    pub fn acknowledge(
        &mut self,
        sequence: u64,
        now_ms: u64,
        done: &mut ReplicationStats,
    ) -> Vec<CarriedChanges> {
        let mut upto = Vec::new();
        while self.sent.front().is_some_and(|it| it.sequence <= sequence) {
            let sent = self.sent.pop_front().expect("checked above");
            self.bytes_in_flight -= sent.bytes;
            if sent.is_filling {
                self.fill_bytes_in_flight -= sent.bytes;
            }
            self.acknowledged = sent.sequence;
            self.last_received_ms = now_ms;
            if !sent.upto.is_empty() {
                done.acknowledged += 1;
                done.latency_sum_ms += now_ms.saturating_sub(sent.sent_ms);
            }
            upto.extend(sent.upto);
        }
        upto
    }
}
