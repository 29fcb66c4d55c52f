//! Deltas by the time at which they were in flight, and what a read reveals about them beyond the validity of its
//! value.

use super::intervals::{Flight, Intervals};
use super::{Effect, Write, ended_sums};
use crate::Span;

/// Maximum number of concurrent writes that are analyzed.
const FLIGHTS_MAX: usize = 64;

/// All deltas of one item.
pub(crate) struct Flights {
    initial: i64,
    absolute: Option<u64>,
    deltas: Intervals,
    ended: Vec<(u64, i64)>,
}

impl Flights {
    /// Indexes the deltas. `absolute` is the start of the first absolute write; reads that end after it reveal
    /// nothing.
    pub fn new(initial: i64, writes: &[Write], absolute: Option<u64>) -> Flights {
        let mut deltas = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            match write.effect {
                Effect::Add(0) | Effect::Set(_) => {}
                Effect::Add(value) => deltas.push(Flight {
                    span: write.span,
                    value,
                    index: index as u32,
                }),
            }
        }
        Flights {
            initial,
            absolute,
            ended: ended_sums(&deltas),
            deltas: Intervals::new(deltas),
        }
    }

    /// Returns the distinct instants after a read's start, up to its end, at which a delta starts.
    pub fn begins(&self, read: Span) -> impl Iterator<Item = u64> {
        self.deltas.starts_from(read.start, read.end).skip(1)
    }

    /// Returns the certain value at an instant and the deltas in flight; `None` if they are too many.
    pub fn at(&self, instant: u64) -> Option<(i64, Vec<Flight>)> {
        self.during(Span {
            start: instant,
            end: instant,
        })
    }

    /// Returns the certain value at a read's start and the deltas in flight during it; `None` if they are too many.
    pub fn during(&self, read: Span) -> Option<(i64, Vec<Flight>)> {
        if self.absolute.is_some_and(|begun| begun <= read.end) {
            return None;
        }
        let flights = self.deltas.holding_few(read.end, read.start, FLIGHTS_MAX);
        let ended = self.ended.partition_point(|(end, _)| *end < read.start);
        let ended = ended.checked_sub(1).map_or(0, |last| self.ended[last].1);
        (flights.len() <= FLIGHTS_MAX).then_some((self.initial + ended, flights))
    }

    /// Returns the writes in flight, and whether each had taken effect, if a read of this value reveals that: there
    /// is only one way to reach the minimum or the maximum of the possible sums. `None` if the read reveals nothing.
    pub fn revealed(&self, read: Span, value: i64) -> Option<Vec<(usize, bool)>> {
        let (certain, flights) = self.during(read)?;
        let sum = |positive: bool| -> i64 {
            let matching = flights
                .iter()
                .filter(|flight| (flight.value > 0) == positive);
            matching.map(|flight| i64::from(flight.value)).sum()
        };
        let positive = match value - certain {
            all if all == sum(true) => true,
            all if all == sum(false) => false,
            _ => return None,
        };
        let revealed = flights.iter();
        let revealed =
            revealed.map(|flight| (flight.index as usize, (flight.value > 0) == positive));
        Some(revealed.collect())
    }
}
