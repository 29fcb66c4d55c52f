//! Parses the arguments of FT.CREATE and FT.ALTER.
//!
//! The options of a space or an attribute may be in any order.
//!
//! - Accepted without effect, and shown again: MAXTEXTFIELDS, NOOFFSETS, NOHL, NOFIELDS, NOFREQS, NOSCOREIDX, ASYNC and
//!   INDEXALL of a space; NOSTEM, SORTABLE and WITHSUFFIXTRIE of an attribute. There is no scoring or stemming, and
//!   every attribute is sortable.
//! - Rejected: TEMPORARY, PHONETIC, GEOSHAPE, VECTOR.
//! - LANGUAGE, LANGUAGE_FIELD, SCORE, SCORE_FIELD, PAYLOAD_FIELD and WEIGHT are parsed, because existing spaces may
//!   have been declared with them. [`Definition::ensure_effective`] rejects those that would change results.

use super::attribute::{Attribute, AttributeId, AttributeKind, Options};
use super::definition::{Cut, Definition, Filter, Layout};
use super::layout::take_regions;
use crate::base::arguments::Arguments;
use crate::base::words::fold_case;
use crate::error::{Refusal, Result, printable};
use crate::expression::Expression;
use crate::mapping::REGION_BITS_MAX;
use crate::object::{ObjectKind, Path};

/// Options of a space that would change results if they had an effect. A command with one of them is rejected, but an
/// existing space may keep it.
const REJECTED_OPTIONS: [(&[u8], &str); 5] = [
    (b"LANGUAGE", "words are not stemmed; leave it out"),
    (b"LANGUAGE_FIELD", "words are not stemmed; leave it out"),
    (
        b"SCORE",
        "searches do not score; leave it out, or write SCORE 1",
    ),
    (
        b"SCORE_FIELD",
        "searches do not score; leave it out, and order results with SORTBY",
    ),
    (
        b"PAYLOAD_FIELD",
        "objects have no payloads; leave it out, and have the field returned with RETURN",
    ),
];

pub const ATTRIBUTES_MAX: usize = 1024;
/// The maximum number of ids, including those of dropped attributes.
const IDS_MAX: u16 = u16::MAX;
/// The number of hash slots.
pub(super) const REGIONS_MAX: u64 = 1 << REGION_BITS_MAX;
const REPLICAS_MAX: u64 = 16;
pub(super) const SUBSPACES_MAX: usize = 64;

