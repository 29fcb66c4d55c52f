//! Parts: readers that select rows by content have exactly those rows, whatever happens in between, and before the
//! writer receives its reply.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use larder_join::{Engine, Exchange, LogEntry, PartRows, Parts, Shard};
use larder_types::Random;

type Bytes = Box<[u8]>;

/// Rows of the table `o`. The first letter of a value is its region.
#[derive(Default)]
struct Letters {
    /// On the owner: the letters of each subscription, by reader and number.
    subscribed: BTreeMap<(u16, u32), Vec<u8>>,
    /// On the reader: the number and the letters of the current subscription.
    subscription: (u32, Vec<u8>),
    rows: BTreeMap<Bytes, Bytes>,
    complete: BTreeSet<u16>,
}

impl Letters {
    /// Returns the subscriptions that a change affects, and whether the row is in them now.
    fn affected_subscriptions(
        &self,
        before: Option<u8>,
        after: Option<u8>,
    ) -> Vec<(u16, u32, bool)> {
        let subscribed = self
            .subscribed
            .iter()
            .filter_map(|(&(reader, number), letters)| {
                let has =
                    |letter: Option<u8>| letter.is_some_and(|letter| letters.contains(&letter));
                (has(before) || has(after)).then(|| (reader, number, has(after)))
            });
        subscribed.collect()
    }
}

impl Parts for Letters {
    fn subscribe(&mut self, reader: u16, number: u32, part: Option<&[u8]>) {
        match part {
            Some(part) => self.subscribed.insert((reader, number), part.to_vec()),
            None => self.subscribed.remove(&(reader, number)),
        };
    }

    fn rows(
        &mut self,
        engine: &Engine,
        _: &Shard,
        part: &[u8],
        after: Option<&[u8]>,
        rows_max: usize,
    ) -> Option<PartRows> {
        let lo = after.map_or(b"o|".to_vec(), |after| [after, &[0]].concat());
        let mut found = PartRows::default();
        engine.read_base_rows(&lo, b"o}", &mut |key, value, _| {
            if found.visited == rows_max {
                return ControlFlow::Break(());
            }
            found.visited += 1;
            found.last = Some(key.into());
            if part.contains(&value[0]) {
                found.rows.push((key.into(), value.into()));
            }
            ControlFlow::Continue(())
        });
        if found.visited < rows_max {
            found.last = None;
        }
        Some(found)
    }

    fn supply(
        &mut self,
        _: &Shard,
        owner: u16,
        number: u32,
        part: &[u8],
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    ) {
        if (number, part) == (self.subscription.0, &self.subscription.1[..]) {
            self.rows.extend(rows);
            if is_last {
                self.complete.insert(owner);
            }
        }
    }

    fn change(&mut self, _: &Shard, _: u16, number: u32, key: &[u8], value: Option<&[u8]>) {
        if number != self.subscription.0 {
            return;
        }
        match value.filter(|value| self.subscription.1.contains(&value[0])) {
            Some(value) => self.rows.insert(key.into(), value.into()),
            None => self.rows.remove(key),
        };
    }

    fn handle_reader_loss(&mut self, reader: u16) {
        self.subscribed.retain(|(of, _), _| *of != reader);
    }

    fn withdraw(&mut self, _: &[(u16, u16)]) {}
}

struct Core {
    engine: Engine,
    exchange: Exchange,
    letters: Letters,
}

const CORES: u16 = 3;

fn cores() -> Vec<Core> {
    let core = |index| {
        let shard = Shard::new(index, CORES);
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        engine.record_changes(true);
        let mut exchange = Exchange::new(shard);
        exchange.set_chunk_rows(3);
        Core {
            engine,
            exchange,
            letters: Letters::default(),
        }
    };
    (0..CORES).map(core).collect()
}

impl Core {
    fn step(&mut self, budget: usize) -> bool {
        let (exchange, engine) = (&mut self.exchange, &mut self.engine);
        exchange
            .step_with(engine, &mut self.letters, 0, budget)
            .more
    }
}

/// Delivers the messages of one core to another.
fn deliver(cores: &mut [Core], from: usize, to: usize) {
    for message in cores[from].exchange.drain_outgoing(to as u16) {
        cores[to].exchange.receive(from as u16, message);
    }
}

fn write(core: &mut Core, key: &str, value: Option<&str>) -> u64 {
    let letter = |core: &Core| {
        let row = core.engine.base_row(key.as_bytes());
        row.map(|(value, _)| value[0])
    };
    let before = letter(core);
    match value {
        Some(value) => core.engine.put(key.as_bytes(), value.as_bytes(), 0),
        None => core.engine.remove(key.as_bytes(), 0),
    }
    .expect("it is a base row");
    let after = letter(core);
    for change in core.engine.take_changes() {
        let (key, value) = match &change {
            LogEntry::Put { key, value } => (key, Some(&value[..])),
            LogEntry::Remove { key } => (key, None),
            other => panic!("{other:?}"),
        };
        let readers = core.letters.affected_subscriptions(before, after);
        core.exchange.queue_part_change(key, value, &readers, false);
    }
    core.exchange.end_transaction();
    core.exchange.sequence()
}

