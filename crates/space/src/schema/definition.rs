//! The definition of a space, as declared by FT.CREATE.

use super::attribute::{Attribute, AttributeId};
use super::layout::Filling;
use crate::base::words::STOPWORDS;
use crate::expression::{Cell, Expression};
use crate::object::{Object, ObjectKind, Path};

#[derive(Debug, Clone)]
pub struct Definition {
    pub name: String,
    pub on: ObjectKind,
    /// The prefixes of covered keys. Empty: all keys are covered.
    pub prefixes: Vec<Vec<u8>>,
    pub filter: Option<Filter>,
    /// `None`: [`STOPWORDS`].
    pub stopwords: Option<Vec<Vec<u8>>>,
    /// Existing objects are not covered until they are written again.
    pub skip_initial_scan: bool,
    /// Options that are accepted and have no effect, as arguments, for display.
    pub without_effect: Vec<Vec<u8>>,
    pub attributes: Vec<Attribute>,
    /// The id of the next attribute that is added.
    pub next_id: AttributeId,
    pub layout: Layout,
}

/// A condition on covered objects, in addition to the prefixes.
#[derive(Debug, Clone)]
pub struct Filter {
    pub text: String,
    pub expression: Expression,
}

/// The clauses that larder adds to FT.CREATE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The subspaces, without the key subspace.
    pub subspaces: Vec<Vec<Cut>>,
    /// The number of servers that store each region. `None`: the server's configuration applies.
    pub replicas: Option<u32>,
    /// The maximum number of regions of each subspace; a power of two.
    pub regions: u32,
    /// The subspaces that will replace the current ones, while they are being filled.
    pub filling: Option<Filling>,
    /// The local indexes, as lists of attributes in order. `None`: one for each searchable attribute.
    pub indexes: Option<Vec<Vec<AttributeId>>>,
}

/// An attribute of a subspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub attribute: AttributeId,
    /// The attribute is divided into 2^bits cells. `None`: it gets an equal share of the remaining bits.
    pub bits: Option<u8>,
}

pub const REGIONS_DEFAULT: u32 = 256;

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            subspaces: Vec::new(),
            replicas: None,
            regions: REGIONS_DEFAULT,
            filling: None,
            indexes: None,
        }
    }
}

impl Definition {
    /// Returns the attributes that have a local index, or are the first attribute of one.
    pub fn indexed(&self) -> impl Iterator<Item = &Attribute> {
        let leads = |attribute: &&Attribute| match &self.layout.indexes {
            None => !attribute.options.no_index,
            Some(lists) => lists.iter().any(|list| list.first() == Some(&attribute.id)),
        };
        self.attributes.iter().filter(leads)
    }

    pub fn attribute(&self, id: AttributeId) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.id == id)
    }

    pub fn by_name(&self, name: &str) -> Option<&Attribute> {
        self.attributes
            .iter()
            .find(|attribute| attribute.name == name)
    }

    /// Looks up an attribute by name, then by its field or path.
    pub fn by_name_or_identifier(&self, name: &str) -> Option<&Attribute> {
        let by_identifier = || {
            self.attributes
                .iter()
                .find(|attribute| attribute.identifier == name)
        };
        self.by_name(name).or_else(by_identifier)
    }

    /// Like [`Definition::attribute`], for an id of this definition.
    ///
    /// # Panics
    /// The id is not of this definition, or its attribute was dropped.
    pub fn get(&self, id: AttributeId) -> &Attribute {
        self.attribute(id)
            .expect("the id is of an attribute of this space")
    }

    /// Returns the number of columns of a row: one for each id ever assigned.
    pub fn columns(&self) -> usize {
        self.next_id.index()
    }

    pub fn is_stopword(&self, word: &[u8]) -> bool {
        match &self.stopwords {
            Some(list) => list.iter().any(|stopword| stopword == word),
            None => STOPWORDS.iter().any(|stopword| stopword.as_bytes() == word),
        }
    }

    /// Returns the words that are omitted from texts and queries.
    pub fn stopword_list(&self) -> Vec<Vec<u8>> {
        match &self.stopwords {
            Some(list) => list.clone(),
            None => STOPWORDS
                .iter()
                .map(|word| word.as_bytes().to_vec())
                .collect(),
        }
    }

    pub fn covers_key(&self, key: &[u8]) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Returns whether the space covers the object under this key: the kind and a prefix match, and the filter holds. A
    /// filter that cannot be evaluated, for example because a field is missing, does not hold.
    pub fn covers(&self, key: &[u8], object: &Object) -> bool {
        if object.kind() != self.on || !self.covers_key(key) {
            return false;
        }
        let Some(filter) = &self.filter else {
            return true;
        };
        filter
            .expression
            .holds(&|name: &str| self.stored_cell(key, object, name))
    }

    /// Returns the value of a name in an expression: `__key`, an attribute, or otherwise a field or a path.
    pub fn stored_cell(&self, key: &[u8], object: &Object, name: &str) -> Cell {
        if name == "__key" {
            return Cell::text(key);
        }
        let attribute = self.by_name(name);
        match object {
            Object::Hash(hash) => {
                let field = attribute.map_or(name, |attribute| &attribute.identifier);
                hash.get(field.as_bytes()).map_or(Cell::Null, Cell::text)
            }
            Object::Json(document) => {
                let known = attribute.and_then(|attribute| attribute.path.as_ref());
                if let Some(path) = known {
                    return json_cell(&path.select(&document.root));
                }
                let path = name.starts_with('$').then(|| Path::parse(name).ok());
                path.flatten()
                    .map_or(Cell::Null, |path| json_cell(&path.select(&document.root)))
            }
        }
    }
}

/// Returns the values of a path as one cell: one scalar as itself, several values as a list, and objects as their text.
pub fn json_cell(values: &[&serde_json::Value]) -> Cell {
    use serde_json::Value;
    let cell = |value: &Value| match value {
        Value::Null => Cell::Null,
        Value::Bool(flag) => Cell::from_bool(*flag),
        Value::Number(number) => Cell::Number(crate::object::document::number(number)),
        Value::String(text) => Cell::text(text.as_bytes()),
        Value::Array(_) | Value::Object(_) => Cell::Text(crate::object::document::print(value)),
    };
    match values {
        [] => Cell::Null,
        [Value::Array(elements)] => Cell::List(elements.iter().map(cell).collect()),
        [value] => cell(value),
        values => Cell::List(values.iter().map(|value| cell(value)).collect()),
    }
}
