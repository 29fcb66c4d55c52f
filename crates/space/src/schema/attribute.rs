//! Attributes: the searchable values of an object, and their types.

use crate::base::words::TagRule;
use crate::object::{ObjectKind, Path};

/// The id of an attribute in its space. It never changes while other attributes are added and dropped, and is never
/// reused.
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
    /// The field of a hash, or the path in a JSON document.
    pub identifier: String,
    /// The parsed path of a JSON document's attribute.
    pub path: Option<Path>,
    /// The name in queries.
    pub name: String,
    pub kind: AttributeKind,
    pub options: Options,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AttributeKind {
    Tag {
        /// `None`: the complete value is one tag.
        separator: Option<u8>,
        is_case_sensitive: bool,
    },
    /// Words without stemming. The weight has no effect, because searches do not score.
    Text {
        weight: f64,
        no_stem: bool,
    },
    Numeric,
    Geo,
    /// larder's extension: microseconds since 1970, written as seconds or as a date.
    Timestamp,
    /// larder's extension: true or false, or 1 or 0.
    Boolean,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// No effect: every attribute is sortable.
    pub sortable: bool,
    /// Texts are sorted without folding to lower case.
    pub unf: bool,
    /// Not searchable; only for sorting and in results.
    pub no_index: bool,
    pub index_empty: bool,
    pub index_missing: bool,
    /// No effect: suffix searches always work.
    pub suffix_trie: bool,
}

impl AttributeKind {
    pub fn name(&self) -> &'static str {
        match self {
            AttributeKind::Tag { .. } => "TAG",
            AttributeKind::Text { .. } => "TEXT",
            AttributeKind::Numeric => "NUMERIC",
            AttributeKind::Geo => "GEO",
            AttributeKind::Timestamp => "TIMESTAMP",
            AttributeKind::Boolean => "BOOLEAN",
        }
    }

    /// Returns whether regions partition the attribute by bounds, so that a range contacts few regions. Other
    /// attributes are partitioned by hash.
    pub fn is_ordered(&self) -> bool {
        matches!(
            self,
            AttributeKind::Numeric | AttributeKind::Timestamp | AttributeKind::Boolean
        )
    }
}

impl Attribute {
    /// Returns whether an object has at most one value of the attribute, whatever the field contains.
    pub fn is_single_valued(&self) -> bool {
        let splits = matches!(
            self.kind,
            AttributeKind::Tag {
                separator: Some(_),
                ..
            } | AttributeKind::Text { .. }
        );
        // A path may select an array, and each of its elements is a value.
        !splits && self.path.is_none()
    }

    pub fn tag_rule(&self) -> TagRule {
        let (separator, is_case_sensitive) = match self.kind {
            AttributeKind::Tag {
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

    /// Returns whether sorting compares texts without folding.
    pub fn sorts_unfolded(&self) -> bool {
        self.options.unf
            || matches!(
                self.kind,
                AttributeKind::Tag {
                    is_case_sensitive: true,
                    ..
                }
            )
    }

    /// Returns the separator of tags that applies if none is declared.
    pub fn default_separator(on: ObjectKind) -> Option<u8> {
        match on {
            ObjectKind::Hash => Some(b','),
            ObjectKind::Json => None,
        }
    }
}
