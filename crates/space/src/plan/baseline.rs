//! Normalizes measurements by the speed of the processors, measured with reads by key.
//!
//! On a shared machine, a read can take half as long again in one minute as in the next. A read is therefore measured
//! after each turn of a measurement, and the result of a turn is expressed in the time of the reads around it.

/// The number of reads before a turn, and after it, that are used. A read differs from the next by a tenth, and from
/// those of the next minute by half.
const READS_AROUND: usize = 8;

/// Returns the reads around a turn. There is one read after each turn. Their median is the unit of the turn's result.
pub fn reads_around(reads_us: &[f64], turn: usize) -> &[f64] {
    let behind = (turn + READS_AROUND + 1).min(reads_us.len());
    &reads_us[turn.saturating_sub(READS_AROUND)..behind]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_measured_against_the_reads_around_it() {
        let reads: Vec<f64> = (0..31).map(f64::from).collect();
        let window = |turn| {
            let beside = reads_around(&reads, turn);
            (beside[0], beside[beside.len() - 1])
        };
        assert_eq!(window(0), (0.0, 8.0));
        assert_eq!(window(15), (7.0, 23.0));
        assert_eq!(window(29), (21.0, 30.0));
        assert_eq!(reads_around(&[3.0, 4.0], 0), [3.0, 4.0]);
    }
}
