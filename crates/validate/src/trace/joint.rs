//! Validates calls that read several counts. The counts must be valid at one instant, with the writes of each call
//! visible completely or not at all.
//!
//! For example, viewing one's own profile returns the numbers of friends and of pending invitations, and accepting an
//! invitation changes both. At an instant, each call in flight contributes a vector, with one number per count, or
//! nothing. The read is valid at that instant if some of these vectors add up to the difference between its result
//! and the certain values.

use std::collections::BTreeSet;

use super::counts::CountLane;
use super::lists::{Initially, ListLane};
use super::sink::Sink;
use crate::count::{Counts, Flights};
use crate::record::{Outcome, Record, RecordKind};
use crate::report::{Failure, Level, Observation, Witness};
use crate::set::{Cursor, History};
use crate::{Span, Verdict};

/// Maximum number of counts per call; further ones are ignored.
const READS_MAX: usize = 4;

/// Maximum number of vectors to examine.
const REACH_MAX: usize = 4096;

type Vector = [i64; READS_MAX];

/// Identifies a call: session, action, and the span of its writes.
pub(super) type WriteCall = (u32, u8, Span);

/// The call that may contribute a number to one count; `None` if it is ambiguous.
type Swing = (Option<WriteCall>, i64);

/// Validates the calls of one identity that read several of its counts. `history` returns the writes of an item.
pub(super) fn judge(
    mut calls: Vec<Vec<&Record>>,
    history: &mut dyn FnMut(u64) -> ItemHistory,
    sink: &mut Sink,
) {
    if calls.is_empty() {
        return;
    }
    calls.sort_by_key(|reads| reads[0].span);
    let mut items: Vec<u64> = calls.iter().flatten().map(|read| read.item).collect();
    items.sort_unstable();
    items.dedup();
    let histories: Vec<ItemHistory> = items.iter().map(|item| history(*item)).collect();
    let mut cursors: Vec<ItemCursor<'_>> = histories.iter().map(ItemHistory::cursor).collect();
    for reads in calls {
        let places: Vec<usize> = reads
            .iter()
            .map(|read| items.partition_point(|item| *item < read.item))
            .collect();
        // Each cursor must be moved to the read, even after a failure.
        let mut alone = true;
        for (read, place) in reads.iter().zip(&places) {
            alone &= cursors[*place].judge(read) == Verdict::Acceptable;
        }
        if !alone {
            continue;
        }
        let verdict = at_one_instant(&reads, &places, &cursors);
        sink.level(reads[0], Level::Joint, verdict);
        if verdict == Verdict::Unacceptable {
            sink.failed(reads[0], Failure::Apart, |failure| witness(&reads, failure));
        }
    }
}

/// Returns the reads of several counts by one call, if this record is the first of them.
pub(super) fn together(records: &[Record], index: usize) -> Option<Vec<&Record>> {
    let first = &records[index];
    let of_call = |record: &Record| {
        record.span == first.span
            && record.session == first.session
            && record.action == first.action
            && super::identity(record.item) == super::identity(first.item)
    };
    let counts = |record: &Record| {
        matches!(record.what, RecordKind::ReadCount(_)) && record.outcome == Outcome::Done
    };
    let begins = |index: usize| {
        let next = records.get(index + 1);
        let before = index.checked_sub(1).map(|before| &records[before]);
        next.is_some_and(of_call) && !before.is_some_and(|it| of_call(it) && counts(it))
    };
    if !counts(first) || !begins(index) {
        return None;
    }
    let run = records[index..].iter().take(READS_MAX);
    let reads: Vec<&Record> = run
        .take_while(|record| of_call(record) && counts(record))
        .collect();
    let mut items: Vec<u64> = reads.iter().map(|read| read.item).collect();
    items.sort_unstable();
    items.dedup();
    (items.len() > 1 && items.len() == reads.len()).then_some(reads)
}