/// The unresolved lists of the layout clauses. They precede SCHEMA, but name its attributes.
#[derive(Default)]
struct Clauses<'a> {
    subspaces: Vec<(usize, &'a [u8])>,
    indexes: Option<Vec<(usize, &'a [u8])>>,
}

impl Definition {
    /// Parses the arguments of FT.CREATE, starting with the name of the space.
    ///
    /// # Errors
    /// The first invalid argument, and what is valid there.
    pub fn parse_create(arguments: &[&[u8]]) -> Result<Definition> {
        let (definition, clauses) = Definition::parse(arguments)?;
        let layout = &definition.layout;
        definition.ensure_all_differ(&clauses.subspaces, &layout.subspaces, layout.regions)?;
        Ok(definition)
    }

    /// Like [`Definition::parse_create`], for an existing space. Earlier versions accepted duplicate subspaces.
    ///
    /// # Errors
    /// See [`Definition::parse_create`].
    pub fn parse_existing(arguments: &[&[u8]]) -> Result<Definition> {
        Definition::parse(arguments).map(|(definition, _)| definition)
    }

    fn parse<'a>(arguments: &'a [&'a [u8]]) -> Result<(Definition, Clauses<'a>)> {
        let mut args = Arguments::new(arguments);
        let name = args.take_text("the name of the index")?;
        if name.is_empty() {
            return Err(args.refuse_last("the name of an index is not empty"));
        }
        let mut definition = Definition {
            name,
            on: ObjectKind::Hash,
            prefixes: Vec::new(),
            filter: None,
            stopwords: None,
            skip_initial_scan: false,
            without_effect: Vec::new(),
            attributes: Vec::new(),
            next_id: AttributeId(0),
            layout: Layout::default(),
        };
        let mut clauses = Clauses::default();
        while !args.take_word("SCHEMA") {
            if args.is_done() {
                return Err(args.refuse("No schema found: write SCHEMA and the attributes, such as SCHEMA city TAG price NUMERIC"));
            }
            option(&mut definition, &mut clauses, &mut args)?;
        }
        definition.parse_attributes(&mut args)?;
        definition.resolve(&clauses)?;
        Ok((definition, clauses))
    }

    /// Parses the arguments of FT.ALTER after the name of the space: `[SKIPINITIALSCAN] SCHEMA ADD attribute..`, or
    /// larder's `SCHEMA DROP name..` or `INDEX count list..`. Returns the new definition, and whether existing objects
    /// must be indexed again. `None` means that only the list of indexes changes.
    ///
    /// # Errors
    /// The first invalid argument, or an attribute that cannot be dropped because a subspace or an index contains it.
    pub fn parse_alter(&self, arguments: &[&[u8]]) -> Result<(Definition, Option<bool>)> {
        let mut args = Arguments::new(arguments);
        if args.take_word("INDEX") {
            return Ok((self.parse_indexes(&mut args)?, None));
        }
        let scans = !args.take_word("SKIPINITIALSCAN");
        if !args.take_word("SCHEMA") {
            return Err(args.refuse(
                "ALTER must be followed by SCHEMA: write SCHEMA ADD name type, SCHEMA DROP name, or SUBSPACES or INDEX and what it is to have",
            ));
        }
        let mut altered = self.clone();
        if args.take_word("ADD") {
            if args.is_done() {
                return Err(args.refuse(
                    "No fields provided: after ADD write a name and a type, such as price NUMERIC",
                ));
            }
            altered.parse_attributes(&mut args)?;
            return Ok((altered, Some(scans)));
        }
        if !args.take_word("DROP") {
            return Err(args.refuse("Unknown action passed to ALTER SCHEMA: it is ADD or DROP"));
        }
        if args.is_done() {
            return Err(args.refuse("No fields provided: after DROP write the names of attributes"));
        }
        while !args.is_done() {
            let name = args.take_text("the name of an attribute")?;
            altered
                .drop_attribute(&name)
                .map_err(|message| args.refuse_last(message))?;
        }
        if altered.attributes.is_empty() {
            Err(Refusal::new(
                "a space keeps one attribute at least: FT.DROPINDEX removes the space",
            ))
        } else {
            Ok((altered, Some(false)))
        }
    }

    /// Parses the arguments of INDEX: a count and lists, or DEFAULT, which has the effect of omitting the clause.
    fn parse_indexes(&self, args: &mut Arguments<'_>) -> Result<Definition> {
        let mut altered = self.clone();
        if args.take_word("DEFAULT") {
            altered.layout.indexes = None
        } else {
            let lists = lists("INDEX", args)?;
            altered.layout.indexes = Some(self.resolve_indexes(&lists)?);
        }
        if let Some(more) = args.peek() {
            return Err(args.refuse(format!(
                "Unknown argument `{}`: nothing may follow the lists of INDEX, or DEFAULT",
                printable(more)
            )));
        }
        if altered.layout.indexes == self.layout.indexes {
            Err(Refusal::new("the space already has these indexes"))
        } else {
            Ok(altered)
        }
    }

    fn drop_attribute(&mut self, name: &str) -> Result<(), String> {
        let Some(place) = self
            .attributes
            .iter()
            .position(|attribute| attribute.name == name)
        else {
            return Err(format!("{name:?} is not an attribute of {:?}", self.name));
        };
        let id = self.attributes[place].id;
        let is_cut = self
            .layout
            .subspaces
            .iter()
            .chain(self.layout.filling.iter().flat_map(|it| &it.subspaces))
            .flatten()
            .any(|cut| cut.attribute == id);
        let is_indexed = self
            .layout
            .indexes
            .iter()
            .flatten()
            .flatten()
            .any(|indexed| *indexed == id);
        if is_cut || is_indexed {
            let why = if is_cut {
                "a subspace uses it; FT.ALTER .. SUBSPACES changes the subspaces"
            } else {
                "an INDEX uses it; FT.ALTER .. INDEX changes the indexes"
            };
            return Err(format!("attribute {name:?} cannot be dropped: {why}"));
        }
        self.attributes.remove(place);
        Ok(())
    }

    fn parse_attributes(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        if args.is_done() {
            return Err(args.refuse("Fields arguments are missing: after SCHEMA write a name and a type, such as price NUMERIC"));
        }
        while !args.is_done() {
            let at = args.position();
            if self.attributes.len() == ATTRIBUTES_MAX {
                return Err(args.refuse(format!("Schema is limited to {ATTRIBUTES_MAX} fields")));
            }
            let attribute = attribute(self.on, self.next_id, args)?;
            if self.by_name(&attribute.name).is_some() {
                let message = format!(
                    "Duplicate field in schema - {}: name it otherwise with AS",
                    attribute.name
                );
                return Err(Refusal::at_argument(at, message));
            }
            if self.next_id.0 == IDS_MAX {
                return Err(args
                    .refuse("too many attributes were added and dropped: create the space again"));
            }
            self.next_id.0 += 1;
            self.attributes.push(attribute);
        }
        Ok(())
    }

    fn resolve(&mut self, clauses: &Clauses<'_>) -> Result<()> {
        self.layout.subspaces = self.resolve_subspaces(&clauses.subspaces, self.layout.regions)?;
        let indexes = clauses.indexes.as_ref();
        let indexes = indexes.map(|lists| self.resolve_indexes(lists));
        self.layout.indexes = indexes.transpose()?;
        Ok(())
    }

    /// Resolves lists such as `city,price`. Each has the position of its argument.
    fn resolve_indexes(&self, lists: &[(usize, &[u8])]) -> Result<Vec<Vec<AttributeId>>> {
        let mut indexes = Vec::new();
        for &(at, list) in lists {
            let mut index = Vec::new();
            for name in text(at, list)?.split(',') {
                let id = self
                    .searchable(name)
                    .map_err(|message| Refusal::at_argument(at, message))?;
                if index.contains(&id) {
                    return Err(Refusal::at_argument(
                        at,
                        format!("{name:?} occurs twice in one index"),
                    ));
                }
                index.push(id);
            }
            indexes.push(index);
        }
        Ok(indexes)
    }

    /// Resolves lists such as `city:4,price`. Each has the position of its argument.
    pub(super) fn resolve_subspaces(
        &self,
        lists: &[(usize, &[u8])],
        regions: u32,
    ) -> Result<Vec<Vec<Cut>>> {
        let bits_max = regions.ilog2();
        let subspace = |&(at, list): &(usize, &[u8])| {
            let refuse = |message: String| Refusal::at_argument(at, message);
            let mut cuts: Vec<Cut> = Vec::new();
            for part in text(at, list)?.split(',') {
                let cut = self.cut(part, bits_max).map_err(refuse)?;
                if cuts.iter().any(|other| other.attribute == cut.attribute) {
                    return Err(refuse(format!("{part:?} occurs twice in one subspace")));
                }
                cuts.push(cut);
            }
            let bits: u32 = cuts
                .iter()
                .map(|cut| u32::from(cut.bits.unwrap_or(0)))
                .sum();
            if bits > bits_max {
                Err(refuse(format!(
                    "{bits} bits make more than {regions} regions: give fewer bits, or raise REGIONS"
                )))
            } else {
                Ok(cuts)
            }
        };
        lists.iter().map(subspace).collect()
    }

    /// Parses `name` or `name:bits`. An attribute whose complete name matches has precedence.
    fn cut(&self, part: &str, bits_max: u32) -> Result<Cut, String> {
        if self.by_name(part).is_none()
            && let Some((name, bits)) = part.rsplit_once(':')
        {
            let parsed = bits
                .parse()
                .ok()
                .filter(|bits| (1..=bits_max).contains(&u32::from(*bits)));
            let bits: u8 = parsed.ok_or_else(|| {
                format!("{bits:?} is not a number of bits from 1 to {bits_max}: write, for example, {name}:4 for sixteen parts")
            })?;
            return Ok(Cut {
                attribute: self.searchable(name)?,
                bits: Some(bits),
            });
        }
        Ok(Cut {
            attribute: self.searchable(part)?,
            bits: None,
        })
    }

    fn searchable(&self, name: &str) -> Result<AttributeId, String> {
        match self.by_name(name) {
            None => Err(format!("{name:?} is not an attribute of the schema")),
            Some(attribute) if attribute.options.no_index => {
                Err(format!("{name:?} is NOINDEX: searches cannot use it"))
            }
            Some(attribute) if attribute.kind == AttributeKind::Geo => Err(format!(
                "{name:?} is GEO: a radius has neither one value nor a range, so that it cannot be cut or indexed in order"
            )),
            Some(attribute) => Ok(attribute.id),
        }
    }
}

fn text(at: usize, list: &[u8]) -> Result<&str> {
    std::str::from_utf8(list)
        .map_err(|_| Refusal::at_argument(at, format!("{:?} is not UTF-8", printable(list))))
}

impl Definition {
    /// Rejects options that have no effect here, but would change results in RediSearch. Options that the definition
    /// `before` already has are allowed.
    ///
    /// # Errors
    /// The option, and an alternative.
    pub fn ensure_effective(&self, before: Option<&Definition>) -> Result<()> {
        let is_one = |value: Option<&Vec<u8>>| {
            let number = value.and_then(|value| crate::base::number::Number::parse(value));
            number.is_some_and(|number| number.as_f64() == 1.0)
        };
        let words = &self.without_effect;
        for (at, word) in words.iter().enumerate().filter(|_| before.is_none()) {
            let refused = REJECTED_OPTIONS
                .iter()
                .find(|(refused, _)| *refused == &word[..]);
            match refused {
                Some((b"SCORE", _)) if is_one(words.get(at + 1)) => {}
                Some((_, advice)) => {
                    return Err(Refusal::new(format!(
                        "{} is not supported: {advice}",
                        printable(word)
                    )));
                }
                None => {}
            }
        }
        for attribute in &self.attributes {
            let is_new = before.is_none_or(|before| before.attribute(attribute.id).is_none());
            if let AttributeKind::Text { weight, .. } = attribute.kind
                && is_new
                && weight != 1.0
            {
                return Err(Refusal::new(format!(
                    "WEIGHT {weight} of {} is not supported: searches do not score; leave it out, or write WEIGHT 1",
                    attribute.name
                )));
            }
        }
        Ok(())
    }
}

fn option<'a>(
    definition: &mut Definition,
    clauses: &mut Clauses<'a>,
    args: &mut Arguments<'a>,
) -> Result<()> {
    let word = args.peek_word().unwrap_or_default();
    match word.as_str() {
        "ON" => {
            args.skip();
            definition.on = match args.take("HASH or JSON")? {
                kind if kind.eq_ignore_ascii_case(b"HASH") => ObjectKind::Hash,
                kind if kind.eq_ignore_ascii_case(b"JSON") => ObjectKind::Json,
                kind => {
                    return Err(args.refuse_last(format!(
                        "Invalid rule type: {:?}; a space is ON HASH or ON JSON",
                        printable(kind)
                    )));
                }
            };
        }
        "PREFIX" => {
            args.skip();
            let prefixes = args.take_list("PREFIX")?;
            if prefixes.is_empty() {
                return Err(args.refuse_last("Bad arguments for PREFIX: give one prefix at least, or leave PREFIX out for all keys"));
            }
            // The empty prefix covers all keys.
            let is_all = prefixes.iter().any(|prefix| prefix.is_empty());
            definition.prefixes = if is_all {
                Vec::new()
            } else {
                prefixes.iter().map(|prefix| prefix.to_vec()).collect()
            };
        }
        "FILTER" => {
            args.skip();
            let text = args.take_text("the expression of FILTER")?;
            let expression = Expression::parse(&text)?;
            definition.filter = Some(Filter { text, expression });
        }
        "STOPWORDS" => {
            args.skip();
            let words = args.take_list("STOPWORDS")?;
            definition.stopwords = Some(words.iter().map(|word| fold_case(word)).collect());
        }
        "SKIPINITIALSCAN" => {
            args.skip();
            definition.skip_initial_scan = true;
        }
        "MAXTEXTFIELDS" | "NOOFFSETS" | "NOHL" | "NOFIELDS" | "NOFREQS" | "NOSCOREIDX"
        | "ASYNC" => {
            args.skip();
            definition.without_effect.push(word.into_bytes());
        }
        "LANGUAGE" | "LANGUAGE_FIELD" | "SCORE_FIELD" | "PAYLOAD_FIELD" | "INDEXALL" | "SCORE" => {
            args.skip();
            let value = args.take(&word)?;
            let is_right = match word.as_str() {
                "SCORE" => crate::base::number::Number::parse(value).is_some(),
                "INDEXALL" => {
                    value.eq_ignore_ascii_case(b"ENABLE") || value.eq_ignore_ascii_case(b"DISABLE")
                }
                _ => true,
            };
            if !is_right {
                return Err(args.refuse_last(format!(
                    "Invalid {}: {:?}",
                    word.to_lowercase(),
                    printable(value)
                )));
            }
            definition
                .without_effect
                .extend([word.into_bytes(), value.to_vec()]);
        }
        "TEMPORARY" => {
            return Err(args.refuse(
                "TEMPORARY is not supported: a space stays until FT.DROPINDEX removes it",
            ));
        }
        "SUBSPACES" => {
            args.skip();
            clauses.subspaces = lists("SUBSPACES", args)?;
            if clauses.subspaces.len() > SUBSPACES_MAX {
                return Err(
                    args.refuse_last(format!("a space has at most {SUBSPACES_MAX} subspaces"))
                );
            }
        }
        "INDEX" => {
            args.skip();
            clauses.indexes = Some(lists("INDEX", args)?);
        }
        "REPLICAS" => {
            args.skip();
            let count = args.take_count_within("REPLICAS", 1..=REPLICAS_MAX)?;
            definition.layout.replicas = Some(count as u32);
        }
        "REGIONS" => {
            args.skip();
            definition.layout.regions = take_regions(args)?;
        }
        _ => {
            let unknown = printable(args.peek().unwrap_or_default());
            return Err(args.refuse(format!(
                "Unknown argument `{unknown}`: here an option of FT.CREATE or SCHEMA is expected"
            )));
        }
    }
    Ok(())
}

