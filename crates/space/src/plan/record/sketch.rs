//! Sketches of many values: the most frequent ones, the number of distinct ones, and a random sample.

use std::collections::BTreeMap;
use std::ops::Bound;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};
use larder_types::{Random, mix};

use super::is_within;
use super::wire::{number, put_number};

/// The number of counters. Every value with a share of more than one part in this number has a counter.
const COUNTERS: usize = 256;

/// The most frequent values: SpaceSaving (Metwally, Agrawal, El Abbadi, 2005). A new value replaces the value with the
/// lowest count. It inherits that count, which is then the maximum error of its own.
#[derive(Debug, Clone, Default)]
pub(super) struct FrequentValues {
    /// The count of each value, and its maximum error.
    counts: BTreeMap<u64, (f64, f64)>,
    total: f64,
}

impl FrequentValues {
    pub fn add(&mut self, value: u64) {
        self.total += 1.0;
        if let Some((count, _)) = self.counts.get_mut(&value) {
            *count += 1.0;
            return;
        }
        let mut error = 0.0;
        if self.counts.len() == COUNTERS {
            let least = self
                .counts
                .iter()
                .min_by(|one, other| one.1.0.total_cmp(&other.1.0));
            let (&least, &(count, _)) = least.expect("there are values");
            self.counts.remove(&least);
            error = count;
        }
        self.counts.insert(value, (error + 1.0, error));
    }

    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.counts.keys().copied()
    }

    /// Returns the certain share of this value.
    pub fn share(&self, value: u64) -> f64 {
        let count = self.counts.get(&value);
        let certain = count.map_or(0.0, |(count, error)| count - error);
        if self.total > 0.0 {
            certain / self.total
        } else {
            0.0
        }
    }

    /// Merges another sketch. A value that only one of them has may have been dropped by the other.
    pub fn merge(&mut self, other: &FrequentValues) {
        let (own_least, other_least) = (self.dropped_max(), other.dropped_max());
        for (value, (count, error)) in &mut self.counts {
            let (more, doubt) = other
                .counts
                .get(value)
                .copied()
                .unwrap_or((other_least, other_least));
            *count += more;
            *error += doubt;
        }
        for (value, (count, error)) in &other.counts {
            self.counts
                .entry(*value)
                .or_insert((count + own_least, error + own_least));
        }
        self.total += other.total;
        while self.counts.len() > COUNTERS {
            let least = self
                .counts
                .iter()
                .min_by(|one, other| one.1.0.total_cmp(&other.1.0));
            let least = *least.expect("there are values").0;
            self.counts.remove(&least);
        }
    }

    /// Returns the maximum count of a value that was dropped.
    fn dropped_max(&self) -> f64 {
        let counts = self.counts.values().map(|it| it.0);
        match self.counts.len() {
            COUNTERS => counts.fold(f64::INFINITY, f64::min),
            _ => 0.0,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, self.total);
        put_count(out, self.counts.len());
        for (value, (count, error)) in &self.counts {
            out.extend_from_slice(&value.to_le_bytes());
            put_number(out, *count);
            put_number(out, *error);
        }
    }

    /// Decodes a sketch.
    ///
    /// # Errors
    /// The bytes are not an encoded sketch.
    pub fn decode(reader: &mut WireReader<'_>) -> Result<FrequentValues, Malformed> {
        let total = number(reader)?;
        let mut counts = BTreeMap::new();
        for _ in 0..reader.count(24)? {
            counts.insert(reader.u64()?, (number(reader)?, number(reader)?));
        }
        if counts.len() <= COUNTERS {
            Ok(FrequentValues { counts, total })
        } else {
            Err(Malformed("too many values in a record of a workload"))
        }
    }

    pub fn halve(&mut self) {
        self.total /= 2.0;
        for (count, error) in self.counts.values_mut() {
            *count /= 2.0;
            *error /= 2.0;
        }
    }
}

const REGISTERS: usize = 1024;

