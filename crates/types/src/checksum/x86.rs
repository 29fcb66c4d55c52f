//! The checksum with x86 instructions: VAES on 64 bytes at a time, or AES-NI on 16.

use std::arch::x86_64::*;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{LANES, STRIPE};

/// The path for this processor; 0 until it has been detected.
static PATH: AtomicU8 = AtomicU8::new(0);
const WIDE: u8 = 1;
const NARROW: u8 = 2;
const NEITHER: u8 = 3;

/// Returns the checksum, or `None` if this processor has neither instruction set.
#[inline(always)]
pub fn checksum32(bytes: &[u8], seed: u64) -> Option<u32> {
    match PATH.load(Ordering::Relaxed) {
        // SAFETY: detection found the processor features that the function is compiled for.
        WIDE => Some(unsafe { wide(bytes, seed) }),
        // SAFETY: as above.
        NARROW => Some(unsafe { narrow(bytes, seed) }),
        NEITHER => None,
        _ => {
            PATH.store(find_path(), Ordering::Relaxed);
            checksum_first(bytes, seed)
        }
    }
}

#[cold]
fn checksum_first(bytes: &[u8], seed: u64) -> Option<u32> {
    checksum32(bytes, seed)
}

#[cold]
fn find_path() -> u8 {
    if has_wide() {
        WIDE
    } else if is_x86_feature_detected!("aes") {
        NARROW
    } else {
        NEITHER
    }
}

fn has_wide() -> bool {
    is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("bmi2")
}

/// Lanes 0 to 3 are in one register, lanes 4 to 7 in another.
#[target_feature(enable = "aes,vaes,avx512f,avx512bw,bmi2")]
fn wide(bytes: &[u8], seed: u64) -> u32 {
    let start = LANES.as_ptr();
    let first = _mm512_zextsi128_si512(seed_and_size(bytes, seed));
    // SAFETY: `LANES` has 128 bytes.
    let (mut low, mut high) = unsafe {
        (
            _mm512_loadu_si512(start.cast()),
            _mm512_loadu_si512(start.add(64).cast()),
        )
    };
    low = _mm512_xor_si512(low, first);
    let (stripes, rest) = bytes.as_chunks::<STRIPE>();
    for stripe in stripes {
        // SAFETY: a stripe has 128 bytes.
        let (a, b) = unsafe {
            (
                _mm512_loadu_si512(stripe.as_ptr().cast()),
                _mm512_loadu_si512(stripe.as_ptr().add(64).cast()),
            )
        };
        low = _mm512_aesenc_epi128(low, a);
        high = _mm512_aesenc_epi128(high, b);
    }
    if !rest.is_empty() {
        // One mask bit per byte, at most 64.
        let mask = |size: usize| _bzhi_u64(u64::MAX, size as u32);
        let second_half = rest.len().saturating_sub(64);
        // SAFETY: a masked load accesses only the bytes that the mask selects: those of `rest`. With an empty mask it
        // accesses none, whatever the address.
        let (a, b) = unsafe {
            (
                _mm512_maskz_loadu_epi8(mask(rest.len()), rest.as_ptr().cast()),
                _mm512_maskz_loadu_epi8(mask(second_half), rest.as_ptr().wrapping_add(64).cast()),
            )
        };
        low = _mm512_aesenc_epi128(low, a);
        high = _mm512_aesenc_epi128(high, b);
    }
    low = _mm512_aesenc_epi128(low, high);
    let [a, b, c, d] = [
        _mm512_castsi512_si128(low),
        _mm512_extracti32x4_epi32::<1>(low),
        _mm512_extracti32x4_epi32::<2>(low),
        _mm512_extracti32x4_epi32::<3>(low),
    ];
    last(_mm_aesenc_si128(a, c), _mm_aesenc_si128(b, d))
}

#[target_feature(enable = "aes")]
fn narrow(bytes: &[u8], seed: u64) -> u32 {
    let mut lanes = load(&LANES);
    lanes[0] = _mm_xor_si128(lanes[0], seed_and_size(bytes, seed));
    let (stripes, rest) = bytes.as_chunks::<STRIPE>();
    for stripe in stripes {
        for (lane, bytes) in lanes.iter_mut().zip(load(stripe)) {
            *lane = _mm_aesenc_si128(*lane, bytes);
        }
    }
    if !rest.is_empty() {
        let mut stripe = [0; STRIPE];
        stripe[..rest.len()].copy_from_slice(rest);
        for (lane, bytes) in lanes.iter_mut().zip(load(&stripe)) {
            *lane = _mm_aesenc_si128(*lane, bytes);
        }
    }
    for half in [4, 2] {
        for lane in 0..half {
            lanes[lane] = _mm_aesenc_si128(lanes[lane], lanes[lane + half]);
        }
    }
    last(lanes[0], lanes[1])
}

#[inline]
#[target_feature(enable = "aes")]
fn last(mut state: __m128i, key: __m128i) -> u32 {
    for _ in 0..3 {
        state = _mm_aesenc_si128(state, key);
    }
    _mm_cvtsi128_si32(state) as u32
}

#[inline]
fn seed_and_size(bytes: &[u8], seed: u64) -> __m128i {
    // SAFETY: SSE2 is part of every x86-64.
    unsafe { _mm_set_epi64x(bytes.len() as i64, seed as i64) }
}

#[inline]
fn load(stripe: &[u8; STRIPE]) -> [__m128i; 8] {
    // SAFETY: lane `i` lies within the 128 bytes; the load needs no alignment.
    std::array::from_fn(|lane| unsafe { _mm_loadu_si128(stripe.as_ptr().add(lane * 16).cast()) })
}

/// Checks both paths, if the processor supports them.
#[cfg(test)]
pub fn check(bytes: &[u8], seed: u64, expected: u32) {
    if has_wide() {
        // SAFETY: the feature was detected above.
        assert_eq!(unsafe { wide(bytes, seed) }, expected);
    }
    if is_x86_feature_detected!("aes") {
        // SAFETY: the feature was detected above.
        assert_eq!(unsafe { narrow(bytes, seed) }, expected);
    }
}
