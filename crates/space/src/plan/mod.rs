//! The configurator: what a workload costs with which subspaces, and which subspaces are best for it.
//!
//! ```text
//!  Workload (TOML, or recorded) ─┐
//!  Deployment (calibrated costs) ┴► CostModel ─► Problem ─► descent from many starts ─► best, top k ─► Report
//!                                  thesis, larder   │         every set (few layouts)
//!                                                   └───────► proof: a bound, and branches
//! ```
//!
//! | read | for |
//! |---|---|
//! | `workload` | what is asked and what is changed, how often, of which values |
//! | `record` | a workload from queries and modifications as they come, and from values of objects |
//! | `place` | where in a text a key is, for errors |
//! | `deployment` | the servers, and what each step costs on them |
//! | `configuration` | subspaces as lists of attributes with bits, and the local indexes |
//! | `model` | what every model answers, and a prediction with its parts |
//! | `thesis` | the model of the thesis that this goes back to, as its own program computes it |
//! | `larder`, `latency` | larder's own model: what its servers do, and how long a client waits |
//! | `problem` | the choice of subspaces as facility location: queries take the cheapest, writes pay for all |
//! | `descent`, `exhaustive`, `proof` | three ways to solve it: local search, all sets, branch and bound |
//! | `disjoint` | the sets that the program of the thesis looks at |
//! | `candidates`, `heuristics` | which layouts are looked at; simple ways to choose, to compare with |
//! | `choose` | all of that for one model |
//! | `simplest` | the simplest of those that cost little more than the best |
//! | `report` | all of that for one workload: the choice, the best, heuristics, what a shift of the mix costs |
//! | `yardstick` | what measurements are told in, on processors whose speed changes |
//! | `follow` | when a workload that changes is worth other subspaces |
//!
//! The same arguments give the same report: there is no clock, work is counted in steps, and what is drawn has a seed.
//!
//! Sources. The thesis: Orazov's, of the Instituto Superior Técnico, on a configurator for HyperDex; its equations 4.1 to 4.7. Dual ascent: D. Erlenkotter,
//! "A dual-based procedure for uncapacitated facility location", Operations Research 26, 1978. Bits for attributes: A. Aho and J. Ullman, "Optimal
//! partial-match retrieval when fields are independently specified", TODS 4, 1979.

mod candidates;
mod choose;
mod configuration;
mod deployment;
mod descent;
mod disjoint;
mod exhaustive;
mod follow;
mod heuristics;
mod larder;
mod latency;
mod model;
mod place;
mod problem;
mod proof;
mod record;
mod report;
mod simplest;
mod thesis;
mod workload;
mod yardstick;

pub use choose::{Choice, Options, Proof, choose};
pub use configuration::{AttributeSet, Configuration, Layout, LayoutError};
pub use deployment::{Costs, Deployment, DeploymentError};
pub use follow::{Follower, Threshold, Verdict, Window};
pub use heuristics::{Heuristic, heuristic};
pub use larder::LarderModel;
pub use model::{ClassKind, ClassPrediction, CostModel, Parts, Prediction};
pub use place::line_of;
pub use problem::Problem;
pub use record::{Asked, CLASSES_MAX, Recorder};
pub use report::{Named, Report, Shift, plan, plan_by_thesis, plan_disjoint_by_thesis};
pub use thesis::{Thesis, ThesisModel};
pub use workload::{
    AttributeProfile, Bucket, HotValue, Kind, Modification, QueryClass, Workload, WorkloadError,
};
pub use yardstick::reads_beside;
