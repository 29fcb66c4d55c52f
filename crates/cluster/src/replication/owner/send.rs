//! Sends to the replicas at the end of a turn: begins, changes within the window, chunks of fills.

use std::collections::BTreeSet;

use super::super::change::{Place, RowStore};
use super::super::message::{Begin, BeginKind, SlotChanges, StreamPart};
use super::super::outputs::Outputs;
use super::peer::{CarriedChanges, Peer};
use super::slot::{BeginState, Fill, OwnedSlot, ReplicaProgress, Role};
use super::{Limits, Owner};

/// The weight of an entry in addition to its row, in bytes.
const ENTRY_BYTES: usize = 16;

/// The weight of the begin or the end of a slot's fill, in bytes.
const SLOT_BYTES: usize = 128;
/// The time for which unused tokens accumulate.
const TOKENS_SAVED_MS: u64 = 20;

/// A token bucket for fills. It allows small bursts only, because requests wait meanwhile.
pub(super) struct TokenBucket {
    per_second: u64,
    /// In thousandths of a byte.
    left: u64,
    refilled_ms: u64,
    /// Bytes spent since the last query.
    spent_bytes: u64,
}

impl TokenBucket {
    pub fn new(per_second: u64) -> TokenBucket {
        TokenBucket {
            per_second,
            left: per_second * TOKENS_SAVED_MS,
            refilled_ms: 0,
            spent_bytes: 0,
        }
    }

    fn refill(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.refilled_ms).min(TOKENS_SAVED_MS);
        self.refilled_ms = now_ms;
        let more = self.left.saturating_add(self.per_second * passed_ms);
        self.left = more.min(self.per_second * TOKENS_SAVED_MS);
    }

    /// Sets the rate, which is never zero, because a stopped fill would keep its slot from its replicas.
    pub fn set_rate(&mut self, per_second: u64) {
        self.per_second = per_second.max(1_000);
        self.left = self.left.min(self.per_second * TOKENS_SAVED_MS);
    }

    pub fn take_spent(&mut self) -> u64 {
        std::mem::take(&mut self.spent_bytes)
    }

    fn has_tokens(&self) -> bool {
        self.left > 0
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64 * 1_000);
        self.spent_bytes += bytes as u64;
    }
}

impl Owner {
    /// To be called at the end of each turn.
    pub(in super::super) fn flush(&mut self, rows: &impl RowStore, now_ms: u64, out: &mut Outputs) {
        let Owner {
            changed,
            peers,
            slots,
            limits,
            tokens,
            waits_to_fill,
            ..
        } = self;
        tokens.refill(now_ms);
        *waits_to_fill = false;
        let mut turn_bytes = limits.chunk_bytes;
        for slot in changed.drain(..) {
            let Some(owned) = slots.get_mut(slot) else {
                continue;
            };
            owned.is_changed = false;
            for member in &owned.members {
                if let Some(peer) = peers.get_mut(&member.place) {
                    peer.dirty.insert(slot);
                }
            }
        }
        for (place, peer) in peers.iter_mut().filter(|(_, peer)| peer.is_connected) {
            let dirty = std::mem::take(&mut peer.dirty);
            let mut left: BTreeSet<u16> = BTreeSet::new();
            let mut changes = Vec::new();
            let mut bytes = 0;
            for slot in &dirty {
                let Some(owned) = slots.get_mut(*slot) else {
                    continue;
                };
                if owned.member(*place).is_some_and(|it| it.needs_fill()) {
                    peer.filling.insert(*slot);
                    continue;
                }
                if begin(peer, *slot, owned, *place, now_ms, out) {
                    continue;
                }
                let window = limits
                    .window_bytes
                    .saturating_sub(peer.bytes_in_flight + bytes);
                if let Some(some) = changes_for(owned, *slot, *place, window) {
                    peer.settled.remove(slot);
                    bytes += some.1;
                    changes.push(some.0);
                }
                owned.trim_log();
                if owned.member(*place).is_some_and(|it| it.is_following()) {
                    let last = owned.last().number;
                    let member = owned.member(*place).expect("checked above");
                    if member.fill.as_ref().is_some_and(|it| it.filled.is_none()) {
                        peer.filling.insert(*slot);
                    }
                    if member.next <= last {
                        left.insert(*slot);
                    }
                }
            }
            if peer.is_heartbeat_due {
                for slot in std::mem::take(&mut peer.settled) {
                    if let Some(owned) = slots.get_mut(slot)
                        && owned.member(*place).is_some_and(|it| it.is_following())
                    {
                        changes.push(SlotChanges {
                            slot,
                            term: owned.term,
                            settled: owned.committed.number,
                            entries: Vec::new(),
                        });
                    }
                }
            }
            if !changes.is_empty() {
                let carried_by = |it: &SlotChanges| {
                    let last = it.entries.last()?;
                    Some(CarriedChanges {
                        slot: it.slot,
                        term: it.term,
                        number: last.at.number,
                        is_filled: false,
                    })
                };
                let upto = changes.iter().filter_map(carried_by).collect();
                peer.send(
                    *place,
                    StreamPart::Changes(changes),
                    bytes,
                    upto,
                    now_ms,
                    out,
                );
            } else if peer.is_heartbeat_due {
                peer.send(*place, StreamPart::Heartbeat, 0, Vec::new(), now_ms, out);
            }
            peer.dirty.append(&mut left);
            while turn_bytes > 0
                && tokens.has_tokens()
                && peer.fill_bytes_in_flight < limits.fill_window_bytes
                && let Some(slot) = peer.filling.pop_first()
            {
                let Some(owned) = slots.get_mut(slot) else {
                    continue;
                };
                let bytes = if owned.member(*place).is_some_and(|it| it.needs_fill()) {
                    begin(peer, slot, owned, *place, now_ms, out);
                    0
                } else {
                    // Either something else must be sent first, or the fill has ended and nothing of it remains here.
                    match fill(peer, slot, owned, *place, rows, limits, now_ms, out) {
                        Some((bytes, is_last)) => {
                            if !is_last {
                                peer.filling.insert(slot);
                            }
                            bytes
                        }
                        None => continue,
                    }
                };
                let weight = bytes + SLOT_BYTES;
                tokens.spend(weight);
                turn_bytes = turn_bytes.saturating_sub(weight);
            }
            *waits_to_fill |=
                !peer.filling.is_empty() && peer.fill_bytes_in_flight < limits.fill_window_bytes;
        }
    }
}

