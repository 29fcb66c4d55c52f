//! Records the use of a space's objects on request: the workload that is the input of `larder space plan`.
//!
//! Each core records the searches that it executes, and the reads and changes of objects that it owns. SPACE.RECORD
//! (`resp/spaces/record.rs`) merges them. Without a recording, this costs one check of a flag.

use std::ops::Bound;

use larder_join::Engine;
use larder_space::base::ordered::Scalar;
use larder_space::index::{PutEffect, SpaceIndex};
use larder_space::object::Object;
use larder_space::plan::{ModificationKind as Done, RecordedConstraint, Recorder};
use larder_space::query::{Predicate, Span, value_domain};
use larder_space::schema::{AttributeId, AttributeKind, Definition};
use larder_space::value::{Columns, Row};
use larder_types::key_hash;

use super::walk::Walk;

/// Maximum number of attributes in a workload.
const ATTRIBUTES_MAX: usize = 64;
/// A query with more conditions is recorded without conditions.
const CONDITIONS_MAX: usize = 1024;

/// The recording of one space on one core.
#[derive(Debug)]
pub struct Recording {
    recorder: Recorder,
    attributes: Vec<AttributeId>,
    /// The recorder's number of each attribute, by its position in the index.
    by_place: Vec<Option<usize>>,
    /// The time at which it ends automatically.
    until_ms: u64,
    /// The number of objects at the start, and their bytes.
    measured: (u64, u64),
}

