//! A sketch: one byte per row that approximates its value. Tests of a wide range or of a frequent tag scan these
//! contiguous bytes, 16 or more per instruction.
//!
//! For a number, the byte is the *block* of the value. Blocks are up to [`BLOCKS_MAX`] value ranges, in order, with
//! about equal numbers of rows. A block with many more rows than average is split, which scans all bytes. If there are
//! then too many blocks, the two neighbours with the fewest rows are merged. For a tag or a text, the byte is the
//! number of the value, as long as there are few values.
//!
//! 1. The byte of a row is the number of its block, or [`MISSING`] without a value, or [`OTHER`] if no code represents
//!    its value.
//! 2. The values of a block's rows are within the block's bounds, which may be wider.

use std::ops::{Range, RangeInclusive};

use super::codes::{self, Code};

/// The row's value has no code.
pub(in crate::index) const OTHER: u8 = <u8 as Code>::OTHER;
const MISSING: u8 = <u8 as Code>::MISSING;
const BLOCKS_MAX: usize = 250;
/// A range of bytes that no row has.
const NOTHING: RangeInclusive<u8> = BLOCKS_MAX as u8 + 2..=BLOCKS_MAX as u8 + 2;
/// The minimum number of rows for a split.
const ROWS_MIN: usize = 256;

/// The sketch of numbers.
#[derive(Debug, Default)]
pub(in crate::index) struct Blocks {
    bytes: Vec<u8>,
    /// The lower bound of each block but the first.
    cuts: Vec<u64>,
    blocks: Vec<Block>,
    /// The total of all blocks.
    rows: usize,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    low: u64,
    high: u64,
    rows: usize,
}

/// The bytes of values in a range. All rows with a byte in `sure` match. Rows with a byte only in `maybe` must be
/// tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::index) struct SketchRange {
    pub sure: RangeInclusive<u8>,
    pub maybe: RangeInclusive<u8>,
}

impl Block {
    const EMPTY: Block = Block {
        low: u64::MAX,
        high: 0,
        rows: 0,
    };

    fn add(&mut self, code: u64) {
        self.low = self.low.min(code);
        self.high = self.high.max(code);
        self.rows += 1;
    }

    fn with(self, other: Block) -> Block {
        Block {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            rows: self.rows + other.rows,
        }
    }
}

impl Blocks {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn grow(&mut self, rows: usize) {
        self.bytes.resize(rows.max(self.bytes.len()), MISSING);
    }

