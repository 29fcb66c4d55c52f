//! Determines which columns of a file form the key and which the value.

use std::collections::BTreeMap;

use crate::error::{At, Fault, FaultKind};
use crate::options::{InputOptions, ValueSpec};

/// The columns in the names of a file's folders, such as `day=2024-01-02`: the same value in every row, `None` for
/// null.
pub(crate) type FolderColumns = Vec<(String, Option<String>)>;

/// Column indexes for a file whose columns are known in advance.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The file's own columns, followed by those that only its folder has.
    pub names: Vec<String>,
    pub key: Vec<usize>,
    pub value: PlanValue,
    /// The columns whose value comes from the folder's name, including those that the file has too.
    pub constants: BTreeMap<usize, Option<String>>,
}

#[derive(Debug, Clone)]
pub(crate) enum PlanValue {
    Column(usize),
    Json(Vec<usize>),
    MessagePack(Vec<usize>),
}

impl Plan {
    pub fn new(
        mut names: Vec<String>,
        folder: &FolderColumns,
        options: &InputOptions,
    ) -> Result<Plan, Fault> {
        let mut constants = BTreeMap::new();
        for (name, value) in folder {
            let place = names.iter().position(|own| own == name);
            let place = place.unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            });
            constants.insert(place, value.clone());
        }
        let key = options
            .key
            .iter()
            .map(|name| find(&names, name))
            .collect::<Result<Vec<_>, _>>()?;
        let others = || -> Result<Vec<usize>, Fault> {
            let others: Vec<usize> = (0..names.len()).filter(|i| !key.contains(i)).collect();
            let mut seen = std::collections::HashSet::new();
            match others.iter().find(|i| !seen.insert(names[**i].as_str())) {
                Some(twice) => Err(duplicate_column(&names[*twice])),
                None => Ok(others),
            }
        };
        let value = match &options.value {
            ValueSpec::Column(name) => PlanValue::Column(find(&names, name)?),
            ValueSpec::Json => PlanValue::Json(others()?),
            ValueSpec::MessagePack => PlanValue::MessagePack(others()?),
        };
        Ok(Plan {
            names,
            key,
            value,
            constants,
        })
    }

    /// Returns the file's columns to read, sorted and without duplicates.
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = self.key.clone();
        match &self.value {
            PlanValue::Column(column) => columns.push(*column),
            PlanValue::Json(others) | PlanValue::MessagePack(others) => columns.extend(others),
        }
        columns.retain(|column| !self.constants.contains_key(column));
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

fn find(names: &[String], wanted: &str) -> Result<usize, Fault> {
    let mut found = names.iter().enumerate().filter(|(_, name)| *name == wanted);
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Ok(index),
        (Some(_), Some(_)) => Err(duplicate_column(wanted)),
        (None, _) => Err(Fault {
            at: At::File,
            kind: FaultKind::Column {
                wanted: wanted.to_owned(),
                have: names.to_vec(),
            },
        }),
    }
}

fn duplicate_column(name: &str) -> Fault {
    Fault::file(format!("two columns are named {name:?}; rename one"))
}
