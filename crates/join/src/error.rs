//! Errors, and what the caller can do about each.

use std::fmt;

/// An invalid definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionError {
    /// Position in the definition, in characters, starting at 1.
    pub column: usize,
    /// The mistake, and its correction.
    pub message: String,
}

impl DefinitionError {
    pub(crate) fn new(column: usize, message: impl Into<String>) -> Self {
        Self {
            column,
            message: message.into(),
        }
    }
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

impl std::error::Error for DefinitionError {}

/// An operation that was rejected. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The table is the output of a join: write to the join's sources instead.
    ComputedTable { table: String, join: String },
    /// The key does not contain `|` or `:`, which end the table's name.
    NoTable { key: Vec<u8> },
    /// A range must lie in one table; this one spans several. Read the tables one by one.
    ManyTables { lo: Vec<u8>, hi: Vec<u8> },
    /// Base rows alone exceed the memory limit. Raise the limit or remove rows.
    OutOfMemory {
        memory_bytes: usize,
        limit_bytes: usize,
    },
    /// The row to increment does not hold an integer.
    NotAnInteger { key: Vec<u8> },
    /// The result of an increment exceeds 64 bits.
    Overflow { key: Vec<u8> },
    /// The aggregate contains values that are not numbers. Correct the source rows.
    NotANumber {
        key: Vec<u8>,
        join: String,
        values: u64,
    },
    /// The table's rows cannot be subscribed to. `why` contains the reason and the remedy.
    NotSubscribable { table: String, why: String },
    /// A long read was lost: the values that it needs of changed rows exceed the memory for long reads. Read faster, or
    /// in parts.
    SnapshotTooOld,
    /// Other joins read the output of the join to drop. Drop them first, or together with it.
    JoinIsRead { name: String, readers: Vec<String> },
    /// No join has this name.
    UnknownJoin { name: String },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ComputedTable { table, join } => {
                write!(
                    f,
                    "table {table} is computed by join {join}: write to its sources"
                )
            }
            Error::NoTable { key } => write!(
                f,
                "key {:?} names no table: a key begins with its table's name and | or :",
                text(key)
            ),
            Error::ManyTables { lo, hi } => write!(
                f,
                "range {:?} to {:?} spans more than one table: read the tables one by one",
                text(lo),
                text(hi)
            ),
            Error::OutOfMemory {
                memory_bytes,
                limit_bytes,
            } => write!(
                f,
                "OOM base rows need {memory_bytes} bytes and the limit is {limit_bytes}: remove rows or raise the limit"
            ),
            Error::NotAnInteger { key } => {
                write!(
                    f,
                    "value of {:?} is not an integer or out of range",
                    text(key)
                )
            }
            Error::Overflow { key } => {
                write!(f, "value of {:?} would overflow", text(key))
            }
            Error::NotANumber { key, join, values } => write!(
                f,
                "row {:?} of join {join} has {values} source value{} that {} not a number: correct or remove {}",
                text(key),
                if *values == 1 { "" } else { "s" },
                if *values == 1 { "is" } else { "are" },
                if *values == 1 { "it" } else { "them" }
            ),
            Error::NotSubscribable { table, why } => write!(f, "table {table} {why}"),
            Error::SnapshotTooOld => f.write_str(
                "this long read was dropped, because the former values of rows that changed or were evicted exceed the memory limit of long reads: read faster, or request smaller ranges",
            ),
            Error::JoinIsRead { name, readers } => write!(
                f,
                "the output of join {name} is read by {}: drop these joins first, or drop all of them with CASCADE",
                readers.join(", ")
            ),
            Error::UnknownJoin { name } => write!(f, "no join is named {name:?}"),
        }
    }
}

impl std::error::Error for Error {}

/// Key bytes as readable text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