    /// Updates the byte of a row. `codes` contains the codes of all rows.
    pub fn set(&mut self, row: u32, codes: &[u64]) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.bytes[row as usize])) {
            block.rows -= 1;
            self.rows -= 1;
        }
        let code = codes[row as usize];
        if code >= codes::OTHER {
            let is_missing = code == <u64 as Code>::MISSING;
            self.bytes[row as usize] = if is_missing { MISSING } else { OTHER };
            return;
        }
        if self.blocks.is_empty() {
            self.blocks.push(Block::EMPTY);
        }
        let at = self.block_of(code);
        self.bytes[row as usize] = at as u8;
        self.rows += 1;
        let block = &mut self.blocks[at];
        block.add(code);
        // When the number of blocks is at its maximum, two neighbours together have fewer rows than this. Merged blocks
        // are therefore not split again immediately.
        let many = ROWS_MIN.max(3 * self.rows / BLOCKS_MAX);
        if block.rows > many && block.low < block.high {
            self.split(at, codes);
        }
    }

    fn block_of(&self, code: u64) -> usize {
        self.cuts.partition_point(|cut| *cut <= code)
    }

    fn split(&mut self, mut at: usize, codes: &[u64]) {
        if self.blocks.len() == BLOCKS_MAX {
            let joined = self.join();
            at -= usize::from(joined < at);
        }
        let byte = at as u8;
        let is_of_block = |(row, of): (usize, &u8)| (*of == byte).then_some(row);
        let rows: Vec<usize> = self
            .bytes
            .iter()
            .enumerate()
            .filter_map(is_of_block)
            .collect();
        let mut values: Vec<u64> = rows.iter().map(|row| codes[*row]).collect();
        let middle = values.len() / 2;
        let (below, cut, _) = values.select_nth_unstable(middle);
        let (mut cut, lowest) = (*cut, below.iter().copied().min());
        if lowest.is_none_or(|lowest| lowest == cut) {
            // Half of the rows have the lowest value, which becomes a block of its own.
            let lowest = cut;
            let above = values.iter().copied().filter(|value| *value > lowest);
            match above.min() {
                Some(next) => cut = next,
                None => {
                    // All rows have the same value, so the bounds were too wide.
                    (self.blocks[at].low, self.blocks[at].high) = (lowest, lowest);
                    return;
                }
            }
        }
        for of in &mut self.bytes {
            *of += u8::from((*of > byte) & (usize::from(*of) < BLOCKS_MAX));
        }
        let (mut lower, mut upper) = (Block::EMPTY, Block::EMPTY);
        for row in rows {
            if codes[row] < cut {
                lower.add(codes[row])
            } else {
                upper.add(codes[row]);
                self.bytes[row] = byte + 1;
            }
        }
        self.blocks[at] = lower;
        self.blocks.insert(at + 1, upper);
        self.cuts.insert(at, cut);
    }

    /// Merges the two neighbours with the fewest rows, and returns the index of the result.
    fn join(&mut self) -> usize {
        let pairs = self.blocks.windows(2).enumerate();
        let fewest = pairs.min_by_key(|(_, pair)| pair[0].rows + pair[1].rows);
        let at = fewest.map_or(0, |(at, _)| at);
        let joined = self.blocks.remove(at + 1);
        self.blocks[at] = self.blocks[at].with(joined);
        self.cuts.remove(at);
        let byte = at as u8;
        for of in &mut self.bytes {
            *of -= u8::from((*of > byte) & (usize::from(*of) < BLOCKS_MAX));
        }
        at
    }

    /// Returns the bytes of rows whose codes are in a range, both bounds inclusive.
    pub fn within(&self, low: u64, high: u64) -> SketchRange {
        let (mut sure, mut maybe) = (NOTHING, NOTHING);
        if self.blocks.is_empty() || low > high {
            return SketchRange { sure, maybe };
        }
        let (first, last) = (self.block_of(low), self.block_of(high));
        let is_in = |at: &usize| {
            let block = &self.blocks[*at];
            low <= block.low && block.high <= high
        };
        let meets = |at: &usize| {
            let block = &self.blocks[*at];
            block.low <= high && low <= block.high
        };
        // All blocks between the first and the last one are inside the range.
        let range = |fits: &dyn Fn(&usize) -> bool| -> Option<RangeInclusive<u8>> {
            let begin = (first..=last).find(fits)?;
            let end = (first..=last).rev().find(fits)?;
            Some(begin as u8..=end as u8)
        };
        if let Some(found) = range(&is_in) {
            sure = found;
        }
        if let Some(found) = range(&meets) {
            maybe = found;
        }
        SketchRange { sure, maybe }
    }

    /// Returns the ranks of these blocks' rows among all rows that have a number, in the order of the numbers.
    pub fn ranks(&self, blocks: &RangeInclusive<u8>) -> Range<usize> {
        let (first, last) = (usize::from(*blocks.start()), usize::from(*blocks.end()));
        let rows = |blocks: &[Block]| blocks.iter().map(|block| block.rows).sum::<usize>();
        match self.blocks.get(first..=last) {
            None => 0..0,
            Some(found) => {
                let begin = rows(&self.blocks[..first]);
                begin..begin + rows(found)
            }
        }
    }

    /// Returns bounds for the rank of a code, among the ranks of [`Blocks::ranks`]: at least the first number of rows
    /// and at most the last one have a lower code.
    pub fn around(&self, code: u64) -> Range<usize> {
        let at = self.block_of(code);
        let Some(block) = self.blocks.get(at) else {
            return 0..0;
        };
        let begin = self.blocks[..at].iter().map(|block| block.rows).sum();
        let end = begin + block.rows;
        match (code <= block.low, code > block.high) {
            (true, _) => begin..begin,
            (false, true) => end..end,
            (false, false) => begin..end,
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.cuts.capacity() * 8
            + self.blocks.capacity() * size_of::<Block>()
    }
}

/// The sketch of tags and texts, while there are few: the number of each row's value.
#[derive(Debug)]
pub(in crate::index) struct Numbers(Vec<u8>);

