//! A workload from what is observed: queries and modifications as they come, and the values of objects.
//!
//! Memory is bounded: there are at most [`CLASSES_MAX`] classes, and for each attribute three sketches (`sketch`) of a fixed size. So what is recorded is
//! exact as long as classes are few, and values are right to some hundredths of all. Several recorders of one space can be made one (`wire`).

mod sketch;
mod wire;

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use larder_types::{Random, key_hash};

use super::workload::{
    AttributeProfile, Bucket, HotValue, Kind, Modification, QueryClass, Workload,
};
use sketch::{Distinct, Frequent, Sample};

/// The most classes of queries, and of modifications. Of more, those that are rarest are forgotten.
pub const CLASSES_MAX: usize = 40;

/// The most values of an attribute that are told one by one.
const HOT_MAX: usize = 16;

/// A value is told if it has more than this share of the objects, or of the queries: with it a cell of 256 would be full.
const HOT_SHARE_MIN: f64 = 1.0 / 256.0;

/// What a query asks of an attribute.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// One value, by the hash of its encoding.
    Equal(u64),
    OneOf(&'a [u64]),
    /// A range of encoded values.
    Range(Bound<&'a [u8]>, Bound<&'a [u8]>),
}

/// What is observed of a space.
#[derive(Debug, Clone)]
pub struct Recorder {
    attributes: Vec<Observed>,
    queries: Classes<QueryShape, QuerySums>,
    modifications: Classes<(u8, u64), ()>,
    gets: f64,
    random: Random,
}

#[derive(Debug, Clone)]
struct Observed {
    name: String,
    ordered: bool,
    in_objects: Frequent,
    in_queries: Frequent,
    distinct: Distinct,
    sample: Sample,
}

/// Which attributes a query constrains, and how; sets of attributes as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct QueryShape {
    equal: u64,
    one_of: u64,
    range: u64,
}

#[derive(Debug, Clone, Default)]
struct QuerySums {
    /// Of those of which it is known what matched: by its power of four, how many there are, and what matched of all of them.
    found: BTreeMap<u8, (f64, f64)>,
    results: f64,
    /// By attribute: of ranges their shares, of lists their sizes.
    numbers: BTreeMap<usize, f64>,
}

/// Counts by class.
#[derive(Debug, Clone)]
struct Classes<K, V> {
    seen: BTreeMap<K, (f64, V)>,
    forgotten: f64,
}

