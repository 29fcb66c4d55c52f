//! The arguments of FT.AGGREGATE.

use std::sync::Arc;

use super::reducer::Reducer;
use crate::base::arguments::Arguments;
use crate::error::{Refusal, Result, printable};
use crate::expression::{Cell, Expression};
use crate::object::{ObjectKind, Path};
use crate::query::Predicate;
use crate::schema::Definition;
use crate::search::options::{QueryOptions, take_limit};

#[derive(Debug, Clone)]
pub struct Aggregation {
    pub predicate: Predicate,
    pub options: QueryOptions,
    pub cursor: Option<Cursor>,
    /// The names that are loaded from an object, with their positions in the row.
    pub(super) loads: Vec<(usize, String)>,
    /// LOAD *: all fields of the object, after the named ones.
    pub(super) loads_all: bool,
    pub(super) stages: Vec<Stage>,
    /// The names of the row before each stage, and at the end.
    pub(super) layouts: Vec<Arc<Vec<String>>>,
    /// The work for one row: the number of loaded names, terms of expressions, keys and reducers.
    terms: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The number of rows per reply.
    pub count: u64,
    pub idle_ms_max: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// Sets the column at this position.
    Apply(Expression, usize),
    Filter(Expression),
    Group(Vec<usize>, Vec<Reducer>),
    /// The columns (true: descending), and the number of rows to keep.
    Sort(Vec<(usize, bool)>, usize),
    Limit(usize, usize),
}

const CURSOR_COUNT: u64 = 1000;
/// The maximum of LIMIT's numbers.
const ROWS_MAX: u64 = 1 << 31;
const SORT_ROWS: usize = 10;
const SORT_KEYS_MAX: usize = 8;
const STAGES_MAX: usize = 1024;
/// The maximum number of columns of a row.
const NAMES_MAX: usize = 1024;
/// The maximum number of terms in all stages.
const TERMS_MAX: usize = 16_384;
/// The number of terms that count as the work of one row.
const TERMS_PER_ROW: usize = 16;

struct Builder<'d> {
    definition: &'d Definition,
    aggregation: Aggregation,
    /// The names of the row after the stages parsed so far.
    names: Vec<String>,
    is_grouped: bool,
    /// The first layout after the last GROUPBY. The layouts from there on are still growing.
    segment: usize,
}

impl Aggregation {
    /// Parses the arguments of FT.AGGREGATE, starting with the query, which is argument 0.
    ///
    /// # Errors
    /// The first invalid argument, or the column of an error in the query or in an expression.
    pub fn parse(arguments: &[&[u8]], definition: &Definition) -> Result<Aggregation> {
        let mut args = Arguments::new(arguments);
        let query = args.take("the query")?;
        let mut builder = Builder {
            definition,
            aggregation: Aggregation {
                predicate: Predicate::Nothing,
                options: QueryOptions::default(),
                cursor: None,
                loads: Vec::new(),
                loads_all: false,
                stages: Vec::new(),
                layouts: Vec::new(),
                terms: 0,
            },
            names: Vec::new(),
            is_grouped: false,
            segment: 0,
        };
        while !args.is_done() {
            // redis-py always sends a scorer. Scores affect rows only with ADDSCORES, which is rejected.
            if args.take_word("SCORER") {
                args.take("SCORER")?;
                continue;
            }
            if !builder.aggregation.options.take(&mut args, definition)? {
                builder.take_stage(&mut args)?;
            }
        }
        builder.end_segment();
        let names = builder.names;
        let mut aggregation = builder.aggregation;
        aggregation.terms = aggregation.counted_terms();
        if aggregation.terms > TERMS_MAX {
            return Err(Refusal::new(format!(
                "an aggregation has at most {TERMS_MAX} names that are loaded, terms of expressions, keys and reducers together"
            )));
        }
        aggregation.layouts.push(Arc::new(names));
        aggregation.predicate = aggregation.options.predicate(query, definition)?;
        Ok(aggregation)
    }

    /// Returns the work of one row, where 1 is a row with a few terms.
    pub(crate) fn row_work(&self) -> usize {
        1 + self.terms / TERMS_PER_ROW
    }

    fn counted_terms(&self) -> usize {
        let of_stage = |stage: &Stage| match stage {
            Stage::Apply(expression, _) | Stage::Filter(expression) => expression.terms(),
            Stage::Group(keys, reducers) => keys.len() + reducers.len(),
            Stage::Sort(keys, _) => keys.len(),
            Stage::Limit(..) => 1,
        };
        self.loads.len() + self.stages.iter().map(of_stage).sum::<usize>()
    }

    /// Returns whether a cursor can continue after the key of its last row: no stage sorts, groups or counts rows.
    pub fn is_streamed(&self) -> bool {
        self.boundary() == self.stages.len()
    }

