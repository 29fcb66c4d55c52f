//! A space as FT.CREATE declares it.

use super::attribute::{Attribute, AttributeId};
use super::layout::Filling;
use crate::base::words::STOPWORDS;
use crate::expression::{Cell, Expression};
use crate::object::{Object, ObjectKind, Path};

#[derive(Debug, Clone)]
pub struct Definition {
    pub name: String,
    pub on: ObjectKind,
    /// Keys that begin with one of them are covered; all keys if there is none.
    pub prefixes: Vec<Vec<u8>>,
    pub filter: Option<Filter>,
    /// None: [`STOPWORDS`].
    pub stopwords: Option<Vec<Vec<u8>>>,
    /// Objects that are there already are not covered until they are written.
    pub skip_initial_scan: bool,
    /// Options that are accepted and have no effect, as arguments, to be shown again.
    pub without_effect: Vec<Vec<u8>>,
    pub attributes: Vec<Attribute>,
    /// The id of the next attribute to come.
    pub next_id: AttributeId,
    pub layout: Layout,
}

/// Which objects are covered, beside their keys.
#[derive(Debug, Clone)]
pub struct Filter {
    pub text: String,
    pub expression: Expression,
}

/// Larder's clauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Beside the key subspace.
    pub subspaces: Vec<Vec<Cut>>,
    /// How many servers have each region. None: as the server is configured.
    pub replicas: Option<u32>,
    /// Of each subspace at most; a power of two.
    pub regions: u32,
    /// What it is to have, while that is being filled.
    pub filling: Option<Filling>,
    /// Local indexes: the attributes of each, in order. None: one for each attribute that can be searched.
    pub indexes: Option<Vec<Vec<AttributeId>>>,
}

/// An attribute of a subspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub attribute: AttributeId,
    /// It is cut into 2^bits parts. None: the bits that are left are shared out equally.
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
    /// The attributes by which a local index leads to objects: by itself, or as the first one of several.
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

    /// By name, or else by the field or path that it is of.
    pub fn by_name_or_identifier(&self, name: &str) -> Option<&Attribute> {
        let by_identifier = || {
            self.attributes
                .iter()
                .find(|attribute| attribute.identifier == name)
        };
        self.by_name(name).or_else(by_identifier)
    }

    /// As [`Definition::attribute`], of an id that was taken from this definition.
    ///
    /// # Panics
    /// It was not, or has been dropped.
    pub fn get(&self, id: AttributeId) -> &Attribute {
        self.attribute(id)
            .expect("the id is of an attribute of this space")
    }

    /// How many columns a row has: one for each id that was ever given out.
    pub fn columns(&self) -> usize {
        self.next_id.index()
    }

    pub fn is_stopword(&self, word: &[u8]) -> bool {
        match &self.stopwords {
            Some(list) => list.iter().any(|stopword| stopword == word),
            None => STOPWORDS.iter().any(|stopword| stopword.as_bytes() == word),
        }
    }

    /// The words that texts and queries are rid of.
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

    /// Whether the object under this key is one of the space's: of its kind, with one of its prefixes, and the filter holds.
    /// A filter that cannot be evaluated, as for a field that is missing, does not.
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

    /// What of an object a name means in an expression: `__key`, an attribute, else a field or a path.
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

/// The values that a path means, as one cell: a single scalar as itself, several as a list, objects as their text.
pub fn json_cell(values: &[&serde_json::Value]) -> Cell {
    use serde_json::Value;
    let cell = |value: &Value| match value {
        Value::Null => Cell::Null,
        Value::Bool(flag) => Cell::of_bool(*flag),
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
