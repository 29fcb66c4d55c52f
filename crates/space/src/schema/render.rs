//! Formats a definition as the arguments that declare it, and as bytes for storage.

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::attribute::{Attribute, AttributeId, AttributeKind};
use super::create::ATTRIBUTE_OPTIONS;
use super::definition::{Definition, REGIONS_DEFAULT};
use super::layout::Alteration;
use crate::error::{Refusal, Result};
use crate::object::ObjectKind;

const FORMAT: u8 = 1;
/// The format with subspaces that are being filled. They follow the other data: the size of their arguments (4 bytes),
/// and the arguments.
const WITH_FILLING: u8 = 2;

impl Definition {
    /// Returns the arguments of FT.CREATE, starting with the name, from which [`Definition::parse_create`] creates the
    /// same space.
    pub fn to_arguments(&self) -> Vec<Vec<u8>> {
        let mut out = ArgumentWriter(vec![self.name.clone().into_bytes()]);
        out.words(&[
            "ON",
            if self.on == ObjectKind::Hash {
                "HASH"
            } else {
                "JSON"
            },
        ]);
        if !self.prefixes.is_empty() {
            out.list("PREFIX", &self.prefixes);
        }
        if let Some(filter) = &self.filter {
            out.words(&["FILTER", &filter.text]);
        }
        if let Some(stopwords) = &self.stopwords {
            out.list("STOPWORDS", stopwords);
        }
        if self.skip_initial_scan {
            out.words(&["SKIPINITIALSCAN"]);
        }
        out.0.extend(self.without_effect.iter().cloned());
        self.layout_arguments(&mut out);
        out.words(&["SCHEMA"]);
        for attribute in &self.attributes {
            attribute_arguments(attribute, self.on, &mut out);
        }
        out.0
    }

    /// Formats each subspace as in the clause SUBSPACES: `city:4,price`.
    pub fn subspace_texts(&self) -> Vec<String> {
        self.texts_of(&self.layout.subspaces)
    }

    /// Formats any list of subspaces like [`Definition::subspace_texts`].
    pub fn texts_of(&self, subspaces: &[Vec<super::Cut>]) -> Vec<String> {
        let text = |cuts: &Vec<super::Cut>| {
            let cuts = cuts.iter().map(|cut| {
                let name = &self.get(cut.attribute).name;
                match cut.bits {
                    Some(bits) => format!("{name}:{bits}"),
                    None => name.clone(),
                }
            });
            cuts.collect::<Vec<_>>().join(",")
        };
        subspaces.iter().map(text).collect()
    }

    fn layout_arguments(&self, out: &mut ArgumentWriter) {
        let layout = &self.layout;
        let name = |id: AttributeId| self.get(id).name.clone();
        if !layout.subspaces.is_empty() {
            let texts = self.subspace_texts().into_iter().map(String::into_bytes);
            out.list("SUBSPACES", &texts.collect::<Vec<_>>());
        }
        if let Some(replicas) = layout.replicas {
            out.words(&["REPLICAS", &replicas.to_string()]);
        }
        if layout.regions != REGIONS_DEFAULT {
            out.words(&["REGIONS", &layout.regions.to_string()]);
        }
        if let Some(indexes) = &layout.indexes {
            let names = |index: &Vec<AttributeId>| {
                index
                    .iter()
                    .map(|id| name(*id))
                    .collect::<Vec<_>>()
                    .join(",")
                    .into_bytes()
            };
            out.list("INDEX", &indexes.iter().map(names).collect::<Vec<_>>());
        }
    }

    /// Encodes the definition, including the ids of its attributes.
    pub fn encode(&self) -> Vec<u8> {
        let filling = self.layout.filling.as_ref();
        let mut out = vec![if filling.is_some() {
            WITH_FILLING
        } else {
            FORMAT
        }];
        out.extend_from_slice(&self.next_id.0.to_le_bytes());
        put_count(&mut out, self.attributes.len());
        for attribute in &self.attributes {
            out.extend_from_slice(&attribute.id.0.to_le_bytes());
        }
        put_arguments(&mut out, &self.to_arguments());
        if let Some(filling) = filling {
            let mut arguments = ArgumentWriter(Vec::new());
            let texts = self.texts_of(&filling.subspaces).into_iter();
            let texts: Vec<Vec<u8>> = texts.map(String::into_bytes).collect();
            arguments.list("SUBSPACES", &texts);
            arguments.words(&["REGIONS", &filling.regions.to_string()]);
            put_arguments(&mut out, &arguments.0);
        }
        out
    }

