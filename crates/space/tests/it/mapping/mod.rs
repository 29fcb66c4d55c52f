//! The mapping: cuts, regions, contacts, placements.

mod bits;
mod cut;
mod placement;
mod recut;
mod subspace;

use larder_space::mapping::{Cells, Cut};
use larder_types::Random;

/// Draws ranks from 0, with a probability proportional to 1 / (rank + 1).
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(values: u32) -> Zipf {
        let mut sum = 0.0;
        let weight = |rank: u32| {
            sum += 1.0 / f64::from(rank + 1);
            sum
        };
        Zipf {
            sums: (0..values).map(weight).collect(),
        }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let at = random.unit() * self.sums.last().expect("there are values");
        self.sums.partition_point(|&sum| sum <= at) as u32
    }
}

fn bytes(value: u32) -> [u8; 4] {
    value.to_be_bytes()
}

fn cut_of(bits: u8, values: &[u32]) -> Cut {
    let encoded: Vec<[u8; 4]> = values.iter().map(|&value| bytes(value)).collect();
    Cut::by_quantiles(bits, encoded.iter().map(|it| &it[..])).expect("few bits")
}

fn run(first: u16, last: u16) -> Cells {
    Cells { first, last }
}
