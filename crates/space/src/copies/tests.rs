//! Random objects at owners, holders of their regions, changes and moves of slots, compared with a search of all
//! objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_types::{Random, row_slot};

use super::copy_request::Run;
use super::*;
use crate::mapping::Region;
use crate::object::{Hash, Object};
use crate::query::{Params, matches, parse};
use crate::schema::Definition;
use crate::search::Search;
use crate::value::Row;

const PLACES: u16 = 4;

fn definition() -> Arc<Definition> {
    let text = "hotels PREFIX 1 hotel: SUBSPACES 2 city,price stars:2 REGIONS 16 \
                SCHEMA city TAG price NUMERIC SORTABLE stars NUMERIC";
    let words: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
    Arc::new(Definition::parse_create(&words).expect("valid input"))
}

fn object(random: &mut Random) -> Object {
    let mut hash = Hash::default();
    let cities = ["rome", "oslo", "lima", "bern"];
    if random.below(8) > 0 {
        hash.set(b"city", cities[random.below(4) as usize].as_bytes());
    }
    hash.set(b"price", random.below(50).to_string().into_bytes());
    if random.below(4) > 0 {
        hash.set(b"stars", random.below(6).to_string().into_bytes());
    }
    Object::Hash(hash)
}

struct World {
    definition: Arc<Definition>,
    regions: Arc<Regions>,
    objects: BTreeMap<Vec<u8>, Object>,
    /// The owner of each block of slots.
    owners: Vec<u16>,
    /// Indexed by core, then by subspace.
    holders: Vec<Vec<Holder>>,
    /// The subscriptions at the owners: core, subspace and claim number, with the request.
    subscribed: BTreeMap<(usize, usize, u32), CopyRequest>,
    /// Requests that the owners have not answered yet.
    asked: Vec<(usize, u16, u32, CopyRequest)>,
    number: u32,
    serial: u64,
}

const BLOCKS: usize = 16;

impl World {
    fn new(random: &mut Random) -> World {
        let definition = definition();
        let samples = |attribute| match definition.get(attribute).name.as_str() {
            "price" => (0..50)
                .map(|price: i32| {
                    crate::base::ordered::Scalar::Number(crate::base::number::Number::Int(
                        price.into(),
                    ))
                    .encoded()
                })
                .collect(),
            _ => Vec::new(),
        };
        let regions = match random.below(2) {
            0 => Regions::by_hash(&definition),
            _ => Regions::by_samples(&definition, 1, &samples),
        };
        let regions = Arc::new(regions.expect("16 regions are enough"));
        let holders = (0..PLACES).map(|_| {
            let of = |subspace| Holder::new(definition.clone(), regions.clone(), subspace);
            (0..regions.count()).map(of).collect()
        });
        let mut world = World {
            holders: holders.collect(),
            owners: (0..BLOCKS)
                .map(|_| random.below(PLACES.into()) as u16)
                .collect(),
            objects: BTreeMap::new(),
            subscribed: BTreeMap::new(),
            asked: Vec::new(),
            number: 0,
            serial: 0,
            definition,
            regions,
        };
        world.hold();
        world
    }

    fn owner(&self, slot: u16) -> u16 {
        owner(&self.owners, slot)
    }

    fn hold(&mut self) {
        let owners = &self.owners;
        for (place, holders) in (0..).zip(&mut self.holders) {
            for (subspace, holder) in holders.iter_mut().enumerate() {
                self.number += 1;
                for over in holder.assign_slots(self.number, |slot| owner(owners, slot) == place) {
                    self.subscribed.remove(&(place.into(), subspace, over));
                }
            }
        }
    }

