//! A whole trace judged: records in any order in, a report out, item by item over the cores.
//!
//! ```text
//!   records ──► by item (and kind) ──► count | register | set ──► each read's class ──► Report
//! ```
//!
//! A read that no order explains is of one class:
//!
//! | class | the answer |
//! |---|---|
//! | stale | was acceptable at some instant before the read; its *age* is the read's start less the last such instant |
//! | fractured | is a list whose elements were each so during the read, but not together (and never were before) |
//! | future | becomes acceptable only after the read: a clock or the tool is wrong |
//! | phantom | is a content that nobody ever wrote |
//! | never | is of writes that were, as they never were together |
//!
//! Invariants:
//!
//! 1. Each read whose outcome is `Done` is in exactly one class of the report, or acceptable, or undecided.
//! 2. The report does not depend on `cores` or on the order of the records.
//! 3. Reads that only the stronger level refuses are counted apart, and are acceptable in BG's number.

use std::thread;

use crate::count::{self, Counts, Effect};
use crate::record::{Outcome, Record, What};
use crate::register::{Content, Registers};
use crate::{Span, Verdict, set};

/// What the items were before the first record.
pub trait Initial: Sync {
    fn count(&self, item: u64) -> i32;
    /// Each element once.
    fn set(&self, item: u64) -> Vec<u64>;
    fn content(&self, item: u64) -> u64;
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of the sketches in the trace.
    pub seed: u64,
    /// Threads to use; at least one is.
    pub cores: usize,
    /// Failures told in words.
    pub witnesses_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Stale { age_ns: u64 },
    Fractured,
    Future,
    Phantom,
    Never,
}

/// What became of the reads of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Reads that returned something.
    pub reads: u64,
    pub writes: u64,
    pub stale: u64,
    pub fractured: u64,
    pub future: u64,
    pub phantom: u64,
    pub never: u64,
    pub undecided: u64,
    /// Acceptable reads of contents that went back behind what an earlier read had seen.
    pub went_back: u64,
    pub ages: Ages,
    /// The first failures by start of the read, in words.
    pub witnesses: Vec<Witness>,
}

/// Stale reads by age: at index i those whose age in nanoseconds has i bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages(pub [u64; 65]);

impl Default for Ages {
    fn default() -> Ages {
        Ages([0; 65])
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    pub item: u64,
    pub read: Span,
    pub class: Class,
    pub text: String,
}

impl Report {
    /// BG's number: reads that no order of the writes explains.
    pub fn unpredictable(&self) -> u64 {
        self.stale + self.fractured + self.future + self.phantom + self.never
    }

    fn failed(
        &mut self,
        item: u64,
        read: Span,
        class: Class,
        options: &Options,
        tell: impl FnOnce() -> String,
    ) {
        match class {
            Class::Stale { age_ns } => {
                self.stale += 1;
                self.ages.0[64 - age_ns.leading_zeros() as usize] += 1;
            }
            Class::Fractured => self.fractured += 1,
            Class::Future => self.future += 1,
            Class::Phantom => self.phantom += 1,
            Class::Never => self.never += 1,
        }
        // Twice as many as asked for are kept before the latest are dropped.
        let text = format!("{}: {}", tell(), class_in_words(class));
        self.witnesses.push(Witness {
            item,
            read,
            class,
            text,
        });
        if self.witnesses.len() > options.witnesses_max.saturating_mul(2) {
            self.keep_first(options.witnesses_max);
        }
    }

    fn keep_first(&mut self, count: usize) {
        self.witnesses.sort_by(|a, b| {
            let key = |witness: &Witness| (witness.read.start(), witness.read.end(), witness.item);
            key(a).cmp(&key(b)).then_with(|| a.text.cmp(&b.text))
        });
        self.witnesses.truncate(count);
    }

    fn add(&mut self, other: Report) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.stale += other.stale;
        self.fractured += other.fractured;
        self.future += other.future;
        self.phantom += other.phantom;
        self.never += other.never;
        self.undecided += other.undecided;
        self.went_back += other.went_back;
        self.ages
            .0
            .iter_mut()
            .zip(other.ages.0)
            .for_each(|(all, more)| *all += more);
        self.witnesses.extend(other.witnesses);
    }
}

fn class_in_words(class: Class) -> String {
    match class {
        Class::Stale { age_ns } => {
            format!("stale, last acceptable {age_ns} ns before the read began")
        }
        Class::Fractured => "elements of different instants".to_owned(),
        Class::Future => "acceptable only after the read".to_owned(),
        Class::Phantom => "nobody wrote that".to_owned(),
        Class::Never => "never so".to_owned(),
    }
}

