//! The options of a build and their bounds.

use std::path::PathBuf;

use larder_types::{ByteSize, StoreName, VALUE_BYTES_MAX};
use serde::{Deserialize, Serialize};

use super::collect::CollectAs;
use super::delta_base::DeltaBase;
use crate::built::Built;
use crate::error::Error;
use crate::manifest::PARTITIONS_MAX;
use crate::segment::Compression;
use crate::segment::format::{FORMAT, FORMAT_MIN};
use crate::signature::SecretKey;

/// The policy for rows that share a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDuplicate {
    /// Reject the build.
    #[default]
    Error,
    /// Keep the first row of the input.
    First,
    /// Keep the last row of the input.
    Last,
    /// Keep all: the value is an array of the values in input order, encoded according to
    /// [`BuildOptions::collect_as`].
    Collect,
}

impl std::str::FromStr for OnDuplicate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(OnDuplicate::Error),
            "first" => Ok(OnDuplicate::First),
            "last" => Ok(OnDuplicate::Last),
            "collect" => Ok(OnDuplicate::Collect),
            _ => Err(format!(
                "{text:?} is no way to treat duplicates; use error, first, last or collect"
            )),
        }
    }
}

/// Minimum memory of a builder.
pub(super) const MEMORY_MIN: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct BuildOptions {
    pub store: StoreName,
    /// 1 to 16,384.
    pub partitions: u32,
    /// Maximum memory of the builder: at least 16 MiB, and at least four times the longest value.
    pub memory: ByteSize,
    /// The number of threads that write segments.
    pub threads: usize,
    /// The folder of the spill file; `None` means the output folder.
    pub temp_dir: Option<PathBuf>,
    pub compression: Compression,
    /// Average bytes of records per block; `None` selects a size for the compression.
    pub block_size: Option<u32>,
    pub filter: bool,
    /// Segment format: 2, or 1 for servers that read no other.
    pub segment_format: u32,
    pub on_duplicate: OnDuplicate,
    /// The encoding of the arrays of [`OnDuplicate::Collect`]. The values of one key may take an eighth of the
    /// memory.
    pub collect_as: CollectAs,
    pub value_bytes_max: u64,
    /// The base of a delta; `None` for a complete version. A delta has the partitions, the compression and the block
    /// size of its base, and always a filter.
    pub delta_base: Option<DeltaBase>,
    /// The description of the build for the manifest.
    pub built: Option<Built>,
    /// Collect a profile for `built`. Without `built` there is none.
    pub profile: bool,
    /// The key that signs the manifest. Manifests of format 1 cannot be signed.
    pub sign: Option<SecretKey>,
    /// Polled while segments are written; `true` ends the build with [`Error::Cancelled`].
    pub is_cancelled: fn() -> bool,
}

impl BuildOptions {
    pub fn new(store: StoreName) -> BuildOptions {
        BuildOptions {
            store,
            partitions: 8,
            memory: ByteSize(1 << 30),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            temp_dir: None,
            compression: Compression::None,
            block_size: None,
            filter: true,
            segment_format: FORMAT,
            on_duplicate: OnDuplicate::Error,
            collect_as: CollectAs::default(),
            value_bytes_max: VALUE_BYTES_MAX,
            delta_base: None,
            built: None,
            profile: false,
            sign: None,
            is_cancelled: || false,
        }
    }

    /// Returns the options, with those that the base determines.
    pub(super) fn with_base_settings(mut self) -> Result<BuildOptions, Error> {
        self.check()?;
        let Some(on) = &self.delta_base else {
            return Ok(self);
        };
        let base = on.base.manifest();
        if base.store != self.store {
            return Err(Error::state(format!(
                "the base is a version of store {}, so a version of store {} cannot be built on it",
                base.store, self.store
            )));
        }
        self.partitions = base.partitions;
        self.compression = on.base.compression();
        (self.filter, self.segment_format) = (true, FORMAT);
        Ok(self)
    }

    /// # Errors
    /// If an option is out of bounds.
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            return Err(Error::limit(
                "--partitions",
                format!("{} is not between 1 and {PARTITIONS_MAX}", self.partitions),
            ));
        }
        if self.memory.0 < MEMORY_MIN {
            return Err(Error::limit(
                "--memory",
                format!(
                    "{} is too small; pass at least {}",
                    self.memory,
                    ByteSize(MEMORY_MIN)
                ),
            ));
        }
        if self.threads == 0 {
            return Err(Error::limit(
                "--threads",
                "0 threads cannot build; pass at least 1",
            ));
        }
        if !(FORMAT_MIN..=FORMAT).contains(&self.segment_format) {
            return Err(Error::limit(
                "the segments' format",
                format!(
                    "{} is not between {FORMAT_MIN} and {FORMAT}",
                    self.segment_format
                ),
            ));
        }
        if self.sign.is_some() && self.segment_format < FORMAT {
            return Err(Error::limit(
                "--sign",
                "versions of format 1 are not signed",
            ));
        }
        if self
            .block_size
            .is_some_and(|size| !(256..=1 << 20).contains(&size))
        {
            return Err(Error::limit(
                "--block-size",
                "a block size must be between 256 bytes and 1 MiB",
            ));
        }
        Ok(())
    }
}