    /// Changes an object at its owner, which sends the update to all subscribers.
    fn write(&mut self, key: &[u8], after: Option<Object>) {
        let regions = |object: &Object| {
            let row = Row::of(&self.definition, object).0;
            let numbers = 0..self.regions.count();
            let regions = numbers.map(|subspace| self.regions.region(subspace, key, &row));
            regions.collect::<Vec<Region>>()
        };
        let before = self.objects.get(key).map(regions);
        let new = after.as_ref().map(regions);
        let moved = |subspace: usize| RegionChange {
            before: before.as_ref().map(|before| before[subspace]),
            after: new.as_ref().map(|new| new[subspace]),
        };
        let encoded = after.as_ref().map(Object::encode);
        for ((place, subspace, number), part) in &self.subscribed {
            let holder = &mut self.holders[*place][*subspace];
            match part.update_for(moved(*subspace)) {
                Some(CopyUpdate::Upsert) => {
                    holder.put(*number, key, encoded.as_deref().map(|it| (it, None)))
                }
                Some(CopyUpdate::Delete) => holder.put(*number, key, None),
                None => {}
            }
        }
        match after {
            Some(object) => self.objects.insert(key.to_vec(), object),
            None => self.objects.remove(key),
        };
    }

    /// Executes one step: a holder sweeps or sends requests, or an owner answers one.
    fn supply(&mut self, random: &mut Random) {
        let place = random.below(PLACES.into()) as usize;
        for holder in &mut self.holders[place] {
            holder.sweep_some(1 + random.below(3) as usize);
        }
        if self.asked.is_empty() {
            let place = random.below(PLACES.into()) as usize;
            for (subspace, holder) in self.holders[place].iter_mut().enumerate() {
                let of = |slot| Some(owner(&self.owners, slot));
                for (owner, number, part) in holder.pending_fetches(of, &mut self.serial) {
                    assert_eq!(usize::from(part.subspace), subspace);
                    let part = CopyRequest::decode(&part.encode()).expect("it was encoded");
                    self.asked.push((place, owner, number, part));
                }
            }
            return;
        }
        let (place, owner, number, part) = self.asked.remove(random.index(self.asked.len()));
        let subspace = usize::from(part.subspace);
        // Requests from an earlier map are dropped.
        let is_owned = |slot: u16| self.owner(slot) == owner;
        if !part.slots.iter().cloned().flatten().all(is_owned) {
            return;
        }
        let key = (place, subspace, number);
        self.subscribed.insert(key, part.clone());
        let holder = &mut self.holders[place][subspace];
        for (key, object) in &self.objects {
            let row = Row::of(&self.definition, object).0;
            let region = self.regions.region(subspace, key, &row);
            if part.has_slot(row_slot(key)) && part.has_region(region) {
                holder.put(number, key, Some((&object.encode(), None)));
            }
        }
        holder.mark_supplied(owner, number, part.serial);
    }

    fn move_slots(&mut self, random: &mut Random) {
        let block = random.below(BLOCKS as u64) as usize;
        self.owners[block] = random.below(PLACES.into()) as u16;
        for holder in self.holders.iter_mut().flatten() {
            holder.forget_slots(|slot| block_of(slot) == block);
        }
        self.hold();
    }

