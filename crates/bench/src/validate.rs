//! The number of records validated per second: with items drawn as in BG, with a single item, and while a run is in
//! progress.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use larder_validate::Span;
use larder_validate::record::{Encoder, Outcome, Record, RecordKind, decode};
use larder_validate::report::Report;
use larder_validate::set::Sketch;
use larder_validate::trace::{Initial, OnlineValidator, Options, judge};
use serde_json::json;

use crate::Result;
use crate::report::{self, median, spread};

#[derive(Args)]
pub struct ValidateArgs {
    /// Number of reads; there are a tenth as many writes
    #[arg(long, default_value_t = 2_000_000)]
    reads: u64,
    /// Number of items; the i-th is drawn with a probability proportional to i^-0.73
    #[arg(long, default_value_t = 10_000)]
    items: usize,
    /// Calls on a single item, half of them writes; measured with a quarter of this number and with all
    #[arg(long, default_value_t = 1_000_000)]
    hot: u64,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The kind of values that are read.
#[derive(Clone, Copy)]
enum ValueKind {
    Counts,
    Lists,
    Contents,
}

/// The interval in nanoseconds at which consecutive calls take effect.
const STEP_NS: u64 = 100;

/// The maximum half of a call's duration, so that about 200 calls are in flight.
const HALF_NS: u64 = 20_000;

/// The same for calls on one item, of which about 20 are in flight.
const HOT_HALF_NS: u64 = 2_000;

const SEED: u64 = 1;

struct ZeroInitial;

impl Initial for ZeroInitial {
    fn count(&self, _: u64) -> i32 {
        0
    }