/// The number of distinct values, with an error of about 3 %: HyperLogLog (Flajolet, Fusy, Gandouet, Meunier, 2007).
#[derive(Debug, Clone)]
pub(super) struct DistinctCount {
    registers: Vec<u8>,
}

impl Default for DistinctCount {
    fn default() -> DistinctCount {
        DistinctCount {
            registers: vec![0; REGISTERS],
        }
    }
}

impl DistinctCount {
    pub fn add(&mut self, value: u64) {
        let hash = mix(value);
        let register = &mut self.registers[hash as usize % REGISTERS];
        let zeros = (hash / REGISTERS as u64).leading_zeros() - REGISTERS.ilog2();
        *register = (*register).max(zeros as u8 + 1);
    }

    pub fn merge(&mut self, other: &DistinctCount) {
        for (own, theirs) in self.registers.iter_mut().zip(&other.registers) {
            *own = (*own).max(*theirs);
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.registers);
    }

    /// Decodes a sketch.
    ///
    /// # Errors
    /// The bytes are not an encoded sketch.
    pub fn decode(reader: &mut WireReader<'_>) -> Result<DistinctCount, Malformed> {
        let registers = reader.bytes()?.to_vec();
        if registers.len() == REGISTERS && registers.iter().all(|it| *it <= 64) {
            Ok(DistinctCount { registers })
        } else {
            Err(Malformed("the bytes are not a count of distinct values"))
        }
    }

    pub fn estimate(&self) -> f64 {
        let registers = REGISTERS as f64;
        let sum: f64 = self
            .registers
            .iter()
            .map(|&it| (-f64::from(it)).exp2())
            .sum();
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = self.registers.iter().filter(|&&it| it == 0).count();
        match empty {
            1.. if estimate <= 2.5 * registers => registers * (registers / empty as f64).ln(),
            _ => estimate,
        }
    }
}

const SAMPLE_SIZE: usize = 1024;

/// A uniform random sample of all values (Vitter's algorithm R).
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    values: Vec<Box<[u8]>>,
    seen: u64,
}

impl Sample {
    pub fn add(&mut self, value: &[u8], random: &mut Random) {
        self.seen += 1;
        if self.values.len() < SAMPLE_SIZE {
            self.values.push(value.into());
            return;
        }
        let at = random.below(self.seen) as usize;
        if at < SAMPLE_SIZE {
            self.values[at] = value.into();
        }
    }

    /// Merges another sample into a uniform sample of the values of both.
    pub fn merge(&mut self, other: &Sample, random: &mut Random) {
        let all = self.seen + other.seen;
        let mut own = std::mem::take(&mut self.values);
        let mut theirs = other.values.clone();
        random.shuffle(&mut own);
        random.shuffle(&mut theirs);
        while self.values.len() < SAMPLE_SIZE {
            let is_own = random.below(all.max(1)) < self.seen;
            let (first, second) = if is_own {
                (&mut own, &mut theirs)
            } else {
                (&mut theirs, &mut own)
            };
            match first.pop().or_else(|| second.pop()) {
                Some(value) => self.values.push(value),
                None => break,
            }
        }
        self.seen = all;
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.seen.to_le_bytes());
        put_count(out, self.values.len());
        self.values.iter().for_each(|value| put_bytes(out, value));
    }

    /// Decodes a sample.
    ///
    /// # Errors
    /// The bytes are not an encoded sample.
    pub fn decode(reader: &mut WireReader<'_>) -> Result<Sample, Malformed> {
        let told = reader.u64()?;
        let count = reader.count(4)?;
        if count > SAMPLE_SIZE || told < count as u64 {
            return Err(Malformed("too many values in a sample of a workload"));
        }
        let values = (0..count).map(|_| reader.bytes().map(Box::from));
        Ok(Sample {
            values: values.collect::<Result<_, _>>()?,
            seen: told,
        })
    }

    /// Returns the share of values in a range; 0 for an empty sample.
    pub fn share(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> f64 {
        let within = self.values.iter().filter(|it| is_within(it, low, high));
        within.count() as f64 / self.values.len().max(1) as f64
    }
}
