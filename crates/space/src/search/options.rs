//! The query, and the options that FT.SEARCH and FT.AGGREGATE share.
//!
//! - Accepted without effect: VERBATIM, because words are never expanded, and DIALECT 1, which is treated as 2.
//! - Rejected, because there is no scoring, stemming or expansion, and ignoring them would change results: NOSTOPWORDS,
//!   SLOP, INORDER, LANGUAGE, EXPANDER, SCORER, PAYLOAD, WITHSCORES, ADDSCORES, EXPLAINSCORE. FT.AGGREGATE accepts
//!   SCORER. FORMAT other than STRING is rejected too.
//! - Totals are exact. WITHOUTCOUNT allows a total that is too low, if counting would take time.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::base::arguments::Arguments;
use crate::base::number::Number;
use crate::base::ordered::Scalar;
use crate::error::{Refusal, Result, printable};
use crate::query::{self, Leaf, Params, Predicate, Span, Test};
use crate::schema::{AttributeId, AttributeKind, Definition};

/// The maximum count and the maximum offset of LIMIT.
pub const ROWS_MAX: u64 = 1_000_000;

#[derive(Debug, Clone, Default)]
pub struct QueryOptions {
    pub params: Params,
    /// The query language is dialect 2. With 3 and 4, values of JSON paths are returned as arrays.
    pub dialect: Option<u64>,
    pub timeout_ms: Option<u64>,
    /// Restricts the search to these keys.
    pub keys: Option<BTreeSet<Vec<u8>>>,
    /// The total may be too low, but is at least the number of returned rows.
    pub skips_total: bool,
    /// The text attributes in which words without a field are searched.
    texts: Option<Vec<AttributeId>>,
    filters: Vec<Predicate>,
}