    fn set(&self, _: u64) -> Vec<u64> {
        Vec::new()
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

pub fn run(args: &ValidateArgs) -> Result<()> {
    let mut out = String::new();
    let mut raw = Vec::new();
    let writes = args.reads / 10;
    writeln!(out, "# Judging what was read\n")?;
    writeln!(
        out,
        "{} reads and {writes} writes over {} items, all answered right; median of {} rounds (least-greatest), million records a second.\n\ncommand: `{}`\n",
        args.reads,
        args.items,
        args.rounds,
        report::command()
    )?;
    writeln!(
        out,
        "| records | one core | two cores | online, one core |\n|---|---|---|---|"
    )?;
    let mut slowest = f64::MAX;
    for (name, kind) in KINDS {
        let records = trace(kind, args.items, args.reads, writes, HALF_NS);
        let mut rates = |way: &str, judge: &dyn Fn() -> Report| -> (f64, String) {
            let rates: Vec<f64> = (0..args.rounds)
                .map(|_| records.len() as f64 / timed(args.reads, judge) / 1e6)
                .collect();
            raw.push(json!({ "what": name, "way": way, "million_records_per_s": rates }));
            (median(&rates), spread(&rates, 2))
        };
        let (one, one_told) = rates("one core", &|| judge(&records, &ZeroInitial, &options(1)));
        let (_, two_told) = rates("two cores", &|| judge(&records, &ZeroInitial, &options(2)));
        let (_, online) = rates("online", &|| online(&records));
        slowest = slowest.min(one);
        writeln!(out, "| {name} | {one_told} | {two_told} | {online} |")?;
    }
    writeln!(
        out,
        "\n| all on one item | {} calls, ms | {} calls, ms | times as long |\n|---|---|---|---|",
        args.hot / 4,
        args.hot
    )?;
    let mut steepest = 0f64;
    for (name, kind) in KINDS {
        let times = [args.hot / 4, args.hot].map(|calls| {
            let records = trace(kind, 1, calls / 2, calls / 2, HOT_HALF_NS);
            let times: Vec<f64> = (0..args.rounds)
                .map(|_| timed(calls / 2, &|| judge(&records, &ZeroInitial, &options(1))) * 1e3)
                .collect();
            raw.push(json!({ "what": name, "way": "hot", "calls": calls, "ms": times }));
            median(&times)
        });
        let factor = times[1] / times[0];
        steepest = steepest.max(factor);
        writeln!(
            out,
            "| {name} | {:.0} | {:.0} | {factor:.2} |",
            times[0], times[1]
        )?;
    }
    let (encoded, decoded) = coding(&trace(
        ValueKind::Counts,
        args.items,
        args.reads,
        writes,
        HALF_NS,
    ));
    raw.push(json!({ "way": "coding", "encoded": encoded, "decoded": decoded }));
    writeln!(
        out,
        "\nWritten down {encoded:.1}, read again and checked {decoded:.1} million records a second, one core.\n"
    )?;
    // n log n: four times the calls take 4 * 20/18 times as long, plus the effect of more cache misses.
    let met = |yes: bool| if yes { "met" } else { "missed" };
    writeln!(out, "| | measured | bar | |\n|---|---|---|---|")?;
    writeln!(
        out,
        "| million records a second and core, the slowest kind | {slowest:.2} | >= 5 | {} |",
        met(slowest >= 5.0)
    )?;
    writeln!(
        out,
        "| four times the calls on one item, the steepest kind | {steepest:.2} times as long | <= 6 (n log n: 4.4; n^2: 16) | {} |",
        met(steepest <= 6.0)
    )?;
    report::keep(args.out.as_deref(), "validate", &out, &raw)
}

const KINDS: [(&str, ValueKind); 3] = [
    ("counts", ValueKind::Counts),
    ("lists", ValueKind::Lists),
    ("contents", ValueKind::Contents),
];

fn options(cores: usize) -> Options {
    Options {
        seed: SEED,
        cores,
        witnesses_max: 3,
    }
}

/// Returns the seconds of one validation, whose result is known.
fn timed(reads: u64, judge: &dyn Fn() -> Report) -> f64 {
    let began = Instant::now();
    let report = judge();
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(
        (report.total.reads, report.total.acceptable),
        (reads, reads),
        "{:?}",
        report.witnesses
    );
    seconds
}

/// Feeds the records in the order in which the calls ended, followed by the watermark.
fn online(records: &[Record]) -> Report {
    let mut online = OnlineValidator::new(ZeroInitial, &options(1), 0);
    let mut latest = 0;
    for some in records.chunks(1_000) {
        online.feed(some);
        latest = some.last().map_or(latest, |record| record.span.start());
        // A call that takes effect later began at most this long before.
        online.advance(latest.saturating_sub(2 * HALF_NS));
    }
    online.finish()
}

fn coding(records: &[Record]) -> (f64, f64) {
    let rate = |began: Instant| records.len() as f64 / began.elapsed().as_secs_f64() / 1e6;
    let began = Instant::now();
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::header().to_vec();
    for record in records {
        bytes.extend_from_slice(&encoder.record(record));
    }
    bytes.extend_from_slice(&encoder.footer());
    let encoded = rate(began);
    let began = Instant::now();
    let decoded = decode(&bytes).expect("the trace was just written");
    assert_eq!(decoded.len(), records.len());
    (encoded, rate(began))
}

/// Returns the history of a correct store: every call takes effect within its interval, in the order of the records.
fn trace(kind: ValueKind, items: usize, reads: u64, writes: u64, half_ns: u64) -> Vec<Record> {
    let mut random = 1u64;
    let mut draw = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut cumulative = Vec::with_capacity(items);
    let mut sum = 0.0;
    for rank in 1..=items {
        sum += (rank as f64).powf(-0.73);
        cumulative.push(sum);
    }
    let mut counts = vec![0i64; items];
    let mut lists = vec![Sketch::default(); items];
    let calls = reads + writes;
    (0..calls)
        .map(|call| {
            let point = (draw() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let item = cumulative.partition_point(|mass| *mass < point);
            let item = item.min(items - 1);
            let write = call * writes / calls != (call + 1) * writes / calls;
            let what = match (kind, write) {
                (ValueKind::Counts, true) => {
                    let delta = (draw() % 2) as i32 * 2 - 1;
                    counts[item] += i64::from(delta);
                    RecordKind::AddCount(delta)
                }
                (ValueKind::Counts, false) => RecordKind::ReadCount(counts[item]),
                (ValueKind::Lists, true) => {
                    lists[item].add(SEED, item as u64, call);
                    RecordKind::PutElement(call)
                }
                (ValueKind::Lists, false) => RecordKind::ReadSet(lists[item]),
                (ValueKind::Contents, true) => {
                    counts[item] = call as i64 + 1;
                    RecordKind::WriteContent(call + 1)
                }
                (ValueKind::Contents, false) => RecordKind::ReadContent(counts[item] as u64),
            };
            let instant = 1_000_000 + call * STEP_NS;
            let span = Span::new(instant - draw() % half_ns, instant + draw() % half_ns);
            Record {
                item: item as u64,
                span: span.expect("ascending"),
                session: 0,
                action: 0,
                outcome: Outcome::Done,
                what,
            }
        })
        .collect()
}