/// Judges all reads of a trace.
pub fn judge(records: &[Record], initial: &dyn Initial, options: &Options) -> Report {
    let cores = options.cores.max(1);
    let mut report = Report::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores)
            .map(|core| scope.spawn(move || judge_share(records, core, cores, initial, options)))
            .collect();
        for worker in workers {
            report.add(worker.join().expect("checkers do not panic"));
        }
    });
    report.keep_first(options.witnesses_max);
    report
}

/// The items of one core, one by one.
fn judge_share(
    records: &[Record],
    core: usize,
    cores: usize,
    initial: &dyn Initial,
    options: &Options,
) -> Report {
    let mut mine: Vec<(u64, u8, usize)> = records
        .iter()
        .enumerate()
        .filter(|(_, record)| {
            (record.item.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % cores == core
        })
        .map(|(index, record)| (record.item, kind(record.what), index))
        .collect();
    mine.sort_unstable();
    let mut report = Report::default();
    for group in mine.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let item = group[0].0;
        let calls = group
            .iter()
            .map(|entry| &records[entry.2])
            .filter(|record| record.outcome != Outcome::NotDone);
        match group[0].1 {
            0 => judge_count(item, calls, initial.count(item), options, &mut report),
            1 => judge_set(item, calls, &initial.set(item), options, &mut report),
            _ => judge_content(item, calls, initial.content(item), options, &mut report),
        }
    }
    report
}

fn kind(what: What) -> u8 {
    match what {
        What::ReadCount(_) | What::AddCount(_) | What::SetCount(_) => 0,
        What::ReadSet(_) | What::PutElement(_) | What::RemoveElement(_) => 1,
        What::ReadContent(_) | What::WriteContent(_) => 2,
    }
}

/// A write's interval; that of a write of unknown outcome has no end.
fn written(record: &Record) -> Span {
    match record.outcome {
        Outcome::Unknown => Span::unanswered(record.span.start()),
        Outcome::Done | Outcome::NotDone => record.span,
    }
}

fn judge_count<'a>(
    item: u64,
    calls: impl Iterator<Item = &'a Record>,
    initial: i32,
    options: &Options,
    report: &mut Report,
) {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for call in calls {
        let effect = match call.what {
            What::AddCount(delta) => Effect::Add(delta),
            What::SetCount(value) => Effect::Set(value),
            What::ReadCount(value) if call.outcome == Outcome::Done => {
                reads.push((call.span, value));
                continue;
            }
            _ => continue,
        };
        writes.push(count::Write {
            span: written(call),
            effect,
        });
    }
    report.reads += reads.len() as u64;
    report.writes += writes.len() as u64;
    let counts = Counts::new(initial, &writes);
    for (span, value) in reads {
        match counts.judge(span, value) {
            Verdict::Acceptable => {}
            Verdict::Undecided => report.undecided += 1,
            Verdict::Unacceptable => {
                let class = match counts.last_acceptable_before(span.start(), value) {
                    Some(last) => Class::Stale {
                        age_ns: span.start() - last,
                    },
                    None if counts.first_acceptable_after(span.end(), value).is_some() => {
                        Class::Future
                    }
                    None => Class::Never,
                };
                report.failed(item, span, class, options, || {
                    let could = match counts.acceptable(span, 20) {
                        Some(values) => format!("{values:?}"),
                        None => "one of many others".to_owned(),
                    };
                    format!(
                        "count of item {item} read from {} to {} was {value}, could be {could}",
                        span.start(),
                        span.end()
                    )
                });
            }
        }
    }
}

fn judge_content<'a>(
    item: u64,
    calls: impl Iterator<Item = &'a Record>,
    initial: u64,
    options: &Options,
    report: &mut Report,
) {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for call in calls {
        match call.what {
            What::WriteContent(value) => writes.push(Content {
                span: written(call),
                value,
            }),
            What::ReadContent(value) if call.outcome == Outcome::Done => reads.push(Content {
                span: call.span,
                value,
            }),
            _ => {}
        }
    }
    report.reads += reads.len() as u64;
    report.writes += writes.len() as u64;
    let registers = Registers::new(initial, &writes);
    let mut explained = Vec::with_capacity(reads.len());
    for read in reads {
        if registers.judge(read) == Verdict::Acceptable {
            explained.push(read);
            continue;
        }
        let class = match registers.last_acceptable_before(read.span.start(), read.value) {
            Some(last) => Class::Stale {
                age_ns: read.span.start() - last,
            },
            None if registers.knows(read.value) => Class::Future,
            None => Class::Phantom,
        };
        report.failed(item, read.span, class, options, || {
            format!(
                "content of item {item} read from {} to {} was {:#x}",
                read.span.start(),
                read.span.end(),
                read.value
            )
        });
    }
    let tightened = Registers::tightened(initial, &writes, &explained);
    report.went_back += explained
        .iter()
        .filter(|read| tightened.judge(**read) != Verdict::Acceptable)
        .count() as u64;
}

