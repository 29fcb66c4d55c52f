//! Finds the spaces that cover a key by their prefixes, with one lookup per distinct prefix length, regardless of the number of
//! spaces.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::space::Space;

#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    by_prefix: HashMap<Vec<u8>, Vec<Arc<str>>>,
    lengths: BTreeSet<usize>,
}

impl PrefixIndex {
    pub fn new(spaces: &BTreeMap<String, Space>) -> PrefixIndex {
        let mut covering = PrefixIndex::default();
        for (name, space) in spaces {
            covering.add(name, &space.declared.definition.prefixes);
        }
        covering
    }

    /// Adds a space. A space without prefixes covers every key.
    fn add(&mut self, name: &str, prefixes: &[Vec<u8>]) {
        let name: Arc<str> = Arc::from(name);
        let all = [Vec::new()];
        let prefixes = if prefixes.is_empty() { &all } else { prefixes };
        for prefix in prefixes {
            self.lengths.insert(prefix.len());
            let names = self.by_prefix.entry(prefix.clone()).or_default();
            names.push(name.clone());
        }
    }

    /// Returns the names of the spaces with a prefix of the key, sorted, without duplicates.
    pub fn find_spaces(&self, key: &[u8]) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for &length in self.lengths.range(..=key.len()) {
            found.extend(self.by_prefix.get(&key[..length]).into_iter().flatten());
        }
        found.sort_unstable();
        found.dedup();
        found.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_covered_by_each_space_with_a_prefix_of_it_once() {
        let mut covering = PrefixIndex::default();
        let bytes = |texts: &[&str]| -> Vec<Vec<u8>> {
            texts.iter().map(|text| text.as_bytes().to_vec()).collect()
        };
        for (name, prefixes) in [
            ("all", &[][..]),
            ("users", &["user:", "user:1", "u"]),
            ("ones", &["user:1"]),
            ("posts", &["post:"]),
        ] {
            covering.add(name, &bytes(prefixes));
        }
        let of = |key: &str| -> Vec<String> {
            let names = covering.find_spaces(key.as_bytes());
            names.iter().map(|name| name.to_string()).collect()
        };
        assert_eq!(of("user:17"), ["all", "ones", "users"]);
        assert_eq!(of("user:2"), ["all", "users"]);
        assert_eq!(of("post:"), ["all", "posts"]);
        assert_eq!(of("pos"), ["all"]);
        assert_eq!(of(""), ["all"]);
        // Many spaces with other prefixes of the same length make no difference.
        (0..4000).for_each(|n| covering.add(&format!("s{n:04}"), &bytes(&[&format!("t{n:04}:")])));
        assert_eq!(covering.lengths.len(), 4);
        let names = covering.find_spaces(b"t0007:x");
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        assert_eq!(names, ["all", "s0007"]);
    }
}
