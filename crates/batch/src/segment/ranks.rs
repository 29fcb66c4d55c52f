//! Maps a hash to the candidate records of its block, with one word per block.
//!
//! A block is an equal range of hashes. Its word divides that range into 32 equal *cells* and encodes the number of
//! records in each in unary: a one for each record, then a zero, starting at the lowest bit (the upper bits of
//! Elias-Fano coding). The records of a block are in hash order, so the ones before a cell's zero give the number of
//! its first record. A lookup therefore knows from memory alone the one or two records that can have its key, or that
//! there are none.
//!
//! ```text
//! bits 63, 62    the other bits
//! 0              32 cells, for blocks of up to 31 records
//! 1 0            16 cells, for up to 46
//! 1 1            the lowest 32 are the number of records, all of which are candidates
//! ```

/// The records of a block that can have a given hash: `count` records from `first` on, in the block's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidates {
    pub first: u32,
    pub count: u32,
}

const FINE_CELLS: u32 = 32;
const FINE_RECORDS_MAX: usize = 31;
const COARSE_CELLS: u32 = 16;
const COARSE_RECORDS_MAX: usize = 46;
const COARSE: u64 = 1 << 63;
const CROWDED: u64 = 3 << 62;

/// Returns the word of a block whose records are at these fractions of its range: see [`block_and_fraction`].
pub fn encode(fractions: &[u64]) -> u64 {
    let count = fractions.len();
    if count <= FINE_RECORDS_MAX {
        unary(fractions, FINE_CELLS)
    } else if count <= COARSE_RECORDS_MAX {
        COARSE | unary(fractions, COARSE_CELLS)
    } else {
        CROWDED | count as u64
    }
}

fn unary(fractions: &[u64], cells: u32) -> u64 {
    // A record's one comes after those of the previous records and the zeros of the previous cells.
    let shift = 64 - cells.trailing_zeros();
    let at = |(number, fraction): (usize, &u64)| number as u64 + (fraction >> shift);
    let places = fractions.iter().enumerate().map(at);
    places.fold(0, |word, place| word | 1 << place)
}

/// Returns which of `block_count` equal ranges contains a hash, and the position within the range as a fraction of
/// 2^64.
#[inline(always)]
pub fn block_and_fraction(hash: u64, block_count: u64) -> (u64, u64) {
    let product = u128::from(hash) * u128::from(block_count);
    ((product >> 64) as u64, product as u64)
}

/// Returns the number of records in a block.
#[inline(always)]
pub fn count(word: u64) -> u64 {
    if is_crowded(word) {
        word & u64::from(u32::MAX)
    } else {
        count_plain(word)
    }
}

/// Like [`count`], for a block that is not crowded.
#[inline(always)]
pub fn count_plain(word: u64) -> u64 {
    u64::from((word & !COARSE).count_ones())
}

/// Returns whether the word holds only a record count. Very few blocks have so many records.
#[inline(always)]
pub fn is_crowded(word: u64) -> bool {
    (word & (word << 1)) >> 63 != 0
}

/// Returns the candidate records at `fraction`. Fine and coarse cells are handled without a branch: a tenth of all
/// directory lines have a block of the rarer kind, and a processor cannot predict which.
#[inline(always)]
pub fn candidates(word: u64, fraction: u64, select: impl Fn(u64, u32) -> u32) -> Candidates {
    if is_crowded(word) {
        return Candidates {
            first: 0,
            count: word as u32,
        };
    }
    let is_coarse = word >> 63;
    let cell = fraction >> (64 - u64::from(FINE_CELLS.trailing_zeros()) + is_coarse);
    let unary = word & !COARSE;
    // With a zero before the first cell, each cell lies between two zeros.
    let zeros = !(unary << 1);
    let before = select(zeros, cell as u32);
    let ones = (zeros >> before >> 1).trailing_zeros();
    Candidates {
        first: before - cell as u32,
        count: ones,
    }
}

/// Returns whether [`encode`] can produce this word.
pub fn is_possible(word: u64) -> bool {
    let unary_bits = match word & CROWDED {
        CROWDED => {
            return (word << 2 >> 2) <= u64::from(u32::MAX)
                && count(word) > COARSE_RECORDS_MAX as u64;
        }
        COARSE if count(word) > FINE_RECORDS_MAX as u64 => COARSE_CELLS,
        COARSE => return false,
        _ => FINE_CELLS,
    };
    let used = count(word) as u32 + unary_bits;
    used < 64 && (word & !COARSE) >> (used - 1) == 0
}

/// Returns the position of the `number`-th one in a word, counting from 0.
#[inline(always)]
pub fn select_portable(word: u64, number: u32) -> u32 {
    let mut word = word;
    for _ in 0..number {
        word &= word.wrapping_sub(1);
    }
    word.trailing_zeros()
}

/// Like [`select_portable`], on processors with BMI2.
///
/// # Safety
/// The processor must have BMI2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "bmi1,bmi2")]
pub fn select_bmi2(word: u64, number: u32) -> u32 {
    std::arch::x86_64::_pdep_u64(1 << number, word).trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(fractions: &[u64]) {
        let word = encode(fractions);
        assert!(is_possible(word), "{word:x}");
        assert_eq!(count(word), fractions.len() as u64);
        for (number, fraction) in fractions.iter().enumerate() {
            let found = candidates(word, *fraction, select_portable);
            let range = found.first..found.first + found.count;
            assert!(
                range.contains(&(number as u32)),
                "{number} of {fractions:x?}"
            );
            assert!(range.end as usize <= fractions.len());
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("bmi2") {
                // SAFETY: the feature was detected above.
                let fast = |word, number| unsafe { select_bmi2(word, number) };
                assert_eq!(candidates(word, *fraction, fast), found);
            }
        }
        for cell in 0..64u64 {
            let found = candidates(word, cell << 58, select_portable);
            assert!((found.first + found.count) as usize <= fractions.len());
        }
    }

    #[test]
    fn every_record_is_among_its_candidates() {
        let mut random = larder_types::Random::new(5);
        for count in 0..60 {
            for spread in [1, 64, u64::MAX] {
                let mut fractions: Vec<u64> = (0..count).map(|_| random.word() % spread).collect();
                fractions.sort_unstable();
                check(&fractions);
                fractions.iter_mut().for_each(|it| *it = u64::MAX - *it);
                fractions.reverse();
                check(&fractions);
            }
        }
    }

    #[test]
    fn a_record_alone_in_its_cell_is_the_only_candidate() {
        let fractions: Vec<u64> = (0..31).map(|cell| cell << 59).collect();
        let word = encode(&fractions);
        for (number, fraction) in (0..).zip(&fractions) {
            let alone = Candidates {
                first: number,
                count: 1,
            };
            assert_eq!(candidates(word, *fraction, select_portable), alone);
        }
        assert_eq!(candidates(word, 31 << 59, select_portable).count, 0);
    }

    #[test]
    fn invalid_words_are_rejected() {
        for word in [
            COARSE,
            COARSE | 1,
            CROWDED,
            CROWDED | 46,
            CROWDED | 1 << 40,
            1 << 32,
            u64::MAX >> 1,
        ] {
            assert!(!is_possible(word), "{word:x}");
        }
    }
}
