//! The options of a build from Python: the names and defaults of `larder build`.

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

/// Maximum number of concurrent writers of a builder.
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
    /// By column; `*` applies to all others.
    max_nulls: BTreeMap<String, f64>,
    max_empty: BTreeMap<String, f64>,
    max_shift: BTreeMap<String, f64>,
    /// The location of the version with which gates compare.
    pub against: Option<String>,
    skip_nulls: bool,
    pub allow_empty: bool,
    /// Set for a delta.
    pub on: Option<OnOptions>,
    memory: String,
    threads: Option<usize>,
    pub temp: Option<PathBuf>,
    /// Seconds since 1970, for the manifest.
    at: u64,
    /// The name of the input in the manifest.
    input: String,
    /// The given options that affect the version, by name.
    given: BTreeMap<String, String>,
}

impl Options {
    /// # Errors
    /// `ValueError` with the invalid option.
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

    /// Returns whether the rows are changes to another version.
    pub fn is_of_changes(&self) -> bool {
        self.on.as_ref().is_some_and(|on| !on.full)
    }

    /// Returns whether the version gets a profile: changes alone do not yield one.
    pub fn has_profile(&self) -> bool {
        self.profile && !self.is_of_changes()
    }

    /// Returns the gates.
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

    /// Returns the encoding of collected values, which depends only on the options, not on the data.
    fn collect(&self) -> PyResult<CollectAs> {
        let own = match self.value_spec()? {
            ValueSpec::Column(_) => CollectAs::Text,
            ValueSpec::MessagePack => CollectAs::MessagePack,
            ValueSpec::Json => CollectAs::Json,
        };
        let Some(requested) = self.collect_as else {
            return Ok(own);
        };
        let fits = match self.value {
            Some(_) => requested != CollectAs::MessagePack,
            None => requested == own,
        };
        match (fits, self.on_duplicate) {
            (true, OnDuplicate::Collect) => Ok(requested),
            (true, _) => Err(bad_argument("collect_as is of on_duplicate=\"collect\"")),
            (false, _) => Err(bad_argument(format!(
                "collect_as={:?} does not fit these values; they are collected as {:?}",
                requested.name(),
                own.name()
            ))),
        }
    }

    fn compression(&self) -> PyResult<Compression> {
        self.compress.parse().map_err(bad_argument)
    }

    /// # Errors
    /// `ValueError` if it is not a size, or too small.
    pub fn memory(&self) -> PyResult<ByteSize> {
        const MEMORY_MIN: ByteSize = ByteSize(64 << 20);
        let memory: ByteSize = self.memory.parse().map_err(bad_argument)?;
        if memory < MEMORY_MIN {
            Err(bad_argument(format!(
                "memory={memory} is too little; give at least {MEMORY_MIN}"
            )))
        } else {
            Ok(memory)
        }
    }

    fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(all).max(1)
    }

    /// Returns the number of threads that pass rows to a builder.
    pub fn writers(&self) -> usize {
        self.threads().min(WRITERS_MAX)
    }

    /// Returns the options for reading the input: which columns are the key and the value.
    ///
    /// # Errors
    /// Like [`Options::parse`].
    pub fn input(&self) -> PyResult<InputOptions> {
        let parsing = self.memory()?.0 / 4;
        let nulls = if self.skip_nulls {
            NullPolicy::Skip
        } else {
            NullPolicy::Error
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

    /// Returns the options for rows of which only the key is used.
    ///
    /// # Errors
    /// Like [`Options::parse`].
    pub fn input_of_keys(&self) -> PyResult<InputOptions> {
        Ok(InputOptions {
            // The column must exist; its values are ignored.
            value: ValueSpec::Column(self.key[0].clone()),
            ..self.input()?
        })
    }

    /// Returns the options for a version at `target`: a delta, if there is a base.
    ///
    /// # Errors
    /// Like [`Options::parse`], and those of opening the base.
    pub fn build_at(&self, target: &str) -> PyResult<BuildOptions> {
        let mut options = self.build()?;
        options.delta_base = on::open(self, target)?;
        let on = options.delta_base.as_ref();
        let base = on.and_then(|on| on.base.manifest().built.as_ref());
        options.built = Some(self.built_on(base)?);
        Ok(options)
    }

    /// # Errors
    /// Like [`Options::parse`].
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

    /// Returns the manifest's description of a build on a base.
    ///
    /// # Errors
    /// Like [`Options::parse`].
    pub fn built_on(&self, base: Option<&Built>) -> PyResult<Built> {
        let mut built = self.built()?;
        if let Some(base) = base
            && self.on.as_ref().is_some_and(|on| on.keys_only)
        {
            built.copy_value_format(base);
        }
        Ok(built)
    }

    /// Returns the manifest's description of the build.
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
            collect_as: if collects {
                Some(self.collect()?)
            } else {
                None
            },
            on: Vec::new(),
            options: self.given.clone(),
            profile: None,
            digest: String::new(),
        })
    }
}
