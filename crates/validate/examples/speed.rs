//! Records judged per second, on one core and on two: 2,000,000 reads and 200,000 writes over 10,000 items, drawn
//! as BG draws members (p of rank i is as i^-0.73); and all calls on one item. `cargo run --release -p larder-validate --example speed`

// A benchmark reads the clock; the crate itself does not.
#![allow(clippy::disallowed_methods)]

use std::time::Instant;

use larder_validate::Span;
use larder_validate::record::{Encoder, Outcome, Record, What, decode};
use larder_validate::set::Sketch;
use larder_validate::trace::{Initial, Options, judge};

const ITEMS: usize = 10_000;
const READS: u64 = 2_000_000;
const WRITES: u64 = 200_000;

struct Zero;

impl Initial for Zero {
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

fn main() {
    for (name, kind) in [("counts", 0), ("lists", 1), ("contents", 2)] {
        let records = trace(kind, ITEMS, READS, WRITES);
        for cores in [1, 2] {
            let options = Options {
                seed: 1,
                cores,
                witnesses_max: 3,
            };
            let mut rates: Vec<f64> = (0..5)
                .map(|_| {
                    let began = Instant::now();
                    let report = judge(&records, &Zero, &options);
                    assert_eq!(
                        (report.total.reads, report.unpredictable()),
                        (READS, 0),
                        "{:?}",
                        report.witnesses
                    );
                    records.len() as f64 / began.elapsed().as_secs_f64() / 1e6
                })
                .collect();
            rates.sort_by(f64::total_cmp);
            println!(
                "{name:9} {cores} core(s): {:.2} million records/s (median of 5; {:.2} to {:.2})",
                rates[2], rates[0], rates[4]
            );
        }
        hot_item(name, kind);
        if kind == 0 {
            decode_speed(&records);
        }
    }
}

/// All calls on one item, half of them writes: four times the calls should take little more than four times as long.
fn hot_item(name: &str, kind: u8) {
    for calls in [250_000, 1_000_000] {
        let records = trace(kind, 1, calls / 2, calls / 2);
        let options = Options {
            seed: 1,
            cores: 1,
            witnesses_max: 3,
        };
        let began = Instant::now();
        let report = judge(&records, &Zero, &options);
        assert_eq!(
            (report.total.reads, report.unpredictable()),
            (calls / 2, 0),
            "{:?}",
            report.witnesses
        );
        println!(
            "{name:9} one item, {calls} calls: {:.0} ms",
            began.elapsed().as_secs_f64() * 1e3
        );
    }
}

fn decode_speed(records: &[Record]) {
    let began = Instant::now();
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::header().to_vec();
    records
        .iter()
        .for_each(|record| bytes.extend(encoder.record(record)));
    bytes.extend(encoder.footer());
    let encoded = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let decoded = decode(&bytes).expect("the trace was just written");
    let rate = |seconds: f64| decoded.len() as f64 / seconds / 1e6;
    println!(
        "encoded   {:.2}, decoded {:.2} million records/s, one core",
        rate(encoded),
        rate(began.elapsed().as_secs_f64())
    );
}

/// What a correct store answers: every call takes effect in the middle of its interval.
fn trace(kind: u8, items: usize, reads: u64, writes: u64) -> Vec<Record> {
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
    (0..reads + writes)
        .map(|call| {
            let point = (draw() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let item = cumulative
                .partition_point(|mass| *mass < point)
                .min(items - 1);
            let write = call * writes / (reads + writes) != (call + 1) * writes / (reads + writes);
            let what = match (kind, write) {
                (0, true) => {
                    let delta = (draw() % 2) as i32 * 2 - 1;
                    counts[item] += i64::from(delta);
                    What::AddCount(delta)
                }
                (0, false) => What::ReadCount(counts[item]),
                (1, true) => {
                    lists[item].add(1, item as u64, call);
                    What::PutElement(call)
                }
                (1, false) => What::ReadSet(lists[item]),
                (_, true) => {
                    counts[item] = call as i64 + 1;
                    What::WriteContent(call + 1)
                }
                (_, false) => What::ReadContent(counts[item] as u64),
            };
            let instant = 1_000_000 + call * 100;
            let span =
                Span::new(instant - draw() % 20_000, instant + draw() % 20_000).expect("ascending");
            Record {
                item: item as u64,
                span,
                session: 0,
                action: 0,
                outcome: Outcome::Done,
                what,
            }
        })
        .collect()
}
