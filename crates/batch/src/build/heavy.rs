//! Handles the rows of one hash that exceed the memory, usually because very many rows share one key.
//!
//! The rows are read in place, once to count them and once to emit the result. For `first`, `last` and `error` that
//! is one row, and their number is unlimited. For `collect` the size is known after the first pass, so an array that
//! exceeds the memory is rejected before it is allocated. Only one thread at a time runs this code, so its memory is
//! needed once.

use std::collections::BTreeMap;

use super::OnDuplicate;
use super::bucket::{Bucket, Duplicates, Emit, SortLimits, collect};
use super::spill::Spill;
use crate::error::Error;

/// Statistics of one key.
struct Tally {
    count: u64,
    value_bytes: u64,
    /// The `seq` of the key's first, second and last row.
    first: u64,
    second: u64,
    last: u64,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            count: 0,
            value_bytes: 0,
            first: u64::MAX,
            second: u64::MAX,
            last: 0,
        }
    }
}

impl Tally {
    fn add(&mut self, seq: u64, value_size: usize) {
        self.count += 1;
        self.value_bytes += value_size as u64;
        if seq < self.first {
            self.second = self.first;
            self.first = seq;
        } else {
            self.second = self.second.min(seq);
        }
        self.last = self.last.max(seq);
    }
}

/// Emits the records of one hash, in key order.
pub fn emit_hash(
    bucket: &Bucket,
    spill: &Spill,
    hash: u64,
    duplicates: Duplicates,
    room: SortLimits<'_>,
    emit: &mut Emit<'_>,
) -> Result<(), Error> {
    let _turn = room.heavy_key_lock.lock().expect("no thread panicked");
    // Few different keys share a hash.
    let mut keys: BTreeMap<Vec<u8>, Tally> = BTreeMap::new();
    bucket.each_row(spill, &mut |row, own| {
        if own != hash {
            return true;
        }
        match keys.get_mut(row.key) {
            Some(tally) => tally.add(row.seq, row.value.len()),
            None => {
                let mut tally = Tally::default();
                tally.add(row.seq, row.value.len());
                keys.insert(row.key.to_vec(), tally);
            }
        }
        true
    })?;
    for (key, tally) in &keys {
        let selected = match duplicates.policy {
            OnDuplicate::Collect => {
                let array = collect_key(bucket, spill, hash, (key.as_slice(), tally), duplicates)?;
                emit(hash, key, &array)?;
                continue;
            }
            OnDuplicate::Error if tally.count > 1 => {
                return Err(Error::DuplicateKey {
                    key: key.clone(),
                    rows: [tally.first, tally.second],
                });
            }
            OnDuplicate::Last => tally.last,
            OnDuplicate::Error | OnDuplicate::First => tally.first,
        };
        let mut value = Vec::new();
        bucket.each_row(spill, &mut |row, own| {
            let is_wanted = own == hash && row.seq == selected && row.key == key;
            if is_wanted {
                value.extend_from_slice(row.value);
            }
            !is_wanted
        })?;
        emit(hash, key, &value)?;
    }
    Ok(())
}

/// The position of a value among the gathered ones.
struct ValueSpan {
    seq: u64,
    begin: usize,
    size: usize,
}

fn collect_key(
    bucket: &Bucket,
    spill: &Spill,
    hash: u64,
    (key, tally): (&[u8], &Tally),
    duplicates: Duplicates,
) -> Result<Vec<u8>, Error> {
    let needed = tally.value_bytes + tally.count * size_of::<ValueSpan>() as u64;
    if needed > duplicates.collect_bytes_max {
        return Err(Error::KeyMemory {
            key: key.to_vec(),
            values: tally.count,
            needed_bytes: Some(needed),
            available_bytes: duplicates.collect_bytes_max,
        });
    }
    let mut values = Vec::with_capacity(tally.value_bytes as usize);
    let mut places = Vec::with_capacity(tally.count as usize);
    bucket.each_row(spill, &mut |row, own| {
        if own == hash && row.key == key {
            places.push(ValueSpan {
                seq: row.seq,
                begin: values.len(),
                size: row.value.len(),
            });
            values.extend_from_slice(row.value);
        }
        true
    })?;
    places.sort_unstable_by_key(|place| place.seq);
    let in_order = places
        .iter()
        .map(|place| &values[place.begin..place.begin + place.size]);
    collect(duplicates, key, in_order, places.len())
}
