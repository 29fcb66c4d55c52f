//! Records a workload from observed queries and modifications, and from the values of objects.
//!
//! The memory is bounded: there are at most [`CLASSES_MAX`] classes, and three sketches (`sketch`) of a fixed size for
//! each attribute. A recording is exact while there are few classes. The shares of values are accurate to a few
//! percent. Several recorders of one space can be merged (`wire`).

mod sketch;
mod wire;

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use larder_types::{Random, key_hash};

use super::workload::{
    AttributeProfile, Bucket, HotValue, Modification, ModificationKind, QueryClass, Workload,
};
use sketch::{DistinctCount, FrequentValues, Sample};

/// The maximum number of classes of queries, and of modifications. Beyond it, the rarest are dropped.
pub const CLASSES_MAX: usize = 40;

/// The maximum number of values of an attribute that are listed individually.
const HOT_MAX: usize = 16;

/// The minimum share of the objects, or of the queries, for listing a value. A value with this share fills one of 256
/// cells.
const HOT_SHARE_MIN: f64 = 1.0 / 256.0;

/// The constraint of a query on one attribute.
#[derive(Debug, Clone, Copy)]
pub enum RecordedConstraint<'a> {
    /// One value, as the hash of its encoding.
    Equal(u64),
    OneOf(&'a [u64]),
    /// A range of encoded values.
    Range(Bound<&'a [u8]>, Bound<&'a [u8]>),
}

/// The observations of a space.
#[derive(Debug, Clone)]
pub struct Recorder {
    attributes: Vec<AttributeRecord>,
    queries: Classes<QueryShape, QuerySums>,
    modifications: Classes<(u8, u64), ()>,
    gets: f64,
    random: Random,
}

#[derive(Debug, Clone)]
struct AttributeRecord {
    name: String,
    ordered: bool,
    in_objects: FrequentValues,
    in_queries: FrequentValues,
    distinct: DistinctCount,
    sample: Sample,
}

/// The attributes that a query constrains, by the kind of constraint, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct QueryShape {
    equal: u64,
    one_of: u64,
    range: u64,
}

#[derive(Debug, Clone, Default)]
struct QuerySums {
    /// For the queries whose number of matches is known: by its power of four, the number of queries and the sum of
    /// their matches.
    found: BTreeMap<u8, (f64, f64)>,
    results: f64,
    /// By attribute: the sum of the shares of ranges, or of the sizes of lists.
    numbers: BTreeMap<usize, f64>,
}

/// Counts by class.
#[derive(Debug, Clone)]
struct Classes<K, V> {
    seen: BTreeMap<K, (f64, V)>,
    dropped: f64,
}