impl Numbers {
    pub fn new(rows: usize) -> Numbers {
        Numbers(vec![MISSING; rows])
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn grow(&mut self, rows: usize) {
        self.0.resize(rows.max(self.0.len()), MISSING);
    }

    /// Sets the byte of a row, whose value is missing if `None`. Returns false if the number of the value is too large.
    pub fn set(&mut self, row: u32, value: Option<u32>) -> bool {
        let byte = match value {
            None => MISSING,
            Some(value) if (value as usize) < BLOCKS_MAX => value as u8,
            Some(_) => return false,
        };
        self.0[row as usize] = byte;
        true
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.capacity()
    }
}

/// For each group of 64 bytes, sets the bits of the bytes in the range.
pub(in crate::index) fn add_within(
    bytes: &[[u8; 64]],
    range: &RangeInclusive<u8>,
    out: &mut [u64],
) {
    let (low, width) = (*range.start(), range.end().wrapping_sub(*range.start()));
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, which was checked.
            return unsafe { avx2::add_within(bytes, low, width, out) };
        }
    }
    for (out, bytes) in out.iter_mut().zip(bytes) {
        *out |= bits_within(bytes, low, width);
    }
}

/// Returns a bit for each byte from `low` to `low + width`, inclusive.
#[inline]
fn bits_within(bytes: &[u8; 64], low: u8, width: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { sse2::bits_within(bytes, low, width) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let bits = bytes.iter().enumerate();
        bits.fold(0, |all, (at, byte)| {
            all | u64::from(byte.wrapping_sub(low) <= width) << at
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8,
        _mm256_set1_epi8, _mm256_sub_epi8,
    };

    /// See [`super::add_within`].
    #[target_feature(enable = "avx2")]
    pub(super) fn add_within(bytes: &[[u8; 64]], low: u8, width: u8, out: &mut [u64]) {
        let (low, width) = (_mm256_set1_epi8(low as i8), _mm256_set1_epi8(width as i8));
        for (out, bytes) in out.iter_mut().zip(bytes) {
            let half = |bytes: &[u8]| {
                let bytes: &[u8; 32] = bytes.try_into().expect("half of 64");
                // SAFETY: the slice has 32 bytes, and the load does not need alignment.
                let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>()) };
                let above = _mm256_sub_epi8(bytes, low);
                // A byte is at most `width` if it equals the minimum of both.
                let fits = _mm256_cmpeq_epi8(_mm256_min_epu8(above, width), above);
                u64::from(_mm256_movemask_epi8(fits) as u32)
            };
            *out |= half(&bytes[..32]) | half(&bytes[32..]) << 32;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8,
        _mm_sub_epi8,
    };

    /// Returns a bit for each byte from `low` to `low + width`, inclusive.
    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn bits_within(bytes: &[u8; 64], low: u8, width: u8) -> u64 {
        let (low, width) = (_mm_set1_epi8(low as i8), _mm_set1_epi8(width as i8));
        let (sixteens, _) = bytes.as_chunks::<16>();
        let mut all = 0;
        for (at, sixteen) in sixteens.iter().enumerate() {
            let word = u128::from_le_bytes(*sixteen);
            let bytes = _mm_set_epi64x((word >> 64) as i64, word as i64);
            let above = _mm_sub_epi8(bytes, low);
            // A byte is at most `width` if it equals the minimum of both.
            let fits = _mm_cmpeq_epi8(_mm_min_epu8(above, width), above);
            all |= u64::from(_mm_movemask_epi8(fits) as u32) << (16 * at);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that the byte of each row agrees with its code.
    fn check(blocks: &Blocks, codes: &[u64]) {
        assert_eq!(
            blocks.blocks.len(),
            blocks.cuts.len() + usize::from(!blocks.blocks.is_empty())
        );
        assert!(blocks.cuts.is_sorted() && blocks.blocks.len() <= BLOCKS_MAX);
        let mut rows = vec![0; blocks.blocks.len()];
        for (byte, code) in blocks.bytes.iter().zip(codes) {
            if *code < codes::OTHER {
                let at = blocks.block_of(*code);
                assert_eq!(usize::from(*byte), at);
                let block = &blocks.blocks[at];
                assert!(block.low <= *code && *code <= block.high);
                rows[at] += 1;
            } else {
                assert_eq!(*byte, *code as u8);
            }
        }
        assert_eq!(
            rows,
            blocks
                .blocks
                .iter()
                .map(|block| block.rows)
                .collect::<Vec<_>>()
        );
    }

    fn within(blocks: &Blocks, codes: &[u64], low: u64, high: u64) {
        let within = blocks.within(low, high);
        for (byte, code) in blocks.bytes.iter().zip(codes) {
            let is_in = *code < codes::OTHER && low <= *code && *code <= high;
            assert!(!within.sure.contains(byte) || is_in);
            assert!(!is_in || within.maybe.contains(byte));
        }
        let count = |is_so: &dyn Fn(u8, u64) -> bool| {
            let pairs = blocks.bytes.iter().zip(codes);
            pairs
                .filter(|(byte, code)| **code < codes::OTHER && is_so(**byte, **code))
                .count()
        };
        for code in [low, high, high + 1] {
            let around = blocks.around(code);
            let below = count(&|_, it| it < code);
            assert!(
                (around.start..=around.end).contains(&below),
                "{around:?}, {below}"
            );
        }
        let ranks = blocks.ranks(&within.sure);
        assert_eq!(ranks.len(), count(&|byte, _| within.sure.contains(&byte)));
        if !ranks.is_empty() {
            assert_eq!(ranks.start, count(&|byte, _| byte < *within.sure.start()));
        }
    }

    #[test]
    fn blocks_stay_even_for_any_insertion_order() {
        let count = 60_000_u64;
        type Values = fn(u64) -> u64;
        let orders: [(&str, Values); 4] = [
            ("drawn", |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16),
            ("ascending", |n| n * 3),
            ("descending", |n| 1_000_000 - n),
            ("half of them one value", |n| if n % 2 == 0 { 7 } else { n }),
        ];
        for (name, value) in orders {
            let mut blocks = Blocks::default();
            blocks.grow(count as usize);
            let mut codes = vec![u64::MAX; count as usize];
            for row in 0..count {
                codes[row as usize] = value(row);
                blocks.set(row as u32, &codes);
            }
            check(&blocks, &codes);
            let largest = blocks.blocks.iter().filter(|block| block.low < block.high);
            let largest = largest.map(|block| block.rows).max();
            assert!(
                largest.is_some_and(|it| it <= 3 * 60_000 / BLOCKS_MAX + 1),
                "{name}: {largest:?}"
            );
            assert!(blocks.blocks.len() > 80, "{name}: {}", blocks.blocks.len());
            within(&blocks, &codes, value(100), value(40_000));
        }
    }

    #[test]
    fn a_value_with_its_own_block_is_certain() {
        let mut blocks = Blocks::default();
        blocks.grow(5000);
        let codes: Vec<u64> = (0..5000).map(|row| row % 5).collect();
        (0..5000).for_each(|row| blocks.set(row, &codes));
        for (low, high) in [(0, 0), (2, 4), (1, 3), (3, 100)] {
            let within = blocks.within(low, high);
            assert_eq!(within.sure, within.maybe, "{low} to {high}");
        }
        let none = blocks.within(5, 9);
        assert_eq!((none.sure, none.maybe), (NOTHING, NOTHING));
    }

    #[test]
    fn each_byte_within_has_its_bit() {
        let bytes: [u8; 64] = std::array::from_fn(|at| (at * 37) as u8);
        for range in [0..=255, 0..=0, 37..=90, 200..=255, NOTHING] {
            let expected = (0..64).filter(|at| range.contains(&bytes[*at]));
            let expected = expected.fold(0, |all, at| all | 1_u64 << at);
            let (low, width) = (*range.start(), range.end() - range.start());
            assert_eq!(bits_within(&bytes, low, width), expected, "{range:?}");
            let mut all = [0, 1];
            add_within(&[[0; 64], bytes], &range, &mut all);
            let zeros = if range.contains(&0) { u64::MAX } else { 0 };
            assert_eq!(all, [zeros, expected | 1], "{range:?}");
        }
    }

    proptest! {
        #[test]
        fn sketch_bytes_agree_with_row_values(
            changes in proptest::collection::vec((0_u32..2000, 0_u64..3000, 0_u8..20), 0..6000), low in 0_u64..3000, width in 0_u64..3000,
        ) {
            let mut blocks = Blocks::default();
            blocks.grow(2000);
            let mut all = vec![u64::MAX; 2000];
            for (row, value, kind) in changes {
                all[row as usize] = match kind {
                    0 => u64::MAX,
                    1 => codes::OTHER,
                    kind => value % (u64::from(kind) * 200),
                };
                blocks.set(row, &all);
            }
            check(&blocks, &all);
            within(&blocks, &all, low, low + width);
        }
    }
}