    /// Checks that searches by holders return the same result as a search of all objects.
    fn check(&self, random: &mut Random) -> bool {
        let texts = [
            "@city:{rome}",
            "@price:[10 13]",
            "@city:{oslo} @price:[0 9]",
            "@stars:[2 2]",
            "@city:{rome|lima} @stars:[1 3]",
            "*",
        ];
        let text = texts[random.below(texts.len() as u64) as usize];
        let predicate = parse(text.as_bytes(), &self.definition, &Params::default());
        let predicate = predicate.expect("it is a query");
        let places = UniformCosts {
            owners: 5,
            holder: &|slot| Some(self.owner(slot)),
            estimate: Estimate::default(),
        };
        let route = route(&self.regions, &predicate, &self.definition, &places);
        let Route::Regions { subspace, requests } = route else {
            return false;
        };
        let is_ready = |(place, runs): (&u16, &Vec<Run>)| {
            self.holders[usize::from(*place)][subspace].is_ready(&predicate, runs)
        };
        if !requests.iter().all(is_ready) {
            return false;
        }
        let arguments: [&[u8]; 5] = [text.as_bytes(), b"LIMIT", b"0", b"1000", b"NOCONTENT"];
        let search = Arc::new(Search::parse(&arguments, &self.definition).expect("valid input"));
        let mut found = Vec::new();
        for place in requests.keys() {
            let holder = &self.holders[usize::from(*place)][subspace];
            let mut run = holder.index().search(search.clone(), 1 << 20);
            while !run.step(holder.index(), holder.objects(), 0, 3) {}
            let partial = run.finish().expect("it is small");
            found.extend(partial.finish(0).iter().map(|entry| entry.key.to_vec()));
        }
        found.sort();
        let expected = self.objects.iter().filter(|(_, object)| {
            let row = Row::of(&self.definition, object).0;
            matches(&predicate, &row)
        });
        let expected: Vec<Vec<u8>> = expected.map(|(key, _)| key.clone()).collect();
        assert_eq!(found, expected, "{text} in subspace {subspace}");
        true
    }
}

fn block_of(slot: u16) -> usize {
    usize::from(slot) * BLOCKS / usize::from(larder_types::SLOTS)
}

fn owner(owners: &[u16], slot: u16) -> u16 {
    owners[block_of(slot)]
}

#[test]
fn complete_holders_find_the_same_objects_as_a_full_search() {
    let mut answered = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = World::new(&mut random);
        for _ in 0..600 {
            match random.below(60) {
                0 => world.move_slots(&mut random),
                1..=25 => {
                    let key = format!("hotel:{}", random.below(60)).into_bytes();
                    let object = (random.below(5) > 0).then(|| object(&mut random));
                    world.write(&key, object);
                }
                26..=50 => world.supply(&mut random),
                _ => answered += u64::from(world.check(&mut random)),
            }
        }
    }
    assert!(answered > 400, "only {answered} searches were answered");
}

#[test]
fn a_search_that_fixes_the_first_attribute_contacts_few_nodes() {
    let definition = definition();
    let regions = Regions::by_hash(&definition).expect("16 regions are enough");
    let places = UniformCosts {
        owners: 16,
        holder: &|slot: u16| Some(slot / 1024),
        estimate: Estimate::default(),
    };
    let contacted = |text: &str| {
        let predicate = parse(text.as_bytes(), &definition, &Params::default()).expect("a query");
        match route(&regions, &predicate, &definition, &places) {
            Route::Owners => 16,
            Route::Regions { requests, .. } => requests.len(),
        }
    };
    // Four holders have all objects.
    assert_eq!(contacted("*"), 4);
    assert!(contacted("@city:{rome}") <= 4);
    assert_eq!(contacted("@stars:[3 3]"), 1);
}

#[test]
fn cuts_round_trip_and_truncated_bytes_are_rejected() {
    let definition = definition();
    let sample = |_| (0..9u8).map(|byte| vec![2, byte]).collect();
    let plain = Regions::by_samples(&definition, 7, &sample).expect("enough");
    assert_eq!(plain.required_fields(), RegionFields::Cuts);
    let attributes = |of: &Regions| {
        let subspaces = (0..of.count()).filter_map(|at| of.subspace(at));
        let all = subspaces.map(|it| it.dimensions().iter().map(|it| it.attribute).collect());
        all.collect::<Vec<Vec<_>>>()
    };
    let by_hash = Regions::by_hash(&definition).expect("enough");
    let weights = |_| (0..9u8).map(|byte| (vec![2, byte], 1)).collect();
    let all = attributes(&by_hash);
    let cut = by_hash.recut(&all, &weights, &|_| (0, 0));
    let along = by_hash.recut(&all, &weights, &|slot| (slot / 64 % 3, 0));
    assert_eq!(
        (cut.required_fields(), along.required_fields()),
        (RegionFields::Cuts, RegionFields::Orders)
    );
    assert_eq!(along.subspace(0), cut.subspace(0));
    assert!(along.position_in(&cut, 0).is_none(), "the slots differ");
    let altered = along.with_definition(&definition, 5).expect("enough");
    assert!(altered.is_same_as(&along), "the regions keep their slots");
    let again = along.recut(&all, &weights, &|_| (0, 0));
    assert!(again.is_same_as(&along), "the same cuts are laid once");
    for regions in [
        along,
        by_hash,
        Regions::default()
            .with_definition(&definition, 17)
            .expect("enough"),
        plain,
    ] {
        let written = regions.required_fields();
        let mut bytes = Vec::new();
        regions.encode(&mut bytes);
        let mut reader = larder_types::wire::WireReader::new(&bytes);
        assert_eq!(Regions::decode(&mut reader, written).as_ref(), Ok(&regions));
        for end in 0..bytes.len() {
            let mut reader = larder_types::wire::WireReader::new(&bytes[..end]);
            Regions::decode(&mut reader, written).expect_err("truncated input");
        }
        assert!(u32::from(regions.slot(0, Region(3))) < 16_384);
    }
}

