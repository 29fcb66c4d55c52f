//! The servers that a plan is for, and their costs.

use serde::{Deserialize, Serialize};

/// The processor time of each step, in microseconds. `larder space calibrate` measures it.
///
/// Costs are affine: the constant part of an operation is a cost of its own. Proportional costs, as in the thesis, have
/// the largest errors where they matter, for queries that contact few regions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// A read by key.
    pub get_us: f64,
    /// A query, whatever it contacts: parsing, merging, the reply.
    pub query_us: f64,
    /// A contacted server: a request and its reply.
    pub server_us: f64,
    /// A subspace of the space, used or not: each query estimates its cost as a route.
    pub subspace_us: f64,
    /// A condition after the first, at each contacted server.
    pub condition_us: f64,
    /// A contacted region.
    pub region_us: f64,
    /// An object that an index yields, and that is examined because there are other conditions.
    pub candidate_us: f64,
    /// An object examined in a sequential scan, if no index is selective enough. `None`: a small part of
    /// `candidate_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_us: Option<f64>,
    /// A match, returned or not, because the first ones in order are selected among all. `None`: included in
    /// `candidate_us`, also if an index yields only matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_us: Option<f64>,
    /// An object that a server visits in sort order, if there are many matches, until it has the rows to return.
    /// `None`: servers do not visit objects in order, and each match is examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_us: Option<f64>,
    /// A server with at least one match: it reads the rows to return, and they are merged.
    pub found_us: f64,
    /// A row that a server sends to the coordinating server, without its bytes. Each server sends as many rows as the
    /// search requests, if it has them. `None`: `result_us`, without an additional cost for the rows of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_us: Option<f64>,
    /// A byte of such a row.
    pub row_byte_us: f64,
    /// A row of the reply, without its bytes.
    pub result_us: f64,
    /// A byte of such a row.
    pub result_byte_us: f64,
    /// A write, at the owner of the key.
    pub write_us: f64,
    /// A commit, shared by the concurrent writes at a server.
    pub commit_us: f64,
    /// A server that a query contacts while writes are in progress there, for which it waits.
    pub beside_us: f64,
    /// A copy of the written object, at its holder and at the owner.
    pub stage_us: f64,
    /// A copy that leaves a server. `None`: `stage_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave_us: Option<f64>,
    /// A copy that moves to another server, in addition.
    pub move_us: f64,
    /// A local index entry, added or removed.
    pub index_entry_us: f64,
}

impl Costs {
    /// Returns the names of the costs that [`Costs::default`] guesses. The others are 0 or absent by default.
    fn guesses() -> Vec<String> {
        let costs = toml::Table::try_from(Costs::default());
        let costs = costs.expect("costs are a table of numbers");
        let guesses = costs
            .into_iter()
            .filter(|(_, cost)| cost.as_float() > Some(0.0));
        guesses.map(|(name, _)| name).collect()
    }

    /// Returns whether there is a cost of this name.
    fn has(name: &str) -> bool {
        let one = toml::Table::from_iter([(name.to_owned(), toml::Value::Float(0.0))]);
        one.try_into::<Costs>().is_ok()
    }

    /// Returns the cost of one more copy of an object, with this number of local indexes.
    pub fn copy_us(&self, indexes: usize) -> f64 {
        self.stage_us + indexes as f64 * self.index_entry_us
    }
}

