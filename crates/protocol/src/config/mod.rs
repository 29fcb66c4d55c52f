//! Every key of `larder.toml`, and how a configuration is put together.
//!
//! Later sources win: defaults, then the file, then environment variables, then flags. A key is
//! written `section.name` in flags and messages, `LARDER_<SECTION>_<NAME>` in the environment.
//! The one table is [`keys`]: the reference page, the sample file and `larder config show` are printed
//! from it. A key that does not exist is refused by name, with the nearest that does.
//!
//! To add a key, add a field below; `check` is the place for a rule that its type cannot say.

mod suggest;
mod value;

use std::fmt;
use std::path::{Path, PathBuf};

use larder_types::ByteSize;

pub use value::ConfigValue;

/// A row of the reference: what a key is called, means and holds unless told otherwise.
#[derive(Debug, Clone)]
pub struct Key {
    pub section: &'static str,
    pub name: &'static str,
    /// `text`, `path`, `boolean`, `number` or `size`.
    pub kind: &'static str,
    /// What a number counts; empty for other kinds.
    pub unit: &'static str,
    /// As TOML.
    pub default: String,
    /// The environment variable.
    pub env: String,
    pub doc: &'static str,
}

impl Key {
    /// `section.name`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

macro_rules! sections {
    ($(
        $(#[doc = $section_doc:literal])*
        $section:ident: $Section:ident {
            $( $(#[doc = $doc:literal])* $name:ident: $Type:ty = $default:expr, $unit:literal; )*
        }
    )*) => {
        $(
            $(#[doc = $section_doc])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Section {
                $( $(#[doc = $doc])* pub $name: $Type, )*
            }

            impl Default for $Section {
                fn default() -> $Section {
                    $Section { $( $name: $default, )* }
                }
            }
        )*

        /// The whole configuration of a server.
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct ServerConfig {
            $( pub $section: $Section, )*
        }

        const SECTIONS: &[(&str, &str)] = &[ $( (stringify!($section), concat!($($section_doc,)*)), )* ];

        /// Every key, in the order of the sample file.
        pub fn keys() -> Vec<Key> {
            vec![ $( $( Key {
                section: stringify!($section),
                name: stringify!($name),
                kind: <$Type as ConfigValue>::TYPE,
                unit: $unit,
                default: { let default: $Type = $default; default.to_toml().to_string() },
                env: env_name(stringify!($section), stringify!($name)),
                doc: concat!($($doc,)*).trim_ascii_start(),
            }, )* )* ]
        }

        impl ServerConfig {
            fn set_value(&mut self, section: &str, name: &str, given: Given<'_>) -> Option<Result<(), String>> {
                match (section, name) {
                    $( $( (stringify!($section), stringify!($name)) => {
                        let read = match given {
                            Given::Text(text) => <$Type as ConfigValue>::from_text(text),
                            Given::Toml(value) => <$Type as ConfigValue>::from_toml(value),
                        };
                        Some(read.map(|value| self.$section.$name = value))
                    } )* )*
                    _ => None,
                }
            }

            /// The value of a key, as TOML.
            pub fn get(&self, section: &str, name: &str) -> Option<toml::Value> {
                match (section, name) {
                    $( $( (stringify!($section), stringify!($name)) => Some(self.$section.$name.to_toml()), )* )*
                    _ => None,
                }
            }
        }
    };
}

sections! {
    /// Where the server listens and keeps its data, and what one client may ask of it.
    server: ServerSection {
        /// The folder that holds everything the server keeps. It is created if absent; one server at a time uses it.
        data: PathBuf = PathBuf::from("larder-data"), "";
        /// Address and port of the Redis protocol. Port 0 takes a free one.
        resp: String = "127.0.0.1:7379".to_owned(), "";
        /// Address and port of the HTTP API, the metrics and the console. Port 0 takes a free one.
        http: String = "127.0.0.1:7070".to_owned(), "";
        /// Threads that serve the Redis protocol. 0 means one per core.
        threads: u32 = 0, "threads";
        /// Threads that wait for the disk, shared by all connections, so that reads from memory never wait.
        disk_threads: u32 = 16, "threads";
        /// The password that every client must give: Redis clients with AUTH or HELLO, HTTP clients as `Authorization: Basic` (of any user) or `Bearer`, `larder` commands as `--password` or `LARDER_PASSWORD`. Only `/healthz` and `/readyz` are answered without. Empty asks for none.
        password: String = String::new(), "";
        /// Connections of the Redis protocol at one time; further ones are told so and closed.
        max_connections: u32 = 20_000, "connections";
        /// Connections of HTTP at one time; further ones are told so and closed. One that sends no request for 30 seconds is closed too.
        max_http_connections: u32 = 1_000, "connections";
        /// A connection that is silent for so long is closed. 0 never closes one.
        idle_timeout_seconds: u64 = 0, "seconds";
        /// The most arguments that one command may have.
        max_arguments: u32 = 1_048_576, "arguments";
        /// The longest single argument of a command.
        max_argument_bytes: ByteSize = ByteSize(512 << 20), "bytes";
        /// A connection whose unread replies exceed this is not read from until it takes some.
        output_buffer_bytes: ByteSize = ByteSize(1 << 20), "bytes";
        /// How long a stopping server waits for replies to be taken.
        stop_timeout_seconds: u64 = 10, "seconds";
    }
    /// How new versions are pulled.
    fetch: FetchSection {
        /// The most that all pulls together read in a second. 0 is unlimited. PATCH /v1/settings changes it until a restart.
        bytes_per_second: u64 = 0, "bytes a second";
        /// Segments that one pull fetches at a time.
        parallel: u32 = 4, "segments";
        /// A transfer that brings nothing for so long is broken off and tried again.
        stall_timeout_seconds: u64 = 30, "seconds";
        /// How often a broken transfer is tried again, from where it stopped, before the pull fails.
        retries: u32 = 8, "times";
        /// Read a new version into memory before it goes live.
        warm: bool = true, "";
    }
    /// Which versions are kept, and what a new one must satisfy. A pull may ask for more.
    stores: StoresSection {
        /// Versions kept of each store, the live one included. At least 1. PATCH /v1/settings changes this and the next two for good, until they are given another value here.
        retain_versions: u32 = 3, "versions";
        /// Versions older than this are removed, except the live and the previous one. 0 keeps them.
        retain_age_hours: u64 = 0, "hours";
        /// The most that one store's versions may take on disk; the oldest go first, never the live and the previous one. 0 is unlimited.
        retain_bytes: ByteSize = ByteSize(0), "bytes";
        /// A new version with fewer records does not go live.
        min_records: u64 = 0, "records";
        /// A new version that lost more than this share of the live one's records does not go live. 100 allows any.
        max_shrink_percent: f64 = 100.0, "percent";
    }
    /// What is written to standard error.
    log: LogSection {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter per module as in `info,larder_server=debug`.
        level: String = "info".to_owned(), "";
        /// `text` or `json`.
        format: String = "text".to_owned(), "";
    }
    /// The slow log that SLOWLOG GET shows.
    slowlog: SlowlogSection {
        /// Commands that take at least so long are kept. 0 keeps every command. PATCH /v1/settings changes it until a restart.
        threshold_us: u64 = 10_000, "microseconds";
        /// How many are kept; the oldest go first.
        length: u32 = 128, "commands";
    }
}

#[derive(Clone, Copy)]
enum Given<'a> {
    Text(&'a str),
    Toml(&'a toml::Value),
}

/// What is wrong with a configuration: where, which key, what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl ServerConfig {
    /// Defaults, then `file` if given, then the variables of `env`, then `flags` (`section.name`
    /// and a text each); checked as a whole.
    ///
    /// # Errors
    /// The first thing that is wrong, with its source: show it to the user.
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

    /// Applies a TOML text; `origin` names it in messages.
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
                self.set_or_explain(
                    section,
                    name,
                    Given::Toml(value),
                    &value.to_string(),
                    origin,
                )?;
            }
        }
        Ok(())
    }

    /// Applies those of `env` whose names begin with `LARDER_` and a section; others are not ours.
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
                        Given::Text(&text),
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

    /// Sets `section.name` from a text; `origin` names where it was written.
    pub fn set(&mut self, key: &str, text: &str, origin: &str) -> Result<(), ConfigError> {
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        self.set_or_explain(section, name, Given::Text(text), text, origin)
    }

    fn set_or_explain(
        &mut self,
        section: &str,
        name: &str,
        given: Given<'_>,
        shown: &str,
        origin: &str,
    ) -> Result<(), ConfigError> {
        let path = format!("{section}.{name}");
        match self.set_value(section, name, given) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) if path == "server.password" => Err(ConfigError(format!(
                "{origin}: server.password must be a text in quotes"
            ))),
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

    /// The rules that a type cannot say.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rule = |holds: bool, key: &str, value: &dyn fmt::Display, expected: &str| {
            if holds {
                Ok(())
            } else {
                Err(ConfigError(format!(
                    "{key} is {value}; it must be {expected}"
                )))
            }
        };
        for (key, address) in [
            ("server.resp", &self.server.resp),
            ("server.http", &self.server.http),
        ] {
            let port = address.rsplit_once(':').and_then(|(host, port)| {
                (!host.is_empty())
                    .then(|| port.parse::<u16>().ok())
                    .flatten()
            });
            rule(
                port.is_some(),
                key,
                address,
                "an address and a port, such as 127.0.0.1:7379",
            )?;
        }
        rule(
            self.server.threads <= 1024,
            "server.threads",
            &self.server.threads,
            "at most 1024",
        )?;
        rule(
            (1..=1024).contains(&self.server.disk_threads),
            "server.disk_threads",
            &self.server.disk_threads,
            "from 1 to 1024",
        )?;
        rule(
            self.server.max_connections > 0,
            "server.max_connections",
            &0,
            "at least 1",
        )?;
        rule(
            self.server.max_http_connections > 0,
            "server.max_http_connections",
            &0,
            "at least 1",
        )?;
        rule(
            self.server.max_arguments > 0,
            "server.max_arguments",
            &0,
            "at least 1",
        )?;
        rule(
            (1024..=(4 << 30)).contains(&self.server.max_argument_bytes.0),
            "server.max_argument_bytes",
            &self.server.max_argument_bytes,
            "from 1KiB to 4GiB",
        )?;
        rule(
            self.server.output_buffer_bytes.0 >= 4096,
            "server.output_buffer_bytes",
            &self.server.output_buffer_bytes,
            "at least 4KiB",
        )?;
        rule(
            (1..=256).contains(&self.fetch.parallel),
            "fetch.parallel",
            &self.fetch.parallel,
            "from 1 to 256",
        )?;
        rule(
            self.fetch.stall_timeout_seconds > 0,
            "fetch.stall_timeout_seconds",
            &0,
            "at least 1",
        )?;
        rule(
            self.stores.retain_versions > 0,
            "stores.retain_versions",
            &0,
            "at least 1",
        )?;
        rule(
            self.stores.max_shrink_percent <= 100.0,
            "stores.max_shrink_percent",
            &self.stores.max_shrink_percent,
            "from 0 to 100",
        )?;
        rule(
            ["text", "json"].contains(&self.log.format.as_str()),
            "log.format",
            &self.log.format,
            "text or json",
        )?;
        rule(
            self.slowlog.length <= 1_000_000,
            "slowlog.length",
            &self.slowlog.length,
            "at most 1000000",
        )
    }

    /// The configuration in force, as a TOML file. The password is shown only as set or not.
    pub fn to_toml(&self) -> String {
        print(|key| {
            let value = self.get(key.section, key.name);
            let shown = value.map(|value| value.to_string()).unwrap_or_default();
            let hidden = key.path() == "server.password" && !self.server.password.is_empty();
            let shown = if hidden {
                "\"********\"".to_owned()
            } else {
                shown
            };
            format!("{} = {shown}\n", key.name)
        })
    }
}

/// A file with every key, commented out at its default, under its documentation.
pub fn sample_toml() -> String {
    print(|key| {
        let unit = if key.unit.is_empty() {
            String::new()
        } else {
            format!(" Unit: {}.", key.unit)
        };
        format!(
            "# {}{unit} ({})\n# {} = {}\n\n",
            key.doc, key.env, key.name, key.default
        )
    })
}

/// The reference as a Markdown table per section.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Configuration\n\nDefaults, then the file, then environment variables, then flags; later ones win.\n",
    );
    for (section, doc) in SECTIONS {
        text.push_str(&format!(
            "\n## [{section}]\n\n{}\n\n| key | type | default | unit | environment | meaning |\n|---|---|---|---|---|---|\n",
            doc.trim()
        ));
        for key in keys().iter().filter(|key| key.section == *section) {
            let Key {
                name,
                kind,
                default,
                unit,
                env,
                doc,
                ..
            } = key;
            text.push_str(&format!(
                "| `{name}` | {kind} | `{default}` | {unit} | `{env}` | {doc} |\n"
            ));
        }
    }
    text
}

