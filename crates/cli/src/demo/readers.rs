//! Readers during a swap: every reply must be complete and from one version.
//!
//! Each thread requests [`KEYS_PER_REQUEST`] keys at a time, from all partitions. Every value contains the tag of its
//! build, so a reply with two tags mixes two versions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_client::RespClient;
use larder_types::Random;

use crate::failure::Failure;

pub const KEYS_PER_REQUEST: usize = 8;

pub struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<ReaderStats>>,
    started: Instant,
}

/// The observations of one thread.
#[derive(Default)]
struct ReaderStats {
    first_build: u64,
    second_build: u64,
    failed: u64,
    mixed: u64,
    problem: Option<String>,
    times: Vec<Duration>,
}

/// The observations of all threads.
pub struct Report {
    pub requests: u64,
    pub took: Duration,
    pub first_build: u64,
    pub second_build: u64,
    pub failed: u64,
    pub mixed: u64,
    /// A description of the first failure or mixed reply.
    pub problem: Option<String>,
    pub median: Duration,
    pub p99: Duration,
    pub slowest: Duration,
}

impl Readers {
    /// Starts threads that read random keys of `keys`, all of which must exist.
    pub fn start(address: &str, keys: &[String], threads: usize) -> Result<Readers, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let keys: Arc<[String]> = keys.into();
        let client = Arc::new(RespClient::new(address));
        let spawn = |number: usize| {
            let (stop, keys, client) = (Arc::clone(&stop), Arc::clone(&keys), Arc::clone(&client));
            let builder = std::thread::Builder::new().name(format!("reader-{number}"));
            builder.spawn(move || read_until(&stop, &client, &keys, number as u64))
        };
        let threads: std::io::Result<Vec<_>> = (0..threads).map(spawn).collect();
        let threads = threads.map_err(Failure::io("start reader threads"))?;
        Ok(Readers {
            stop,
            threads,
            started: Instant::now(),
        })
    }

    pub fn stop(self) -> Result<Report, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = ReaderStats::default();
        for thread in self.threads {
            let seen = thread
                .join()
                .map_err(|_| Failure::new("a reader thread panicked"))?;
            all.first_build += seen.first_build;
            all.second_build += seen.second_build;
            all.failed += seen.failed;
            all.mixed += seen.mixed;
            all.problem = all.problem.or(seen.problem);
            all.times.extend(seen.times);
        }
        all.times.sort_unstable();
        let at = |share: f64| {
            let index =
                ((all.times.len() as f64 * share) as usize).min(all.times.len().saturating_sub(1));
            all.times.get(index).copied().unwrap_or_default()
        };
        Ok(Report {
            requests: all.times.len() as u64,
            took: self.started.elapsed(),
            first_build: all.first_build,
            second_build: all.second_build,
            failed: all.failed,
            mixed: all.mixed,
            median: at(0.5),
            p99: at(0.99),
            slowest: at(1.0),
            problem: all.problem,
        })
    }
}

fn read_until(stop: &AtomicBool, client: &RespClient, keys: &[String], seed: u64) -> ReaderStats {
    let mut random = Random::new(seed);
    let mut seen = ReaderStats::default();
    while !stop.load(Ordering::Relaxed) {
        let mut requested: Vec<&str> = Vec::with_capacity(KEYS_PER_REQUEST);
        for _ in 0..KEYS_PER_REQUEST {
            requested.push(&keys[random.below(keys.len() as u64) as usize]);
        }
        let started = Instant::now();
        let answer = client.mget(&requested);
        seen.times.push(started.elapsed());
        match answer
            .map_err(|error| error.to_string())
            .and_then(|values| build_of(&requested, &values))
        {
            Ok(Some(1)) => seen.first_build += 1,
            Ok(Some(_)) => seen.second_build += 1,
            Ok(None) => {
                seen.mixed += 1;
                seen.problem.get_or_insert(format!(
                    "the reply to {requested:?} contains values of two versions"
                ));
            }
            Err(problem) => {
                seen.failed += 1;
                seen.problem
                    .get_or_insert(format!("a read failed: {problem}"));
            }
        }
    }
    seen
}

/// Returns the build of all values; `None` if they are from several.
fn build_of(keys: &[&str], values: &[Option<Vec<u8>>]) -> Result<Option<u64>, String> {
    let mut only = None;
    for (key, value) in keys.iter().zip(values) {
        let value = value.as_ref().ok_or_else(|| format!("{key} is absent"))?;
        let tagged: serde_json::Value =
            serde_json::from_slice(value).map_err(|error| format!("{key} is no JSON: {error}"))?;
        let build = tagged["build"]
            .as_u64()
            .ok_or_else(|| format!("{key} bears no build"))?;
        if *only.get_or_insert(build) != build {
            return Ok(None);
        }
    }
    Ok(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_with_two_builds_is_mixed_and_an_absent_value_is_a_failure() {
        let value = |build: u64| Some(format!("{{\"build\":{build}}}").into_bytes());
        let keys = ["s:1", "s:2"];
        assert_eq!(build_of(&keys, &[value(2), value(2)]), Ok(Some(2)));
        assert_eq!(build_of(&keys, &[value(1), value(2)]), Ok(None));
        assert_eq!(
            build_of(&keys, &[value(1), None]),
            Err("s:2 is absent".to_owned())
        );
    }
}
