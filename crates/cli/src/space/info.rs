//! What `FT.INFO` tells of a space.

use larder_client::Reply;

use super::nodes::Nodes;
use crate::failure::Failure;

/// A space as it is declared, and what it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Space {
    pub name: String,
    /// `HASH` or `JSON`.
    pub on: String,
    pub prefixes: Vec<String>,
    pub filter: Option<String>,
    pub attributes: Vec<Attribute>,
    pub objects: u64,
    pub memory_bytes: u64,
    /// Objects that were there before it was declared are still being looked at.
    pub is_indexing: bool,
    /// Fields that do not fit their attributes.
    pub failures: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attribute {
    /// The field, or the path in a document.
    pub identifier: String,
    /// By which searches name it.
    pub name: String,
    /// `TAG`, `NUMERIC`, `TEXT`, `GEO` and so on.
    pub kind: String,
    /// Of a tag.
    pub separator: Option<String>,
    pub flags: Vec<String>,
}

impl Space {
    /// The space of this name; `None` if there is none.
    ///
    /// # Errors
    /// No reply, or none that can be read.
    pub fn find(nodes: &Nodes, name: &str) -> Result<Option<Space>, Failure> {
        if !names(nodes)?.iter().any(|own| own == name) {
            return Ok(None);
        }
        let reply = nodes.words(&["FT.INFO", name])?;
        Ok(Some(Space::read(&reply)))
    }

    fn read(reply: &Reply) -> Space {
        let rule = value(reply, "index_definition");
        let list = |name: &str| rule.and_then(|rule| value(rule, name)).map(items);
        Space {
            name: value(reply, "index_name").map(text).unwrap_or_default(),
            on: rule
                .and_then(|rule| value(rule, "key_type"))
                .map(text)
                .unwrap_or_default(),
            prefixes: list("prefixes")
                .unwrap_or_default()
                .iter()
                .map(text)
                .collect(),
            filter: rule.and_then(|rule| value(rule, "filter")).map(text),
            attributes: value(reply, "attributes")
                .map(items)
                .unwrap_or_default()
                .iter()
                .map(Attribute::read)
                .collect(),
            objects: number(reply, "num_docs"),
            memory_bytes: number(reply, "memory_bytes"),
            is_indexing: number(reply, "indexing") > 0,
            failures: number(reply, "hash_indexing_failures"),
        }
    }
}

impl Attribute {
    fn read(reply: &Reply) -> Attribute {
        let of = |name: &str| value(reply, name).map(text);
        // Flags stand behind the pairs.
        const FLAGS: [&str; 7] = [
            "SORTABLE",
            "UNF",
            "NOINDEX",
            "NOSTEM",
            "CASESENSITIVE",
            "INDEXEMPTY",
            "INDEXMISSING",
        ];
        let words = items(reply).iter().skip(6).map(text);
        Attribute {
            identifier: of("identifier").unwrap_or_default(),
            name: of("attribute").unwrap_or_default(),
            kind: of("type").unwrap_or_default(),
            separator: of("SEPARATOR"),
            flags: words.filter(|word| FLAGS.contains(&&**word)).collect(),
        }
    }
}

/// The names of all spaces, in their order.
///
/// # Errors
/// No reply.
pub fn names(nodes: &Nodes) -> Result<Vec<String>, Failure> {
    let reply = nodes.words(&["FT._LIST"])?;
    let mut names: Vec<String> = items(&reply).iter().map(text).collect();
    names.sort();
    Ok(names)
}

/// What stands behind a name, in a map or in pairs.
pub fn value<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let is_it = |key: &Reply| text(key) == name;
    match reply {
        Reply::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| is_it(key))
            .map(|(_, value)| value),
        Reply::Array(items) => items
            .chunks_exact(2)
            .find(|pair| is_it(&pair[0]))
            .map(|pair| &pair[1]),
        _ => None,
    }
}

pub fn items(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) | Reply::Set(items) => items,
        _ => &[],
    }
}

pub fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Simple(text) => text.clone(),
        Reply::Integer(number) => number.to_string(),
        _ => String::new(),
    }
}

fn number(reply: &Reply, name: &str) -> u64 {
    let text = value(reply, name).map(text).unwrap_or_default();
    text.parse().unwrap_or(0)
}
