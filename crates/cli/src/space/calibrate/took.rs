//! What something takes, how sure that is, and what follows from differences.

use larder_space::plan::Costs;

/// Processor time of one operation, or a difference of such times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    pub us: f64,
    /// How far the half of the measurements that took the least are apart. Whatever disturbs one adds to it, so the others tell more of that than of the operation.
    pub spread_us: f64,
}

impl Took {
    /// # Panics
    /// There is no time.
    pub fn of(mut times: Vec<f64>) -> Took {
        times.sort_by(f64::total_cmp);
        let (least, middle) = (times[0], times[times.len() / 2]);
        // As what is predicted is compared with: neither the luckiest turn nor a disturbed one.
        Took {
            us: middle,
            spread_us: middle - least,
        }
    }

    pub fn exactly(us: f64) -> Took {
        Took { us, spread_us: 0.0 }
    }

    pub fn less(self, other: Took) -> Took {
        Took {
            us: self.us - other.us,
            spread_us: self.spread_us.hypot(other.spread_us),
        }
    }

    pub fn plus(self, other: Took) -> Took {
        self.less(other.times(-1.0))
    }

    pub fn times(self, times: f64) -> Took {
        Took {
            us: self.us * times,
            spread_us: self.spread_us * times.abs(),
        }
    }

    pub fn over(self, parts: f64) -> Took {
        self.times(1.0 / parts)
    }
}

/// The costs that are known so far.
#[derive(Default)]
pub struct Found {
    pub costs: Costs,
    pub guessed: Vec<&'static str>,
    pub uncertain: Vec<(&'static str, Took)>,
}

impl Found {
    /// Notes a cost, which is nothing if it came out as less. What others are to be computed from.
    ///
    /// # Panics
    /// There is no such cost.
    pub fn add(&mut self, name: &'static str, took: Took) -> Took {
        if took.us <= took.spread_us {
            self.uncertain.push((name, took));
        }
        let costs = &mut self.costs;
        let cost = match name {
            "get_us" => &mut costs.get_us,
            "query_us" => &mut costs.query_us,
            "server_us" => &mut costs.server_us,
            "subspace_us" => &mut costs.subspace_us,
            "condition_us" => &mut costs.condition_us,
            "region_us" => &mut costs.region_us,
            "candidate_us" => &mut costs.candidate_us,
            "scan_us" => costs.scan_us.insert(0.0),
            "match_us" => costs.match_us.insert(0.0),
            "found_us" => &mut costs.found_us,
            "result_us" => &mut costs.result_us,
            "result_byte_us" => &mut costs.result_byte_us,
            "write_us" => &mut costs.write_us,
            "stage_us" => &mut costs.stage_us,
            "move_us" => &mut costs.move_us,
            "index_entry_us" => &mut costs.index_entry_us,
            _ => unreachable!("{name} is no cost"),
        };
        *cost = took.us.max(0.0);
        Took { us: *cost, ..took }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_disturbs_some_measurements_does_not_count() {
        let quiet = Took::of(vec![10.0, 10.2, 10.1, 10.3, 10.0, 10.2, 10.1]);
        let disturbed = Took::of(vec![10.0, 10.2, 10.1, 30.0, 10.0, 55.0, 10.1]);
        assert!((quiet.us - disturbed.us).abs() < 0.2);
        assert!(disturbed.spread_us < 0.5);
    }

    #[test]
    fn a_difference_of_less_than_the_spread_is_told_and_never_negative() {
        let took = |us| Took { us, spread_us: 0.3 };
        let mut found = Found::default();
        let server = found.add("server_us", took(20.0).less(took(12.0)));
        let region = found.add("region_us", took(12.0).less(took(12.1)));
        assert_eq!((found.costs.server_us, found.costs.region_us), (8.0, 0.0));
        assert!((server.spread_us - 0.3 * 2f64.sqrt()).abs() < 1e-9);
        assert_eq!(region.us, 0.0);
        let names: Vec<&str> = found.uncertain.iter().map(|it| it.0).collect();
        assert_eq!(names, ["region_us"]);
    }
}
