//! Runs one step in a child process, so that its memory and CPU time are its own.
//!
//! A child is this program with `--step STEP` as JSON; it prints its result as one line of JSON.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::data::DataSet;
use crate::engine::{self, Engine, Result};
use crate::measure::{self, Counts};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Step {
    Generate {
        data: DataSet,
    },
    Build {
        engine: String,
        data: DataSet,
        out: PathBuf,
    },
    Warm {
        engine: String,
        data: DataSet,
        out: PathBuf,
        counts: Counts,
        seed: u64,
    },
    Cold {
        engine: String,
        data: DataSet,
        out: PathBuf,
        counts: Counts,
        seed: u64,
    },
}

/// The resource usage of a child process that has ended, from the kernel.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Usage {
    pub peak_bytes: u64,
    pub cpu_s: f64,
}

/// Does a step, in the child.
pub fn perform(step: &Step) -> Result<String> {
    let json = match step {
        Step::Generate { data } => {
            data.generate()?;
            "null".into()
        }
        Step::Build { engine, data, out } => {
            serde_json::to_string(&measure::build(&*find(engine)?, data, out)?)?
        }
        Step::Warm {
            engine,
            data,
            out,
            counts,
            seed,
        } => serde_json::to_string(&measure::warm(&*find(engine)?, data, out, *counts, *seed)?)?,
        Step::Cold {
            engine,
            data,
            out,
            counts,
            seed,
        } => serde_json::to_string(&measure::cold(&*find(engine)?, data, out, *counts, *seed)?)?,
    };
    Ok(json)
}

fn find(name: &str) -> Result<Box<dyn Engine>> {
    let entry = engine::all().into_iter().find(|entry| entry.name == name);
    Ok((entry
        .ok_or_else(|| format!("no engine is called {name}"))?
        .engine)())
}

/// Has a child do a step, and waits for it.
pub fn run<T: DeserializeOwned>(step: &Step) -> Result<(T, Usage)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--step")
        .arg(serde_json::to_string(step)?)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = String::new();
    child
        .stdout
        .take()
        .ok_or("the child has no output")?
        .read_to_string(&mut output)?;
    let mut status = 0;
    // SAFETY: all-zero bytes are a valid rusage, which `wait4` fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the child is ours and has not been waited for; both places live through the call.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    if waited < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let status = ExitStatus::from_raw(status);
    if !status.success() {
        return Err(format!("ended with {status}: {}", output.trim()).into());
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let usage = Usage {
        peak_bytes: usage.ru_maxrss as u64 * 1024,
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
    };
    Ok((serde_json::from_str(&output)?, usage))
}