/// Parses a count, and as many lists of attributes, each with the position of its argument.
fn lists<'a>(clause: &str, args: &mut Arguments<'a>) -> Result<Vec<(usize, &'a [u8])>> {
    let lists = args.take_list(clause)?;
    let begin = args.position() - lists.len();
    Ok(lists
        .iter()
        .enumerate()
        .map(|(index, list)| (begin + index, *list))
        .collect())
}

fn attribute(on: ObjectKind, id: AttributeId, args: &mut Arguments<'_>) -> Result<Attribute> {
    let at = args.position();
    let identifier = args.take_text("the name of an attribute")?;
    let path = match on {
        ObjectKind::Hash => None,
        ObjectKind::Json => {
            let path = Path::parse(&identifier).map_err(|refusal| {
                Refusal::at_argument(
                    at,
                    format!("Invalid JSONPath '{identifier}' in attribute: {refusal}"),
                )
            })?;
            Some(path)
        }
    };
    let name = if args.take_word("AS") {
        args.take_text("the name after AS")?
    } else {
        identifier.clone()
    };
    if name.is_empty() {
        return Err(Refusal::at_argument(at, "an attribute's name is not empty"));
    }
    if let Some(why) = find_name_conflict(&identifier, &name) {
        return Err(Refusal::at_argument(at, why));
    }
    let kind = kind(on, &name, args)?;
    let mut attribute = Attribute {
        id,
        identifier,
        path,
        name,
        kind,
        options: Options::default(),
    };
    while let Some(word) = args.peek_word() {
        // A word before AS is the identifier of the next attribute, even if it is also the name of an option.
        let is_next = args
            .at(args.position() + 1)
            .is_some_and(|next| next.eq_ignore_ascii_case(b"AS"));
        if is_next || !attribute_option(&mut attribute, &word, args)? {
            break;
        }
    }
    if attribute.kind == AttributeKind::Numeric {
        attribute.options.unf |= attribute.options.sortable;
    }
    Ok(attribute)
}

