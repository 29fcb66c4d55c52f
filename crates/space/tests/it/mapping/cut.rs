//! The division of one dimension into cells.

use std::ops::Bound;

use larder_space::mapping::{CellValue, Cells, Constraint, Cut, CutError, Interval};
use larder_types::{Random, key_hash};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Zipf, bytes, cut_of, run};

fn cell(cut: &Cut, value: u32) -> Cells {
    cut.cells_of(CellValue::Ordered(&bytes(value)))
}

/// HyperDex divided numbers by their raw value: prices from 20 to 1,000 were all in one of 64 parts of all integers, on
/// one server of eight.
#[test]
fn real_prices_fill_all_cells_alike() {
    let prices: Vec<u32> = (0..64_000).map(|at| 20 + (at * 7919) % 981).collect();
    let cut = cut_of(6, &prices);
    let mut objects = [0u32; 64];
    for (at, &price) in (0u64..).zip(&prices) {
        objects[usize::from(cut.cell(CellValue::Ordered(&bytes(price)), at))] += 1;
    }
    assert!(objects.iter().all(|&count| (900..1150).contains(&count)));
}

#[test]
fn few_values_have_cells_of_their_own_and_hot_ones_several() {
    // Six classes of stars. More than half of the hotels have none.
    let weights = [5400u32, 200, 800, 1900, 1400, 300];
    let stars: Vec<u32> = (0..)
        .zip(weights)
        .flat_map(|(star, count)| std::iter::repeat_n(star, count as usize))
        .collect();
    let cut = cut_of(4, &stars);
    let cells: Vec<u32> = (0..6).map(|star| cell(&cut, star).count()).collect();
    assert_eq!(cells, [7, 1, 2, 3, 2, 1]);
    assert_eq!(cell(&cut, 0), run(0, 6));
    let mut seen = [0u32; 16];
    for key in 0..8000 {
        seen[usize::from(cut.cell(CellValue::Ordered(&bytes(0)), key))] += 1;
    }
    assert!(seen[..7].iter().all(|&count| (1000..1300).contains(&count)));
    assert_eq!(seen[7..], [0; 9]);
}

#[test]
fn zipf_values_are_balanced_beyond_the_sample() {
    let zipf = Zipf::new(20_000);
    let mut random = Random::new(7);
    let sample: Vec<u32> = (0..10_000).map(|_| zipf.draw(&mut random)).collect();
    for bits in [2, 5, 8] {
        let cut = cut_of(bits, &sample);
        let mut objects = vec![0u32; 1 << bits];
        let drawn = 200_000;
        for _ in 0..drawn {
            let value = bytes(zipf.draw(&mut random));
            objects[usize::from(cut.cell(CellValue::Ordered(&value), random.word()))] += 1;
        }
        let most = objects.iter().max().expect("there are cells");
        assert!(*most < (2 * drawn) >> bits, "{bits} bits: {most} in a cell");
    }
}

#[test]
fn unordered_values_can_be_cut_by_quantiles_of_their_hashes() {
    let hashes = |value: u32| key_hash(&bytes(value)).to_be_bytes();
    // Every third object has the same value.
    let sample: Vec<[u8; 8]> = (0..9000)
        .map(|at| hashes(if at % 3 == 0 { 0 } else { at }))
        .collect();
    let cut = Cut::by_quantiles(4, sample.iter().map(|it| &it[..])).expect("few bits");
    let hot = cut.cells_of(CellValue::Hash(key_hash(&bytes(0))));
    assert!((5..=6).contains(&hot.count()));
    assert_eq!(
        cut.cells_of(CellValue::Hash(key_hash(&bytes(1)))).count(),
        1
    );
}

#[test]
fn without_a_sample_a_cut_is_by_hash_and_a_range_contacts_all() {
    let cut = Cut::by_quantiles(3, []).expect("few bits");
    assert!(cut.is_by_hash());
    let range = Constraint::Range(Bound::Included(b"a"), Bound::Unbounded);
    assert_eq!(cut.contacts(&range).runs(), [run(0, 7)]);
    let one = Constraint::Range(Bound::Included(b"a"), Bound::Included(b"a"));
    assert_eq!(cut.contacts(&one).count(), 1);
    assert_eq!(
        Cut::by_hash(0)
            .expect("no bits")
            .cells_of(CellValue::Hash(u64::MAX)),
        run(0, 0)
    );
}

