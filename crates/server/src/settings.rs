//! The settings that can change at run time: their current values, and which changes survive a restart.
//!
//! Retention determines which data are kept, so its changes are saved in `<data>/settings.json` and apply after a restart.
//! Changes of the throttle and of the slow log's threshold are temporary, like `CONFIG SET` in Redis: they end with the process,
//! and the response of `GET /v1/settings` lists them under `until_restart`.
//!
//! Invariants:
//! 1. The later of two changes wins. For each setting, the file also contains the configured value at the time of the change: if
//!    the configuration now has another value, it was changed later.
//! 2. A change takes effect only after it is saved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_batch::version::files;
use larder_protocol::config::{ServerConfig, out_of_bounds};
use larder_protocol::http::{Settings, SettingsInForce};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::stores::Retention;

const FILE: &str = "settings.json";

pub struct RunningSettings {
    file: PathBuf,
    configured: Values,
    in_force: Mutex<Values>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Values {
    fetch_bytes_per_second: u64,
    slowlog_threshold_us: u64,
    retention: Retention,
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    in_force: Retention,
    configured: Retention,
}

impl RunningSettings {
    /// Loads the settings at a start: the configuration, and the changes made to it.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, because versions might be removed that should be kept.
    pub fn load(config: &ServerConfig) -> Result<RunningSettings, Error> {
        let file = config.server.data.join(FILE);
        let configured = Values {
            fetch_bytes_per_second: config.fetch.bytes_per_second,
            slowlog_threshold_us: config.slowlog.threshold_us,
            retention: Retention {
                versions: config.stores.retain_versions,
                age_hours: config.stores.retain_age_hours,
                bytes: config.stores.retain_bytes.0,
            },
        };
        let mut in_force = configured;
        if let Some(saved) = read(&file)? {
            in_force.retention = merge_saved(&saved, configured.retention);
            if in_force != configured {
                tracing::info!(retention = ?in_force.retention, configured = ?configured.retention, "using the retention that was set at run time");
            }
        }
        Ok(RunningSettings {
            file,
            configured,
            in_force: Mutex::new(in_force),
        })
    }

    pub fn retention(&self) -> Retention {
        self.lock().retention
    }

    pub fn in_force(&self) -> SettingsInForce {
        self.show(&self.lock())
    }

    /// Changes the settings that are present in `requested`.
    ///
    /// # Errors
    /// [`Error::BadRequest`] with the setting and its range, [`Error::Io`] and [`Error::DiskFull`] with the file; nothing is
    /// changed then.
    pub fn change(&self, requested: Settings) -> Result<SettingsInForce, Error> {
        if let Some(versions) = requested.retain_versions
            && let Some(expected) = out_of_bounds("stores.retain_versions", versions.into())
        {
            return Err(Error::BadRequest(format!(
                "retain_versions is {versions}; it must be {expected}, and counts the live version"
            )));
        }
        let mut in_force = self.lock();
        let now = *in_force;
        let merged = Values {
            fetch_bytes_per_second: requested
                .fetch_bytes_per_second
                .unwrap_or(now.fetch_bytes_per_second),
            slowlog_threshold_us: requested
                .slowlog_threshold_us
                .unwrap_or(now.slowlog_threshold_us),
            retention: Retention {
                versions: requested.retain_versions.unwrap_or(now.retention.versions),
                age_hours: requested
                    .retain_age_hours
                    .unwrap_or(now.retention.age_hours),
                bytes: requested.retain_bytes.unwrap_or(now.retention.bytes),
            },
        };
        if merged.retention != now.retention {
            let saved = Saved {
                in_force: merged.retention,
                configured: self.configured.retention,
            };
            let bytes = serde_json::to_vec_pretty(&saved).expect("plain structs become JSON");
            files::write_durably(&self.file, &bytes)?;
        }
        *in_force = merged;
        tracing::info!(?merged, "settings changed");
        Ok(self.show(&merged))
    }

    fn show(&self, values: &Values) -> SettingsInForce {
        let mut until_restart = Vec::new();
        if values.fetch_bytes_per_second != self.configured.fetch_bytes_per_second {
            until_restart.push("fetch_bytes_per_second".to_owned());
        }
        if values.slowlog_threshold_us != self.configured.slowlog_threshold_us {
            until_restart.push("slowlog_threshold_us".to_owned());
        }
        SettingsInForce {
            fetch_bytes_per_second: values.fetch_bytes_per_second,
            retain_versions: values.retention.versions,
            retain_age_hours: values.retention.age_hours,
            retain_bytes: values.retention.bytes,
            slowlog_threshold_us: values.slowlog_threshold_us,
            until_restart,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(file: &Path) -> Result<Option<Saved>, Error> {
    let bytes = match files::read_regular(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", file)(error)),
    };
    let saved = serde_json::from_slice(&bytes).map_err(|error| {
        Error::Io(format!(
            "the settings in {} cannot be read: {error}; remove the file to return to the configuration",
            file.display()
        ))
    })?;
    Ok(Some(saved))
}

/// Applies invariant 1, setting by setting.
fn merge_saved(saved: &Saved, configured: Retention) -> Retention {
    fn pick<T: PartialEq>(set: T, configured_then: T, configured: T) -> T {
        if configured == configured_then {
            set
        } else {
            configured
        }
    }
    let (set, then) = (saved.in_force, saved.configured);
    Retention {
        versions: pick(set.versions, then.versions, configured.versions),
        age_hours: pick(set.age_hours, then.age_hours, configured.age_hours),
        bytes: pick(set.bytes, then.bytes, configured.bytes),
    }
}
