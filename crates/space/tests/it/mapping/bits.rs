//! The allocation of bits to attributes. The first tests cover HyperDex's bugs.

use larder_space::mapping::{BitsError, allocate_bits};

fn even(regions: u32, attributes: usize) -> Vec<u8> {
    allocate_bits(regions, &vec![None; attributes], |_| None).expect("a power of two")
}

/// HyperDex created 289, 343, 625, 1,024 and 729 regions instead of 256 over 2, 3, 4, 5 and 6 attributes; 81, 81, 243
/// and 486 instead of 64. Instead of 8 over three it created 12, and over four or more 2, so six of eight servers were
/// idle.
#[test]
fn the_regions_are_as_many_as_asked_for_whatever_the_attributes() {
    for regions in [1, 2, 8, 64, 256, 16_384] {
        for attributes in 1..=6 {
            let product: u32 = even(regions, attributes)
                .iter()
                .map(|bits| 1 << bits)
                .product();
            assert_eq!(product, regions, "{attributes} attributes");
        }
    }
    assert_eq!(even(256, 2), [4, 4]);
    assert_eq!(even(256, 3), [3, 3, 2]);
    assert_eq!(even(8, 4), [1, 1, 1, 0]);
}

#[test]
fn what_is_asked_for_is_kept_and_the_rest_shared() {
    let bits = allocate_bits(256, &[None, Some(5), None], |_| None);
    assert_eq!(bits, Ok(vec![2, 5, 1]));
    assert_eq!(
        allocate_bits(256, &[Some(3), Some(2)], |_| None),
        Ok(vec![3, 2])
    );
}

#[test]
fn an_attribute_of_few_values_gets_no_cells_that_nothing_is_in() {
    let values = |at: usize| [Some(6), None][at];
    assert_eq!(allocate_bits(256, &[None, None], values), Ok(vec![3, 5]));
    assert_eq!(allocate_bits(256, &[None], |_| Some(6)), Ok(vec![3]));
    assert_eq!(allocate_bits(256, &[None], |_| Some(1)), Ok(vec![0]));
    assert_eq!(allocate_bits(256, &[None], |_| Some(0)), Ok(vec![0]));
    assert_eq!(
        allocate_bits(256, &[Some(5)], |_| Some(6)),
        Ok(vec![5]),
        "who asks has it"
    );
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    for regions in [0, 3, 100, 32_768] {
        let refused = allocate_bits(regions, &[None], |_| None);
        assert_eq!(refused, Err(BitsError::Regions(regions)));
    }
    let refused = allocate_bits(16, &[Some(3), Some(2)], |_| None).expect_err("5 bits of 4");
    assert_eq!(
        refused.to_string(),
        "the attributes ask for 5 bits, 4 are what the regions allow; ask for fewer bits or for more regions"
    );
}
