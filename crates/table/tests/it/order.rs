//! Keys sort in the order of `<[u8]>::cmp`, for every split and arbitrary bytes.

use std::ops::Bound;

use larder_table::{Split, Table};
use larder_types::KEY_BYTES_MAX;
use proptest::collection::vec;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        Just(0),
        Just(0xff),
        Just(b'|'),
        Just(b':'),
        Just(b'}'),
        Just(b'a'),
        any::<u8>()
    ];
    vec(byte, 0..12)
}

fn split() -> impl Strategy<Value = Split> {
    prop_oneof![
        Just(Split::None),
        (0..4usize).prop_map(Split::Columns),
        (0..6usize).prop_map(Split::Bytes)
    ]
}

proptest! {
    #[test]
    fn rows_stand_in_the_order_of_their_keys(split in split(), keys in vec(bytes(), 0..60), lo in bytes(), hi in bytes()) {
        let mut table = Table::new(split);
        for key in &keys {
            table.put(key, key);
        }
        let mut expected: Vec<_> = keys.iter().filter(|key| **key >= lo && **key < hi).collect();
        expected.sort();
        expected.dedup();
        let mut rows = table.range(Bound::Included(&lo), Bound::Excluded(&hi));
        for &key in &expected {
            prop_assert_eq!(rows.next(), Some((&key[..], &key[..])));
        }
        prop_assert_eq!(rows.next(), None);
        prop_assert_eq!(table.count(Bound::Included(&lo), Bound::Excluded(&hi)), expected.len() as u64);
        let mut rows = table.range_rev(Bound::Included(&lo), Bound::Excluded(&hi));
        for &key in expected.iter().rev() {
            prop_assert_eq!(rows.next(), Some((&key[..], &key[..])));
        }
        prop_assert_eq!(rows.next(), None);
    }
}

#[test]
fn the_longest_keys_differ_by_their_last_byte() {
    for split in [
        Split::None,
        Split::Columns(1),
        Split::Bytes(KEY_BYTES_MAX - 1),
        Split::Bytes(KEY_BYTES_MAX),
    ] {
        let mut table = Table::new(split);
        let empty = table.memory_bytes();
        let mut key = vec![b'|'; KEY_BYTES_MAX];
        for last in 0..=255 {
            key[KEY_BYTES_MAX - 1] = last;
            table.put(&key, &[last]);
        }
        let mut rows = table.range(Bound::Unbounded, Bound::Unbounded);
        for last in 0..=255 {
            let (key, value) = rows.next().expect("it was put");
            assert_eq!(
                (key.len(), key[KEY_BYTES_MAX - 1], value),
                (KEY_BYTES_MAX, last, &[last][..])
            );
        }
        table.remove_range(Bound::Unbounded, Bound::Unbounded, |_, _| ());
        assert_eq!(table.memory_bytes(), empty);
    }
}