fn judge_set<'a>(
    item: u64,
    calls: impl Iterator<Item = &'a Record>,
    initial: &[u64],
    options: &Options,
    report: &mut Report,
) {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for call in calls {
        let (element, member) = match call.what {
            What::PutElement(element) => (element, true),
            What::RemoveElement(element) => (element, false),
            What::ReadSet(sketch) if call.outcome == Outcome::Done => {
                reads.push(set::Read {
                    span: call.span,
                    sketch,
                });
                continue;
            }
            _ => continue,
        };
        writes.push(set::Write {
            span: written(call),
            element,
            member,
        });
    }
    report.reads += reads.len() as u64;
    report.writes += writes.len() as u64;
    let judged = |reads: &[set::Read]| set::judge(options.seed, item, initial, &writes, reads);
    let verdicts = judged(&reads);
    report.undecided += verdicts
        .iter()
        .filter(|verdict| **verdict == Verdict::Undecided)
        .count() as u64;
    let failed: Vec<set::Read> = reads
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| **verdict == Verdict::Unacceptable)
        .map(|(read, _)| *read)
        .collect();
    if failed.is_empty() {
        return;
    }
    let mut events: Vec<u64> = writes
        .iter()
        .flat_map(|write| [write.span.start(), write.span.end()])
        .collect();
    events.push(0);
    events.sort_unstable();
    events.dedup();
    for (read, class) in failed.iter().zip(set_classes(&failed, &events, &judged)) {
        let apart = || set::judge_apart(options.seed, item, initial, &writes, *read);
        let class = match class {
            Class::Future | Class::Never if apart() == Verdict::Acceptable => Class::Fractured,
            _ => class,
        };
        report.failed(item, read.span, class, options, || {
            let size = read.sketch.count;
            format!(
                "list of item {item} read from {} to {} had {size} elements",
                read.span.start(),
                read.span.end()
            )
        });
    }
}

/// Bisects all failed reads together: "was it so at any instant from event i to just before the read" is asked as a read of that span.
fn set_classes(
    failed: &[set::Read],
    events: &[u64],
    judged: &dyn Fn(&[set::Read]) -> Vec<Verdict>,
) -> Vec<Class> {
    let ask = |spans: Vec<Option<Span>>| -> Vec<bool> {
        let asked: Vec<set::Read> = failed
            .iter()
            .zip(&spans)
            .map(|(read, span)| set::Read {
                span: span.unwrap_or(read.span),
                sketch: read.sketch,
            })
            .collect();
        judged(&asked)
            .into_iter()
            .map(|verdict| verdict == Verdict::Acceptable)
            .collect()
    };
    let before = |read: &set::Read, from: usize| {
        events
            .get(from)
            .zip(read.span.start().checked_sub(1))
            .and_then(|(start, end)| Span::new(*start, end))
    };
    let stale = ask(failed.iter().map(|read| before(read, 0)).collect());
    let future = ask(failed
        .iter()
        .map(|read| {
            read.span
                .end()
                .checked_add(1)
                .and_then(|start| Span::new(start, u64::MAX))
        })
        .collect());
    // Acceptable from event `low` on, and not from event `high` on.
    let mut bounds: Vec<(usize, usize)> = failed
        .iter()
        .map(|read| {
            (
                0,
                events
                    .partition_point(|event| *event < read.span.start())
                    .max(1),
            )
        })
        .collect();
    while bounds
        .iter()
        .zip(&stale)
        .any(|((low, high), stale)| *stale && high - low > 1)
    {
        let middles: Vec<usize> = bounds
            .iter()
            .map(|(low, high)| low.midpoint(*high))
            .collect();
        let later = ask(failed
            .iter()
            .zip(&middles)
            .map(|(read, middle)| before(read, *middle))
            .collect());
        for ((bound, middle), later) in bounds.iter_mut().zip(middles).zip(later) {
            match later {
                true => bound.0 = middle,
                false => bound.1 = middle.max(bound.0 + 1),
            }
        }
    }
    failed
        .iter()
        .enumerate()
        .map(|(index, read)| match (stale[index], future[index]) {
            (true, _) => Class::Stale {
                age_ns: read.span.start() - events[bounds[index].0],
            },
            (_, true) => Class::Future,
            _ => Class::Never,
        })
        .collect()
}