#[test]
fn discarded_copies_are_swept_in_steps_before_searches_and_requests_resume() {
    let definition = definition();
    let regions = Arc::new(Regions::by_hash(&definition).expect("enough"));
    let mut holder = Holder::new(definition.clone(), regions, 0);
    holder.assign_slots(1, |_| true);
    let fetch = |holder: &mut Holder| holder.pending_fetches(|_| Some(0), &mut 0);
    let fetches = fetch(&mut holder);
    let mut random = Random::new(4);
    for number in 0..200 {
        let key = format!("hotel:{number}");
        let encoded = object(&mut random).encode();
        holder.put(1, key.as_bytes(), Some((&encoded, None)));
    }
    holder.mark_supplied(0, 1, fetches[0].2.serial);
    let all = parse(b"*", &definition, &Params::default()).expect("it is a query");
    let is_ready = |holder: &Holder| holder.is_ready(&all, &fetches[0].2.regions);
    assert!(is_ready(&holder));
    holder.forget_slots(|slot| slot % 2 == 0);
    // Slots that are discarded during a sweep are swept from the start.
    holder.forget_slots(|slot| slot % 4 == 1);
    let mut steps = 0;
    while holder.sweep_some(8) {
        assert!(!is_ready(&holder) && fetch(&mut holder).is_empty());
        steps += 1;
    }
    let left = (0..200).filter(|it| row_slot(format!("hotel:{it}").as_bytes()) % 4 == 3);
    let left = left.count();
    assert_eq!((holder.len(), holder.index().len()), (left, left as u64));
    assert!(steps >= (200 - left) / 8 - 1, "{steps}");
    let again = fetch(&mut holder);
    assert!(again[0].2.has_slot(0) && again[0].2.has_slot(1) && !again[0].2.has_slot(3));
    // A holder also sweeps regions that it no longer holds.
    holder.assign_slots(2, |_| false);
    while holder.sweep_some(8) {}
    assert!(holder.is_empty() && !holder.is_sweeping());
}

#[test]
fn a_copy_is_removed_when_it_expires() {
    let definition = definition();
    let regions = Arc::new(Regions::by_hash(&definition).expect("enough"));
    let mut holder = Holder::new(definition, regions, 0);
    assert!(holder.assign_slots(1, |_| true).is_empty());
    let encoded = object(&mut Random::new(1)).encode();
    holder.put(1, b"hotel:1", Some((&encoded, Some(50))));
    holder.put(1, b"hotel:2", Some((&encoded, Some(60))));
    // The object now has a later expiry.
    holder.put(1, b"hotel:1", Some((&encoded, Some(70))));
    holder.expire(59);
    assert_eq!(holder.len(), 2);
    holder.expire(60);
    assert_eq!((holder.len(), holder.index().len()), (1, 1));
    holder.put(1, b"hotel:1", Some((&encoded, None)));
    holder.expire(1_000);
    assert_eq!(holder.len(), 1);
}

