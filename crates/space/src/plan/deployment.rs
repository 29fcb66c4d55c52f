//! The servers that a plan is for, and what each step costs on them.

use serde::{Deserialize, Serialize};

/// The time of one processor that each step takes, in microseconds. `larder space calibrate` measures it.
///
/// Costs are affine: what does not grow with anything is a cost of its own. Proportional costs, as the thesis has, err most where they matter, on
/// queries that contact little.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// A read by key.
    pub get_us: f64,
    /// A query, whatever it contacts: parsing, merging, the reply.
    pub query_us: f64,
    /// A server that is contacted: a message there and one back.
    pub server_us: f64,
    /// A subspace that the space has, used or not: it is seen whom a search would ask in it.
    pub subspace_us: f64,
    /// A condition beyond the first, at each server that is contacted.
    pub condition_us: f64,
    /// A region that is contacted.
    pub region_us: f64,
    /// An object that an index leads to, and that is looked at since there are other conditions.
    pub candidate_us: f64,
    /// An object of all that are looked at one after the other, where no index leads to few. `None`: a small part of `candidate_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_us: Option<f64>,
    /// An object that is found, sent or not: the first in order are chosen among them. `None`: it is in `candidate_us`, also where an index leads to nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_us: Option<f64>,
    /// An object that a server goes through in order where many are found, until it has those that it sends. `None`: each that is found is weighed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_us: Option<f64>,
    /// A server that finds anything: it reads what it sends, and that is put together.
    pub found_us: f64,
    /// A row of what a server gives to the one that answers, beside its bytes: each gives as many as are asked for, if it has them. `None`: `result_us`, and nothing is
    /// added for those that are answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_us: Option<f64>,
    /// A byte of it.
    pub row_byte_us: f64,
    /// A row of the answer, beside its bytes.
    pub result_us: f64,
    /// A byte of it.
    pub result_byte_us: f64,
    /// What the owner of the key does for a write.
    pub write_us: f64,
    /// A commit of the writes that are under way at a server: they share it.
    pub commit_us: f64,
    /// A server that a search asks while writes are under way there, which it waits for.
    pub beside_us: f64,
    /// What a server does that keeps a copy of what is written, and the owner for it.
    pub stage_us: f64,
    /// What a server does that a copy leaves. `None`: as much as `stage_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave_us: Option<f64>,
    /// One copy that moves to another server, beside that.
    pub move_us: f64,
    /// One entry of a local index, added or removed.
    pub index_entry_us: f64,
}

impl Costs {
    /// One copy more of an object, with so many local indexes.
    pub fn copy_us(&self, indexes: usize) -> f64 {
        self.stage_us + indexes as f64 * self.index_entry_us
    }
}

impl Default for Costs {
    /// A guess, from which plans can be compared roughly until there is a calibration.
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
    /// Processors of each server that serve.
    pub cores: u32,
    /// Copies of each region, the first one counted.
    pub replicas: u32,
    /// The most regions of a subspace, a power of two.
    pub regions: u32,
    /// Regions of the key subspace on each server: parts that are searched by themselves.
    pub key_regions: u32,
    /// Clients that each wait for a reply before they ask again.
    pub clients: u32,
    /// From one server to another, or to the client, in microseconds; no processor is busy meanwhile.
    pub message_us: f64,
    /// An entry of a local index, in memory or on disk.
    pub index_entry_bytes: u64,
    /// The most bytes of all copies together; none is no limit.
    pub storage_bytes_max: Option<u64>,
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
            costs: Costs::default(),
        }
    }
}

/// What takes longer is no step of an operation: a quarter of an hour.
const TIME_MAX_US: f64 = 1e9;

/// What is wrong with a deployment, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentError {
    /// The key, as in `costs.move_us`; of text that is not TOML, or not a deployment's, empty.
    pub key: String,
    pub what: String,
}

impl std::fmt::Display for DeploymentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.key.is_empty() {
            true => write!(f, "deployment: {}", self.what.trim_end()),
            false => write!(f, "deployment: {}: {}", self.key, self.what),
        }
    }
}

impl std::error::Error for DeploymentError {}

impl Deployment {
    /// # Errors
    /// The text is not TOML, has a key that no deployment has, or a value that cannot be. The error says where.
    pub fn from_toml(text: &str) -> Result<Deployment, DeploymentError> {
        let parsed = toml::from_str(text).map_err(|error| DeploymentError {
            key: String::new(),
            what: error.to_string(),
        });
        let deployment: Deployment = parsed?;
        deployment.check()?;
        Ok(deployment)
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a deployment has only what TOML has")
    }

    /// # Errors
    /// A number cannot be.
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
                format!("{time} is no time in microseconds; 0 to {TIME_MAX_US:e}"),
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
    fn costs_by_which_a_query_costs_nothing_are_refused() {
        let none = "[costs]\nquery_us = 0.0\nserver_us = 0.0\nregion_us = 0.0\n";
        let refused = Deployment::from_toml(none).unwrap_err();
        assert_eq!(refused.key, "costs.query_us");
        assert!(Deployment::from_toml("[costs]\nquery_us = 0.0\n").is_ok());
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        for time in ["1e308", "inf", "nan", "-1.0"] {
            let refused = Deployment::from_toml(&format!("[costs]\nserver_us = {time}\n"));
            assert_eq!(refused.expect_err(time).key, "costs.server_us");
        }
    }

    #[test]
    fn a_calibration_of_before_is_read_without_what_it_did_not_know() {
        let before = Deployment::from_toml("[costs]\nquery_us = 12.0\ncandidate_us = 0.02\n");
        let costs = before.expect("it can be read").costs;
        assert_eq!((costs.query_us, costs.candidate_us), (12.0, 0.02));
        assert_eq!(
            (costs.condition_us, costs.match_us, costs.walk_us),
            (0.0, None, None)
        );
    }
}
