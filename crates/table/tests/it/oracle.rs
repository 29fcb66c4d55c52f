//! Compares the table with a `BTreeMap` after every step of random operations over adversarial keys.

use std::collections::BTreeMap;
use std::ops::Bound;

use larder_table::{GroupId, Put, Split, Table, Value, ValueFile, ValuesOnDisk};

/// A small generator (xorshift64*): the same operations for the same seed on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

/// A distribution of keys.
#[derive(Debug, Clone, Copy)]
enum Keys {
    /// Few bytes from a small alphabet that includes separators, 0x00 and 0xff; many keys are prefixes of others,
    /// some are empty.
    Short,
    /// Timeline rows: few users, mostly increasing times.
    Timeline,
    /// A long common part, truncated anywhere, and a tail: long prefixes come and go, and keys exceed what a page
    /// stores.
    Long,
    /// Random order over one wide range.
    Wide,
}

fn key(random: &mut Random, keys: Keys, clock: &mut u64) -> Vec<u8> {
    match keys {
        Keys::Short => {
            let letters = [0, 1, b'a', b'b', b'{', b'|', b'|', b':', b'}', 0xfe, 0xff];
            (0..random.below(9))
                .map(|_| letters[random.below(letters.len() as u64) as usize])
                .collect()
        }
        Keys::Timeline => {
            *clock += random.below(20);
            let time = if random.below(10) == 0 {
                random.below(*clock + 1)
            } else {
                *clock
            };
            format!(
                "tline|{:08}|{time:010}|{:08}",
                random.below(20),
                random.below(50)
            )
            .into_bytes()
        }
        Keys::Long => {
            let length =
                [3, 250, 256, 500, 511, 512, 513, 600, 2000, 65_000][random.below(10) as usize];
            let mut key = b"t|a|".to_vec();
            key.resize(4 + length, b'x');
            key.extend_from_slice(&random.below(30).to_be_bytes()[6..]);
            key
        }
        Keys::Wide => format!("w|{:05}|{:05}", random.below(3), random.below(3000)).into_bytes(),
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = [
        0, 1, 5, 5, 16, 17, 100, 100, 100, 253, 254, 300, 512, 513, 3000,
    ][random.below(15) as usize];
    let fill = random.next() as u8;
    vec![fill; length]
}

fn bound(random: &mut Random, key: &[u8]) -> (Bound<Vec<u8>>, ()) {
    let bound = match random.below(8) {
        0 => Bound::Unbounded,
        1..=4 => Bound::Included(key.to_vec()),
        _ => Bound::Excluded(key.to_vec()),
    };
    (bound, ())
}

fn as_ref(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
    }
}

