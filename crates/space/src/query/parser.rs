//! A recursive-descent parser for queries.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::predicate::{Leaf, Pattern, Predicate, Test};
use super::scan::Scan;
use crate::base::words::{fold_case, words};
use crate::error::{Refusal, Result};
use crate::schema::{AttributeId, AttributeKind, Definition};

/// The values of parameters, `$name`. A parameter may replace a term, a number or a part of a point, but not syntax.
#[derive(Debug, Clone, Default)]
pub struct Params(pub BTreeMap<Vec<u8>, Vec<u8>>);

pub const QUERY_BYTES_MAX: usize = 1024 * 1024;
/// The maximum number of conditions of a query: ranges, tags, and words multiplied by the number of text attributes in
/// which each is searched. The cost of examining an object is proportional to it.
pub const CONDITIONS_MAX: usize = 16_384;
/// The number of parameter bytes that count as one condition.
const PARAM_BYTES: usize = QUERY_BYTES_MAX / CONDITIONS_MAX;
/// Limits the recursion, and so the use of the stack.
const DEPTH_MAX: usize = 100;

/// Parses a query.
///
/// # Errors
/// A syntax or type error, with its column and advice.
pub fn parse(text: &[u8], definition: &Definition, params: &Params) -> Result<Predicate> {
    if text.len() > QUERY_BYTES_MAX {
        return Err(Refusal::new(format!(
            "a query has at most {QUERY_BYTES_MAX} bytes, this one {}",
            text.len()
        )));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let message = "the query is not UTF-8: pass other bytes with PARAMS";
        Refusal::at_column(error.valid_up_to() + 1, message)
    })?;
    let texts = definition.attributes.iter();
    let texts =
        texts.filter(|it| matches!(it.kind, AttributeKind::Text { .. }) && !it.options.no_index);
    let mut parser = QueryParser {
        scan: Scan::new(text),
        definition,
        params,
        all_texts: texts.map(|it| it.id).collect(),
        depth: 0,
        conditions: Cell::new(0),
    };
    parser.scan.blanks();
    if parser.scan.peek().is_none() {
        return Ok(Predicate::Nothing);
    }
    let predicate = parser.or(None)?;
    parser.scan.blanks();
    match parser.scan.peek() {
        None => Ok(predicate.unwrap_or(Predicate::Nothing)),
        Some(_) => Err(parser.scan.syntax("this closes nothing")),
    }
}

/// Checks the number of conditions.
///
/// # Errors
/// There are more than [`CONDITIONS_MAX`].
pub(crate) fn ensure_conditions(count: usize) -> Result<()> {
    if count > CONDITIONS_MAX {
        Err(Refusal::new(format!(
            "a query has at most {CONDITIONS_MAX} conditions (words times the text attributes that each is searched in, ranges and tags): send several queries"
        )))
    } else {
        Ok(())
    }
}

pub(super) struct QueryParser<'a> {
    pub scan: Scan,
    pub definition: &'a Definition,
    pub params: &'a Params,
    /// The text attributes in which a word without a field is searched.
    all_texts: Vec<AttributeId>,
    depth: usize,
    /// The number of conditions parsed so far.
    conditions: Cell<usize>,
}

/// The text attributes in which a term is searched. `None`: all of them.
type Texts<'s> = Option<&'s [AttributeId]>;

/// `None`: the part has only stopwords, and is omitted.
type Parsed = Result<Option<Predicate>>;

