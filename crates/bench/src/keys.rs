//! What benchmarks make their keys of: numbers in decimal digits.

/// Writes a number in as many decimal digits as `into` has bytes; higher ones are left out.
pub fn put_digits(into: &mut [u8], mut number: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}
