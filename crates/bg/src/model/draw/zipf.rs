//! Zipf's law over any number of ranks by rejection-inversion. It needs no table, and slightly more than one trial per
//! draw for any exponent.
//!
//! W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", 1996.

use larder_types::Random;

/// Ranks 1 to `members`, in proportion to `rank` to the power of `-exponent`. The exponent must be positive.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    members: f64,
    exponent: f64,
    /// The integral of the hat function from 1 to the end of the first rank, minus the weight of the first rank.
    low: f64,
    /// The integral up to the end of the last rank.
    high: f64,
    /// Within this distance below a rank, no trial is rejected.
    sure: f64,
}

impl Zipf {
    pub fn new(members: u32, exponent: f64) -> Zipf {
        let mut zipf = Zipf {
            members: members.into(),
            exponent,
            low: 0.0,
            high: 0.0,
            sure: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.members + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    pub fn draw(&self, random: &mut Random) -> u32 {
        loop {
            let area = self.high + random.unit() * (self.low - self.high);
            let at = self.inverse(area);
            let rank = (at + 0.5).floor().clamp(1.0, self.members);
            if rank - at <= self.sure || area >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u32;
            }
        }
    }

    fn weight(&self, at: f64) -> f64 {
        (-self.exponent * at.ln()).exp()
    }

    /// Returns the integral of the weight from 1 to `at`.
    fn integral(&self, at: f64) -> f64 {
        let log = at.ln();
        let power = (1.0 - self.exponent) * log;
        let factor = if power.abs() > 1e-8 {
            power.exp_m1() / power
        } else {
            1.0 + power / 2.0
        };
        factor * log
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = (area * (1.0 - self.exponent)).max(-1.0);
        let factor = if power.abs() > 1e-8 {
            power.ln_1p() / power
        } else {
            1.0 - power / 2.0
        };
        (factor * area).exp()
    }
}

/// Returns the share of the draws for the most popular members, where `top` is their share of all members.
pub fn mass_of_top(members: u32, exponent: f64, top: f64) -> f64 {
    let first = f64::from(members) * top;
    sum(first, exponent) / sum(members.into(), exponent)
}

/// Returns the exponent with which the share `draws` of all draws goes to the share `top` of all members.
pub fn exponent_for(members: u32, top: f64, draws: f64) -> f64 {
    let (mut low, mut high) = (0.0, 20.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if mass_of_top(members, middle, top) < draws {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// Returns the sum of the weights of the first ranks, to about 12 digits: the first thousand individually, the rest by
/// the Euler-Maclaurin formula. A fractional number of ranks includes that fraction of the last weight.
fn sum(ranks: f64, exponent: f64) -> f64 {
    const EXACT: u32 = 1000;
    let weight = |rank: f64| rank.powf(-exponent);
    let complete = ranks.floor();
    let part = (ranks - complete) * weight(complete + 1.0);
    let exact = (complete as u32).min(EXACT);
    let head: f64 = (1..=exact).map(|rank| weight(rank.into())).sum();
    if complete <= f64::from(EXACT) {
        return head + part;
    }
    let from = f64::from(EXACT);
    let zipf = Zipf {
        members: complete,
        exponent,
        low: 0.0,
        high: 0.0,
        sure: 0.0,
    };
    let slope = |rank: f64| -exponent * rank.powf(-exponent - 1.0);
    head + zipf.integral(complete) - zipf.integral(from)
        + (weight(complete) - weight(from)) / 2.0
        + (slope(complete) - slope(from)) / 12.0
        + part
}
