//! Attributes: what of an object can be searched, and as what.

use crate::base::words::TagRule;
use crate::object::{ObjectKind, Path};

/// Which attribute of a space. It stays the same while others are added and dropped, and is given out once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeId(pub u16);

impl AttributeId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    pub id: AttributeId,
    /// The hash's field, or the path of a JSON document.
    pub identifier: String,
    /// The identifier's path, of a JSON document.
    pub path: Option<Path>,
    /// As queries name it.
    pub name: String,
    pub kind: Kind,
    pub options: Options,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Tag {
        /// None: the whole value is one tag.
        separator: Option<u8>,
        is_case_sensitive: bool,
    },
    /// Words, not stemmed. The weight has no effect: searches do not score.
    Text {
        weight: f64,
        no_stem: bool,
    },
    Numeric,
    Geo,
    /// Larder's: microseconds since 1970, written as seconds or as a date.
    Timestamp,
    /// Larder's: true or false, also 1 or 0.
    Boolean,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Without effect: every attribute can be sorted by.
    pub sortable: bool,
    /// Texts are sorted as they are written, not folded to lower case.
    pub unf: bool,
    /// Not searched, only sorted by and returned.
    pub no_index: bool,
    pub index_empty: bool,
    pub index_missing: bool,
    /// Without effect: suffixes can always be searched.
    pub suffix_trie: bool,
}

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Tag { .. } => "TAG",
            Kind::Text { .. } => "TEXT",
            Kind::Numeric => "NUMERIC",
            Kind::Geo => "GEO",
            Kind::Timestamp => "TIMESTAMP",
            Kind::Boolean => "BOOLEAN",
        }
    }

    /// Whether regions of it are cut by bounds, so that ranges contact few; else by hash.
    pub fn is_ordered(&self) -> bool {
        matches!(self, Kind::Numeric | Kind::Timestamp | Kind::Boolean)
    }
}

impl Attribute {
    /// Whether an object has one value of it at most, whatever is written.
    pub fn is_single_valued(&self) -> bool {
        let splits = matches!(
            self.kind,
            Kind::Tag {
                separator: Some(_),
                ..
            } | Kind::Text { .. }
        );
        // What a path means may be an array, whose elements are all values.
        !splits && self.path.is_none()
    }

    pub fn tag_rule(&self) -> TagRule {
        let (separator, is_case_sensitive) = match self.kind {
            Kind::Tag {
                separator,
                is_case_sensitive,
            } => (separator, is_case_sensitive),
            _ => (None, false),
        };
        TagRule {
            separator,
            is_case_sensitive,
            has_empty: self.options.index_empty,
        }
    }

    /// Whether texts are compared as they are written when they are sorted by.
    pub fn sorts_unfolded(&self) -> bool {
        self.options.unf
            || matches!(
                self.kind,
                Kind::Tag {
                    is_case_sensitive: true,
                    ..
                }
            )
    }

    /// The separator of tags that is assumed where none is given.
    pub fn default_separator(on: ObjectKind) -> Option<u8> {
        match on {
            ObjectKind::Hash => Some(b','),
            ObjectKind::Json => None,
        }
    }
}