fn inside(lo: Bound<&[u8]>, hi: Bound<&[u8]>, key: &[u8]) -> bool {
    let after = match lo {
        Bound::Unbounded => true,
        Bound::Included(lo) => key >= lo,
        Bound::Excluded(lo) => key > lo,
    };
    let before = match hi {
        Bound::Unbounded => true,
        Bound::Included(hi) => key <= hi,
        Bound::Excluded(hi) => key < hi,
    };
    after && before
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn rows(
    table: &Table,
    lo: Bound<&[u8]>,
    hi: Bound<&[u8]>,
    reverse: bool,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = if reverse {
        table.range_rev(lo, hi)
    } else {
        table.range(lo, hi)
    };
    let mut rows = Vec::new();
    while let Some((key, value)) = cursor.next() {
        rows.push((key.to_vec(), value.to_vec()));
        assert_eq!(*cursor.value(), *rows[rows.len() - 1].1);
    }
    assert!(cursor.next().is_none());
    rows
}

fn check_range(table: &Table, model: &Model, lo: Bound<&[u8]>, hi: Bound<&[u8]>) {
    let mut expected: Vec<_> = model
        .iter()
        .filter(|(key, _)| inside(lo, hi, key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    assert_eq!(
        table.count(lo, hi),
        expected.len() as u64,
        "count {lo:?} {hi:?}"
    );
    assert!(
        rows(table, lo, hi, false) == expected,
        "range {lo:?} {hi:?}"
    );
    expected.reverse();
    assert!(
        rows(table, lo, hi, true) == expected,
        "range_rev {lo:?} {hi:?}"
    );
}

/// Returns the ends of a range: keys, prefixes of keys, and the successors of prefixes.
fn ends(random: &mut Random, keys: Keys, clock: &mut u64) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut lo = key(random, keys, clock);
    let mut hi = key(random, keys, clock);
    match random.below(4) {
        0 => {
            let cut = random.below(lo.len() as u64 + 1) as usize;
            lo.truncate(cut);
            hi = lo.clone();
            if let Some(last) = hi.last_mut() {
                *last = last.saturating_add(1);
            }
        }
        1 => {
            let cut = lo.iter().rposition(|&b| b == b'|').map_or(0, |at| at + 1);
            lo.truncate(cut);
            hi = lo.clone();
            hi.push(0xff);
        }
        _ if lo > hi && random.below(8) > 0 => std::mem::swap(&mut lo, &mut hi),
        _ => {}
    }
    (bound(random, &lo).0, bound(random, &hi).0)
}

fn run(seed: u64, split: Split, keys: Keys, steps: usize) {
    let mut random = Random(seed);
    let mut clock = 0;
    let mut table = Table::with_seed(split, seed);
    let empty = table.memory_bytes();
    let file = (random.below(3) == 0).then(|| {
        let file =
            ValueFile::create(&std::env::temp_dir()).expect("the folder for temporary files");
        table.keep_on_disk(ValuesOnDisk {
            file: file.clone(),
            min_bytes: [0, 100, 513][random.below(3) as usize],
        });
        file
    });
    let mut model = Model::new();
    let mut ids: Vec<(GroupId, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        // The number of rows grows for a while, then shrinks for a while.
        let growing = step / 400 % 3 != 2;
        match random.below(if growing { 10 } else { 20 }) {
            0..=4 => {
                let (key, value) = (key(&mut random, keys, &mut clock), value(&mut random));
                let before = model.insert(key.clone(), value.clone());
                let expected = if before.is_none() {
                    Put::New
                } else {
                    Put::Replaced
                };
                let mut seen = None;
                let put = if random.below(2) == 0 {
                    table.put_with(&key, &value, |old| seen = Some(old.map(<[u8]>::to_vec)))
                } else {
                    table.put_shared_with(&key, &Value::new(&value), |old| {
                        seen = Some(old.map(<[u8]>::to_vec))
                    })
                };
                assert_eq!((put, seen), (expected, Some(before)));
                if let (Some(id), Some(len)) = (table.group(&key), full_group_len(split, &key)) {
                    ids.push((id, key[..len].to_vec()));
                }
            }
            5 if !ids.is_empty() => {
                let at = random.below(ids.len() as u64) as usize;
                let (id, prefix) = ids[at].clone();
                table.prefetch(id);
                table.prefetch_leaf(id);
                table.prefetch_end(id);
                let (key, value) = (key(&mut random, keys, &mut clock), value(&mut random));
                let suffix = &key[full_group_len(split, &key).unwrap_or(0)..];
                let row = [&prefix[..], suffix].concat();
                let living = model.keys().any(|key| key.starts_with(&prefix));
                check_group(&table, &model, id, &prefix, suffix);
                match table.put_in(id, suffix, &value) {
                    Some(put) => {
                        assert!(living, "a group without rows is gone");
                        assert_eq!(put == Put::New, model.insert(row, value).is_none());
                    }
                    None => drop(ids.swap_remove(at)),
                }
            }
            6 => {
                let (lo, hi) = ends(&mut random, keys, &mut clock);
                check_range(&table, &model, as_ref(&lo), as_ref(&hi));
            }
            7 => {
                let key = key(&mut random, keys, &mut clock);
                if let Some(value) = model.get_mut(&key) {
                    let changed = table.edit(&key, |bytes| {
                        assert!(bytes == &value[..]);
                        bytes.iter_mut().for_each(|byte| *byte = !*byte);
                    });
                    assert!(changed.is_some() || value.len() > 16);
                    if changed.is_some() {
                        value.iter_mut().for_each(|byte| *byte = !*byte);
                    }
                } else {
                    assert_eq!(table.edit(&key, |_| ()), None);
                }
                assert_eq!(table.get(&key), model.get(&key).map(Vec::as_slice));
                assert_eq!(
                    table.share(&key).as_deref(),
                    model.get(&key).map(Vec::as_slice)
                );
                assert_eq!(
                    table.value(&key).as_deref(),
                    model.get(&key).map(Vec::as_slice)
                );
            }
            8 if random.below(20) == 0 => {
                let (lo, hi) = ends(&mut random, keys, &mut clock);
                let (lo, hi) = (as_ref(&lo), as_ref(&hi));
                let mut shown = Vec::new();
                let removed = table.remove_range(lo, hi, |key, value| {
                    shown.push((key.to_vec(), value.to_vec()))
                });
                let gone: Vec<_> = model.extract_if(.., |key, _| inside(lo, hi, key)).collect();
                assert_eq!(removed, gone.len() as u64);
                assert!(shown == gone);
            }
            9 if random.below(2000) == 0 => {
                table.clear();
                model.clear();
            }
            _ => {
                // Mostly an existing key.
                let mut key = key(&mut random, keys, &mut clock);
                if let Some((found, _)) = model.range(key.clone()..).next() {
                    key = found.clone();
                }
                if random.below(2) == 0 {
                    assert_eq!(
                        table.remove(&key).map(|value| value.to_vec()),
                        model.remove(&key)
                    );
                } else {
                    let mut seen = None;
                    table.remove_with(&key, |old| seen = Some(old.to_vec()));
                    assert_eq!(seen, model.remove(&key));
                }
            }
        }
        assert_eq!(table.len(), model.len() as u64, "step {step}");
    }
    check_range(&table, &model, Bound::Unbounded, Bound::Unbounded);
    for (key, value) in &model {
        assert_eq!(table.get(key), Some(value.as_slice()));
    }
    // Includes absent keys, some without a group.
    let longer: Vec<Vec<u8>> = model.keys().map(|key| [key, &b"x"[..]].concat()).collect();
    let keys: Vec<&[u8]> = model.keys().chain(&longer).map(Vec::as_slice).collect();
    let mut next = 0;
    table.get_each(&keys, &mut |at, value| {
        assert_eq!((at, value), (next, model.get(keys[at]).map(Vec::as_slice)));
        next += 1;
    });
    assert_eq!(next, keys.len());
    for key in model.keys() {
        assert!(table.remove(key).is_some());
    }
    assert_eq!(table.memory_bytes(), empty);
    if let Some(file) = file {
        assert_eq!(file.bytes().0, 0, "all cells are freed");
    }
}

/// Checks the rows of one group from a suffix on, and from there to another.
fn check_group(table: &Table, model: &Model, id: GroupId, prefix: &[u8], from: &[u8]) {
    let in_group = |key: &&Vec<u8>| key.starts_with(prefix) && key[prefix.len()..] >= *from;
    let expected: Vec<_> = model.keys().filter(in_group).collect();
    if table.group(prefix) != Some(id) {
        // A new group may have this prefix by now.
        assert!(table.range_in(id, from, None, false).is_none());
        return;
    }
    let found = table.group_from(&[prefix, from].concat());
    assert!(expected.is_empty() || found == Some(id));
    let end = expected
        .get(expected.len() / 2)
        .map(|key| &key[prefix.len()..]);
    for to in [None, end] {
        let mut expected = expected.clone();
        expected.retain(|key| to.is_none_or(|to| key[prefix.len()..] < *to));
        for reverse in [false, true] {
            let Some(mut rows) = table.range_in(id, from, to, reverse) else {
                assert!(expected.is_empty());
                continue;
            };
            for key in &expected {
                let (found, value) = rows.next().expect("the model has one more");
                assert!(found == **key && *value == *model[*key]);
                assert_eq!(rows.current().map(|(key, _)| key), Some(&key[..]));
            }
            assert!(rows.next().is_none() && rows.current().is_none());
            expected.reverse();
        }
    }
}

fn full_group_len(split: Split, key: &[u8]) -> Option<usize> {
    match split {
        Split::None => Some(0),
        Split::Bytes(n) => (key.len() >= n).then_some(n),
        Split::Columns(n) => key
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'|' || **b == b':')
            .map(|(at, _)| at + 1)
            .nth(n),
    }
}

fn run_all(keys: Keys, steps: usize) {
    let times = if std::env::var_os("LARDER_SLOW_TESTS").is_some() {
        40
    } else {
        2
    };
    for split in [
        Split::None,
        Split::Columns(0),
        Split::Columns(1),
        Split::Columns(2),
        Split::Bytes(0),
        Split::Bytes(3),
    ] {
        for seed in 1..=times {
            eprintln!("{keys:?} {split:?} seed {seed}");
            run(seed * 7919, split, keys, steps);
        }
    }
}

#[test]
fn short_keys_of_hostile_bytes_agree_with_a_btreemap() {
    run_all(Keys::Short, 6000);
}

#[test]
fn timelines_agree_with_a_btreemap() {
    run_all(Keys::Timeline, 6000);
}

#[test]
fn long_keys_with_long_prefixes_agree_with_a_btreemap() {
    run_all(Keys::Long, 3000);
}

#[test]
fn keys_in_random_order_agree_with_a_btreemap() {
    run_all(Keys::Wide, 10_000);
}

/// Enough rows for three levels of pages, inserted and removed in every order.
#[test]
fn large_groups_agree_with_a_btreemap() {
    for order in 0..4 {
        let mut random = Random(31 + order);
        let mut table = Table::new(Split::Columns(0));
        let empty = table.memory_bytes();
        let mut keys: Vec<Vec<u8>> = (0..40_000u32)
            .map(|n| format!("t|{n:012}|{:08}", n % 77).into_bytes())
            .collect();
        let value = |key: &[u8]| key[key.len() - 20..].repeat(8);
        arrange(&mut keys, order, &mut random);
        let mut model = Model::new();
        for key in &keys {
            table.put(key, &value(key));
            model.insert(key.clone(), value(key));
        }
        arrange(&mut keys, random.below(4), &mut random);
        for key in &keys[..30_000] {
            assert!(table.remove(key).is_some());
            model.remove(key);
        }
        check_range(&table, &model, Bound::Unbounded, Bound::Unbounded);
        for _ in 0..50 {
            let lo = keys[random.below(40_000) as usize].clone();
            let hi = keys[random.below(40_000) as usize].clone();
            check_range(&table, &model, Bound::Included(&lo), Bound::Excluded(&hi));
        }
        assert_eq!(
            table.remove_range(Bound::Unbounded, Bound::Unbounded, |_, _| ()),
            10_000
        );
        assert_eq!(table.memory_bytes(), empty);
    }
}

fn arrange(keys: &mut [Vec<u8>], order: u64, random: &mut Random) {
    keys.sort();
    match order {
        0 => {}
        1 => keys.reverse(),
        _ => (1..keys.len())
            .rev()
            .for_each(|at| keys.swap(at, random.below(at as u64 + 1) as usize)),
    }
}

#[test]
fn a_value_of_many_megabytes_is_stored_out_of_line() {
    let mut table = Table::new(Split::Columns(1));
    let empty = table.memory_bytes();
    let value: Vec<u8> = (0..64 << 20).map(|n: u32| (n % 251) as u8).collect();
    table.put(b"big|a|1", &value);
    assert!(table.get(b"big|a|1") == Some(&value[..]));
    assert!(table.memory_bytes() - empty < value.len() + 1000);
    let kept = table.value(b"big|a|1").expect("it is there");
    assert!(table.remove(b"big|a|1").is_some());
    assert_eq!(table.memory_bytes(), empty + value.len() + 16);
    drop(kept);
    assert_eq!(table.memory_bytes(), empty);
}

#[test]
fn a_group_id_is_invalid_after_its_last_row_is_removed() {
    let mut table = Table::new(Split::Columns(1));
    table.put(b"t|ann|1", b"");
    let ann = table.group(b"t|ann|").expect("it has a row");
    assert_eq!(table.put_in(ann, b"2", b""), Some(Put::New));
    table.remove_range(Bound::Unbounded, Bound::Unbounded, |_, _| ());
    table.put(b"t|bob|1", b"");
    assert_eq!(table.put_in(ann, b"3", b""), None);
    assert_eq!(table.group(b"t|bob"), None);
    assert_eq!(table.len(), 1);
}