#[test]
fn a_reader_has_its_selected_rows_and_writes_wait_for_it() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut cores = cores();
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        let mut number = 0;
        if seed % 2 == 1 {
            cores.iter_mut().for_each(|it| it.exchange.pace_parts());
        }
        for _ in 0..300 {
            let at = random.index(usize::from(CORES));
            match random.below(10) {
                0..=3 => {
                    let key = format!("o|{}", random.below(40));
                    let owner = Shard::new(0, CORES).owner_of(key.as_bytes());
                    let value = (random.below(4) > 0).then(|| {
                        format!("{}{}", ["a", "b", "c"][random.index(3)], random.below(9))
                    });
                    let core = &mut cores[usize::from(owner)];
                    write(core, &key, value.as_deref());
                    match value {
                        Some(value) => all.insert(key, value),
                        None => all.remove(&key),
                    };
                }
                4 => {
                    number += 1;
                    let core = &mut cores[at];
                    let before = core.letters.subscription.clone();
                    // Repeat the request, or make another with a new number. No two requests are equal.
                    let (of, letters) = if before.0 > 0 && random.below(2) == 0 {
                        (before.0, before.1[..before.1.len() - 5].to_vec())
                    } else {
                        core.exchange.end_part(before.0);
                        (number, ["a", "b", "ab", "c"][random.index(4)].into())
                    };
                    let letters = [&letters[..], format!("{number:05}").as_bytes()].concat();
                    core.letters.subscription = (of, letters.clone());
                    core.letters.rows.clear();
                    core.letters.complete.clear();
                    for owner in (0..CORES).filter(|owner| usize::from(*owner) != at) {
                        core.exchange.request_part(owner, of, letters.clone());
                    }
                }
                5 | 6 => {
                    cores[at].exchange.release_part_chunk();
                    cores[at].step(random.index(20) + 1);
                }
                _ => {
                    let to = random.index(usize::from(CORES));
                    if to != at {
                        deliver(&mut cores, at, to);
                    }
                }
            }
            // All acknowledged changes must have arrived.
            for owner in 0..CORES {
                let core = &cores[usize::from(owner)];
                if !core.exchange.is_acknowledged(core.exchange.sequence()) {
                    continue;
                }
                for (at, reader) in (0..).zip(&cores) {
                    if at != owner && reader.letters.complete.contains(&owner) {
                        check(&all, &reader.letters, owner);
                    }
                }
            }
        }
        for _ in 0..50 {
            for from in 0..usize::from(CORES) {
                for to in (0..usize::from(CORES)).filter(|to| *to != from) {
                    deliver(&mut cores, from, to);
                    while cores[to].step(1000) || cores[to].exchange.release_part_chunk() {}
                }
            }
        }
        for (at, reader) in (0..).zip(&cores) {
            let owners = (0..CORES).filter(|owner| *owner != at);
            for owner in owners.filter(|_| reader.letters.subscription.0 > 0) {
                assert!(
                    reader.letters.complete.contains(&owner),
                    "all owners have supplied their rows"
                );
                check(&all, &reader.letters, owner);
            }
        }
    }
}

#[test]
fn a_paced_reader_receives_one_chunk_for_each_that_it_releases() {
    let mut cores = cores();
    let (reader, owner) = (0, 1);
    let own = Shard::new(0, CORES);
    let keys = (0..200).map(|number| format!("o|{number:03}"));
    let of_owner = |key: &String| usize::from(own.owner_of(key.as_bytes())) == owner;
    let keys: Vec<String> = keys.filter(of_owner).collect();
    for key in &keys {
        write(&mut cores[owner], key, Some("a"));
    }
    cores[reader].exchange.pace_parts();
    cores[reader].letters.subscription = (1, b"a".to_vec());
    cores[reader]
        .exchange
        .request_part(owner as u16, 1, b"a".to_vec());
    let exchange = |cores: &mut [Core]| {
        deliver(cores, reader, owner);
        while cores[owner].step(1000) {}
        deliver(cores, owner, reader);
        while cores[reader].step(1000) {}
        cores[reader].letters.rows.len()
    };
    // A chunk has three rows here, and two are in flight at a time.
    assert_eq!(exchange(&mut cores), 6);
    assert_eq!(exchange(&mut cores), 6);
    let mut has = 6;
    while cores[reader].exchange.release_part_chunk() {
        let now = exchange(&mut cores);
        assert!(now <= has + 3, "{has} and then {now}");
        has = now;
    }
    assert_eq!(has, keys.len());
    assert!(cores[reader].letters.complete.contains(&(owner as u16)));
}

/// Checks that a reader has exactly the owner's rows that it selects.
fn check(all: &BTreeMap<String, String>, letters: &Letters, owner: u16) {
    let of = |key: &[u8]| Shard::new(0, CORES).owner_of(key) == owner;
    let expected: Vec<(&[u8], &[u8])> = all
        .iter()
        .filter(|(key, value)| {
            of(key.as_bytes()) && letters.subscription.1.contains(&value.as_bytes()[0])
        })
        .map(|(key, value)| (key.as_bytes(), value.as_bytes()))
        .collect();
    let rows = letters.rows.iter();
    let has: Vec<(&[u8], &[u8])> = rows
        .filter(|(key, _)| of(key))
        .map(|(key, value)| (&key[..], &value[..]))
        .collect();
    assert_eq!(has, expected);
}
