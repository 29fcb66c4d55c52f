//! The ordered table alone, in process on one core, compared with other maps.
//!
//! Rows are timeline rows: keys of 34 bytes (`tline|uuuuuuuu|tttttttttt|pppppppp`), values of 100. They are put in time
//! order over random groups, as posts arrive, and in completely random order. A range read copies 20 rows into a
//! buffer, like a reply. Results are CPU times of this thread. The p99 is of individually timed calls, including the
//! time to read the clock.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use larder_table::{Split, Table, Value};

use crate::Result;
use crate::keys::put_digits;
use crate::report;
use crate::table_alloc::allocated_bytes;
use crate::table_rivals::{HashOfTrees, Map, OneGroup};

#[derive(Args)]
pub struct TableArgs {
    /// Number of rows
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Number of groups (users) among which the rows are divided
    #[arg(long, default_value_t = 100_000)]
    groups: u64,
    /// Number of reads of each kind
    #[arg(long, default_value_t = 1_000_000)]
    reads: u64,
    /// Measure only larder's table, without the structures it is compared with
    #[arg(long)]
    alone: bool,
    /// Write table.md and table.jsonl to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

const KEY: usize = 34;
const VALUE: usize = 100;
const BATCH: u64 = 4096;
/// One batch in this many has its calls timed individually.
const TIMED_BATCH_INTERVAL: u64 = 16;

#[derive(Clone, Copy, PartialEq)]
enum InsertOrder {
    Time,
    Random,
}

/// A rate over batches, and the 99th percentile of individually timed calls.
#[derive(Default)]
struct Meter {
    calls: u64,
    seconds: f64,
    singles_ns: Vec<u64>,
}

struct Figures {
    name: &'static str,
    order: &'static str,
    put: Meter,
    range: Meter,
    get: Meter,
    bytes_per_row: f64,
}

pub fn run(args: &TableArgs) -> Result<()> {
    let mut figures = Vec::new();
    for order in [InsertOrder::Time, InsertOrder::Random] {
        figures.push(measure::<Table>(args, order));
        if !args.alone {
            figures.push(measure::<OneGroup>(args, order));
            figures.push(measure::<HashOfTrees>(args, order));
            figures.push(measure::<std::collections::BTreeMap<Vec<u8>, Vec<u8>>>(
                args, order,
            ));
        }
    }
    let fan_out = fan_out(args);
    let raw: Vec<_> = figures.iter().map(Figures::json).collect();
    report::keep(
        args.out.as_deref(),
        "table",
        &markdown(args, &figures, &fan_out),
        &raw,
    )
}

fn measure<M: Map>(args: &TableArgs, order: InsertOrder) -> Figures {
    eprintln!("{} ...", M::NAME);
    let mut keys = Keys {
        random: 0x9e37_79b9_7f4a_7c15,
        clock: 0,
        args,
        order,
    };
    let value = [b'v'; VALUE];
    let before = allocated_bytes();
    let mut map = M::new();
    let mut put = Meter::default();
    put.run(args.rows, || keys.next(), |key| map.put(key, &value));
    let bytes_per_row = (allocated_bytes() - before) as f64 / args.rows as f64;

    let mut out = Vec::with_capacity(64 << 10);
    let mut rows = 0;
    let mut range = Meter::default();
    range.run(
        args.reads,
        || keys.random_key(),
        |key| {
            out.clear();
            rows += map.range(key, 20, &mut out);
        },
    );
    assert!(rows as u64 > args.reads * 10, "most ranges have 20 rows");
    let mut found = 0;
    let mut get = Meter::default();
    get.run(
        args.reads,
        || keys.random_key(),
        |key| found += usize::from(map.get(key).is_some()),
    );
    assert!(found as u64 <= args.reads);
    let order = if order == InsertOrder::Time {
        "time"
    } else {
        "random"
    };
    Figures {
        name: M::NAME,
        order,
        put,
        range,
        get,
        bytes_per_row,
    }
}

/// Measures one post into a thousand timelines: rows with a shared value, appended by group ids with prefetches.
/// Returns rows per second and bytes per row, for values of 5 bytes and for shared values of 140 bytes.
fn fan_out(args: &TableArgs) -> Vec<(&'static str, f64, f64)> {
    let cases: [(&'static str, &[u8]); 2] = [
        ("value of 5 bytes", b"tweet"),
        ("shared value of 140 bytes", &[b'x'; 140]),
    ];
    let mut answers = Vec::new();
    for (name, bytes) in cases {
        let mut table = Table::new(Split::Columns(1));
        let value = Value::new(bytes);
        let mut keys = Keys {
            random: 7,
            clock: 0,
            args,
            order: InsertOrder::Time,
        };
        let ids: Vec<_> = (0..args.groups)
            .filter_map(|user| {
                let mut key = keys.next();
                put_digits(&mut key[6..14], user);
                table.put_shared(&key, &value);
                table.group(&key)
            })
            .collect();
        let mut spent = 0.0;
        let rows = args.rows;
        for round in 0..rows / 1000 {
            let from = keys.below(ids.len() as u64) as usize;
            let step = keys.below(ids.len() as u64 / 2) as usize | 1;
            let follower = |nth: usize| ids[(from + nth * step) % ids.len()];
            let mut suffix = *b"0000000000|00000000";
            put_digits(&mut suffix[..10], 1_000_000_000 + args.groups + round);
            put_digits(&mut suffix[11..], round % 99_999_999);
            let start = cpu_seconds();
            for nth in 0..1000 {
                table.prefetch(follower(nth + 24));
                table.prefetch_leaf(follower(nth + 16));
                table.prefetch_end(follower(nth + 8));
                table
                    .put_shared_in(follower(nth), &suffix, &value)
                    .expect("the group has rows");
            }
            spent += cpu_seconds() - start;
        }
        answers.push((
            name,
            rows as f64 / spent,
            table.memory_bytes() as f64 / table.len() as f64,
        ));
    }
    answers
}

struct Keys<'a> {
    random: u64,
    clock: u64,
    args: &'a TableArgs,
    order: InsertOrder,
}

impl Keys<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        ((u128::from(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(n)) >> 64) as u64
    }

