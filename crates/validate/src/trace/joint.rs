//! Calls that read several counts: were they so at one instant, with what other calls did to several items seen whole or not at all?
//!
//! Looking at one's own profile returns how many friends there are and how many invitations wait; accepting an invitation changes both. At an instant
//! each call in flight adds a vector, with a number for each of the counts read, or nothing. The read fits the
//! instant if some of these vectors come to what it returned beyond what is certain.

use std::collections::BTreeSet;

use super::sink::Sink;
use super::{Initial, written};
use crate::count::{self, Counts, Flights};
use crate::record::{Outcome, Record, What};
use crate::report::{Failure, Level, Saw, Witness};
use crate::set::{self, Before, Cursor, History, Sketch};
use crate::{Span, Verdict};

/// Counts that one call reads; of more the first are judged.
const READS_MAX: usize = 4;

/// Vectors beyond which telling takes too long.
const REACH_MAX: usize = 4096;

type Vector = [i64; READS_MAX];

/// What tells calls apart.
type Call = (u32, u8, Span);

/// The call that may add so much to one count; none if it cannot be told.
type Swing = (Option<Call>, i64);

/// Judges the calls of one identity that read several of its counts. `indices`: its records.
pub(super) fn judge(
    records: &[Record],
    indices: impl Iterator<Item = usize> + Clone,
    initial: &dyn Initial,
    sink: &mut Sink<'_>,
) {
    let mut calls: Vec<Vec<&Record>> = indices
        .clone()
        .filter_map(|index| together(records, index))
        .collect();
    if calls.is_empty() {
        return;
    }
    calls.sort_by_key(|reads| reads[0].span);
    let mut items: Vec<u64> = calls.iter().flatten().map(|read| read.item).collect();
    items.sort_unstable();
    items.dedup();
    let mut histories: Vec<ItemHistory> = items
        .iter()
        .map(|item| {
            let own = indices.clone().map(|index| &records[index]);
            let own = own.filter(|record| record.item == *item);
            ItemHistory::new(own, *item, initial, sink.options.seed)
        })
        .collect();
    let mut cursors: Vec<ItemCursor<'_>> = histories.iter_mut().map(ItemHistory::cursor).collect();
    for reads in calls {
        let places: Vec<usize> = reads
            .iter()
            .map(|read| items.partition_point(|item| *item < read.item))
            .collect();
        let alone = reads
            .iter()
            .zip(&places)
            .all(|(read, place)| cursors[*place].judge(read) == Verdict::Acceptable);
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

/// The reads of several counts that one call made, if this record is the first of them.
fn together(records: &[Record], index: usize) -> Option<Vec<&Record>> {
    let first = &records[index];
    let of_call = |record: &Record| {
        record.span == first.span
            && record.session == first.session
            && record.action == first.action
            && super::identity(record.item) == super::identity(first.item)
    };
    let counts = |record: &Record| {
        matches!(record.what, What::ReadCount(_)) && record.outcome == Outcome::Done
    };
    if !counts(first) || index > 0 && of_call(&records[index - 1]) && counts(&records[index - 1]) {
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

/// Whether all counts are possible at this instant together. None if telling takes too long.
fn fits(
    instant: u64,
    reads: &[&Record],
    places: &[usize],
    cursors: &[ItemCursor<'_>],
) -> Option<bool> {
    let mut wanted: Vector = [0; READS_MAX];
    let mut vectors: Vec<(Option<Call>, Vector)> = Vec::new();
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

/// One item's writes, and which call each was part of.
struct ItemHistory {
    writes: Writes,
    calls: Vec<Call>,
}

enum Writes {
    Number(Box<Counts>, Option<Flights>),
    List(Box<History>),
}

impl ItemHistory {
    fn new<'a>(
        records: impl Iterator<Item = &'a Record>,
        item: u64,
        initial: &dyn Initial,
        seed: u64,
    ) -> ItemHistory {
        let (mut deltas, mut of_deltas) = (Vec::new(), Vec::new());
        let (mut elements, mut of_elements) = (Vec::new(), Vec::new());
        for record in records.filter(|record| record.outcome != Outcome::NotDone) {
            let span = written(record);
            let call = (record.session, record.action, record.span);
            let effect = match record.what {
                What::AddCount(delta) => count::Effect::Add(delta),
                What::SetCount(value) => count::Effect::Set(value),
                What::PutElement(element) | What::RemoveElement(element) => {
                    let member = matches!(record.what, What::PutElement(_));
                    elements.push(set::Write {
                        span,
                        element,
                        member,
                    });
                    of_elements.push(call);
                    continue;
                }
                _ => continue,
            };
            deltas.push(count::Write { span, effect });
            of_deltas.push(call);
        }
        if deltas.is_empty() && !elements.is_empty() {
            let mut list = initial.set(item);
            list.sort_unstable();
            let before = Before {
                certain: Sketch::of(seed, item, list.iter().copied()),
                holds: &|element| list.binary_search(&element).is_ok(),
            };
            return ItemHistory {
                writes: Writes::List(Box::new(History::new(seed, item, &before, &elements))),
                calls: of_elements,
            };
        }
        let initial = initial.count(item).into();
        let counts = Box::new(Counts::new(initial, &deltas));
        ItemHistory {
            writes: Writes::Number(counts, Flights::new(initial, &deltas)),
            calls: of_deltas,
        }
    }

    fn cursor(&mut self) -> ItemCursor<'_> {
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
    /// By itself; reads come by ascending start.
    fn judge(&mut self, read: &Record) -> Verdict {
        match (&self.history.writes, &mut self.list) {
            (Writes::Number(counts, _), _) => counts.judge(read.span, value(read)),
            (_, Some(cursor)) => cursor.judge_size(read.span, value(read)),
            (Writes::List(_), None) => Verdict::Undecided,
        }
    }

    /// The instants at which writes begin during the last read judged.
    fn begins(&self, span: Span, instants: &mut Vec<u64>) {
        match (&self.history.writes, &self.list) {
            (Writes::Number(_, Some(flights)), _) => instants.extend(flights.begins(span)),
            (_, Some(cursor)) => instants.extend(cursor.begins()),
            _ => {}
        }
    }

    /// What is certain at an instant of the last read judged, and what each call in flight may add to it.
    fn at(&self, instant: u64) -> Option<(i64, Vec<Swing>)> {
        let call = |write: usize| Some(self.history.calls[write]);
        match (&self.history.writes, &self.list) {
            (Writes::Number(_, flights), _) => {
                let (certain, flights) = flights.as_ref()?.at(instant)?;
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
        item: read.item,
        action: read.action,
        session: read.session,
        read: read.span,
        failure,
        saw: Saw::Count(value(read)),
        beside: reads[1..]
            .iter()
            .map(|read| (read.item, value(read)))
            .collect(),
        could: None,
        writes: Vec::new(),
    }
}

fn value(read: &Record) -> i64 {
    match read.what {
        What::ReadCount(value) => value,
        _ => 0,
    }
}