#[test]
fn a_holder_is_freed_in_bounded_steps() {
    let definition = definition();
    let regions = Arc::new(Regions::by_hash(&definition).expect("a valid definition"));
    let mut random = Random::new(3);
    let mut holder = Holder::new(definition, regions, 0);
    holder.assign_slots(1, |_| true);
    for number in 0..100 {
        let object = object(&mut random).encode();
        let key = format!("hotel:{number}");
        holder.put(1, key.as_bytes(), Some((&object, None)));
    }
    let copies = holder.len();
    let goes = std::iter::repeat_with(|| holder.free_some(7)).take_while(|more| *more);
    // The index has at least the keys, in addition to the copies.
    let times = goes.count();
    assert!(
        copies == 100 && times >= 2 * copies / 7,
        "{times} for {copies}"
    );
    assert!(holder.is_empty() && !holder.free_some(7));
}

/// Returns the number of objects in each region of the first subspace, for objects with these prices.
fn filled(regions: &Regions, definition: &Definition, prices: &[i64]) -> Vec<u64> {
    let count = regions.subspace(0).expect("there is one").regions();
    let mut filled = vec![0; count as usize];
    for (number, price) in prices.iter().enumerate() {
        let mut hash = Hash::default();
        hash.set(b"price", price.to_string().into_bytes());
        let (row, _) = Row::of(definition, &Object::Hash(hash));
        let region = regions.region(0, format!("k:{number}").as_bytes(), &row);
        filled[usize::from(region.0)] += 1;
    }
    filled
}

fn times_mean(filled: &[u64]) -> f64 {
    let most = *filled.iter().max().expect("regions");
    most as f64 * filled.len() as f64 / filled.iter().sum::<u64>() as f64
}

#[test]
fn cuts_follow_a_drift_and_hot_values_are_spread() {
    use crate::base::number::Number;
    use crate::base::ordered::Scalar;
    let words = "x SUBSPACES 1 price REGIONS 16 SCHEMA price NUMERIC".split(' ');
    let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
    let definition = Definition::parse_create(&words).expect("valid input");
    let cut = |regions: &Regions, prices: &[i64]| {
        let anew = select_recuts(regions, &[filled(regions, &definition, prices)]);
        assert_eq!(anew[0].len(), 1, "it is time");
        let sample = |_| {
            let mut values: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for price in prices.iter().step_by(7) {
                let value = Scalar::Number(Number::Int(*price)).encoded();
                *values.entry(value).or_default() += 7;
            }
            values.into_iter().collect()
        };
        regions.recut(&anew, &sample, &|_| (0, 0))
    };
    let by_hash = Regions::by_hash(&definition).expect("enough");
    let few: Vec<i64> = (0..999).collect();
    let nothing = select_recuts(&by_hash, &[filled(&by_hash, &definition, &few)]);
    assert!(nothing[0].is_empty(), "a small sample is not significant");
    let even: Vec<i64> = (0..4000).collect();
    let first = cut(&by_hash, &even);
    let balance = filled(&first, &definition, &even);
    assert!(
        first.version == 1 && times_mean(&balance) < 1.5,
        "{balance:?}"
    );
    assert!(
        select_recuts(&first, &[balance])[0].is_empty(),
        "it is even"
    );
    let predicate = parse(b"@price:[100 250]", &definition, &Params::default());
    let subspace = first.subspace(0).expect("there is one");
    let contacts =
        crate::search::regions::contacts(subspace, &predicate.expect("a query"), &definition);
    assert!(contacts.count() <= 2, "{}", contacts.count());
    // All prices have risen, and many are equal.
    let drifted: Vec<i64> = (0..4000)
        .map(|it| if it % 5 < 2 { 7 } else { 9000 + it % 997 })
        .collect();
    assert!(times_mean(&filled(&first, &definition, &drifted)) > 5.0);
    let second = cut(&first, &drifted);
    let balance = filled(&second, &definition, &drifted);
    assert!(
        second.version == 2 && times_mean(&balance) <= 2.0,
        "{balance:?}"
    );
}

