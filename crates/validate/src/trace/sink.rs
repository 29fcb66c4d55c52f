//! Collects verdicts: counters by action and kind, levels, and the first failures.

use std::collections::HashSet;

use super::Options;
use crate::Verdict;
use crate::record::{END_STATE, Record};
use crate::report::{Class, Failure, Level, ReadResult, Report, Tally, Witness, keep_first, order};

pub(crate) struct Sink {
    pub options: Options,
    /// True if more of the trace follows.
    online: bool,
    report: Report,
    actions: Vec<Tally>,
    kinds: Vec<Tally>,
    /// The order of the last witness that is kept; later failures are not recorded.
    last_wanted: Option<(u64, u64, u64)>,
    /// The addresses of reads that a level has rejected, so that higher levels do not count them again. Cleared after
    /// each identity.
    refused: HashSet<usize>,
}

impl Sink {
    pub fn new(options: &Options, online: bool) -> Sink {
        Sink {
            options: *options,
            online,
            report: Report::default(),
            actions: vec![Tally::default(); 256],
            kinds: vec![Tally::default(); 256],
            last_wanted: None,
            refused: HashSet::new(),
        }
    }

    pub fn writes(&mut self, count: usize) {
        self.report.writes += count as u64;
    }

    /// Returns the class of a read that was never acceptable before it, as far as it is known yet.
    pub fn known_class(&self, class: Class) -> Class {
        match class {
            Class::Future | Class::Phantom | Class::Never if self.online => Class::Unclassified,
            _ => class,
        }
    }

    /// Records the verdict on a read; `since_ns` is the time since the last acknowledged write of its item.
    pub fn record_verdict(&mut self, read: &Record, found: ReadResult, since_ns: Option<u64>) {
        if read.action == END_STATE {
            self.report.end_state.count(found);
        } else {
            self.actions[usize::from(read.action)].count(found);
            self.kinds[(read.item >> 56) as usize].count(found);
            if let ReadResult::Failed(_) = found {
                self.report.unpredictable_sessions.insert(read.session);
            }
            if let Some(since) = since_ns
                && found != ReadResult::Undecided
            {
                let fresh = found == ReadResult::Acceptable;
                self.report.freshness.count(since, fresh);
            }
        }
        if let ReadResult::Failed(Class::Stale { age_ns, behind }) = found {
            self.report.ages.record(age_ns);
            self.report.versions_behind.record(behind);
        }
    }

    pub fn level(&mut self, read: &Record, level: Level, verdict: Verdict) {
        if read.action == END_STATE {
            return;
        }
        self.report.levels[level as usize].count(verdict);
        // The levels of a read are recorded in ascending order.
        let place = std::ptr::from_ref(read).addr();
        if verdict == Verdict::Unacceptable && self.refused.insert(place) {
            let higher = &mut self.report.refused_up_to[level as usize..];
            higher.iter_mut().for_each(|count| *count += 1);
        }
    }

    /// Forgets which reads were rejected: the reads so far are final.
    pub fn forget(&mut self) {
        self.refused.clear();
    }

    /// Records a failure if it is among the first; `tell` creates the witness.
    pub fn failed(
        &mut self,
        read: &Record,
        failure: Failure,
        tell: impl FnOnce(Failure) -> Witness,
    ) {
        let key = (read.span.start, read.span.end, read.item);
        let most = self.options.witnesses_max;
        if most == 0 || self.last_wanted.is_some_and(|last| key > last) {
            return;
        }
        let witnesses = &mut self.report.witnesses;
        witnesses.push(tell(failure));
        // Up to twice the requested number is kept before the latest are dropped.
        if witnesses.len() > most * 2 {
            keep_first(witnesses, most);
            self.last_wanted = witnesses.last().map(order);
        }
    }

    pub fn into_report(mut self) -> Report {
        self.sum_up();
        self.report
    }

    /// Returns the report so far.
    pub fn report(&mut self) -> &Report {
        self.sum_up();
        &self.report
    }

    fn sum_up(&mut self) {
        let report = &mut self.report;
        for (number, tally) in self.actions.iter_mut().enumerate() {
            if tally.reads > 0 {
                report.total.add(tally);
                report.actions.entry(number as u8).or_default().add(tally);
                *tally = Tally::default();
            }
        }
        for (number, tally) in self.kinds.iter_mut().enumerate() {
            if tally.reads > 0 {
                report.kinds.entry(number as u8).or_default().add(tally);
                *tally = Tally::default();
            }
        }
        keep_first(&mut report.witnesses, self.options.witnesses_max);
    }
}
