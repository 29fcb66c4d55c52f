//! The allocation of bits to attributes. The first tests cover HyperDex's bugs.

use larder_space::mapping::{BitsError, allocate_bits};

fn even(regions: u32, attributes: usize) -> Vec<u8> {
    allocate_bits(regions, &vec![None; attributes], |_| None).expect("a power of two")
}

/// HyperDex created 289, 343, 625, 1,024 and 729 regions instead of 256 over 2, 3, 4, 5 and 6 attributes; 81, 81, 243
/// and 486 instead of 64. Instead of 8 over three it created 12, and over four or more 2, so six of eight servers were
/// idle.
#[test]
fn the_number_of_regions_is_exact_for_any_number_of_attributes() {
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
fn requested_bits_are_kept_and_the_rest_is_shared() {
    let bits = allocate_bits(256, &[None, Some(5), None], |_| None);
    assert_eq!(bits, Ok(vec![2, 5, 1]));
    assert_eq!(
        allocate_bits(256, &[Some(3), Some(2)], |_| None),
        Ok(vec![3, 2])
    );
}

#[test]
fn an_attribute_with_few_values_gets_no_empty_cells() {
    let values = |at: usize| [Some(6), None][at];
    assert_eq!(allocate_bits(256, &[None, None], values), Ok(vec![3, 5]));
    assert_eq!(allocate_bits(256, &[None], |_| Some(6)), Ok(vec![3]));
    assert_eq!(allocate_bits(256, &[None], |_| Some(1)), Ok(vec![0]));
    assert_eq!(allocate_bits(256, &[None], |_| Some(0)), Ok(vec![0]));
    assert_eq!(
        allocate_bits(256, &[Some(5)], |_| Some(6)),
        Ok(vec![5]),
        "a requested allocation is kept"
    );
}

#[test]
fn impossible_requests_are_rejected_with_a_message() {
    for regions in [0, 3, 100, 32_768] {
        let refused = allocate_bits(regions, &[None], |_| None);
        assert_eq!(refused, Err(BitsError::Regions(regions)));
    }
    let refused = allocate_bits(16, &[Some(3), Some(2)], |_| None).expect_err("5 bits of 4");
    assert_eq!(
        refused.to_string(),
        "the attributes request 5 bits, but the regions allow 4: request fewer bits or more regions"
    );
}