impl Recorder {
    /// `attributes` has the name of each, and whether it is ordered; the others are told by their index.
    pub fn new<'a>(attributes: impl IntoIterator<Item = (&'a str, bool)>, seed: u64) -> Recorder {
        let observed = |(name, ordered): (&str, bool)| Observed {
            name: name.to_owned(),
            ordered,
            in_objects: Frequent::default(),
            in_queries: Frequent::default(),
            distinct: Distinct::default(),
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

    /// A query, how many objects matched, where that is known, and how many were sent. At most one constraint for an attribute counts.
    pub fn query(&mut self, asked: &[(usize, Asked<'_>)], matches: Option<u64>, results: u64) {
        let mut shape = QueryShape::default();
        let mut numbers: Vec<(usize, f64)> = Vec::new();
        for &(attribute, asked) in asked {
            let observed = &mut self.attributes[attribute];
            let bit = 1 << attribute;
            if (shape.equal | shape.one_of | shape.range) & bit != 0 {
                continue;
            }
            match asked {
                Asked::Equal(value) => {
                    shape.equal |= bit;
                    observed.in_queries.add(value);
                }
                Asked::OneOf(values) => {
                    shape.one_of |= bit;
                    numbers.push((attribute, values.len().max(1) as f64));
                    for &value in values {
                        observed.in_queries.add(value);
                    }
                }
                Asked::Range(low, high) => {
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

    /// An update that changed these attributes, or a create or a delete.
    pub fn modification(&mut self, kind: Kind, changed: &[usize]) {
        let changed = match kind {
            Kind::Update => changed.iter().fold(0, |set, at| set | 1 << at),
            Kind::Create | Kind::Delete => 0,
        };
        let kind = match kind {
            Kind::Update => 0,
            Kind::Create => 1,
            Kind::Delete => 2,
        };
        self.modifications.count((kind, changed));
    }

    /// The encoded value that an object has; empty for none. Each object counts as often as it is told, so all are told equally often.
    pub fn object(&mut self, attribute: usize, value: &[u8]) {
        let observed = &mut self.attributes[attribute];
        let hash = key_hash(value);
        observed.in_objects.add(hash);
        observed.distinct.add(hash);
        if observed.ordered {
            observed.sample.add(value, &mut self.random);
        }
    }

    /// Halves all counts of what is done, so that what comes later weighs more.
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

    /// How many operations were seen.
    pub fn count(&self) -> f64 {
        self.queries.total() + self.modifications.total() + self.gets
    }

    /// The share of operations whose class was forgotten.
    pub fn forgotten(&self) -> f64 {
        let forgotten = self.queries.forgotten + self.modifications.forgotten;
        let all = self.count();
        if all > 0.0 { forgotten / all } else { 0.0 }
    }

    /// What was observed, of a space that has so many objects. Frequencies are counts.
    pub fn workload(&self, objects: u64, object_bytes: u64) -> Workload {
        let objects = objects.max(1);
        let queries = self.queries.seen.iter();
        let modifications = self.modifications.seen.iter();
        Workload {
            objects,
            object_bytes,
            gets: self.gets,
            attributes: self.attributes.iter().map(Observed::profile).collect(),
            queries: queries
                .map(|(shape, (count, sums))| self.class(shape, *count, sums, objects))
                .collect(),
            modifications: modifications
                .map(|(&(kind, changed), &(count, ()))| Modification {
                    name: String::new(),
                    frequency: count,
                    kind: [Kind::Update, Kind::Create, Kind::Delete][usize::from(kind)],
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
        // What a single constraint lets through was seen; of several, the values say it.
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

impl Observed {
    fn profile(&self) -> AttributeProfile {
        let distinct = self.distinct.estimate().round().max(1.0) as u64;
        let mut values: Vec<HotValue> = Vec::new();
        let told = self.in_objects.values().chain(self.in_queries.values());
        let mut told: Vec<u64> = told.collect();
        told.sort_unstable();
        told.dedup();
        for value in told {
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
        // A value that is hot in queries alone is as frequent in objects as those that are not hot.
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
            forgotten: 0.0,
        }
    }

    fn count(&mut self, class: K) -> &mut V {
        if self.seen.len() == CLASSES_MAX && !self.seen.contains_key(&class) {
            self.forget_rarest();
        }
        let (count, sums) = self.seen.entry(class).or_default();
        *count += 1.0;
        sums
    }

    fn forget_rarest(&mut self) {
        let rarest = self
            .seen
            .iter()
            .min_by(|one, other| one.1.0.total_cmp(&other.1.0));
        let rarest = *rarest.expect("there are classes").0;
        let (count, _) = self.seen.remove(&rarest).expect("it is there");
        self.forgotten += count;
    }

    fn total(&self) -> f64 {
        self.seen.values().map(|it| it.0).sum::<f64>() + self.forgotten
    }

    fn halve(&mut self, also: impl Fn(&mut V)) {
        self.forgotten /= 2.0;
        for (count, sums) in self.seen.values_mut() {
            *count /= 2.0;
            also(sums);
        }
    }
}

/// 0 of nothing, 1 of 1 to 3, 2 of 4 to 15, and so on: 33 of the most.
fn power_of_four(matches: u64) -> u8 {
    (matches.checked_ilog2()).map_or(0, |log| (log / 2 + 1) as u8)
}

fn bucket((count, sum): (f64, f64), known: f64) -> Bucket {
    Bucket {
        matches: sum / count,
        share: count / known,
    }
}

/// Whether an encoded value lies between two bounds.
fn is_within(value: &[u8], low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    RangeBounds::<[u8]>::contains(&(low, high), value)
}
