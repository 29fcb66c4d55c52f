//! The arguments of FT.SEARCH.
//!
//! larder's extension: several sort keys, `SORTBY a ASC b DESC`. Each but the last needs its direction. The name of an
//! option ends the list, so an attribute with such a name can only be the first key. SUMMARIZE and HIGHLIGHT are
//! rejected.

use super::options::{QueryOptions, ROWS_MAX, take_limit};
use crate::base::arguments::Arguments;
use crate::error::{Result, printable};
use crate::object::{ObjectKind, Path};
use crate::query::Predicate;
use crate::schema::{AttributeId, Definition};

#[derive(Debug, Clone)]
pub struct Search {
    pub predicate: Predicate,
    pub options: QueryOptions,
    pub order: Vec<SortKey>,
    pub offset: u64,
    /// 0: only the total is returned.
    pub count: u64,
    pub content: Content,
    /// Accepted without effect: objects have no payloads.
    pub with_payloads: bool,
    pub with_sort_keys: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    pub by: SortBy,
    pub is_descending: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    Attribute(AttributeId),
    Key,
}

/// The returned part of each object.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Only the key.
    Nothing,
    All,
    Fields(Vec<ReturnField>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReturnField {
    /// The name in the result.
    pub name: String,
    /// The field of a hash, or the path in a document.
    pub identifier: String,
    pub path: Option<Path>,
}

pub const SORT_KEYS_MAX: usize = 8;
/// The maximum number of fields in RETURN.
const RETURN_MAX: usize = 1024;
/// The number of returned fields that count as the work of one row.
const FIELDS: usize = 32;

/// The words that end a list of sort keys.
const OPTIONS: [&str; 31] = [
    "NOCONTENT",
    "VERBATIM",
    "NOSTOPWORDS",
    "WITHSCORES",
    "WITHPAYLOADS",
    "WITHSORTKEYS",
    "EXPLAINSCORE",
    "INORDER",
    "FILTER",
    "GEOFILTER",
    "INKEYS",
    "INFIELDS",
    "RETURN",
    "SUMMARIZE",
    "HIGHLIGHT",
    "SLOP",
    "TIMEOUT",
    "LANGUAGE",
    "EXPANDER",
    "SCORER",
    "PAYLOAD",
    "SORTBY",
    "LIMIT",
    "PARAMS",
    "DIALECT",
    "FORMAT",
    "WITHCOUNT",
    "WITHOUTCOUNT",
    "WITHCURSOR",
    "ASC",
    "DESC",
];

impl Search {
    /// Parses the arguments of FT.SEARCH, starting with the query, which is argument 0.
    ///
    /// # Errors
    /// The first invalid argument, or the column of an error in the query.
    pub fn parse(arguments: &[&[u8]], definition: &Definition) -> Result<Search> {
        let mut args = Arguments::new(arguments);
        let query = args.take("the query")?;
        let mut search = Search {
            predicate: Predicate::Nothing,
            options: QueryOptions::default(),
            order: Vec::new(),
            offset: 0,
            count: 10,
            content: Content::All,
            with_payloads: false,
            with_sort_keys: false,
        };
        while !args.is_done() {
            search.take_option(&mut args, definition)?;
        }
        search.predicate = search.options.predicate(query, definition)?;
        Ok(search)
    }

    fn take_option(&mut self, args: &mut Arguments<'_>, definition: &Definition) -> Result<()> {
        if self.options.take(args, definition)? {
            return Ok(());
        }
        let at = args.position();
        let word = args.peek_word().unwrap_or_default();
        args.skip();
        match word.as_str() {
            "NOCONTENT" => self.content = Content::Nothing,
            "WITHPAYLOADS" => self.with_payloads = true,
            "WITHSORTKEYS" => self.with_sort_keys = true,
            "FILTER" => self.options.take_filter(args, definition)?,
            "GEOFILTER" => self.options.take_geo_filter(args, definition)?,
            "LIMIT" => (self.offset, self.count) = take_limit(args, ROWS_MAX)?,
            "SORTBY" if !self.order.is_empty() => {
                return Err(args.refuse_last("Multiple SORTBY steps are not allowed: several keys are written SORTBY a ASC b DESC"));
            }
            "SORTBY" => self.order = sort_keys(args, definition)?,
            "RETURN" => {
                let content = return_fields(args, definition)?;
                // NOCONTENT takes precedence over RETURN.
                if self.content != Content::Nothing {
                    self.content = content;
                }
            }
            "SUMMARIZE" | "HIGHLIGHT" => {
                return Err(args.refuse_last(format!(
                    "{word} is not supported: texts are returned as they are stored"
                )));
            }
            _ => {
                let unknown = printable(args.at(at).unwrap_or_default());
                return Err(args.refuse_last(format!(
                    "Unknown argument `{unknown}` at position {at} for <main>"
                )));
            }
        }
        Ok(())
    }

    /// Returns the number of rows of a region that may be in the result: the first ones in order.
    pub fn keep(&self) -> usize {
        match self.count {
            0 => 0,
            count => (self.offset + count) as usize,
        }
    }

    /// Returns the work of returning one row, where 1 is an object with a few fields.
    pub fn row_work(&self) -> usize {
        match &self.content {
            Content::Fields(fields) => 1 + fields.len() / FIELDS,
            Content::All | Content::Nothing => 1,
        }
    }

    /// Returns whether the values of a JSON path are returned as an array of all matches.
    pub fn returns_arrays(&self) -> bool {
        self.options.dialect.is_some_and(|dialect| dialect >= 3)
    }
}

fn sort_keys(args: &mut Arguments<'_>, definition: &Definition) -> Result<Vec<SortKey>> {
    let mut keys = Vec::new();
    loop {
        let name = args.take_text("SORTBY's field")?;
        let name = name.strip_prefix('@').unwrap_or(&name);
        let by = match definition.by_name_or_identifier(name) {
            _ if name == "__key" => SortBy::Key,
            Some(attribute) => SortBy::Attribute(attribute.id),
            None => {
                return Err(args.refuse_last(format!(
                    "Property `{name}` not loaded nor in schema: FT.INFO lists the attributes"
                )));
            }
        };
        let is_descending = args.peek_is("DESC");
        let has_direction = args.take_word("ASC") || args.take_word("DESC");
        keys.push(SortKey { by, is_descending });
        if keys.len() > SORT_KEYS_MAX {
            return Err(args.refuse_last(format!("SORTBY takes at most {SORT_KEYS_MAX} keys")));
        }
        let ends = args
            .peek_word()
            .is_none_or(|word| OPTIONS.contains(&word.as_str()));
        if !has_direction || ends {
            return Ok(keys);
        }
    }
}

fn return_fields(args: &mut Arguments<'_>, definition: &Definition) -> Result<Content> {
    let list = args.take_list("RETURN")?;
    if list.is_empty() {
        return Ok(Content::Nothing);
    }
    let mut fields = Vec::new();
    let mut inner = Arguments::new(list);
    let begin = args.position() - list.len();
    while !inner.is_done() {
        let at = begin + inner.position();
        let bad = |message: String| crate::error::Refusal::at_argument(at, message);
        let written = inner
            .take_text("RETURN's field")
            .map_err(|refusal| bad(refusal.message))?;
        let name = if inner.take_word("AS") {
            inner
                .take_text("RETURN path AS name - must be accompanied with NAME")
                .map_err(|refusal| bad(refusal.message))?
        } else {
            written.clone()
        };
        let attribute = definition.by_name_or_identifier(&written);
        let identifier =
            attribute.map_or(written.clone(), |attribute| attribute.identifier.clone());
        let path = match (definition.on, attribute) {
            (ObjectKind::Hash, _) => None,
            (ObjectKind::Json, Some(attribute)) => attribute.path.clone(),
            (ObjectKind::Json, None) => {
                Some(Path::parse(&written).map_err(|refusal| bad(refusal.to_string()))?)
            }
        };
        if fields.len() == RETURN_MAX {
            return Err(bad(format!("RETURN takes at most {RETURN_MAX} fields")));
        }
        fields.push(ReturnField {
            name,
            identifier,
            path,
        });
    }
    Ok(Content::Fields(fields))
}
