//! Assembles a configuration from defaults, a file, the environment and flags. An error message has the
//! source, the key, and the allowed values.

use std::fmt;
use std::path::Path;

use super::{Key, SECTIONS, ServerConfig, env_name, keys, mapped, suggest};

/// A value in the form of its source.
#[derive(Clone, Copy)]
pub(super) enum RawValue<'a> {
    Text(&'a str),
    Toml(&'a toml::Value),
}

/// An error in a configuration: the source, the key, and the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub(super) String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl ServerConfig {
    /// Assembles and checks a configuration: defaults, then `file` if given, then the variables of `env`,
    /// then `flags` (pairs of `section.name` and a text).
    ///
    /// # Errors
    /// The first error with its source, for the user.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<ServerConfig, ConfigError> {
        let mut config = ServerConfig::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|error| {
                ConfigError(format!(
                    "cannot read the configuration {}: {error}",
                    path.display()
                ))
            })?;
            config.apply_toml(&text, &path.display().to_string())?;
        }
        config.apply_env(env)?;
        for (key, text) in flags {
            config.set(&key, &text, "the command line")?;
        }
        config.check()?;
        Ok(config)
    }

    /// Applies a TOML text. `origin` is its name in messages.
    pub fn apply_toml(&mut self, text: &str, origin: &str) -> Result<(), ConfigError> {
        let table: toml::Table = text
            .parse()
            .map_err(|error| ConfigError(format!("{origin}: {error}")))?;
        for (section, values) in &table {
            if !SECTIONS.iter().any(|(name, _)| name == section) {
                let near = suggest::nearest(section, SECTIONS.iter().map(|(name, _)| *name));
                return Err(unknown(
                    origin,
                    "section",
                    &format!("[{section}]"),
                    near.map(|name| format!("[{name}]")),
                ));
            }
            let values = values.as_table().ok_or_else(|| {
                ConfigError(format!(
                    "{origin}: {section} must be a section: write [{section}] and its keys below"
                ))
            })?;
            for (name, value) in values {
                if let ("tables", toml::Value::Table(table)) = (section.as_str(), value) {
                    let table = mapped::read(name, table, origin)?;
                    self.mapped.retain(|other| other.name != *name);
                    self.mapped.push(table);
                    continue;
                }
                self.set_or_explain(
                    section,
                    name,
                    RawValue::Toml(value),
                    &value.to_string(),
                    origin,
                )?;
            }
        }
        Ok(())
    }

    /// Applies the variables of `env` whose names begin with `LARDER_` and a section. Others are ignored.
    pub fn apply_env(
        &mut self,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), ConfigError> {
        let keys = keys();
        for (variable, text) in env {
            let ours = SECTIONS
                .iter()
                .any(|(section, _)| variable.starts_with(&env_name(section, "")));
            if !ours {
                continue;
            }
            match keys.iter().find(|key| key.env == variable) {
                Some(key) => {
                    self.set_or_explain(
                        key.section,
                        key.name,
                        RawValue::Text(&text),
                        &text,
                        &variable,
                    )?;
                }
                None => {
                    let near = suggest::nearest(&variable, keys.iter().map(|key| key.env.as_str()));
                    return Err(unknown(
                        "the environment",
                        "variable",
                        &variable,
                        near.map(str::to_owned),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Sets `section.name` from a text. `origin` is the source's name in messages.
    pub fn set(&mut self, key: &str, text: &str, origin: &str) -> Result<(), ConfigError> {
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        self.set_or_explain(section, name, RawValue::Text(text), text, origin)
    }

    fn set_or_explain(
        &mut self,
        section: &str,
        name: &str,
        given: RawValue<'_>,
        shown: &str,
        origin: &str,
    ) -> Result<(), ConfigError> {
        let path = format!("{section}.{name}");
        match self.set_value(section, name, given) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) if path == "server.password" || path == "postgres.url" => Err(
                ConfigError(format!("{origin}: {path} must be a text in quotes")),
            ),
            Some(Err(expected)) => Err(ConfigError(format!(
                "{origin}: {path} is {shown}; it must be {expected}"
            ))),
            None => {
                let paths: Vec<String> = keys().iter().map(Key::path).collect();
                let near = suggest::nearest(&path, paths.iter().map(String::as_str));
                Err(unknown(origin, "key", &path, near.map(str::to_owned)))
            }
        }
    }
}

pub(super) fn unknown(origin: &str, what: &str, name: &str, near: Option<String>) -> ConfigError {
    let advice = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`larder config reference` lists all names".to_owned(),
    };
    ConfigError(format!("{origin}: no {what} is called {name}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(toml: &str) -> String {
        let mut config = ServerConfig::default();
        let applied = config
            .apply_toml(toml, "larder.toml")
            .and_then(|()| config.check());
        applied.unwrap_err().to_string()
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_name() {
        assert_eq!(
            error_of("[server]\nthread = 2"),
            "larder.toml: no key is called server.thread; did you mean server.threads?"
        );
        assert_eq!(
            error_of("[sever]"),
            "larder.toml: no section is called [sever]; did you mean [server]?"
        );
        assert!(
            error_of("[log]\nqqqqqqqqqqqq = 1")
                .ends_with("`larder config reference` lists all names")
        );
    }

    #[test]
    fn a_wrong_value_is_reported_with_the_expected_form() {
        assert_eq!(
            error_of("[fetch]\nparallel = \"many\""),
            "larder.toml: fetch.parallel is \"many\"; it must be a whole number from 0 to 4294967295"
        );
    }

    #[test]
    fn flags_override_the_environment_and_the_environment_overrides_the_file() {
        let dir = std::env::temp_dir().join(format!("larder-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("larder.toml");
        std::fs::write(
            &file,
            "[server]\nthreads = 1\ndisk_threads = 1\nmax_connections = 1\n",
        )
        .unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let config = ServerConfig::load(
            Some(&file),
            [
                pair("LARDER_SERVER_DISK_THREADS", "2"),
                pair("LARDER_SERVER_MAX_CONNECTIONS", "2"),
                pair("LARDER_SERVER", "http://x"),
            ],
            [pair("server.max_connections", "3")],
        );
        std::fs::remove_dir_all(&dir).unwrap();
        let server = config.unwrap().server;
        assert_eq!(
            (server.threads, server.disk_threads, server.max_connections),
            (1, 2, 3)
        );
    }
}
