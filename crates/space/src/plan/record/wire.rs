//! The encoding of recorders, which nodes exchange, and the merging of two.
//!
//! Integers are little-endian; floating-point numbers are encoded as their bits.
//!
//! | part | contents |
//! |---|---|
//! | gets | 8 |
//! | attributes | count (4), then for each: name (bytes), ordered (1), both sketches of frequent values, the registers (bytes), the sample |
//! | frequent values | total (8), count (4), then for each: hash, count, error (8 each) |
//! | sample | number of values seen (8), count (4), then each as bytes |
//! | queries | dropped (8), count (4), then for each: equal, one of, range (8 each), count (8), found: count (4), power (1), count and sum (8 each) for each, results (8), numbers: count (4), attribute (2) and sum (8) for each |
//! | modifications | dropped (8), count (4), then for each: kind (1), attributes (8), count (8) |

use std::collections::BTreeMap;

use larder_types::Random;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::sketch::{DistinctCount, FrequentValues, Sample};
use super::{AttributeRecord, Classes, QueryShape, QuerySums, Recorder};
use crate::plan::workload::ATTRIBUTES_MAX;

impl Recorder {
    /// Merges the recording of another node for the same space.
    ///
    /// The values of objects should be weighted by the number of objects at each node. They are, if each node has
    /// recorded all its objects.
    pub fn merge(&mut self, other: &Recorder) {
        self.gets += other.gets;
        for theirs in &other.attributes {
            let own = self.attributes.iter_mut().find(|it| it.name == theirs.name);
            if let Some(own) = own {
                own.in_objects.merge(&theirs.in_objects);
                own.in_queries.merge(&theirs.in_queries);
                own.distinct.merge(&theirs.distinct);
                own.sample.merge(&theirs.sample, &mut self.random);
            }
        }
        self.queries.merge(&other.queries, |own, theirs| {
            for (power, (count, sum)) in &theirs.found {
                let own = own.found.entry(*power).or_default();
                own.0 += count;
                own.1 += sum;
            }
            own.results += theirs.results;
            for (attribute, sum) in &theirs.numbers {
                *own.numbers.entry(*attribute).or_default() += sum;
            }
        });
        self.modifications.merge(&other.modifications, |(), ()| ());
    }

    /// Returns a copy with the values of objects only, without operations.
    pub fn of_values(&self) -> Recorder {
        let mut recorder = self.clone();
        recorder.gets = 0.0;
        recorder.queries = Classes::new();
        recorder.modifications = Classes::new();
        for observed in &mut recorder.attributes {
            observed.in_queries = FrequentValues::default();
        }
        recorder
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, self.gets);
        put_count(&mut out, self.attributes.len());
        for observed in &self.attributes {
            put_bytes(&mut out, observed.name.as_bytes());
            out.push(u8::from(observed.ordered));
            observed.in_objects.encode(&mut out);
            observed.in_queries.encode(&mut out);
            observed.distinct.encode(&mut out);
            observed.sample.encode(&mut out);
        }
        put_number(&mut out, self.queries.dropped);
        put_count(&mut out, self.queries.seen.len());
        for (shape, (count, sums)) in &self.queries.seen {
            for set in [shape.equal, shape.one_of, shape.range] {
                out.extend_from_slice(&set.to_le_bytes());
            }
            put_number(&mut out, *count);
            put_count(&mut out, sums.found.len());
            for (power, (count, sum)) in &sums.found {
                out.push(*power);
                put_number(&mut out, *count);
                put_number(&mut out, *sum);
            }
            put_number(&mut out, sums.results);
            put_count(&mut out, sums.numbers.len());
            for (attribute, sum) in &sums.numbers {
                out.extend_from_slice(&(*attribute as u16).to_le_bytes());
                put_number(&mut out, *sum);
            }
        }
        put_number(&mut out, self.modifications.dropped);
        put_count(&mut out, self.modifications.seen.len());
        for ((kind, changed), (count, ())) in &self.modifications.seen {
            out.push(*kind);
            out.extend_from_slice(&changed.to_le_bytes());
            put_number(&mut out, *count);
        }
        out
    }

    /// Decodes a recorder.
    ///
    /// # Errors
    /// The bytes are not an encoded recorder.
    pub fn decode(bytes: &[u8]) -> Result<Recorder, Malformed> {
        const BAD: Malformed = Malformed("the bytes are not a workload record");
        let reader = &mut WireReader::new(bytes);
        let gets = number(reader)?;
        let count = reader.count(30)?;
        if count > ATTRIBUTES_MAX {
            return Err(BAD);
        }
        let mut attributes = Vec::with_capacity(count);
        for _ in 0..count {
            let name = String::from_utf8(reader.bytes()?.to_vec()).map_err(|_| BAD)?;
            attributes.push(AttributeRecord {
                name,
                ordered: reader.flag()?,
                in_objects: FrequentValues::decode(reader)?,
                in_queries: FrequentValues::decode(reader)?,
                distinct: DistinctCount::decode(reader)?,
                sample: Sample::decode(reader)?,
            });
        }
        let is_known = |set: u64| count == ATTRIBUTES_MAX || set >> count == 0;
        let mut queries = Classes::new();
        queries.dropped = number(reader)?;
        for _ in 0..reader.count(48)? {
            let shape = QueryShape {
                equal: reader.u64()?,
                one_of: reader.u64()?,
                range: reader.u64()?,
            };
            let seen = number(reader)?;
            let mut found = BTreeMap::new();
            for _ in 0..reader.count(17)? {
                found.insert(reader.u8()?, (number(reader)?, number(reader)?));
            }
            if found.values().any(|it| it.0 <= 0.0) {
                return Err(BAD);
            }
            let mut sums = QuerySums {
                found,
                results: number(reader)?,
                numbers: BTreeMap::new(),
            };
            for _ in 0..reader.count(10)? {
                let attribute = usize::from(reader.u16()?);
                if attribute >= count {
                    return Err(BAD);
                }
                sums.numbers.insert(attribute, number(reader)?);
            }
            if !is_known(shape.equal | shape.one_of | shape.range) {
                return Err(BAD);
            }
            queries.seen.insert(shape, (seen, sums));
        }
        let mut modifications = Classes::new();
        modifications.dropped = number(reader)?;
        for _ in 0..reader.count(17)? {
            let (kind, changed) = (reader.u8()?, reader.u64()?);
            if kind > 2 || !is_known(changed) {
                return Err(BAD);
            }
            modifications
                .seen
                .insert((kind, changed), (number(reader)?, ()));
        }
        reader.end()?;
        Ok(Recorder {
            attributes,
            queries,
            modifications,
            gets,
            random: Random::new(bytes.len() as u64),
        })
    }
}

impl<K: Ord + Copy, V: Default + Clone> Classes<K, V> {
    fn merge(&mut self, other: &Classes<K, V>, add: impl Fn(&mut V, &V)) {
        self.dropped += other.dropped;
        for (class, (count, theirs)) in &other.seen {
            let (own_count, own) = self.seen.entry(*class).or_default();
            *own_count += count;
            add(own, theirs);
        }
        while self.seen.len() > super::CLASSES_MAX {
            self.drop_rarest();
        }
    }
}

pub(super) fn put_number(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(&number.to_bits().to_le_bytes());
}

/// Reads a number.
///
/// # Errors
/// The number is negative or not finite.
pub(super) fn number(reader: &mut WireReader<'_>) -> Result<f64, Malformed> {
    let number = f64::from_bits(reader.u64()?);
    if number >= 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err(Malformed("a workload record has an invalid number"))
    }
}