/// Rejects names that would be parsed differently when the definition is rendered and parsed again.
fn find_name_conflict(identifier: &str, name: &str) -> Option<String> {
    if identifier.eq_ignore_ascii_case("AS") {
        return Some(
            "a field called AS cannot be an attribute: AS precedes the name of another".to_string(),
        );
    }
    crate::mapping::looks_like_cut(name).then(|| {
        format!("{name:?} looks like a cut of SUBSPACES, name:bits: name it otherwise with AS")
    })
}

fn kind(on: ObjectKind, name: &str, args: &mut Arguments<'_>) -> Result<AttributeKind> {
    let word = args.peek_word().unwrap_or_default();
    let kind = match word.as_str() {
        "TAG" => AttributeKind::Tag {
            separator: Attribute::default_separator(on),
            is_case_sensitive: false,
        },
        "TEXT" => AttributeKind::Text {
            weight: 1.0,
            no_stem: false,
        },
        "NUMERIC" => AttributeKind::Numeric,
        "GEO" => AttributeKind::Geo,
        "TIMESTAMP" => AttributeKind::Timestamp,
        "BOOLEAN" => AttributeKind::Boolean,
        "GEOSHAPE" | "VECTOR" => {
            return Err(args.refuse(format!("{word} is not supported: attributes are TAG, TEXT, NUMERIC, GEO, TIMESTAMP or BOOLEAN")));
        }
        _ => {
            return Err(args.refuse(format!(
                "Invalid field type for field `{name}`: {:?} is none of TAG, TEXT, NUMERIC, GEO, TIMESTAMP and BOOLEAN, and no option of the attribute before",
                printable(args.peek().unwrap_or_default())
            )));
        }
    };
    args.skip();
    Ok(kind)
}