fn at_one_instant(reads: &[&Record], places: &[usize], cursors: &[ItemCursor<'_>]) -> Verdict {
    let span = reads[0].span;
    let mut instants = vec![span.start];
    for place in places {
        cursors[*place].begins(span, &mut instants);
    }
    instants.sort_unstable();
    instants.dedup();
    let mut undecided = false;
    for instant in instants {
        match fits(instant, reads, places, cursors) {
            Some(true) => return Verdict::Acceptable,
            Some(false) => {}
            None => undecided = true,
        }
    }
    if undecided {
        Verdict::Undecided
    } else {
        Verdict::Unacceptable
    }
}

/// Returns whether all counts are possible together at this instant; `None` if the decision would take too long.
fn fits(
    instant: u64,
    reads: &[&Record],
    places: &[usize],
    cursors: &[ItemCursor<'_>],
) -> Option<bool> {
    let mut wanted: Vector = [0; READS_MAX];
    let mut vectors: Vec<(Option<WriteCall>, Vector)> = Vec::new();
    for (axis, (read, place)) in reads.iter().zip(places).enumerate() {
        let (certain, flights) = cursors[*place].at(instant)?;
        wanted[axis] = value(read) - certain;
        for (call, delta) in flights {
            let known = vectors
                .iter_mut()
                .find(|other| call.is_some() && other.0 == call);
            match known {
                Some((_, vector)) => vector[axis] += delta,
                None => {
                    let mut vector = [0; READS_MAX];
                    vector[axis] = delta;
                    vectors.push((call, vector));
                }
            }
        }
    }
    let mut reached = BTreeSet::from([[0; READS_MAX]]);
    for (_, vector) in vectors {
        let more: Vec<Vector> = reached
            .iter()
            .map(|sum| std::array::from_fn(|axis| sum[axis] + vector[axis]))
            .collect();
        reached.extend(more);
        if reached.len() > REACH_MAX {
            return None;
        }
    }
    Some(reached.contains(&wanted))
}

/// The writes of one item, and the call of each.
pub(super) struct ItemHistory {
    writes: Writes,
    calls: Vec<WriteCall>,
}

enum Writes {
    Number(Box<Counts>, Box<Flights>),
    List(Box<History>),
}

impl ItemHistory {
    pub fn of_number(lane: &CountLane) -> ItemHistory {
        ItemHistory {
            writes: Writes::Number(Box::new(lane.counts()), Box::new(lane.flights())),
            calls: lane.calls(),
        }
    }

    pub fn of_list(lane: &ListLane, initially: Initially<'_>) -> ItemHistory {
        ItemHistory {
            writes: Writes::List(Box::new(lane.history(initially))),
            calls: lane.calls(),
        }
    }

    fn cursor(&self) -> ItemCursor<'_> {
        ItemCursor {
            history: self,
            list: match &self.writes {
                Writes::List(history) => Some(Cursor::new(history)),
                Writes::Number(..) => None,
            },
        }
    }
}

struct ItemCursor<'a> {
    history: &'a ItemHistory,
    list: Option<Cursor<'a>>,
}

impl ItemCursor<'_> {
    /// Validates the read separately. Reads come in ascending order of their starts.
    fn judge(&mut self, read: &Record) -> Verdict {
        match (&self.history.writes, &mut self.list) {
            (Writes::Number(counts, _), _) => counts.judge(read.span, value(read)),
            (_, Some(cursor)) => cursor.judge_size(read.span, value(read)),
            (Writes::List(_), None) => Verdict::Undecided,
        }
    }

    /// Appends the instants at which writes start during the last validated read.
    fn begins(&self, span: Span, instants: &mut Vec<u64>) {
        match (&self.history.writes, &self.list) {
            (Writes::Number(_, flights), _) => instants.extend(flights.begins(span)),
            (_, Some(cursor)) => instants.extend(cursor.begins()),
            _ => {}
        }
    }

    /// Returns the certain value at an instant of the last validated read, and the possible contribution of each call
    /// in flight.
    fn at(&self, instant: u64) -> Option<(i64, Vec<Swing>)> {
        let call = |write: usize| Some(self.history.calls[write]);
        match (&self.history.writes, &self.list) {
            (Writes::Number(_, flights), _) => {
                let (certain, flights) = flights.at(instant)?;
                let flights = flights.iter();
                let flights =
                    flights.map(|flight| (call(flight.index as usize), i64::from(flight.value)));
                Some((certain, flights.collect()))
            }
            (_, Some(cursor)) => {
                let (certain, free) = cursor.at(instant)?;
                let free = free.into_iter();
                let free = free.map(|(write, delta)| (write.and_then(call), delta));
                Some((certain, free.collect()))
            }
            (Writes::List(_), None) => None,
        }
    }
}

fn witness(reads: &[&Record], failure: Failure) -> Witness {
    let read = reads[0];
    Witness {
        beside: reads[1..]
            .iter()
            .map(|read| (read.item, value(read)))
            .collect(),
        ..Witness::of(read, failure, Observation::Count(value(read)))
    }
}

fn value(read: &Record) -> i64 {
    match read.what {
        RecordKind::ReadCount(value) => value,
        _ => 0,
    }
}