impl Default for Costs {
    /// Rough guesses for comparing plans without a calibration.
    fn default() -> Costs {
        Costs {
            get_us: 5.0,
            query_us: 15.0,
            server_us: 10.0,
            subspace_us: 0.0,
            condition_us: 0.0,
            region_us: 2.0,
            candidate_us: 0.3,
            scan_us: None,
            match_us: None,
            walk_us: None,
            found_us: 0.0,
            row_us: None,
            row_byte_us: 0.0,
            result_us: 1.0,
            result_byte_us: 0.0,
            write_us: 6.0,
            commit_us: 0.0,
            beside_us: 0.0,
            stage_us: 6.0,
            leave_us: None,
            move_us: 8.0,
            index_entry_us: 1.0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deployment {
    pub servers: u32,
    /// The number of processors that each server uses.
    pub cores: u32,
    /// The number of copies of each region, including the first.
    pub replicas: u32,
    /// The maximum number of regions of a subspace, a power of two.
    pub regions: u32,
    /// The number of regions of the key subspace on each server, which are searched separately.
    pub key_regions: u32,
    /// The number of clients, each of which waits for a reply before its next request.
    pub clients: u32,
    /// The latency of a message between servers, or to the client, in microseconds. It uses no processor time.
    pub message_us: f64,
    /// The size of a local index entry, in memory or on disk.
    pub index_entry_bytes: u64,
    /// The maximum size of all copies. `None`: no limit.
    pub storage_bytes_max: Option<u64>,
    /// Names of the costs that are guesses, as in `move_us`. [`Deployment::from_toml`] adds those that the text leaves
    /// out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guessed: Vec<String>,
    /// Limits of the accuracy of the costs, as sentences for the reader of a plan. `larder space calibrate` writes
    /// them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    pub costs: Costs,
}

impl Default for Deployment {
    fn default() -> Deployment {
        Deployment {
            servers: 1,
            cores: 1,
            replicas: 1,
            regions: 256,
            key_regions: 1,
            clients: 64,
            message_us: 50.0,
            index_entry_bytes: 40,
            storage_bytes_max: None,
            guessed: Vec::new(),
            warnings: Vec::new(),
            costs: Costs::default(),
        }
    }
}

/// The maximum of any time, a quarter of an hour. No step of an operation takes longer.
const TIME_MAX_US: f64 = 1e9;

/// An error in a deployment, and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentError {
    /// The key, such as `costs.move_us`; empty if the text is not TOML, or not a deployment.
    pub key: String,
    pub what: String,
}

impl std::fmt::Display for DeploymentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            write!(f, "deployment: {}", self.what.trim_end())
        } else {
            write!(f, "deployment: {}: {}", self.key, self.what)
        }
    }
}

impl std::error::Error for DeploymentError {}

impl Deployment {
    /// Parses a deployment.
    ///
    /// # Errors
    /// The text is not TOML, or contains an unknown key or an invalid value. The error contains the location.
    pub fn from_toml(text: &str) -> Result<Deployment, DeploymentError> {
        let wrong = |error: toml::de::Error| DeploymentError {
            key: String::new(),
            what: error.to_string(),
        };
        let mut deployment: Deployment = toml::from_str(text).map_err(wrong)?;
        deployment.check()?;
        let keys: toml::Table = toml::from_str(text).map_err(wrong)?;
        let given = keys.get("costs").and_then(toml::Value::as_table);
        for name in Costs::guesses() {
            let is_given = given.is_some_and(|costs| costs.contains_key(&name));
            if !is_given && !deployment.guessed.contains(&name) {
                deployment.guessed.push(name);
            }
        }
        Ok(deployment)
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a deployment has only what TOML has")
    }

