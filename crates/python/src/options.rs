//! The options of a build, as they come from Python: the words and defaults of `larder build`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use larder_batch::profile::{ColumnLimit, Limits};
use larder_batch::{BuildOptions, Built, CollectAs, Compression, OnDuplicate};
use larder_ingest::{InputOptions, NullPolicy, ValueSpec};
use larder_types::{ByteSize, StoreName, VALUE_BYTES_MAX};
use pyo3::PyResult;
use serde::Deserialize;

use crate::bad_argument;
use crate::interrupt;
use crate::on::{self, OnOptions};

/// A builder takes so many writers at a time.
const WRITERS_MAX: usize = 16;

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Options {
    pub store: StoreName,
    key: Vec<String>,
    value: Option<String>,
    values: Option<String>,
    pub partitions: u32,
    compress: String,
    filter: bool,
    on_duplicate: OnDuplicate,
    collect_as: Option<CollectAs>,
    pub profile: bool,
    min_records: Option<u64>,
    max_shrink_percent: Option<f64>,
    max_growth_percent: Option<f64>,
    /// By column, `*` for every other one.
    max_nulls: BTreeMap<String, f64>,
    max_empty: BTreeMap<String, f64>,
    max_shift: BTreeMap<String, f64>,
    /// Where the version is that gates compare with.
    pub against: Option<String>,
    skip_nulls: bool,
    pub allow_empty: bool,
    /// Of a delta.
    pub on: Option<OnOptions>,
    memory: String,
    threads: Option<usize>,
    pub temp: Option<PathBuf>,
    /// Seconds since 1970, for what the manifest says of the build.
    at: u64,
    /// How the input is named there.
    input: String,
    /// Those that were given and bear on the version, by name.
    given: BTreeMap<String, String>,
}

impl Options {
    /// # Errors
    /// `ValueError`: what is wrong with which.
    pub fn parse(text: &str) -> PyResult<Options> {
        let options: Options = serde_json::from_str(text).map_err(bad_argument)?;
        if options.value.is_some() && options.values.is_some() {
            return Err(bad_argument(
                "value names one column and values makes one of all: give one of them",
            ));
        }
        options.value_spec()?;
        options.collect()?;
        options.compression()?;
        options.memory()?;
        Ok(options)
    }

    /// Whether the rows are changes to another version.
    pub fn is_of_changes(&self) -> bool {
        self.on.as_ref().is_some_and(|on| !on.full)
    }

    /// Whether the version tells what its columns hold: changes alone do not say it.
    pub fn has_profile(&self) -> bool {
        self.profile && !self.is_of_changes()
    }

    /// The gates.
    pub fn limits(&self) -> Limits {
        let columns = |limits: &BTreeMap<String, f64>| {
            let each = limits.iter().map(|(column, limit)| ColumnLimit {
                column: column.clone(),
                limit: *limit,
            });
            each.collect()
        };
        Limits {
            min_records: self.min_records,
            max_shrink_percent: self.max_shrink_percent,
            max_growth_percent: self.max_growth_percent,
            allow_empty: self.allow_empty,
            max_nulls: columns(&self.max_nulls),
            max_empty: columns(&self.max_empty),
            max_shift: columns(&self.max_shift),
        }
    }

    fn value_spec(&self) -> PyResult<ValueSpec> {
        match (&self.value, self.values.as_deref()) {
            (Some(column), _) => Ok(ValueSpec::Column(column.clone())),
            (None, Some("json") | None) => Ok(ValueSpec::Json),
            (None, Some("msgpack")) => Ok(ValueSpec::MessagePack),
            (None, Some(other)) => Err(bad_argument(format!(
                "values={other:?} is not known; use \"json\" or \"msgpack\""
            ))),
        }
    }

    /// How the values of one key are collected: it follows from the options, never from the data.
    fn collect(&self) -> PyResult<CollectAs> {
        let own = match self.value_spec()? {
            ValueSpec::Column(_) => CollectAs::Text,
            ValueSpec::MessagePack => CollectAs::MessagePack,
            ValueSpec::Json => CollectAs::Json,
        };
        let Some(asked) = self.collect_as else {
            return Ok(own);
        };
        let fits = match self.value {
            Some(_) => asked != CollectAs::MessagePack,
            None => asked == own,
        };
        match (fits, self.on_duplicate) {
            (true, OnDuplicate::Collect) => Ok(asked),
            (true, _) => Err(bad_argument("collect_as is of on_duplicate=\"collect\"")),
            (false, _) => Err(bad_argument(format!(
                "collect_as={:?} does not fit these values; they are collected as {:?}",
                asked.name(),
                own.name()
            ))),
        }
    }

