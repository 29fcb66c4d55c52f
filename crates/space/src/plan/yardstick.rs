//! Reads by key as a yardstick: how fast the processors were while something else was measured.
//!
//! On a machine that is shared a read takes half as much again in one minute as in the next. So one is measured behind each turn of a measurement, and what a turn took is told
//! in the reads about it.

/// So many reads before a turn count, and so many behind it: one differs from the next by a tenth, and all of them from those of the next minute by half.
const READS_BESIDE: usize = 8;

/// The reads about a turn, of which there is one behind each; their median is what the turn is told in.
pub fn reads_beside(reads_us: &[f64], turn: usize) -> &[f64] {
    let behind = (turn + READS_BESIDE + 1).min(reads_us.len());
    &reads_us[turn.saturating_sub(READS_BESIDE)..behind]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_told_in_the_reads_about_it() {
        let reads: Vec<f64> = (0..31).map(f64::from).collect();
        let window = |turn| {
            let beside = reads_beside(&reads, turn);
            (beside[0], beside[beside.len() - 1])
        };
        assert_eq!(window(0), (0.0, 8.0));
        assert_eq!(window(15), (7.0, 23.0));
        assert_eq!(window(29), (21.0, 30.0));
        assert_eq!(reads_beside(&[3.0, 4.0], 0), [3.0, 4.0]);
    }
}