#[test]
fn bounds_are_no_longer_than_they_must_be() {
    let cut = Cut::by_quantiles(1, [&b"aaaaaaaa"[..], b"bbbbbbbb"]).expect("few bits");
    let bounds: Vec<&[u8]> = cut.intervals().iter().map(|it| &it.from[..]).collect();
    assert_eq!(bounds, [&b""[..], b"b"]);
}

#[test]
fn stored_intervals_are_validated() {
    let interval = |from: &[u8], first, last| Interval {
        from: from.into(),
        cells: Cells { first, last },
    };
    let cut = |intervals: &[Interval]| Cut::from_intervals(2, intervals.to_vec());
    assert!(cut(&[interval(b"", 0, 0), interval(b"k", 1, 3)]).is_ok());
    assert_eq!(cut(&[interval(b"a", 0, 0)]), Err(CutError::NotAscending(0)));
    assert_eq!(
        cut(&[interval(b"", 0, 0), interval(b"", 1, 1)]),
        Err(CutError::NotAscending(1))
    );
    assert_eq!(cut(&[interval(b"", 0, 4)]), Err(CutError::Cells(0)));
    assert_eq!(
        cut(&[interval(b"", 0, 2), interval(b"a", 1, 3)]),
        Err(CutError::Cells(1))
    );
    assert_eq!(Cut::by_hash(15), Err(CutError::TooManyBits(15)));
}

/// Few distinct strings, so that some are frequent, some equal a bound, and some are its direct successor.
fn value() -> impl Strategy<Value = Vec<u8>> {
    vec(
        prop_oneof![Just(0u8), Just(1u8), Just(b'a'), Just(0xff)],
        0..3,
    )
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        Just(Bound::Unbounded),
        value().prop_map(Bound::Included),
        value().prop_map(Bound::Excluded),
    ]
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|value| &value[..])
}

proptest! {
    #[test]
    fn equal_values_share_cells_and_cells_keep_the_order(
        bits in 0u8..6, sample in vec(value(), 0..60), mut values in vec(value(), 1..20),
    ) {
        let cut = Cut::by_quantiles(bits, sample.iter().map(|it| &it[..])).expect("few bits");
        values.sort();
        let cells: Vec<Cells> = values.iter().map(|it| cut.cells_of(CellValue::Ordered(it))).collect();
        for (value, cells) in values.iter().zip(&cells) {
            prop_assert!(u32::from(cells.last) < cut.cells());
            for key in 0..20 {
                let cell = cut.cell(CellValue::Ordered(value), key);
                prop_assert!((cells.first..=cells.last).contains(&cell));
            }
        }
        if !cut.is_by_hash() {
            prop_assert!(cells.windows(2).all(|it| it[0] == it[1] || it[0].last <= it[1].first));
            prop_assert_eq!(&Cut::from_intervals(bits, cut.intervals().to_vec()), &Ok(cut.clone()));
        }
    }

    #[test]
    fn a_range_contacts_the_cells_of_all_values_in_it(
        bits in 0u8..6, sample in vec(value(), 0..60), values in vec(value(), 1..40), low in bound(), high in bound(),
    ) {
        let cut = Cut::by_quantiles(bits, sample.iter().map(|it| &it[..])).expect("few bits");
        let range = (as_slice(&low), as_slice(&high));
        let cells = cut.contacts(&Constraint::Range(range.0, range.1));
        for value in &values {
            use std::ops::RangeBounds;
            if RangeBounds::<[u8]>::contains(&range, &value[..]) {
                let own = cut.cells_of(CellValue::Ordered(value));
                prop_assert!((own.first..=own.last).all(|cell| cells.contains(cell)));
            }
        }
    }
}