    /// Decodes a definition.
    ///
    /// # Errors
    /// The bytes are not an encoded definition.
    pub fn decode(bytes: &[u8]) -> Result<Definition> {
        let bad =
            |what: &str| Refusal::new(format!("the bytes are not a space definition: {what}"));
        let mut reader = WireReader::new(bytes);
        let read = |reader: &mut WireReader<'_>| {
            let format = reader.u8()?;
            let next_id = reader.u16()?;
            let count = reader.count(2)?;
            let ids: Vec<u16> = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
            let arguments = take_arguments(reader)?;
            let filling = match format {
                WITH_FILLING => Some(take_arguments(reader)?),
                _ => None,
            };
            reader.end()?;
            Ok((format, next_id, ids, arguments, filling))
        };
        let read: Result<_, Malformed> = read(&mut reader);
        let (format, next_id, ids, arguments, filling) = read.map_err(|error| bad(error.0))?;
        if !(FORMAT..=WITH_FILLING).contains(&format) {
            return Err(bad(&format!(
                "format {format} is unknown, and this version reads {FORMAT} and {WITH_FILLING}"
            )));
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let mut definition = Definition::parse_existing(&arguments)?;
        let is_rising =
            ids.is_sorted_by(|a, b| a < b) && ids.last().is_none_or(|last| *last < next_id);
        if ids.len() != definition.attributes.len() || !is_rising {
            return Err(bad("the attribute ids are invalid"));
        }
        definition.renumber(&ids, next_id);
        if let Some(arguments) = filling {
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            match definition.parse_subspaces(&arguments)? {
                Alteration::Begin(filling) => definition.layout.filling = Some(filling),
                _ => return Err(bad("the subspaces to fill are missing")),
            }
        }
        Ok(definition)
    }

    fn renumber(&mut self, ids: &[u16], next_id: u16) {
        // Parsing assigned ids in the order of the attributes.
        let renumbered = |id: AttributeId| AttributeId(ids[id.index()]);
        for cut in self.layout.subspaces.iter_mut().flatten() {
            cut.attribute = renumbered(cut.attribute);
        }
        for id in self.layout.indexes.iter_mut().flatten().flatten() {
            *id = renumbered(*id);
        }
        for attribute in &mut self.attributes {
            attribute.id = renumbered(attribute.id);
        }
        self.next_id = AttributeId(next_id);
    }
}

fn put_arguments(out: &mut Vec<u8>, arguments: &[Vec<u8>]) {
    put_count(out, arguments.len());
    for argument in arguments {
        put_bytes(out, argument);
    }
}

fn take_arguments(reader: &mut WireReader<'_>) -> std::result::Result<Vec<Vec<u8>>, Malformed> {
    let count = reader.count(4)?;
    let arguments = (0..count).map(|_| reader.bytes().map(<[u8]>::to_vec));
    arguments.collect()
}

struct ArgumentWriter(Vec<Vec<u8>>);

impl ArgumentWriter {
    fn words(&mut self, words: &[&str]) {
        self.0
            .extend(words.iter().map(|word| word.as_bytes().to_vec()));
    }

    fn list(&mut self, keyword: &str, list: &[Vec<u8>]) {
        self.words(&[keyword, &list.len().to_string()]);
        self.0.extend(list.iter().cloned());
    }
}

fn attribute_arguments(attribute: &Attribute, on: ObjectKind, out: &mut ArgumentWriter) {
    out.words(&[&attribute.identifier]);
    // AS may be omitted if the name equals the identifier, unless the identifier could be parsed as an option of the
    // preceding attribute.
    let is_option = |name: &str| {
        ATTRIBUTE_OPTIONS
            .iter()
            .any(|it| it.eq_ignore_ascii_case(name))
    };
    if attribute.name != attribute.identifier || is_option(&attribute.identifier) {
        out.words(&["AS", &attribute.name]);
    }
    out.words(&[attribute.kind.name()]);
    match &attribute.kind {
        AttributeKind::Tag {
            separator,
            is_case_sensitive,
        } => {
            if *separator != Attribute::default_separator(on) {
                out.words(&["SEPARATOR"]);
                out.0.push(separator.iter().copied().collect());
            }
            if *is_case_sensitive {
                out.words(&["CASESENSITIVE"]);
            }
        }
        AttributeKind::Text { weight, no_stem } => {
            if *weight != 1.0 {
                out.words(&["WEIGHT", &weight.to_string()]);
            }
            if *no_stem {
                out.words(&["NOSTEM"]);
            }
        }
        AttributeKind::Numeric
        | AttributeKind::Geo
        | AttributeKind::Timestamp
        | AttributeKind::Boolean => {}
    }
    let options = &attribute.options;
    for (is_set, word) in [
        (options.suffix_trie, "WITHSUFFIXTRIE"),
        (options.index_empty, "INDEXEMPTY"),
        (options.index_missing, "INDEXMISSING"),
        (options.sortable, "SORTABLE"),
        (options.unf, "UNF"),
        (options.no_index, "NOINDEX"),
    ] {
        if is_set {
            out.words(&[word]);
        }
    }
}
