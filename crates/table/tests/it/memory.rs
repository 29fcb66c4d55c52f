//! Compares a table's memory accounting with the allocator's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use larder_table::{Split, Table, Value};

use crate::oracle::Random;

/// Counts the bytes that this thread has allocated and not freed.
struct Counting;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated_since(before: isize) -> usize {
    (BYTES.get() - before) as usize
}

#[test]
fn memory_bytes_equals_the_allocators_count() {
    let splits = [
        Split::None,
        Split::Columns(1),
        Split::Columns(2),
        Split::Bytes(9),
    ];
    for split in splits {
        let before = BYTES.get();
        let mut random = Random(99);
        let mut table = Table::new(split);
        assert_eq!(table.memory_bytes(), allocated_since(before));
        for round in 0..30_000 {
            let time = if random.below(2) == 0 {
                round
            } else {
                random.below(round + 1)
            };
            let row = match random.below(100) {
                0 => format!("tline|{:08}|{:0600}", random.below(300), random.below(50)),
                1 => format!("tline|{}|{time}", "u".repeat(random.below(60) as usize)),
                _ => {
                    format!(
                        "tline|{:08}|{time:010}|{:08}",
                        random.below(300),
                        random.below(5)
                    )
                }
            };
            match random.below(8) {
                0 => drop(table.remove(row.as_bytes())),
                1 => drop(table.put_shared(row.as_bytes(), &Value::new(&[1; 100]))),
                2 => drop(table.share(row.as_bytes())),
                3 => drop(table.put(row.as_bytes(), &[2; 700])),
                _ => drop(table.put(row.as_bytes(), &[3; 20])),
            }
            drop(row);
            assert_eq!(
                table.memory_bytes(),
                allocated_since(before),
                "round {round} of {split:?}"
            );
        }
        table.clear();
        assert_eq!(table.memory_bytes(), allocated_since(before));
        assert_eq!(table.memory_bytes(), Table::new(split).memory_bytes());
        drop(table);
        assert_eq!(allocated_since(before), 0);
    }
}

#[test]
fn a_timeline_row_costs_about_24_bytes() {
    let mut table = Table::new(Split::Columns(1));
    let mut random = Random(5);
    for time in 0..200_000u64 {
        let key = format!(
            "tline|{:08}|{:010}|{:08}",
            random.below(1200),
            1_000_000_000 + time,
            random.below(5000)
        );
        table.put(key.as_bytes(), b"tweet");
    }
    let per_row = table.memory_bytes() as f64 / table.len() as f64;
    assert!(per_row < 27.0, "{per_row} bytes a row");
}

#[test]
fn a_group_of_one_row_costs_little() {
    let mut table = Table::new(Split::Columns(1));
    for user in 0..100_000 {
        table.put(format!("karma|{user:08}|x").as_bytes(), b"17");
    }
    let per_group = table.memory_bytes() / 100_000;
    assert!(per_group < 170, "{per_group} bytes a group");
}

#[test]
fn a_shared_value_is_stored_once() {
    let mut table = Table::new(Split::Columns(1));
    let value = Value::new(&[b'x'; 140]);
    for user in 0..1000 {
        for time in 0..20 {
            table.put_shared(format!("tline|{user:08}|{time:010}|bob").as_bytes(), &value);
        }
    }
    assert!(
        table.memory_bytes() / 20_000 < 40,
        "{}",
        table.memory_bytes() / 20_000
    );
}
