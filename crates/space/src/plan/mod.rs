//! The configurator: the cost of a workload with a set of subspaces, and the best set for it.
//!
//! ```text
//!  Workload (TOML, or recorded) ─┐
//!  Deployment (calibrated costs) ┴► CostModel ─► Problem ─► descent from many starts ─► best, top k ─► Report
//!                                  thesis, larder   │         every set (few layouts)
//!                                                   └───────► proof: a bound, and branches
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `workload` | the operations of a space, their frequencies, and the distribution of values |
//! | `record` | a workload from observed queries, modifications and values |
//! | `toml_position` | the line of a key in a text, for errors |
//! | `deployment` | the servers and their costs |
//! | `configuration` | subspaces as lists of attributes with bits, and local indexes |
//! | `model` | the interface of a cost model, and a prediction with its parts |
//! | `thesis` | the model of the original thesis, as its program computes it |
//! | `larder`, `latency` | larder's own model: the work of the servers, and the latency of a client |
//! | `problem` | the choice of subspaces as facility location: queries use the cheapest one, writes pay for all |
//! | `descent`, `exhaustive`, `proof` | three solvers: local search, enumeration of all sets, branch and bound |
//! | `candidates`, `heuristics` | candidate layouts; simple heuristics for comparison |
//! | `choose` | all of these steps for one model |
//! | `simplest` | the simplest configuration whose cost is close to the best |
//! | `report` | all results for one workload: the choice, the best ones, heuristics, the effect of a changed mix |
//! | `baseline` | normalizes measurements on processors whose speed varies |
//! | `follow` | decides when a changed workload justifies other subspaces |
//!
//! Reports are deterministic: there is no clock, work is counted in steps, and randomness has a seed.
//!
//! Sources. The thesis: Orazov's, of the Instituto Superior Técnico, on a configurator for HyperDex; its equations 4.1
//! to 4.7. Dual ascent: D. Erlenkotter, "A dual-based procedure for uncapacitated facility location", Operations
//! Research 26, 1978. Bits for attributes: A. Aho and J. Ullman, "Optimal partial-match retrieval when fields are
//! independently specified", TODS 4, 1979.

mod baseline;
mod candidates;
mod choose;
mod configuration;
mod deployment;
mod descent;
mod exhaustive;
mod follow;
mod heuristics;
mod larder;
mod latency;
mod model;
mod problem;
mod proof;
mod record;
mod report;
mod simplest;
mod thesis;
mod toml_position;
mod workload;

pub use baseline::reads_around;
pub use choose::{Choice, Options, Proof, choose};
pub use configuration::{AttributeSet, Configuration, Layout, LayoutError};
pub use deployment::{Costs, Deployment, DeploymentError};
pub use follow::{Follower, Threshold, Verdict, Window};
pub use heuristics::{Heuristic, heuristic};
pub use larder::LarderModel;
pub use model::{ClassKind, ClassPrediction, CostModel, CostParts, Prediction};
pub use problem::Problem;
pub use record::{CLASSES_MAX, RecordedConstraint, Recorder};
pub use report::{NamedPrediction, Report, Shift, plan, plan_by_thesis, plan_disjoint_by_thesis};
pub use thesis::{Thesis, ThesisModel};
pub use toml_position::line_of;
pub use workload::{
    AttributeProfile, Bucket, HotValue, Modification, ModificationKind, QueryClass, Workload,
    WorkloadError,
};