/// The words that may follow the type of an attribute.
pub(super) const ATTRIBUTE_OPTIONS: [&str; 11] = [
    "SORTABLE",
    "UNF",
    "NOINDEX",
    "INDEXMISSING",
    "INDEXEMPTY",
    "WITHSUFFIXTRIE",
    "CASESENSITIVE",
    "SEPARATOR",
    "NOSTEM",
    "WEIGHT",
    "PHONETIC",
];

/// Parses one option of an attribute. Returns false, and consumes nothing, if the word is not an option.
fn attribute_option(
    attribute: &mut Attribute,
    word: &str,
    args: &mut Arguments<'_>,
) -> Result<bool> {
    let options = &mut attribute.options;
    match (word, &mut attribute.kind) {
        ("SORTABLE", _) => options.sortable = true,
        ("UNF", _) => options.unf = true,
        ("NOINDEX", _) => options.no_index = true,
        ("INDEXMISSING", _) => options.index_missing = true,
        ("INDEXEMPTY", AttributeKind::Tag { .. } | AttributeKind::Text { .. }) => {
            options.index_empty = true
        }
        ("WITHSUFFIXTRIE", AttributeKind::Tag { .. } | AttributeKind::Text { .. }) => {
            options.suffix_trie = true
        }
        (
            "CASESENSITIVE",
            AttributeKind::Tag {
                is_case_sensitive, ..
            },
        ) => *is_case_sensitive = true,
        ("SEPARATOR", AttributeKind::Tag { separator, .. }) => {
            args.skip();
            let sign = args.take("a separator")?;
            *separator = match sign {
                [] => None,
                &[sign] => Some(sign),
                _ => {
                    return Err(args.refuse_last(format!(
                        "Tag separator must be a single character, or none ('') where each value is one tag: {:?} is neither",
                        printable(sign)
                    )));
                }
            };
            return Ok(true);
        }
        ("NOSTEM", AttributeKind::Text { no_stem, .. }) => *no_stem = true,
        ("WEIGHT", AttributeKind::Text { weight, .. }) => {
            args.skip();
            *weight = args.take_number("WEIGHT")?.as_f64();
            return Ok(true);
        }
        ("PHONETIC", AttributeKind::Text { .. }) => {
            return Err(args.refuse(
                "PHONETIC is not supported: texts are searched by exact words, prefixes and parts",
            ));
        }
        _ => return Ok(false),
    }
    args.skip();
    Ok(true)
}
