//! Decimal digits for the keys of benchmarks.

/// Writes a number in as many decimal digits as `into` has bytes. Higher digits are omitted.
pub fn put_digits(into: &mut [u8], mut number: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}