    /// Returns the key of the next row.
    fn next(&mut self) -> [u8; KEY] {
        self.clock += 1;
        let time = match self.order {
            InsertOrder::Time => self.clock,
            // A permutation of the clock, which yields every time once.
            InsertOrder::Random => self.clock.wrapping_mul(0x9e37_79b1) % 4_294_967_291,
        };
        self.key(time)
    }

    /// Returns a key of a random group, in the first four fifths of its times.
    fn random_key(&mut self) -> [u8; KEY] {
        let last = if self.order == InsertOrder::Time {
            self.args.rows
        } else {
            4_294_967_291
        };
        let time = self.below(last * 4 / 5);
        self.key(time)
    }

    fn key(&mut self, time: u64) -> [u8; KEY] {
        let mut key = *b"tline|00000000|0000000000|00000000";
        let (group, poster) = (self.below(self.args.groups), self.below(self.args.groups));
        put_digits(&mut key[6..14], group);
        put_digits(&mut key[15..25], 1_000_000_000 + time);
        put_digits(&mut key[26..], poster);
        key
    }
}

impl Meter {
    fn run(&mut self, calls: u64, mut key: impl FnMut() -> [u8; KEY], mut call: impl FnMut(&[u8])) {
        let mut keys = Vec::with_capacity(BATCH as usize);
        let (mut done, mut batch) = (0, 0);
        while done < calls {
            keys.clear();
            keys.extend((0..BATCH.min(calls - done)).map(|_| key()));
            if batch % TIMED_BATCH_INTERVAL == TIMED_BATCH_INTERVAL - 1 {
                for key in &keys {
                    let start = Instant::now();
                    call(key);
                    self.singles_ns.push(start.elapsed().as_nanos() as u64);
                }
            } else {
                let start = cpu_seconds();
                keys.iter().for_each(|key| call(key));
                self.seconds += cpu_seconds() - start;
                self.calls += keys.len() as u64;
            }
            done += keys.len() as u64;
            batch += 1;
        }
        self.singles_ns.sort_unstable();
    }

    fn per_second(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    fn p99_ns(&self) -> u64 {
        self.singles_ns
            .get(self.singles_ns.len() * 99 / 100)
            .copied()
            .unwrap_or(0)
    }
}

impl Figures {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "map": self.name, "order": self.order, "bytes_per_row": self.bytes_per_row,
            "puts_per_second": self.put.per_second(), "put_ns_p99": self.put.p99_ns(),
            "ranges_per_second": self.range.per_second(), "range_ns_p99": self.range.p99_ns(),
            "gets_per_second": self.get.per_second(), "get_ns_p99": self.get.p99_ns(),
        })
    }
}

fn markdown(args: &TableArgs, figures: &[Figures], fan_out: &[(&str, f64, f64)]) -> String {
    let mut text = format!(
        "# The ordered table alone\n\n{} rows of {KEY}-byte keys and {VALUE}-byte values in {} groups, one core.\n\n\
         command: `{}`\n\n\
         | map | order | puts/s | p99 ns | ranges of 20/s | p99 ns | gets/s | p99 ns | bytes a row | beyond key and value |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        args.rows,
        args.groups,
        report::command()
    );
    for f in figures {
        text += &format!(
            "| {} | {} | {:.0} | {} | {:.0} | {} | {:.0} | {} | {:.1} | {:.1} |\n",
            f.name,
            f.order,
            f.put.per_second(),
            f.put.p99_ns(),
            f.range.per_second(),
            f.range.p99_ns(),
            f.get.per_second(),
            f.get.p99_ns(),
            f.bytes_per_row,
            f.bytes_per_row - (KEY + VALUE) as f64
        );
    }
    text += "\n| fan-out of a post to 1,000 groups, by id, with prefetches | rows/s | bytes a row |\n|---|---|---|\n";
    for (name, rate, bytes) in fan_out {
        text += &format!("| {name} | {rate:.0} | {bytes:.1} |\n");
    }
    text += "\n| larder, of the worse order | measured | bar | |\n|---|---|---|---|\n";
    let ours: Vec<&Figures> = figures.iter().filter(|f| f.name == Table::NAME).collect();
    let worst = |figure: &dyn Fn(&Figures) -> f64| {
        ours.iter().map(|f| figure(f)).fold(f64::INFINITY, f64::min)
    };
    let puts = worst(&|f| f.put.per_second());
    let ranges = worst(&|f| f.range.per_second());
    let overhead = -worst(&|f| (KEY + VALUE) as f64 - f.bytes_per_row);
    let judge = |met: bool| if met { "met" } else { "missed" };
    text += &format!(
        "| puts a second | {puts:.0} | >= 1500000 | {} |\n",
        judge(puts >= 1.5e6)
    );
    text += &format!(
        "| range reads of 20 rows a second | {ranges:.0} | >= 600000 | {} |\n",
        judge(ranges >= 6e5)
    );
    text += &format!(
        "| bytes a row beyond key and value | {overhead:.1} | <= 48 | {} |\n",
        judge(overhead <= 48.0)
    );
    text += "\nTime is CPU time of the thread; p99 is of every sixteenth batch's calls, timed singly (the clock's reading, some 25 ns, included).\n";
    text
}

/// Returns the CPU time of this thread, in seconds.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes only to the given struct.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(answer, 0, "the thread has a CPU clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