    fn compression(&self) -> PyResult<Compression> {
        self.compress.parse().map_err(bad_argument)
    }

    /// # Errors
    /// `ValueError`: it is no size, or too little.
    pub fn memory(&self) -> PyResult<ByteSize> {
        const MEMORY_MIN: ByteSize = ByteSize(64 << 20);
        let memory: ByteSize = self.memory.parse().map_err(bad_argument)?;
        match memory < MEMORY_MIN {
            true => Err(bad_argument(format!(
                "memory={memory} is too little; give at least {MEMORY_MIN}"
            ))),
            false => Ok(memory),
        }
    }

    fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(all).max(1)
    }

    /// How many threads hand rows to a builder.
    pub fn writers(&self) -> usize {
        self.threads().min(WRITERS_MAX)
    }

    /// What says of the input's columns what is key and what is value.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn input(&self) -> PyResult<InputOptions> {
        let parsing = self.memory()?.0 / 4;
        let nulls = match self.skip_nulls {
            true => NullPolicy::Skip,
            false => NullPolicy::Error,
        };
        Ok(InputOptions {
            key: self.key.clone(),
            value: self.value_spec()?,
            threads: self.writers(),
            memory: ByteSize(parsing),
            value_bytes_max: VALUE_BYTES_MAX.min((self.memory()?.0 - parsing) / 4),
            null_key: nulls,
            null_value: nulls,
            ..InputOptions::default()
        })
    }

    /// Of rows of which only the key counts.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn input_of_keys(&self) -> PyResult<InputOptions> {
        Ok(InputOptions {
            // It has to be a column that is there; nobody looks at it.
            value: ValueSpec::Column(self.key[0].clone()),
            ..self.input()?
        })
    }

    /// Of a version that is to be at `target`: a delta, if it is built on another.
    ///
    /// # Errors
    /// As [`Options::parse`], and of what it is built on.
    pub fn build_at(&self, target: &str) -> PyResult<BuildOptions> {
        let mut options = self.build()?;
        options.on = on::open(self, target)?;
        let on = options.on.as_ref();
        let base = on.and_then(|on| on.base.manifest().built.as_ref());
        options.built = Some(self.built_on(base)?);
        Ok(options)
    }

    /// # Errors
    /// As [`Options::parse`].
    pub fn build(&self) -> PyResult<BuildOptions> {
        let memory = self.memory()?.0;
        let mut options = BuildOptions::new(self.store.clone());
        options.partitions = self.partitions;
        options.memory = ByteSize(memory - memory / 4);
        options.threads = self.threads();
        options.temp_dir.clone_from(&self.temp);
        options.compression = self.compression()?;
        options.filter = self.filter;
        options.on_duplicate = self.on_duplicate;
        options.collect_as = self.collect()?;
        options.built = Some(self.built()?);
        options.is_cancelled = interrupt::is_interrupted;
        Ok(options)
    }

    /// What the manifest says of a build on a base.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn built_on(&self, base: Option<&Built>) -> PyResult<Built> {
        let mut built = self.built()?;
        if let Some(base) = base
            && self.on.as_ref().is_some_and(|on| on.keys_only)
        {
            built.take_values_of(base);
        }
        Ok(built)
    }

    /// What the manifest says of the build.
    fn built(&self) -> PyResult<Built> {
        let (value, value_column) = match self.value_spec()? {
            ValueSpec::Column(column) => ("column", Some(column)),
            ValueSpec::MessagePack => ("msgpack", None),
            ValueSpec::Json => ("json", None),
        };
        let collects = self.on_duplicate == OnDuplicate::Collect;
        Ok(Built {
            by: format!("larder {} (Python)", env!("CARGO_PKG_VERSION")),
            at: self.at,
            inputs: vec![self.input.clone()],
            more_inputs: 0,
            key: self.key.clone(),
            value: value.to_owned(),
            value_column,
            collect_as: match collects {
                true => Some(self.collect()?),
                false => None,
            },
            on: Vec::new(),
            options: self.given.clone(),
            profile: None,
            digest: String::new(),
        })
    }
}