impl Recorder {
    /// Creates a recorder. `attributes` contains the name of each attribute, and whether it is ordered. Other methods
    /// identify an attribute by its position.
    pub fn new<'a>(attributes: impl IntoIterator<Item = (&'a str, bool)>, seed: u64) -> Recorder {
        let observed = |(name, ordered): (&str, bool)| AttributeRecord {
            name: name.to_owned(),
            ordered,
            in_objects: FrequentValues::default(),
            in_queries: FrequentValues::default(),
            distinct: DistinctCount::default(),
            sample: Sample::default(),
        };
        Recorder {
            attributes: attributes.into_iter().map(observed).collect(),
            queries: Classes::new(),
            modifications: Classes::new(),
            gets: 0.0,
            random: Random::new(seed),
        }
    }

    pub fn get(&mut self) {
        self.gets += 1.0;
    }

    /// Records a query, with the number of matches, if known, and the number of returned objects. Only the first
    /// constraint on an attribute counts.
    pub fn query(
        &mut self,
        constraints: &[(usize, RecordedConstraint<'_>)],
        matches: Option<u64>,
        results: u64,
    ) {
        let mut shape = QueryShape::default();
        let mut numbers: Vec<(usize, f64)> = Vec::new();
        for &(attribute, constraints) in constraints {
            let observed = &mut self.attributes[attribute];
            let bit = 1 << attribute;
            if (shape.equal | shape.one_of | shape.range) & bit != 0 {
                continue;
            }
            match constraints {
                RecordedConstraint::Equal(value) => {
                    shape.equal |= bit;
                    observed.in_queries.add(value);
                }
                RecordedConstraint::OneOf(values) => {
                    shape.one_of |= bit;
                    numbers.push((attribute, values.len().max(1) as f64));
                    for &value in values {
                        observed.in_queries.add(value);
                    }
                }
                RecordedConstraint::Range(low, high) => {
                    shape.range |= bit;
                    numbers.push((attribute, observed.sample.share(low, high)));
                }
            }
        }
        let sums = self.queries.count(shape);
        if let Some(matches) = matches {
            let (count, sum) = sums.found.entry(power_of_four(matches)).or_default();
            *count += 1.0;
            *sum += matches as f64;
        }
        sums.results += results as f64;
        for (attribute, number) in numbers {
            *sums.numbers.entry(attribute).or_default() += number;
        }
    }

    /// Records an update of these attributes, or a create or a delete.
    pub fn modification(&mut self, kind: ModificationKind, changed: &[usize]) {
        let changed = match kind {
            ModificationKind::Update => changed.iter().fold(0, |set, at| set | 1 << at),
            ModificationKind::Create | ModificationKind::Delete => 0,
        };
        let kind = match kind {
            ModificationKind::Update => 0,
            ModificationKind::Create => 1,
            ModificationKind::Delete => 2,
        };
        self.modifications.count((kind, changed));
    }

    /// Records the encoded value of an object; empty if it has none. Each call counts, so all objects must be recorded
    /// equally often.
    pub fn object(&mut self, attribute: usize, value: &[u8]) {
        let observed = &mut self.attributes[attribute];
        let hash = key_hash(value);
        observed.in_objects.add(hash);
        observed.distinct.add(hash);
        if observed.ordered {
            observed.sample.add(value, &mut self.random);
        }
    }

    /// Halves all counts of operations, to give more weight to later ones.
    pub fn age(&mut self) {
        self.gets /= 2.0;
        self.queries.halve(|sums| {
            for (count, sum) in sums.found.values_mut() {
                *count /= 2.0;
                *sum /= 2.0;
            }
            sums.results /= 2.0;
            for number in sums.numbers.values_mut() {
                *number /= 2.0;
            }
        });
        self.modifications.halve(|_| ());
        for observed in &mut self.attributes {
            observed.in_queries.halve();
        }
    }

    /// Returns the number of recorded operations.
    pub fn count(&self) -> f64 {
        self.queries.total() + self.modifications.total() + self.gets
    }

    /// Returns the share of operations whose class was dropped.
    pub fn dropped_share(&self) -> f64 {
        let forgotten = self.queries.dropped + self.modifications.dropped;
        let all = self.count();
        if all > 0.0 { forgotten / all } else { 0.0 }
    }

    /// Returns the recorded workload of a space with this many objects. Frequencies are counts.
    pub fn workload(&self, objects: u64, object_bytes: u64) -> Workload {
        let objects = objects.max(1);
        let queries = self.queries.seen.iter();
        let modifications = self.modifications.seen.iter();
        Workload {
            objects,
            object_bytes,
            gets: self.gets,
            unrecorded: self.queries.dropped + self.modifications.dropped,
            attributes: self
                .attributes
                .iter()
                .map(AttributeRecord::profile)
                .collect(),
            queries: queries
                .map(|(shape, (count, sums))| self.class(shape, *count, sums, objects))
                .collect(),
            modifications: modifications
                .map(|(&(kind, changed), &(count, ()))| Modification {
                    name: String::new(),
                    frequency: count,
                    kind: [
                        ModificationKind::Update,
                        ModificationKind::Create,
                        ModificationKind::Delete,
                    ][usize::from(kind)],
                    changes: self.names(changed),
                })
                .collect(),
        }
    }

    fn class(&self, shape: &QueryShape, count: f64, sums: &QuerySums, objects: u64) -> QueryClass {
        let numbers = |set: u64, least: f64, most: f64| -> BTreeMap<String, f64> {
            let of = sums.numbers.iter().filter(|it| set >> it.0 & 1 == 1);
            of.map(|(&at, sum)| {
                let mean = (sum / count).clamp(least, most);
                (self.attributes[at].name.clone(), mean)
            })
            .collect()
        };
        let known: f64 = sums.found.values().map(|it| it.0).sum();
        let matches: f64 = sums.found.values().map(|it| it.1).sum();
        let mut class = QueryClass {
            name: String::new(),
            frequency: count,
            equal: self.names(shape.equal),
            one_of: numbers(shape.one_of, 1.0, 1e9),
            range: numbers(shape.range, 0.0, 1.0),
            selectivity: BTreeMap::new(),
            matches: (known > 0.0).then(|| matches / known),
            histogram: sums.found.values().map(|of| bucket(*of, known)).collect(),
            results: Some(sums.results / count),
        };
        // The selectivity of a single constraint was observed. For several constraints, the values determine it.
        let set = shape.equal | shape.one_of;
        if set.is_power_of_two() && shape.range == 0 && known > 0.0 {
            let share = (matches / known / objects as f64).min(1.0);
            let name = self.names(set).remove(0);
            class.selectivity.insert(name, share);
        }
        class
    }

    fn names(&self, set: u64) -> Vec<String> {
        let named = self.attributes.iter().enumerate();
        named
            .filter(|(at, _)| set >> at & 1 == 1)
            .map(|(_, observed)| observed.name.clone())
            .collect()
    }
}

impl AttributeRecord {
    fn profile(&self) -> AttributeProfile {
        let distinct = self.distinct.estimate().round().max(1.0) as u64;
        let mut values: Vec<HotValue> = Vec::new();
        let values_seen = self.in_objects.values().chain(self.in_queries.values());
        let mut values_seen: Vec<u64> = values_seen.collect();
        values_seen.sort_unstable();
        values_seen.dedup();
        for value in values_seen {
            let hot = HotValue {
                objects: self.in_objects.share(value),
                queries: self.in_queries.share(value),
            };
            if hot.objects > HOT_SHARE_MIN || hot.queries > HOT_SHARE_MIN {
                values.push(hot);
            }
        }
        values.sort_unstable_by(|one, other| {
            let weight = |hot: &HotValue| hot.objects.max(hot.queries);
            weight(other).total_cmp(&weight(one))
        });
        values.truncate(HOT_MAX);
        // A value that is frequent only in queries is as frequent in objects as the values that are not listed.
        let known: f64 = values.iter().map(|it| it.objects).sum();
        let others = distinct.saturating_sub(values.len() as u64).max(1) as f64;
        let cold = values.iter().filter(|it| it.objects == 0.0).count() as f64;
        for value in &mut values {
            if value.objects == 0.0 {
                value.objects = (1.0 - known).max(0.0) / (others + cold);
            }
        }
        AttributeProfile {
            name: self.name.clone(),
            ordered: self.ordered,
            lists: false,
            distinct: Some(distinct.max(values.len() as u64)),
            hot: values,
        }
    }
}

impl<K: Ord + Copy, V: Default> Classes<K, V> {
    fn new() -> Classes<K, V> {
        Classes {
            seen: BTreeMap::new(),
            dropped: 0.0,
        }
    }

    fn count(&mut self, class: K) -> &mut V {
        if self.seen.len() == CLASSES_MAX && !self.seen.contains_key(&class) {
            self.drop_rarest();
        }
        let (count, sums) = self.seen.entry(class).or_default();
        *count += 1.0;
        sums
    }

    fn drop_rarest(&mut self) {
        let rarest = self
            .seen
            .iter()
            .min_by(|one, other| one.1.0.total_cmp(&other.1.0));
        let rarest = *rarest.expect("there are classes").0;
        let (count, _) = self.seen.remove(&rarest).expect("it exists");
        self.dropped += count;
    }

    fn total(&self) -> f64 {
        self.seen.values().map(|it| it.0).sum::<f64>() + self.dropped
    }

    fn halve(&mut self, also: impl Fn(&mut V)) {
        self.dropped /= 2.0;
        for (count, sums) in self.seen.values_mut() {
            *count /= 2.0;
            also(sums);
        }
    }
}

/// Returns 0 for no matches, 1 for 1 to 3, 2 for 4 to 15, and so on up to 32.
fn power_of_four(matches: u64) -> u8 {
    (matches.checked_ilog2()).map_or(0, |log| (log / 2 + 1) as u8)
}

fn bucket((count, sum): (f64, f64), known: f64) -> Bucket {
    Bucket {
        matches: sum / count,
        share: count / known,
    }
}

/// Returns whether an encoded value is between two bounds.
fn is_within(value: &[u8], low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    RangeBounds::<[u8]>::contains(&(low, high), value)
}
