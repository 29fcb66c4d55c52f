//! Reads the definitions and statistics of spaces from a server.

use larder_client::Reply;
use larder_space::schema::Definition;

use super::nodes::Nodes;
use crate::failure::Failure;

/// A space's definition and statistics.
#[derive(Debug, Clone)]
pub struct SpaceInfo {
    pub definition: Definition,
    pub objects: u64,
    pub memory_bytes: u64,
    /// True if objects that existed before the declaration are still being indexed.
    pub is_indexing: bool,
    /// Number of fields that do not fit their attributes.
    pub failures: u64,
}

impl SpaceInfo {
    /// # Errors
    /// The space does not exist, or there was no reply.
    pub fn fetch(nodes: &Nodes, name: &str) -> Result<SpaceInfo, Failure> {
        SpaceInfo::find(nodes, name)?.ok_or_else(|| {
            Failure::not_found(format!(
                "there is no space {name}; `larder space list` shows those that there are"
            ))
        })
    }

    /// Returns the space with this name, or `None`.
    ///
    /// # Errors
    /// There was no reply, or an invalid one.
    pub fn find(nodes: &Nodes, name: &str) -> Result<Option<SpaceInfo>, Failure> {
        if !list_names(nodes)?.iter().any(|own| own == name) {
            return Ok(None);
        }
        let reply = nodes.text_command(&["FT.INFO", name])?;
        SpaceInfo::read(&reply).map(Some)
    }

    /// Parses a reply to FT.INFO.
    ///
    /// # Errors
    /// The reply is invalid.
    pub fn read(reply: &Reply) -> Result<SpaceInfo, Failure> {
        let arguments = value(reply, "definition").map(items).unwrap_or_default();
        let arguments: Vec<&[u8]> = arguments.iter().map(bytes).collect();
        let definition = Definition::parse_existing(&arguments).map_err(|refused| {
            Failure::new(format!(
                "the server's definition of the space cannot be decoded ({refused}); use the same version of larder on both sides"
            ))
        })?;
        Ok(SpaceInfo {
            definition,
            objects: number(reply, "num_docs"),
            memory_bytes: number(reply, "memory_bytes"),
            is_indexing: number(reply, "indexing") > 0,
            failures: number(reply, "hash_indexing_failures"),
        })
    }
}

/// Lists the names of all spaces, sorted.
///
/// # Errors
/// There was no reply.
pub fn list_names(nodes: &Nodes) -> Result<Vec<String>, Failure> {
    let reply = nodes.text_command(&["FT._LIST"])?;
    let mut names: Vec<String> = items(&reply).iter().map(text).collect();
    names.sort();
    Ok(names)
}

/// Returns the value of a name, in a map or in a list of pairs.
pub fn value<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let is_it = |key: &Reply| bytes(key) == name.as_bytes();
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

pub fn bytes(reply: &Reply) -> &[u8] {
    match reply {
        Reply::Bulk(bytes) => bytes,
        Reply::Simple(text) => text.as_bytes(),
        _ => &[],
    }
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(bytes(reply)).into_owned()
}

fn number(reply: &Reply, name: &str) -> u64 {
    match value(reply, name) {
        Some(Reply::Integer(number)) => u64::try_from(*number).unwrap_or(0),
        Some(other) => text(other).parse().unwrap_or(0),
        None => 0,
    }
}

/// Formats arguments as they are typed in a shell.
pub fn quote_arguments(arguments: &[Vec<u8>]) -> String {
    let words = arguments.iter().map(|argument| {
        let word = String::from_utf8_lossy(argument);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:/@%+=".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_where_a_shell_would_change_them() {
        let words = ["hotels", "$.a", "NOM COMMERCIAL", "d'or", "", "*"];
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        assert_eq!(
            quote_arguments(&words),
            r"hotels '$.a' 'NOM COMMERCIAL' 'd'\''or' '' '*'"
        );
    }
}
