//! Reads workloads, deployments and plans from files. Errors contain the file, the line and the key.

use std::path::Path;

use larder_space::plan::{Deployment, Workload, line_of};

use super::plan::Plan;
use crate::failure::Failure;

/// Maximum size of a file. A workload is a few pages of text.
const BYTES_MAX: u64 = 16 << 20;

/// # Errors
/// The file cannot be read, or its content is invalid.
pub fn read_workload(path: &Path) -> Result<Workload, Failure> {
    let text = read(path, "workload")?;
    Workload::from_toml(&text).map_err(|error| parse_failure(path, &text, &error.key, &error.what))
}

/// # Errors
/// As [`workload`].
pub fn read_deployment(path: &Path) -> Result<Deployment, Failure> {
    let text = read(path, "deployment")?;
    Deployment::from_toml(&text)
        .map_err(|error| parse_failure(path, &text, &error.key, &error.what))
}

/// Reads the output of `larder space plan --json`.
///
/// # Errors
/// The file cannot be read, or is not a plan.
pub fn read_plan(path: &Path) -> Result<Plan, Failure> {
    let text = read(path, "plan")?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!(
            "{} is no plan: {error}; `larder space plan .. --json > plan.json` writes one",
            path.display()
        ))
    })
}

fn read(path: &Path, what: &str) -> Result<String, Failure> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        let message = format!("cannot read the {what} {shown}: {error}");
        match error.kind() {
            std::io::ErrorKind::NotFound => Failure::not_found(message),
            _ => Failure::new(message),
        }
    };
    let size = std::fs::metadata(path).map_err(cannot)?.len();
    if size > BYTES_MAX {
        return Err(Failure::new(format!(
            "cannot read the {what} {shown}: it has {size} bytes, and {BYTES_MAX} are the most; is it another file?"
        )));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!(
            "{shown}: it is no text: byte {at} is not UTF-8; is it another file?"
        ))
    })
}

fn parse_failure(path: &Path, text: &str, key: &str, what: &str) -> Failure {
    let shown = path.display();
    if key.is_empty() {
        return Failure::new(format!("{shown}: {}", what.trim_end()));
    }
    let line = line_of(text, key).map_or_else(String::new, |line| format!(":{line}"));
    Failure::new(format!("{shown}{line}: {key}: {what}"))
}
