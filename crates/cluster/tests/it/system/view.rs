//! Maps as read from the service; each text is decoded once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::map::{Map, SlotRange};

thread_local! {
    static READ: RefCell<BTreeMap<Vec<u8>, Arc<Map>>> = RefCell::default();
}

pub fn read_map(text: &[u8]) -> Arc<Map> {
    READ.with_borrow_mut(|read| {
        if let Some(map) = read.get(text) {
            return map.clone();
        }
        if read.len() > 300 {
            read.clear();
        }
        let map = Map::from_text(std::str::from_utf8(text).expect("text")).expect("a map");
        let map = Arc::new(map);
        read.insert(text.to_vec(), map.clone());
        map
    })
}

/// Returns a range without some slots.
pub fn without(range: SlotRange, slots: &[u16]) -> Vec<SlotRange> {
    let (mut rest, mut from) = (Vec::new(), u32::from(range.from));
    let inside = slots.iter().filter(|slot| range.contains(**slot));
    for slot in inside.copied().chain([range.to.saturating_add(1)]) {
        if u32::from(slot) > from {
            rest.push(SlotRange::new(from as u16, slot - 1));
        }
        from = u32::from(slot) + 1;
    }
    rest
}

#[test]
fn subtraction_of_ranges() {
    let all = |from, to, slots: &[u16]| {
        let rest = without(SlotRange::new(from, to), slots);
        rest.iter().map(|it| (it.from, it.to)).collect::<Vec<_>>()
    };
    assert_eq!(all(0, 16_383, &[]), [(0, 16_383)]);
    assert_eq!(all(0, 9, &[0, 5, 9, 12]), [(1, 4), (6, 8)]);
    assert_eq!(all(3, 3, &[3]), []);
}