impl QueryOptions {
    /// Consumes the next option, if it is a shared one. Returns whether it was.
    ///
    /// # Errors
    /// The arguments of the option are invalid.
    pub fn take(&mut self, args: &mut Arguments<'_>, definition: &Definition) -> Result<bool> {
        let Some(word) = args.peek_word() else {
            return Ok(false);
        };
        let begin = args.clone();
        args.skip();
        match word.as_str() {
            // VERBATIM disables an expansion that does not exist here.
            "VERBATIM" => {}
            "WITHCOUNT" => self.skips_total = false,
            "WITHOUTCOUNT" => self.skips_total = true,
            "NOSTOPWORDS" | "SLOP" | "INORDER" | "LANGUAGE" | "EXPANDER" | "SCORER" | "PAYLOAD"
            | "WITHSCORES" | "ADDSCORES" | "EXPLAINSCORE" => {
                return Err(args.refuse_last(not_supported(&word)));
            }
            "DIALECT" => {
                let dialect = args.take_count("DIALECT", u64::MAX >> 1)?;
                if !(1..=4).contains(&dialect) {
                    let message = format!(
                        "DIALECT requires a non negative integer >=1 and <= 4, not {dialect}"
                    );
                    return Err(args.refuse_last(message));
                }
                self.dialect = Some(dialect);
            }
            "TIMEOUT" => self.timeout_ms = Some(args.take_count("TIMEOUT", u64::MAX >> 1)?),
            "FORMAT" => {
                let format = args.take("STRING")?;
                if !format.eq_ignore_ascii_case(b"STRING") {
                    return Err(args.refuse_last(format!(
                        "FORMAT {} is not supported: values are returned as STRING",
                        printable(format)
                    )));
                }
            }
            "PARAMS" => self.take_params(args)?,
            "INKEYS" => {
                let keys = args.take_list("INKEYS")?;
                self.keys
                    .get_or_insert_default()
                    .extend(keys.iter().map(|key| key.to_vec()));
            }
            "INFIELDS" => {
                let names = args.take_list("INFIELDS")?;
                let texts = self.texts.get_or_insert_default();
                for name in names {
                    let attribute = definition.by_name(&String::from_utf8_lossy(name));
                    // An attribute that is not a text matches no word.
                    texts.extend(
                        attribute
                            .filter(|it| matches!(it.kind, AttributeKind::Text { .. }))
                            .map(|it| it.id),
                    );
                }
                texts.sort_unstable();
                texts.dedup();
            }
            _ => {
                *args = begin;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_params(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        let list = args.take_list("PARAMS")?;
        if list.is_empty() || list.len() % 2 == 1 {
            return Err(args.refuse_last("Parameters must be specified in PARAM VALUE pairs"));
        }
        for pair in list.chunks_exact(2) {
            if self
                .params
                .0
                .insert(pair[0].to_vec(), pair[1].to_vec())
                .is_some()
            {
                return Err(
                    args.refuse_last(format!("Duplicate parameter `{}`", printable(pair[0])))
                );
            }
        }
        Ok(())
    }

    /// Parses `FILTER name min max` of FT.SEARCH, after the word FILTER.
    pub fn take_filter(&mut self, args: &mut Arguments<'_>, definition: &Definition) -> Result<()> {
        let id = ordered_field(args, definition, "FILTER", |kind| {
            matches!(kind, AttributeKind::Numeric)
        })?;
        let mut bound = || -> Result<Bound<Scalar>> {
            let text = args.take("a bound of FILTER")?;
            let (is_exclusive, digits) = text
                .strip_prefix(b"(")
                .map_or((false, text), |digits| (true, digits));
            let number = Number::parse(digits).ok_or_else(|| {
                args.refuse_last(format!(
                    "Bad lower or upper range of FILTER: {:?} is not a number",
                    printable(text)
                ))
            })?;
            let value = Scalar::Number(number);
            Ok(if is_exclusive {
                Bound::Excluded(value)
            } else {
                Bound::Included(value)
            })
        };
        let span = Span {
            low: bound()?,
            high: bound()?,
        };
        self.filters.push(Predicate::leaf(id, Test::Within(span)));
        Ok(())
    }

    /// Parses `GEOFILTER name longitude latitude radius unit` of FT.SEARCH, after the word GEOFILTER.
    pub fn take_geo_filter(
        &mut self,
        args: &mut Arguments<'_>,
        definition: &Definition,
    ) -> Result<()> {
        let id = ordered_field(args, definition, "GEOFILTER", |kind| {
            matches!(kind, AttributeKind::Geo)
        })?;
        let mut number = |what: &str| Ok(args.take_number(what)?.as_f64());
        let (longitude, latitude) = (
            number("GEOFILTER's longitude")?,
            number("GEOFILTER's latitude")?,
        );
        let radius = number("GEOFILTER's radius")?;
        let unit = args.take("a unit")?;
        let circle = query::circle(longitude, latitude, radius, unit)
            .map_err(|message| args.refuse_last(message))?;
        self.filters.push(Predicate::leaf(id, Test::Near(circle)));
        Ok(())
    }

    /// Returns the predicate of the query and the options.
    ///
    /// # Errors
    /// A query error, with its column.
    pub fn predicate(&self, text: &[u8], definition: &Definition) -> Result<Predicate> {
        let mut predicate = query::parse(text, definition, &self.params)?;
        if let Some(texts) = &self.texts {
            narrow(&mut predicate, texts);
        }
        if self.filters.is_empty() {
            return Ok(predicate);
        }
        let mut parts = vec![predicate];
        parts.extend(self.filters.iter().cloned());
        let predicate = Predicate::and(parts);
        query::ensure_conditions(predicate.tests())?;
        Ok(predicate)
    }
}

/// Returns the error for an option that would change the result, with an alternative.
fn not_supported(option: &str) -> String {
    let advice = match option {
        "NOSTOPWORDS" => "declare the space with STOPWORDS 0",
        "SLOP" | "INORDER" => "search for adjacent words in quotes",
        "LANGUAGE" | "EXPANDER" => {
            "words are neither stemmed nor expanded; leave it out, and search for a prefix such as run*"
        }
        _ => "searches do not score; leave it out, and order the result with SORTBY",
    };
    format!("{option} is not supported: {advice}")
}

fn ordered_field(
    args: &mut Arguments<'_>,
    definition: &Definition,
    option: &str,
    fits: fn(&AttributeKind) -> bool,
) -> Result<AttributeId> {
    let name = args.take_text(&format!("{option}'s field"))?;
    match definition.by_name(&name) {
        Some(attribute) if fits(&attribute.kind) && !attribute.options.no_index => Ok(attribute.id),
        _ => Err(args.refuse_last(format!(
            "Unknown field `{name}` for {option}: the attribute does not support this filter"
        ))),
    }
}

/// Restricts words without a field to these text attributes.
fn narrow(predicate: &mut Predicate, texts: &[AttributeId]) {
    match predicate {
        Predicate::All | Predicate::Nothing => {}
        Predicate::And(parts) | Predicate::Or(parts) => {
            parts.iter_mut().for_each(|part| narrow(part, texts))
        }
        Predicate::Not(inner) | Predicate::Optional(inner) => narrow(inner, texts),
        Predicate::Leaf(Leaf {
            attributes,
            is_everywhere,
            ..
        }) if *is_everywhere => {
            attributes.retain(|id| texts.contains(id));
            *is_everywhere = false;
        }
        Predicate::Leaf(_) => {}
    }
}

/// Parses `LIMIT offset count`, after the word LIMIT.
///
/// # Errors
/// The arguments are not numbers or too large, or the count is 0 and the offset is not.
pub fn take_limit(args: &mut Arguments<'_>, rows_max: u64) -> Result<(u64, u64)> {
    let mut number = || {
        let number = args.take_count("LIMIT", u64::MAX >> 1);
        number.map_err(|refusal| Refusal {
            message: "LIMIT needs two numeric arguments".to_string(),
            ..refusal
        })
    };
    let (offset, count) = (number()?, number()?);
    if count == 0 && offset != 0 {
        return Err(args.refuse_last("The `offset` of the LIMIT must be 0 when `num` is 0"));
    }
    if count > rows_max {
        return Err(args.refuse_last(format!(
            "LIMIT exceeds maximum of {rows_max}: FT.AGGREGATE WITHCURSOR reads any number of rows"
        )));
    }
    if offset > rows_max {
        return Err(args.refuse_last(format!(
            "OFFSET exceeds maximum of {rows_max}: FT.AGGREGATE WITHCURSOR reads any number of rows"
        )));
    }
    Ok((offset, count))
}