impl Recording {
    /// Starts a recording from the values of a walk.
    pub fn new(values: ObjectValues, index: &SpaceIndex, until_ms: u64) -> Recording {
        let attributes = recorded_attributes(index.definition());
        let number = |id: AttributeId| attributes.iter().position(|it| *it == id);
        Recording {
            recorder: values.recorder,
            measured: (values.objects, values.bytes),
            by_place: index.attribute_ids().map(number).collect(),
            attributes,
            until_ms,
        }
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The number of the node's objects at the start, and their bytes.
    pub fn measured(&self) -> (u64, u64) {
        self.measured
    }

    /// Returns whether the recording can continue with this definition.
    pub fn is_compatible(&self, definition: &Definition) -> bool {
        recorded_attributes(definition) == self.attributes
    }

    pub fn is_expired(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms
    }

    pub fn record_get(&mut self) {
        self.recorder.get();
    }

    /// Records that an object was put.
    pub fn record_put(&mut self, changed: PutEffect) {
        if changed.is_new {
            return self.recorder.modification(Done::Create, &[]);
        }
        let places = self.by_place.iter().enumerate();
        let is_changed = |at: usize| at < 64 && changed.changed_attributes >> at & 1 == 1;
        let numbers: Vec<usize> = places
            .filter(|(at, _)| is_changed(*at))
            .filter_map(|(_, number)| *number)
            .collect();
        self.recorder.modification(Done::Update, &numbers);
    }

    pub fn record_delete(&mut self) {
        self.recorder.modification(Done::Delete, &[]);
    }

    /// Records a search, the number of objects that it found, if known, and the number that it returned.
    pub fn record_query(
        &mut self,
        predicate: &Predicate,
        definition: &Definition,
        found: Option<u64>,
        answered: u64,
    ) {
        enum OwnedCondition {
            Values(Vec<u64>),
            Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
        }
        let mut conditions: Vec<(usize, OwnedCondition)> = Vec::new();
        // The analysis of each attribute takes time proportional to the number of conditions.
        let is_short = predicate.tests() <= CONDITIONS_MAX;
        let attributes = self.attributes.iter().filter(|_| is_short);
        for (number, id) in attributes.enumerate() {
            let Some(attribute) = definition.attribute(*id) else {
                continue;
            };
            let domain = value_domain(predicate, attribute);
            if let Some(points) = domain.points() {
                if !points.is_empty() {
                    let hashes = points.iter().map(|value| key_hash(&value.encoded()));
                    conditions.push((number, OwnedCondition::Values(hashes.collect())));
                }
                continue;
            }
            let (Some(first), Some(last)) = (domain.spans.first(), domain.spans.last()) else {
                continue;
            };
            let is_range = *first != Span::all() && is_ordered(&attribute.kind);
            if is_range && !domain.missing {
                conditions.push((
                    number,
                    OwnedCondition::Range(encoded(&first.low), encoded(&last.high)),
                ));
            }
        }
        let conditions: Vec<(usize, RecordedConstraint<'_>)> = conditions
            .iter()
            .map(|(number, owned)| {
                let conditions = match owned {
                    OwnedCondition::Values(values) => match &values[..] {
                        [only] => RecordedConstraint::Equal(*only),
                        several => RecordedConstraint::OneOf(several),
                    },
                    OwnedCondition::Range(low, high) => {
                        RecordedConstraint::Range(bytes(low), bytes(high))
                    }
                };
                (*number, conditions)
            })
            .collect();
        self.recorder.query(&conditions, found, answered);
    }
}

/// A walk over the objects of one core, which collects their values.
pub struct ValueWalk {
    walk: Walk,
    pub values: ObjectValues,
}

/// The values of some objects.
#[derive(Debug, Clone)]
pub struct ObjectValues {
    recorder: Recorder,
    objects: u64,
    bytes: u64,
}

impl ValueWalk {
    pub fn new(engine: &Engine, definition: &Definition, core: usize) -> ValueWalk {
        ValueWalk {
            walk: Walk::new(definition, engine, false),
            values: ObjectValues {
                recorder: new_recorder(definition, core as u64),
                objects: 0,
                bytes: 0,
            },
        }
    }

    /// Processes up to `objects_max` objects. Returns whether the walk is complete.
    pub fn step(&mut self, engine: &Engine, definition: &Definition, objects_max: usize) -> bool {
        let values = &mut self.values;
        self.walk
            .step(definition, engine, objects_max, &mut |key, encoded| {
                if let Ok(object) = Object::decode(encoded)
                    && definition.covers(key, &object)
                {
                    record_object(&mut values.recorder, definition, &object);
                    values.objects += 1;
                    values.bytes += (key.len() + encoded.len()) as u64;
                }
            });
        self.walk.is_done()
    }
}

impl ObjectValues {
    /// Merges the values of another core.
    pub fn merge(&mut self, other: &ObjectValues) {
        self.recorder.merge(&other.recorder);
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

/// Returns an empty recorder for a space.
fn new_recorder(definition: &Definition, seed: u64) -> Recorder {
    let attributes = recorded_attributes(definition);
    let named = attributes.iter().map(|id| {
        let attribute = definition.get(*id);
        (attribute.name.as_str(), is_ordered(&attribute.kind))
    });
    Recorder::new(named, seed)
}

/// Adds an existing object to a recorder.
fn record_object(recorder: &mut Recorder, definition: &Definition, object: &Object) {
    let (row, _) = Row::of(definition, object);
    for (number, id) in recorded_attributes(definition).into_iter().enumerate() {
        let column = row.column(id);
        let mut values = column.scalars();
        // As in regions: an object with several values counts as one without a value.
        let value = match (values.next(), values.next()) {
            (Some(only), None) => only.encoded(),
            _ => Vec::new(),
        };
        recorder.object(number, &value);
    }
}

/// The attributes by which subspaces can support searches.
fn recorded_attributes(definition: &Definition) -> Vec<AttributeId> {
    let attributes = definition.attributes.iter();
    let some = attributes.filter(|it| !it.options.no_index && it.kind != AttributeKind::Geo);
    some.map(|it| it.id).take(ATTRIBUTES_MAX).collect()
}

/// Returns whether an attribute supports range conditions.
fn is_ordered(kind: &AttributeKind) -> bool {
    matches!(kind, AttributeKind::Numeric | AttributeKind::Timestamp)
}

fn encoded(bound: &Bound<Scalar>) -> Bound<Vec<u8>> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(value) => Bound::Included(value.encoded()),
        Bound::Excluded(value) => Bound::Excluded(value.encoded()),
    }
}

fn bytes(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_space::object::Hash;
    use larder_space::query::{Params, parse};

    use super::*;

    #[test]
    fn searches_and_changes_are_recorded_as_workload_classes() {
        let words = "hotels SCHEMA city TAG stars NUMERIC price NUMERIC at GEO";
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let definition = Arc::new(Definition::parse_create(&words).expect("it fits"));
        let hotel = |city: &str, price: u32| {
            let fields = [("city", city.to_owned()), ("price", price.to_string())];
            let mut hash = Hash::default();
            for (name, value) in fields {
                hash.set(name.as_bytes(), value.as_bytes());
            }
            Object::Hash(hash)
        };
        let mut index = SpaceIndex::new(definition.clone());
        let mut recorder = new_recorder(&definition, 1);
        for price in 0..100 {
            let hotel = hotel("rome", price);
            index.put(format!("{price}").as_bytes(), &hotel);
            record_object(&mut recorder, &definition, &hotel);
        }
        let values = ObjectValues {
            recorder,
            objects: 100,
            bytes: 8000,
        };
        let mut recording = Recording::new(values, &index, 10);
        let search = |recording: &mut Recording, query: &str, found| {
            let predicate = parse(query.as_bytes(), &definition, &Params::default());
            recording.record_query(&predicate.expect("a query"), &definition, Some(found), 10);
        };
        search(&mut recording, "@city:{rome} @price:[0 24]", 25);
        search(&mut recording, "@city:{rome} @price:[50 74]", 25);
        search(&mut recording, "@stars:[4 4] | @stars:[5 5]", 0);
        for key in [&b"7"[..], b"new"] {
            let changed = index.put(key, &hotel("rome", 8));
            recording.record_put(changed.expect("it is covered"));
        }
        recording.record_delete();
        recording.record_get();
        assert!(recording.is_expired(10) && !recording.is_expired(9));
        let workload = recording.recorder().workload(101, 80);
        let query = |at: usize| &workload.queries[at];
        let ranged = workload
            .queries
            .iter()
            .position(|it| it.equal == ["city"])
            .expect("it is there");
        assert_eq!(query(ranged).frequency, 2.0);
        assert!((query(ranged).range["price"] - 0.25).abs() < 0.01);
        assert_eq!(query(1 - ranged).one_of["stars"], 2.0);
        assert_eq!(workload.gets, 1.0);
        let changes = workload.modifications.iter();
        let kinds: Vec<_> = changes.map(|it| (it.kind, it.changes.join(","))).collect();
        assert_eq!(
            kinds,
            [
                (Done::Update, "price".to_owned()),
                (Done::Create, String::new()),
                (Done::Delete, String::new()),
            ]
        );
        workload.check().expect("it can be");
    }
}
