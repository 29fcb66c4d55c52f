//! Finds the subset of random keys with a given exclusive or: Gaussian elimination over GF(2).

/// Maximum number of keys that can be independent.
pub const KEYS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// The unique subset: bit i represents key i.
    Is(u128),
    None,
    /// Too many keys, or dependent keys.
    Undecided,
}

/// Returns the subset of `count` keys whose exclusive or is `target`.
pub fn subset(keys: &[u128], target: u128, count: u32) -> Subset {
    match *keys {
        [] if target == 0 && count == 0 => return Subset::Is(0),
        [] => return Subset::None,
        [only] if target == 0 => return fits(0, count, only == 0),
        [only] if target == only => return fits(1, count, false),
        [_] => return Subset::None,
        _ if keys.len() > KEYS_MAX => return Subset::Undecided,
        _ => {}
    }
    // The highest bit of each row is set in no other row; the second number is the set of keys of which the row
    // consists.
    let mut rows: Vec<(u128, u128)> = Vec::with_capacity(keys.len());
    let mut dependent = false;
    for (index, key) in keys.iter().enumerate() {
        let (left, made_of) = reduce(&rows, *key, 1 << index);
        match left {
            0 => dependent = true,
            _ => rows.push((left, made_of)),
        }
    }
    match reduce(&rows, target, 0) {
        (0, chosen) => fits(chosen, count, dependent),
        _ => Subset::None,
    }
}

fn fits(chosen: u128, count: u32, dependent: bool) -> Subset {
    match chosen.count_ones() == count {
        true => Subset::Is(chosen),
        // Another subset with the same exclusive or may have that many keys.
        false if dependent => Subset::Undecided,
        false => Subset::None,
    }
}

/// Reduces a key by the rows in the order in which they were found: each is already reduced by those before it.
fn reduce(rows: &[(u128, u128)], mut left: u128, mut made_of: u128) -> (u128, u128) {
    for (row, parts) in rows {
        if left >> row.ilog2() & 1 == 1 {
            left ^= row;
            made_of ^= parts;
        }
    }
    (left, made_of)
}