/// Sends a `Begin`. Returns whether the replica has yet to confirm the term.
fn begin(
    peer: &mut Peer,
    slot: u16,
    owned: &mut OwnedSlot,
    place: Place,
    now_ms: u64,
    out: &mut Outputs,
) -> bool {
    let (floor, history, term) = (owned.floor, owned.history(), owned.term);
    let Some(member) = owned.member(place) else {
        return true;
    };
    match member.begin_state {
        BeginState::Confirmed => return false,
        BeginState::Sent => return true,
        BeginState::NotSent if member.cannot_sync => return true,
        BeginState::NotSent => member.begin_state = BeginState::Sent,
    }
    let kind = match member.role {
        Role::Filling {
            began,
            is_add_requested: false,
        } if member.fill.is_some() => BeginKind::ResumeFill(began),
        Role::Filling {
            began,
            is_add_requested: false,
        } => BeginKind::Fill(began),
        // The replica may already be in sync, so its copy must not be discarded.
        _ => BeginKind::InSync,
    };
    let begin = Begin {
        slot,
        term,
        kind,
        floor,
        history,
    };
    peer.send(place, StreamPart::Begin(begin), 0, Vec::new(), now_ms, out);
    true
}

/// Returns the next changes for a replica, and their weight.
fn changes_for(
    owned: &mut OwnedSlot,
    slot: u16,
    place: Place,
    window: usize,
) -> Option<(SlotChanges, usize)> {
    let (last, floor) = (owned.last().number, owned.floor.number);
    let at = owned.members.iter().position(|it| it.place == place)?;
    let OwnedSlot { log, members, .. } = owned;
    let member: &mut ReplicaProgress = &mut members[at];
    if member.next > last || !member.is_following() {
        return None;
    }
    let mut entries = Vec::new();
    let mut bytes = 0;
    while member.next <= last && bytes < window {
        let entry = &log[(member.next - floor - 1) as usize].entry;
        member.next += 1;
        // Keys that are yet to be filled need no changes: their rows are sent later, in their state at that time.
        let is_wanted = match &member.fill {
            Some(Fill {
                after,
                filled: None,
                ..
            }) => after.as_deref().is_some_and(|it| entry.row.key() <= it),
            _ => true,
        };
        if is_wanted {
            bytes += entry.row.size() + ENTRY_BYTES;
            entries.push(entry.clone());
        }
    }
    let changes = SlotChanges {
        slot,
        term: owned.term,
        settled: owned.committed.number,
        entries,
    };
    (!changes.entries.is_empty()).then_some((changes, bytes))
}

/// Sends the next chunk of a fill. Returns its size in bytes, and whether it was the last. `None` if there is none, or if changes
/// must be sent first.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of an owner that it needs"
)]
fn fill(
    peer: &mut Peer,
    slot: u16,
    owned: &mut OwnedSlot,
    place: Place,
    rows: &impl RowStore,
    limits: &Limits,
    now_ms: u64,
    out: &mut Outputs,
) -> Option<(usize, bool)> {
    let (last, term) = (owned.last(), owned.term);
    let member = owned.member(place)?;
    if !member.is_following() || member.next <= last.number {
        return None;
    }
    let fill = member.fill.as_mut().filter(|it| it.filled.is_none())?;
    let mut chunk = Vec::new();
    let is_last = rows.read(slot, fill.after.as_deref(), limits.chunk_bytes, &mut chunk);
    if let Some(row) = chunk.last() {
        fill.after = Some(row.key().to_vec());
    }
    let bytes: usize = chunk.iter().map(|row| row.size() + ENTRY_BYTES).sum();
    if !chunk.is_empty() {
        let part = StreamPart::Rows {
            slot,
            term,
            rows: chunk,
        };
        peer.send(place, part, bytes, Vec::new(), now_ms, out);
    }
    if is_last {
        fill.filled = Some(last.number);
        let part = StreamPart::Filled {
            slot,
            term,
            at: last,
        };
        let upto = vec![CarriedChanges {
            slot,
            term,
            number: last.number,
            is_filled: true,
        }];
        peer.send(place, part, 0, upto, now_ms, out);
    }
    Some((bytes, is_last))
}