/// Cores with the same cost, 10 us each.
struct UniformCosts<'a> {
    owners: u16,
    holder: &'a dyn Fn(u16) -> Option<u16>,
    estimate: Estimate,
}

impl RouteTargets<u16> for UniformCosts<'_> {
    fn owners(&self) -> usize {
        self.owners.into()
    }

    fn holder(&self, slot: u16) -> Option<u16> {
        (self.holder)(slot)
    }

    fn contact_us(&self, places: Option<&mut dyn Iterator<Item = &u16>>) -> f64 {
        10.0 * places.map_or(self.owners(), |places| places.count()) as f64
    }

    fn estimate(&self) -> Estimate {
        self.estimate.clone()
    }
}

/// Both subspaces contact one holder. The one by city examines all objects of the city; the one by stars an eighth of
/// them.
#[test]
fn of_two_single_node_routes_the_one_with_fewer_candidates_is_chosen() {
    let line = "x SUBSPACES 2 city:4 stars:4 REGIONS 16 SCHEMA city TAG stars NUMERIC";
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let definition = Definition::parse_create(&words).expect("a valid definition");
    let regions = Regions::by_hash(&definition).expect("16 regions are enough");
    let query = parse(
        b"@city:{rome} @stars:[3 3]",
        &definition,
        &Params::default(),
    );
    let query = query.expect("a query");
    let by = |attribute: u16| {
        let places = UniformCosts {
            owners: 8,
            holder: &|slot: u16| Some(slot / 2048),
            estimate: Estimate {
                candidates: 1000.0,
                indexed_by: vec![crate::schema::AttributeId(attribute)],
            },
        };
        let all = price_routes(&regions, &query, &definition, &places);
        let Route::Regions { subspace, .. } = route(&regions, &query, &definition, &places) else {
            panic!("a subspace is cheaper");
        };
        assert_eq!(all.last().map(|way| &way.route), Some(&Route::Owners));
        subspace
    };
    assert_eq!((by(0), by(1)), (1, 0));
}

/// All holders of one subspace are expensive to contact, and those of the other are cheap.
#[test]
fn cheap_nodes_are_preferred_even_if_there_are_more() {
    struct Near;
    impl RouteTargets<u16> for Near {
        fn owners(&self) -> usize {
            16
        }

        fn holder(&self, slot: u16) -> Option<u16> {
            Some(slot / 1024)
        }

        fn contact_us(&self, places: Option<&mut dyn Iterator<Item = &u16>>) -> f64 {
            let us = |place: u16| if place.is_multiple_of(2) { 1.0 } else { 50.0 };
            match places {
                Some(places) => places.map(|place| us(*place)).sum(),
                None => (0..16).map(us).sum(),
            }
        }

        fn estimate(&self) -> Estimate {
            Estimate::default()
        }
    }
    let line = "x SUBSPACES 2 city:4 stars:3 REGIONS 16 SCHEMA city TAG stars NUMERIC";
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let definition = Definition::parse_create(&words).expect("a valid definition");
    let regions = Regions::by_hash(&definition).expect("16 regions are enough");
    for text in [
        "@city:{rome|oslo|lima} @stars:[1 1]",
        "@city:{a|b} @stars:[2 2]",
    ] {
        let query = parse(text.as_bytes(), &definition, &Params::default()).expect("a query");
        let all = price_routes(&regions, &query, &definition, &Near);
        let cheapest = all.first().expect("owners are one").route.clone();
        assert_eq!(route(&regions, &query, &definition, &Near), cheapest);
        let is_cheapest = all.windows(2).all(|two| two[0].cost_us <= two[1].cost_us);
        assert!(is_cheapest && all.len() == 3, "{all:?}");
    }
}