fn print(line: impl Fn(&Key) -> String) -> String {
    let mut text = String::new();
    for (section, doc) in SECTIONS {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("# {}\n[{section}]\n", doc.trim()));
        for key in keys().iter().filter(|key| key.section == *section) {
            text.push_str(&line(key));
        }
    }
    text
}

fn env_name(section: &str, name: &str) -> String {
    format!("LARDER_{section}_{name}").to_ascii_uppercase()
}

fn unknown(origin: &str, what: &str, name: &str, near: Option<String>) -> ConfigError {
    let advice = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`larder config reference` lists all".to_owned(),
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
    fn unknown_names_are_refused_with_the_nearest_that_exists() {
        assert_eq!(
            error_of("[server]\nthread = 2"),
            "larder.toml: no key is called server.thread; did you mean server.threads?"
        );
        assert_eq!(
            error_of("[sever]"),
            "larder.toml: no section is called [sever]; did you mean [server]?"
        );
        assert!(
            error_of("[log]\nqqqqqqqqqqqq = 1").ends_with("`larder config reference` lists all")
        );
    }

    #[test]
    fn a_wrong_value_is_named_with_what_it_must_be() {
        assert_eq!(
            error_of("[fetch]\nparallel = \"many\""),
            "larder.toml: fetch.parallel is \"many\"; it must be a whole number from 0 to 4294967295"
        );
        assert_eq!(
            error_of("[server]\nresp = \"localhost\""),
            "server.resp is localhost; it must be an address and a port, such as 127.0.0.1:7379"
        );
    }

    #[test]
    fn flags_win_over_the_environment_and_it_over_the_file() {
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

    #[test]
    fn what_is_shown_reads_back_the_same_and_hides_the_password() {
        let mut config = ServerConfig::default();
        config.stores.retain_bytes = ByteSize(12_345);
        config.stores.max_shrink_percent = 12.5;
        let mut again = ServerConfig::default();
        again.apply_toml(&config.to_toml(), "shown").unwrap();
        assert_eq!(again, config);
        config.server.password = "hunter2".to_owned();
        assert!(!config.to_toml().contains("hunter2"));
        let mut sample = ServerConfig::default();
        sample.apply_toml(&sample_toml(), "sample").unwrap();
        assert_eq!(sample, ServerConfig::default());
    }

    #[test]
    fn every_key_is_documented_and_its_default_passes() {
        ServerConfig::default().check().unwrap();
        for key in keys() {
            assert!(
                key.doc.len() > 10 && !key.doc.starts_with(' '),
                "{}",
                key.path()
            );
            assert_eq!(
                key.kind == "number",
                !key.unit.is_empty() && key.kind != "size",
                "{}",
                key.path()
            );
        }
        assert!(reference_markdown().contains("LARDER_FETCH_BYTES_PER_SECOND"));
    }
}
