//! The compared maps.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;

use larder_table::{Split, Table};

/// The length of a key's group, `tline|uuuuuuuu|`.
pub const GROUP: usize = 15;

pub trait Map {
    const NAME: &'static str;
    fn new() -> Self;
    fn put(&mut self, key: &[u8], value: &[u8]);
    fn get(&self, key: &[u8]) -> Option<&[u8]>;
    /// Appends up to `limit` rows of the key's group, starting with `lo`, to `out`. Returns their number.
    fn range(&self, lo: &[u8], limit: usize, out: &mut Vec<u8>) -> usize;
}

/// Returns the smallest key after all keys of a group.
fn end(lo: &[u8]) -> [u8; GROUP] {
    let mut end: [u8; GROUP] = lo[..GROUP].try_into().expect("a key has a group");
    end[GROUP - 1] += 1;
    end
}

impl Map for Table {
    const NAME: &'static str = "larder";

    fn new() -> Self {
        Table::new(Split::Columns(1))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        Table::put(self, key, value);
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        Table::get(self, key)
    }

    fn range(&self, lo: &[u8], limit: usize, out: &mut Vec<u8>) -> usize {
        let end = end(lo);
        let mut rows = Table::range(self, Bound::Included(lo), Bound::Excluded(&end));
        let mut count = 0;
        while count < limit
            && let Some((key, value)) = rows.next()
        {
            out.extend_from_slice(key);
            out.extend_from_slice(value);
            count += 1;
        }
        count
    }
}

/// larder's table, without a division into groups.
pub struct OneGroup(Table);

impl Map for OneGroup {
    const NAME: &'static str = "larder, not split";

    fn new() -> Self {
        OneGroup(Table::new(Split::None))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.put(key, value);
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key)
    }

    fn range(&self, lo: &[u8], limit: usize, out: &mut Vec<u8>) -> usize {
        Map::range(&self.0, lo, limit, out)
    }
}

impl Map for BTreeMap<Vec<u8>, Vec<u8>> {
    const NAME: &'static str = "BTreeMap";

    fn new() -> Self {
        BTreeMap::new()
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.insert(key.to_vec(), value.to_vec());
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        BTreeMap::get(self, key).map(Vec::as_slice)
    }

    fn range(&self, lo: &[u8], limit: usize, out: &mut Vec<u8>) -> usize {
        let end = end(lo);
        let rows =
            BTreeMap::range::<[u8], _>(self, (Bound::Included(lo), Bound::Excluded(&end[..])));
        copy(rows, limit, &[], out)
    }
}

/// A B-tree of suffixes for each group, in a hash map with a fast hash.
pub struct HashOfTrees(HashMap<Vec<u8>, Tree, BuildHasherDefault<FastHasher>>);

type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

impl Map for HashOfTrees {
    const NAME: &'static str = "hash of BTreeMaps";

    fn new() -> Self {
        HashOfTrees(HashMap::default())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let (group, suffix) = key.split_at(GROUP);
        if let Some(rows) = self.0.get_mut(group) {
            rows.insert(suffix.to_vec(), value.to_vec());
        } else {
            self.0.insert(
                group.to_vec(),
                BTreeMap::from([(suffix.to_vec(), value.to_vec())]),
            );
        }
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let (group, suffix) = key.split_at(GROUP);
        self.0.get(group)?.get(suffix).map(Vec::as_slice)
    }

    fn range(&self, lo: &[u8], limit: usize, out: &mut Vec<u8>) -> usize {
        let (group, suffix) = lo.split_at(GROUP);
        let Some(rows) = self.0.get(group) else {
            return 0;
        };
        copy(
            rows.range::<[u8], _>((Bound::Included(suffix), Bound::Unbounded)),
            limit,
            group,
            out,
        )
    }
}

fn copy<'m>(
    rows: impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)>,
    limit: usize,
    group: &[u8],
    out: &mut Vec<u8>,
) -> usize {
    let mut count = 0;
    for (key, value) in rows.take(limit) {
        out.extend_from_slice(group);
        out.extend_from_slice(key);
        out.extend_from_slice(value);
        count += 1;
    }
    count
}

/// Multiplies eight bytes at a time. The standard hasher is slower, and would put this map at a disadvantage.
#[derive(Default)]
pub struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let product =
                u128::from(self.0 ^ u64::from_le_bytes(word)) * 0x9e37_79b9_7f4a_7c15_f39c;
            self.0 = product as u64 ^ (product >> 64) as u64;
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