    /// Checks all numbers.
    ///
    /// # Errors
    /// A number is invalid.
    pub fn check(&self) -> Result<(), DeploymentError> {
        let refuse = |key: &str, what: String| {
            Err(DeploymentError {
                key: key.to_owned(),
                what,
            })
        };
        let counts = [
            ("servers", self.servers),
            ("cores", self.cores),
            ("replicas", self.replicas),
            ("key_regions", self.key_regions),
            ("clients", self.clients),
        ];
        if let Some((key, _)) = counts.iter().find(|count| count.1 == 0) {
            return refuse(key, "must be at least 1".to_owned());
        }
        if self.replicas > self.servers {
            let what = format!(
                "{} copies on {} servers; each copy needs its own",
                self.replicas, self.servers
            );
            return refuse("replicas", what);
        }
        if let Err(error) = crate::mapping::allocate_bits(self.regions, &[], |_| None) {
            return refuse("regions", error.to_string());
        }
        if let Some(name) = self.guessed.iter().find(|name| !Costs::has(name)) {
            return refuse("guessed", format!("{name:?} is not the name of a cost"));
        }
        let costs = &self.costs;
        let times = [
            ("message_us", self.message_us),
            ("costs.get_us", costs.get_us),
            ("costs.query_us", costs.query_us),
            ("costs.server_us", costs.server_us),
            ("costs.subspace_us", costs.subspace_us),
            ("costs.condition_us", costs.condition_us),
            ("costs.region_us", costs.region_us),
            ("costs.candidate_us", costs.candidate_us),
            ("costs.scan_us", costs.scan_us.unwrap_or_default()),
            ("costs.match_us", costs.match_us.unwrap_or_default()),
            ("costs.walk_us", costs.walk_us.unwrap_or_default()),
            ("costs.found_us", costs.found_us),
            ("costs.row_us", costs.row_us.unwrap_or_default()),
            ("costs.row_byte_us", costs.row_byte_us),
            ("costs.result_us", costs.result_us),
            ("costs.result_byte_us", costs.result_byte_us),
            ("costs.write_us", costs.write_us),
            ("costs.commit_us", costs.commit_us),
            ("costs.beside_us", costs.beside_us),
            ("costs.stage_us", costs.stage_us),
            ("costs.leave_us", costs.leave_us.unwrap_or_default()),
            ("costs.move_us", costs.move_us),
            ("costs.index_entry_us", costs.index_entry_us),
        ];
        match times.iter().find(|it| !(0.0..=TIME_MAX_US).contains(&it.1)) {
            Some((key, time)) => refuse(
                key,
                format!("{time} is not a time in microseconds; 0 to {TIME_MAX_US:e}"),
            ),
            None if costs.query_us + costs.server_us + costs.region_us <= 0.0 => {
                let what =
                    "a query would cost nothing: query_us, server_us or region_us is more than 0";
                refuse("costs.query_us", what.to_owned())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_with_free_queries_are_rejected() {
        let none = "[costs]\nquery_us = 0.0\nserver_us = 0.0\nregion_us = 0.0\n";
        let refused = Deployment::from_toml(none).unwrap_err();
        assert_eq!(refused.key, "costs.query_us");
        assert!(Deployment::from_toml("[costs]\nquery_us = 0.0\n").is_ok());
    }

    #[test]
    fn omitted_costs_are_guesses() {
        let some = "guessed = [\"move_us\"]\n[costs]\nmove_us = 8.0\nserver_us = 10.0\n";
        let guessed = Deployment::from_toml(some).expect("a deployment").guessed;
        assert!(guessed.contains(&"move_us".to_owned()) && guessed.contains(&"get_us".to_owned()));
        let others = ["server_us", "subspace_us", "scan_us"];
        assert!(
            others
                .iter()
                .all(|it| !guessed.iter().any(|name| name == it)),
            "{guessed:?}"
        );
        let all = Deployment::default().to_toml();
        assert!(
            Deployment::from_toml(&all)
                .expect("a deployment")
                .guessed
                .is_empty()
        );
    }

    #[test]
    fn guesses_with_unknown_cost_names_are_rejected() {
        let refused = Deployment::from_toml("guessed = [\"scan_us\", \"mvoe_us\"]\n").unwrap_err();
        let expected = "deployment: guessed: \"mvoe_us\" is not the name of a cost";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn impossible_times_are_rejected() {
        for time in ["1e308", "inf", "nan", "-1.0"] {
            let refused = Deployment::from_toml(&format!("[costs]\nserver_us = {time}\n"));
            assert_eq!(refused.expect_err(time).key, "costs.server_us");
        }
    }

    #[test]
    fn an_older_calibration_is_read_with_defaults_for_new_costs() {
        let before = Deployment::from_toml("[costs]\nquery_us = 12.0\ncandidate_us = 0.02\n");
        let costs = before.expect("it can be read").costs;
        assert_eq!((costs.query_us, costs.candidate_us), (12.0, 0.02));
        assert_eq!(
            (costs.condition_us, costs.match_us, costs.walk_us),
            (0.0, None, None)
        );
    }
}
