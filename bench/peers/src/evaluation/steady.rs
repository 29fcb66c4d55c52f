//! Reads at a steady rate, each timed from the moment it was due: a server that stalls is charged for every read that had to wait.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::clients::Client;
use crate::data::{DataSet, Random};
use crate::engine::Result;

pub const CONNECTIONS: u64 = 8;

/// The distribution of the keys that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Draw {
    Uniform,
    /// The `i`th most popular of all is read `1 / i` times as often as the first.
    Zipf,
}

/// Of the reads that were due in one second.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Second {
    pub reads: u64,
    pub failed: u64,
    pub p50_us: f64,
    pub p99_us: f64,
}

pub struct Load<'a> {
    pub data: &'a DataSet,
    pub draw: Draw,
    pub rate: u64,
    pub seconds: u64,
}

/// The reads, by the second in which each was due.
pub struct ReadsBySecond(Vec<(Histogram<u64>, u64)>);

impl ReadsBySecond {
    fn new(seconds: u64) -> Result<ReadsBySecond> {
        let all: std::result::Result<Vec<_>, hdrhistogram::CreationError> = (0..seconds)
            // Up to a minute; `saturating_record` does not widen a histogram.
            .map(|_| Ok((Histogram::new_with_bounds(1, 60_000_000_000, 3)?, 0)))
            .collect();
        Ok(ReadsBySecond(all?))
    }

    pub fn per_second(&self) -> Vec<Second> {
        self.0
            .iter()
            .map(|(all, failed)| of(all, *failed))
            .collect()
    }

    pub fn total(&self) -> Result<Second> {
        let mut total = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        for (one, _) in &self.0 {
            total.add(one)?;
        }
        Ok(of(&total, self.0.iter().map(|it| it.1).sum()))
    }
}

fn of(latency_ns: &Histogram<u64>, failed: u64) -> Second {
    let at = |quantile| latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    Second {
        reads: latency_ns.len(),
        failed,
        p50_us: at(0.5),
        p99_us: at(0.99),
    }
}

/// By the ranks' shares, which rank is the `draw`th.
struct Zipf(Vec<f64>);

impl Zipf {
    fn of(ranks: u64) -> Zipf {
        let mut sum = 0.0;
        let upto = (1..=ranks).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Zipf(upto.collect())
    }

    fn rank(&self, random: &mut Random) -> u64 {
        let total = self.0.last().copied().unwrap_or_default();
        let at = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * total;
        self.0.partition_point(|upto| *upto <= at) as u64
    }
}

/// Reads on all connections until the time is up.
pub fn read(load: &Load<'_>, clients: Vec<Box<dyn Client>>) -> Result<ReadsBySecond> {
    let zipf = (load.draw == Draw::Zipf).then(|| Zipf::of(load.data.keys));
    let began = Instant::now() + Duration::from_millis(20);
    let mut all = ReadsBySecond::new(load.seconds)?;
    std::thread::scope(|scope| -> Result<()> {
        let threads = (0..).zip(clients).map(|(number, client)| {
            let zipf = zipf.as_ref();
            scope.spawn(move || {
                let read = read_on_connection(load, zipf, number, began, client);
                read.map_err(|error| error.to_string())
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            let part = thread.join().map_err(|_| "a reader panicked")??;
            for (total, part) in all.0.iter_mut().zip(part.0) {
                total.0.add(part.0)?;
                total.1 += part.1;
            }
        }
        Ok(())
    })?;
    Ok(all)
}

fn read_on_connection(
    load: &Load<'_>,
    zipf: Option<&Zipf>,
    number: u64,
    began: Instant,
    mut client: Box<dyn Client>,
) -> Result<ReadsBySecond> {
    let mut seconds = ReadsBySecond::new(load.seconds)?;
    let mut random = Random::new(7 + number);
    // Popular keys are not neighbours.
    let key_of_rank = |rank: u64| rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % load.data.keys;
    for turn in (number..load.rate * load.seconds).step_by(CONNECTIONS as usize) {
        let due = began + Duration::from_nanos(turn * 1_000_000_000 / load.rate);
        let key = match zipf {
            Some(zipf) => key_of_rank(zipf.rank(&mut random)),
            None => random.below(load.data.keys),
        };
        let key = load.data.key(key);
        let now = Instant::now();
        // That a reader woke late is not the server's doing; that the read before took long is.
        let from = if now < due {
            std::thread::sleep(due - now);
            Instant::now()
        } else {
            due
        };
        let second = &mut seconds.0[(turn / load.rate) as usize];
        match client.get(key.bytes())? {
            true => second.0.saturating_record(from.elapsed().as_nanos() as u64),
            false => second.1 += 1,
        }
    }
    Ok(seconds)
}