    /// Returns the row that the stages need, if `cell` can provide all of it. Null becomes `None`.
    pub(crate) fn load_from(
        &self,
        mut cell: impl FnMut(&str) -> Option<Cell>,
    ) -> Option<Vec<Option<Cell>>> {
        if self.loads_all {
            return None;
        }
        let mut row = vec![None; self.layouts.first().map_or(0, |names| names.len())];
        for (place, name) in &self.loads {
            row[*place] = match cell(name)? {
                Cell::Null => None,
                cell => Some(cell),
            };
        }
        Some(row)
    }

    /// Returns the first stage that needs the rows of all regions.
    pub(super) fn boundary(&self) -> usize {
        let is_local = |stage: &Stage| matches!(stage, Stage::Apply(..) | Stage::Filter(_));
        self.stages
            .iter()
            .position(|stage| !is_local(stage))
            .unwrap_or(self.stages.len())
    }
}

impl Builder<'_> {
    fn take_stage(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        let at = args.position();
        let word = args.peek_word().unwrap_or_default();
        args.skip();
        match word.as_str() {
            "LOAD" => self.load(args)?,
            "APPLY" => self.apply(args)?,
            "FILTER" => {
                let expression = self.expression(args)?;
                self.push(Stage::Filter(expression), args)?;
            }
            "GROUPBY" => self.group(args)?,
            "SORTBY" => self.sort(args)?,
            "LIMIT" => {
                let (offset, count) = take_limit(args, ROWS_MAX)?;
                if let Some(Stage::Sort(_, keep)) = self.aggregation.stages.last_mut() {
                    *keep = (offset + count) as usize;
                }
                self.push(Stage::Limit(offset as usize, count as usize), args)?;
            }
            "WITHCURSOR" => {
                let mut cursor = Cursor {
                    count: CURSOR_COUNT,
                    idle_ms_max: None,
                };
                loop {
                    if args.take_word("COUNT") {
                        cursor.count = args.take_count("COUNT", ROWS_MAX)?.max(1);
                    } else if args.take_word("MAXIDLE") {
                        cursor.idle_ms_max = Some(args.take_count("MAXIDLE", u64::MAX >> 1)?);
                    } else {
                        break;
                    }
                }
                self.aggregation.cursor = Some(cursor);
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

    fn push(&mut self, stage: Stage, args: &Arguments<'_>) -> Result<()> {
        if self.aggregation.stages.len() == STAGES_MAX {
            return Err(args.refuse_last(format!("an aggregation has at most {STAGES_MAX} stages")));
        }
        self.aggregation.stages.push(stage);
        self.aggregation.layouts.push(Arc::default());
        Ok(())
    }

    /// All stages since the last GROUPBY share one layout with all their names.
    fn end_segment(&mut self) {
        let names = Arc::new(self.names.clone());
        for layout in &mut self.aggregation.layouts[self.segment..] {
            layout.clone_from(&names);
        }
        self.segment = self.aggregation.layouts.len();
    }

    fn place(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_string());
            self.names.len() - 1
        })
    }

    /// Returns the position of a name that a stage reads, and loads it if no stage has set it. `None` if the name is
    /// unknown.
    fn read(&mut self, name: &str, is_lenient: bool) -> Option<usize> {
        if let Some(known) = self.names.iter().position(|known| known == name) {
            return Some(known);
        }
        let is_path = self.definition.on == ObjectKind::Json
            && name.starts_with('$')
            && Path::parse(name).is_ok();
        let is_known = name == "__key" || is_path || self.definition.by_name(name).is_some();
        if self.is_grouped || !(is_known || is_lenient || self.aggregation.loads_all) {
            return None;
        }
        let place = self.place(name);
        self.aggregation.loads.push((place, name.to_string()));
        Some(place)
    }

    /// Checks that a row can have another column.
    ///
    /// # Errors
    /// The row has the maximum number of columns.
    fn ensure_room(&self, args: &Arguments<'_>) -> Result<()> {
        if self.names.len() >= NAMES_MAX {
            Err(args.refuse_last(format!(
                "rows of an aggregation have at most {NAMES_MAX} columns"
            )))
        } else {
            Ok(())
        }
    }

    fn property(&mut self, written: &[u8], args: &Arguments<'_>) -> Result<usize> {
        if written.first() != Some(&b'@') {
            let name = printable(written);
            return Err(args.refuse_last(format!(
                "Bad arguments: `{name}` is not a property: write @{name}"
            )));
        }
        self.reducer_property(written, args)
    }

    /// Parses a property of a reducer. The `@` is optional.
    fn reducer_property(&mut self, written: &[u8], args: &Arguments<'_>) -> Result<usize> {
        let name = String::from_utf8_lossy(written).into_owned();
        let name = name.strip_prefix('@').unwrap_or(&name);
        self.read(name, false).ok_or_else(|| {
            args.refuse_last(format!("Property `{name}` not loaded nor in schema: LOAD it, or make it with APPLY or REDUCE .. AS"))
        })
    }

    fn load(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        if self.is_grouped {
            return Err(args.refuse_last("LOAD cannot be applied after projectors or reducers"));
        }
        if args.take_word("*") {
            self.aggregation.loads_all = true;
            return Ok(());
        }
        let list = args.take_list("LOAD")?;
        let mut list = list
            .iter()
            .map(|it| String::from_utf8_lossy(it).into_owned())
            .peekable();
        while let Some(written) = list.next() {
            let source = written.strip_prefix('@').unwrap_or(&written).to_string();
            if source.starts_with('$') {
                Path::parse(&source).map_err(|refusal| args.refuse_last(refusal.to_string()))?;
            }
            let name = if list
                .peek()
                .is_some_and(|word| word.eq_ignore_ascii_case("AS"))
            {
                list.next();
                let alias = list.next();
                alias.ok_or_else(|| {
                    args.refuse_last("LOAD path AS name - must be accompanied with NAME")
                })?
            } else {
                source.clone()
            };
            if !self.names.contains(&name) {
                self.ensure_room(args)?;
                let place = self.place(&name);
                self.aggregation.loads.push((place, source));
            }
        }
        Ok(())
    }

    fn expression(&mut self, args: &mut Arguments<'_>) -> Result<Expression> {
        let text = args.take_text("an expression")?;
        let expression = Expression::parse(&text)?;
        let mut names = Vec::new();
        expression.names(&mut |name| names.push(name.to_string()));
        for name in names {
            self.ensure_room(args)?;
            if self.read(&name, true).is_none() {
                return Err(args.refuse_last(format!("Property `{name}` not loaded nor in schema: after GROUPBY there are its keys and its reducers")));
            }
        }
        Ok(expression)
    }

    fn apply(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        let written = args
            .peek()
            .map(|text| String::from_utf8_lossy(text).into_owned());
        let expression = self.expression(args)?;
        let name = if args.take_word("AS") {
            args.take_text("the name after AS")?
        } else {
            written.unwrap_or_default()
        };
        self.ensure_room(args)?;
        let place = self.place(&name);
        self.push(Stage::Apply(expression, place), args)
    }

    fn group(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        let mut keys = Vec::new();
        for written in args.take_list("GROUPBY")? {
            self.ensure_room(args)?;
            keys.push(self.property(written, args)?);
        }
        let mut names: Vec<String> = keys.iter().map(|key| self.names[*key].clone()).collect();
        let mut reducers = Vec::new();
        while args.take_word("REDUCE") {
            let function = args.take_text("the name of a reducer")?;
            let list = args.take_list(&function.to_uppercase())?;
            let mut property = |written: &[u8]| self.reducer_property(written, args);
            let reducer =
                Reducer::parse(&function, list, &mut property).map_err(|refusal| Refusal {
                    position: args.refuse_last("").position,
                    ..refusal
                })?;
            let name = if args.take_word("AS") {
                args.take_text("the name after AS")?
            } else {
                let parts = list.iter().map(|it| {
                    String::from_utf8_lossy(it)
                        .trim_start_matches('@')
                        .to_string()
                });
                format!(
                    "__generated_alias{}{}",
                    function.to_lowercase(),
                    parts.collect::<Vec<_>>().join(",")
                )
            };
            if names.len() == NAMES_MAX {
                return Err(
                    args.refuse_last(format!("GROUPBY has at most {NAMES_MAX} keys and reducers"))
                );
            }
            if names.contains(&name) {
                return Err(args.refuse_last(format!(
                    "Property `{name}` specified more than once: name it otherwise with AS"
                )));
            }
            names.push(name);
            reducers.push(reducer);
        }
        self.push(Stage::Group(keys, reducers), args)?;
        self.end_segment();
        self.names = names;
        self.is_grouped = true;
        Ok(())
    }

    fn sort(&mut self, args: &mut Arguments<'_>) -> Result<()> {
        let list = args.take_list("SORTBY")?;
        let (mut keys, mut max) = (Vec::new(), 0);
        let mut inner = Arguments::new(list);
        while !inner.is_done() {
            // Some clients include MAX in the number of fields.
            if inner.take_word("MAX") {
                max = inner
                    .take_count("MAX", ROWS_MAX)
                    .map_err(|refusal| args.refuse_last(refusal.message))?;
                continue;
            }
            let written = inner.take("a property").unwrap_or_default();
            let key = self.property(written, args)?;
            let is_descending = inner.take_word("DESC");
            if !is_descending {
                inner.take_word("ASC");
            }
            keys.push((key, is_descending));
        }
        if args.take_word("MAX") {
            max = args.take_count("MAX", ROWS_MAX)?;
        }
        if keys.len() > SORT_KEYS_MAX {
            return Err(args.refuse_last(format!("SORTBY takes at most {SORT_KEYS_MAX} keys")));
        }
        if keys.is_empty() {
            return Ok(());
        }
        let keep = if max == 0 { SORT_ROWS } else { max as usize };
        self.push(Stage::Sort(keys, keep), args)
    }
}