impl QueryParser<'_> {
    /// Adds to the number of conditions.
    ///
    /// # Errors
    /// There are more than [`CONDITIONS_MAX`].
    pub fn count_conditions(&self, more: usize) -> Result<()> {
        self.conditions.set(self.conditions.get() + more);
        ensure_conditions(self.conditions.get())
    }

    pub fn parse_nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            return Err(self
                .scan
                .syntax(&format!("clauses are nested at most {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn or(&mut self, texts: Texts<'_>) -> Parsed {
        let mut parts = vec![self.and(texts)?];
        while self.scan.take_after_blanks("|") {
            parts.push(self.and(texts)?);
        }
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        Ok((!parts.is_empty()).then(|| Predicate::or(parts)))
    }

    fn and(&mut self, texts: Texts<'_>) -> Parsed {
        let mut parts = Vec::new();
        let mut is_first = true;
        loop {
            // A query of only punctuation has no words, like a query of only stopwords.
            is_first &= !self.separators();
            if matches!(self.scan.peek(), None | Some('|' | ')')) {
                if is_first {
                    return Err(self.scan.syntax("a term or a clause is missing here"));
                }
                break;
            }
            is_first = false;
            parts.extend(self.unary(texts)?);
        }
        Ok((!parts.is_empty()).then(|| Predicate::and(parts)))
    }

    /// Skips whitespace, and punctuation that only separates words at this position. Returns whether there was
    /// punctuation.
    fn separators(&mut self) -> bool {
        let mut is_any = false;
        loop {
            self.scan.blanks();
            if !self.is_separator_here() {
                return is_any;
            }
            self.scan.at += 1;
            is_any = true;
        }
    }

    /// Returns whether the next character only separates words, as in a text. `'`, `%`, `$` and `@` have a meaning at
    /// the start of a word, and none at its end.
    fn is_separator_here(&self) -> bool {
        let scan = &self.scan;
        let Some(sign) = scan.peek() else {
            return false;
        };
        let is_of_word =
            |sign: Option<char>| sign.is_some_and(|sign| sign == '_' || sign.is_alphanumeric());
        let ends_word = scan.at > 0 && is_of_word(scan.peek_at(scan.at - 1));
        match sign {
            ',' | '.' | ';' | '!' | '?' | '&' | '/' | '#' | '^' | '+' | '`' | '<' | '>' => true,
            '=' => scan.peek_ahead(1) != Some('>'),
            // A colon after a word is an error: the `@` before the name of the field is missing.
            ':' => !matches!(scan.peek_ahead(1), Some('{' | '[' | '(' | '"')),
            '\'' => ends_word || !scan.has_later_apostrophe(),
            '%' => {
                ends_word || !(is_of_word(scan.peek_ahead(1)) || scan.peek_ahead(1) == Some('%'))
            }
            '$' => ends_word,
            '@' => ends_word && !self.is_field_here(),
            _ => false,
        }
    }

    /// Returns whether the name of an attribute follows the next character.
    fn is_field_here(&self) -> bool {
        let mut scan = self.scan.clone();
        scan.at += 1;
        self.definition.by_name(&scan.name("$.")).is_some()
    }

    fn unary(&mut self, texts: Texts<'_>) -> Parsed {
        self.scan.blanks();
        if self.scan.take("-") {
            let inner = self.parse_nested(|parser| parser.unary(texts))?;
            return Ok(inner.map(|inner| Predicate::Not(Box::new(inner))));
        }
        if self.scan.take("~") {
            let inner = self.parse_nested(|parser| parser.unary(texts))?;
            return Ok(inner.map(|inner| Predicate::Optional(Box::new(inner))));
        }
        let parsed = self.primary(texts)?;
        while self.scan.take_after_blanks("=>") {
            self.clause_attributes()?;
        }
        Ok(parsed)
    }

    fn primary(&mut self, texts: Texts<'_>) -> Parsed {
        let begin = self.scan.at;
        let is_clause = matches!(self.scan.peek(), Some('(' | '@'));
        if !is_clause {
            // A term counts as a condition even if no attribute can contain it, because it is planned too.
            let attributes = texts.map_or(self.all_texts.len(), <[_]>::len);
            self.count_conditions(attributes.max(1))?;
        }
        match self.scan.peek() {
            Some('(') => {
                self.scan.at += 1;
                let inner = self.parse_nested(|parser| parser.or(texts))?;
                self.scan.expect(")", "a closing ) is expected here")?;
                Ok(inner)
            }
            Some('@') if texts.is_none() => self.field(),
            Some('@') => Err(self
                .scan
                .syntax("the parentheses of a text contain only terms: put this clause outside")),
            Some('"' | '\'') => {
                let text = self.scan.quoted()?;
                Ok(self.phrase(text.as_bytes(), texts))
            }
            Some('%') => Err(self
                .scan
                .syntax("fuzzy terms are not supported: use a prefix such as hel*, or w'h?llo'")),
            Some('w') if self.scan.peek_ahead(1) == Some('\'') => {
                self.scan.at += 1;
                let pattern = self.wildcard()?;
                Ok(Some(self.text(
                    texts,
                    Test::Word(Pattern::Wildcard(fold_case(&pattern))),
                )))
            }
            Some('*') => {
                self.scan.at += 1;
                let is_word = |sign: char| {
                    sign == '$' || sign == '\\' || sign == '_' || sign.is_alphanumeric()
                };
                match self.scan.peek() {
                    Some(sign) if is_word(sign) => {}
                    _ if texts.is_none() => return Ok(Some(Predicate::All)),
                    _ => {
                        return Err(self.scan.syntax_at(
                            begin,
                            "a * alone matches every object: write * without a field",
                        ));
                    }
                }
                self.term(true, texts)
            }
            _ => self.term(false, texts),
        }
    }

    /// Parses a word or a parameter, after an optional `*`.
    fn term(&mut self, has_star: bool, texts: Texts<'_>) -> Parsed {
        let begin = self.scan.at;
        let value = match self.scan.peek() {
            Some('$') => self.param()?,
            _ => {
                let word = self.scan.word();
                if word.is_empty() && matches!(self.scan.peek(), None | Some('|' | ')')) {
                    return Err(self.scan.syntax("a term or a clause is missing here"));
                }
                if word.is_empty() {
                    return Err(self.scan.syntax("this character has no meaning here: put the text in quotes, or write \\ before the character if the texts contain it"));
                }
                if word.eq_ignore_ascii_case("ismissing") && self.scan.take_after_blanks("(") {
                    return self.is_missing(begin);
                }
                word.into_bytes()
            }
        };
        let has_end_star = self.scan.take("*");
        if self.scan.peek() == Some('-') {
            let advice = "a - inside a word is ambiguous: put the words in quotes, such as \"heavy-duty\", or a blank before the - for a negation";
            return Err(self.scan.syntax(advice));
        }
        let folded = fold_case(&value);
        let pattern = match (has_star, has_end_star) {
            (false, false) => return Ok(self.term_of(&value, begin, texts)),
            (false, true) => Pattern::Prefix(folded),
            (true, false) => Pattern::Suffix(folded),
            (true, true) => Pattern::Infix(folded),
        };
        Ok(Some(self.text(texts, Test::Word(pattern))))
    }

    /// A word of the query is one term. A parameter with several words is a phrase.
    fn term_of(&self, value: &[u8], begin: usize, texts: Texts<'_>) -> Option<Predicate> {
        let is_param = self.scan.peek_at(begin) == Some('$');
        if is_param && words(value).count() > 1 {
            return self.phrase(value, texts);
        }
        let word = fold_case(value);
        if self.definition.is_stopword(&word) {
            None
        } else {
            Some(self.text(texts, Test::Word(Pattern::Exact(word))))
        }
    }

    fn phrase(&self, text: &[u8], texts: Texts<'_>) -> Option<Predicate> {
        let mut words: Vec<_> = words(text)
            .filter(|word| !self.definition.is_stopword(word))
            .collect();
        match words.len() {
            0 if text.is_empty() => Some(self.text(texts, Test::Word(Pattern::Exact(Vec::new())))),
            0 => None,
            1 => Some(self.text(texts, Test::Word(Pattern::Exact(words.remove(0))))),
            _ => Some(self.text(
                texts,
                Test::Phrase {
                    words,
                    stopwords: self.definition.stopword_list().into(),
                },
            )),
        }
    }

    fn text(&self, texts: Texts<'_>, test: Test) -> Predicate {
        let attributes = texts.unwrap_or(&self.all_texts).to_vec();
        Predicate::Leaf(Leaf {
            attributes,
            is_everywhere: texts.is_none(),
            test,
        })
    }

    /// Parses `@name:clause` or `@name >= value`.
    fn field(&mut self) -> Parsed {
        self.count_conditions(1)?;
        let begin = self.scan.at;
        let mut attributes = Vec::new();
        self.scan.at += 1;
        loop {
            self.scan.take("@");
            attributes.push(self.attribute()?);
            if !self.scan.take("|") {
                break;
            }
        }
        // Attributes that are not indexed match nothing.
        let is_indexed = |id: &&AttributeId| !self.definition.get(**id).options.no_index;
        let indexed: Vec<AttributeId> = attributes.iter().filter(is_indexed).copied().collect();
        self.scan.blanks();
        let parsed = if self.scan.take(":") {
            self.scan.blanks();
            match self.scan.peek() {
                Some('{') => self.tags(one(&attributes, &self.scan, begin)?),
                Some('[') => self.range(one(&attributes, &self.scan, begin)?),
                _ if indexed.is_empty() => self.texts(&attributes, begin),
                _ => self.texts(&indexed, begin),
            }
        } else {
            self.comparison(one(&attributes, &self.scan, begin)?)
        };
        if indexed.is_empty() {
            parsed.map(|_| Some(Predicate::Nothing))
        } else {
            parsed
        }
    }

    pub fn attribute(&mut self) -> Result<AttributeId> {
        let begin = self.scan.at;
        let name = self.scan.name("$.");
        if name.is_empty() {
            return Err(self
                .scan
                .syntax("the name of an attribute is expected here"));
        }
        match self.definition.by_name(&name) {
            None => Err(self.scan.refuse_at(
                begin,
                "Unknown field",
                "FT.INFO lists the attributes of the space",
            )),
            Some(attribute) => Ok(attribute.id),
        }
    }

    /// Parses the part after `@name:` for text attributes.
    fn texts(&mut self, attributes: &[AttributeId], begin: usize) -> Parsed {
        for id in attributes {
            let attribute = self.definition.get(*id);
            let (expected, example) = match attribute.kind {
                AttributeKind::Text { .. } => continue,
                AttributeKind::Tag { .. } | AttributeKind::Boolean => {
                    ("Expected a TEXT field", "{..}")
                }
                AttributeKind::Numeric | AttributeKind::Timestamp => {
                    ("Expected a TEXT field", "[from to]")
                }
                AttributeKind::Geo => ("Expected a TEXT field", "[longitude latitude radius km]"),
            };
            let advice = format!(
                "{} is {}: write @{}:{example}",
                attribute.name,
                attribute.kind.name(),
                attribute.name
            );
            return Err(self.scan.refuse_at(begin, expected, &advice));
        }
        self.unary_text(attributes)
    }

    fn unary_text(&mut self, attributes: &[AttributeId]) -> Parsed {
        // A negation may follow the colon. The caller parses `=>`.
        for (sign, wrap) in [
            ("-", Predicate::Not as fn(Box<Predicate>) -> Predicate),
            ("~", Predicate::Optional),
        ] {
            if self.scan.take(sign) {
                let inner = self.parse_nested(|parser| parser.unary_text(attributes))?;
                return Ok(inner.map(|inner| wrap(Box::new(inner))));
            }
        }
        self.primary(Some(attributes))
    }

    fn is_missing(&mut self, begin: usize) -> Parsed {
        self.scan
            .expect("@", "write @ and a name in the parentheses of ismissing")?;
        let id = self.attribute()?;
        self.scan.expect(")", "a closing ) is expected here")?;
        let attribute = self.definition.get(id);
        if !attribute.options.index_missing {
            let message = format!(
                "'ismissing' requires defining the field with 'INDEXMISSING': {} is not",
                attribute.name
            );
            return Err(Refusal::at_column(begin + 1, message));
        }
        Ok(Some(Predicate::leaf(id, Test::Missing)))
    }

    /// Parses `{$weight: 1; $inorder: false}`, and rejects attributes that would change the result.
    fn clause_attributes(&mut self) -> Result<()> {
        self.scan.blanks();
        if self.scan.peek() == Some('[') {
            return Err(self.scan.syntax(
                "vectors are not supported: after => write attributes such as {$weight: 2}",
            ));
        }
        self.scan
            .expect("{", "after => write attributes such as {$weight: 2}")?;
        loop {
            if self.scan.take_after_blanks("}") {
                return Ok(());
            }
            self.scan
                .expect("$", "here an attribute such as $weight is expected")?;
            let begin = self.scan.at;
            let name = self.scan.name("").to_ascii_lowercase();
            if !["weight", "slop", "inorder", "phonetic"]
                .iter()
                .any(|known| name.eq_ignore_ascii_case(known))
            {
                let message = format!(
                    "Invalid attribute {name}: there are $weight, $slop, $inorder and $phonetic"
                );
                return Err(Refusal::at_column(begin + 1, message));
            }
            self.scan.expect(":", "a : is expected here")?;
            self.scan.blanks();
            let value = self.scan.until(|sign| sign == ';' || sign == '}');
            if value.is_empty() {
                return Err(self.scan.syntax("a value is expected here"));
            }
            let value = super::scan::text_of(&value);
            let changes_nothing = match name.as_str() {
                "weight" => value.parse() == Ok(1.0),
                "slop" => false,
                _ => value.eq_ignore_ascii_case("false"),
            };
            if !changes_nothing {
                let message = format!(
                    "${name}: {value} is not supported: searches do not score; search for adjacent words in quotes"
                );
                return Err(Refusal::at_column(begin + 1, message));
            }
            self.scan.take_after_blanks(";");
        }
    }

    /// Parses `$name`, and returns the value of the parameter.
    pub fn param(&mut self) -> Result<Vec<u8>> {
        let begin = self.scan.at;
        self.scan.at += 1;
        let name = self.scan.name("");
        self.value_of(&name, begin)
    }

    /// Returns the value of the parameter `name`, whose `$` is at this position.
    pub fn value_of(&self, name: &str, at: usize) -> Result<Vec<u8>> {
        if name.is_empty() {
            let advice =
                "the name of a parameter is missing after $: write \\$ for the sign itself";
            return Err(self.scan.syntax_at(at, advice));
        }
        let value = self.params.0.get(name.as_bytes());
        // The value counts as if the query contained it.
        self.count_conditions(value.map_or(0, |value| value.len() / PARAM_BYTES))?;
        value.cloned().ok_or_else(|| {
            let message = format!(
                "Parameter not found `{name}`: give it with PARAMS 2 {name} value, or write \\$ for the sign itself"
            );
            Refusal::at_column(at + 1, message)
        })
    }

    /// Parses the quoted part of `w'..'`, starting at the opening quote. One parameter may replace its complete
    /// content.
    pub fn wildcard(&mut self) -> Result<Vec<u8>> {
        let begin = self.scan.at;
        self.scan.at += 1;
        let signs = self.scan.until(|sign| sign == '\'');
        if !self.scan.take("'") {
            return Err(self
                .scan
                .syntax_at(begin, "the quote that opens here is not closed"));
        }
        if let [('$', false), name @ ..] = &signs[..] {
            return self.value_of(&super::scan::text_of(name), begin + 1);
        }
        let mut pattern = Vec::new();
        for (sign, is_escaped) in signs {
            if is_escaped && "?*\\".contains(sign) {
                pattern.push(b'\\');
            }
            pattern.extend_from_slice(sign.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(pattern)
    }
}

fn one(attributes: &[AttributeId], scan: &Scan, begin: usize) -> Result<AttributeId> {
    match attributes {
        [one] => Ok(*one),
        _ => Err(scan.syntax_at(
            begin,
            "several fields may precede only terms: join other clauses by |",
        )),
    }
}
