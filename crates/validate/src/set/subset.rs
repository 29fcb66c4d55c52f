//! Which of a few random keys come to a given one: Gaussian elimination over GF(2).

/// Keys beyond which they cannot be independent.
pub const KEYS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// The one: bit i is key i.
    Is(u128),
    None,
    /// Too many keys, or dependent ones.
    Undecided,
}

/// The subset of `count` of the keys that comes to `target`.
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
    // Each row has a highest bit that no other row has set, and beside it the keys it is made of.
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
        // Another subset with the same keys may have that many.
        false if dependent => Subset::Undecided,
        false => Subset::None,
    }
}

/// Rows in the order they were found: each is already reduced by those before it.
fn reduce(rows: &[(u128, u128)], mut left: u128, mut made_of: u128) -> (u128, u128) {
    for (row, parts) in rows {
        if left >> row.ilog2() & 1 == 1 {
            left ^= row;
            made_of ^= parts;
        }
    }
    (left, made_of)
}
