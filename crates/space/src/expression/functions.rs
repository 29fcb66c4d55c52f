//! The table of functions: name, number of arguments, and implementation.

use super::calendar::{self, Unit};
use super::cell::Cell;
use super::evaluate::{Names, number};
use super::grammar::Expression;
use crate::base::number::Number;
use crate::base::point::Point;
use crate::error::{Refusal, Result, printable};

#[derive(Debug)]
pub struct FunctionRow {
    pub name: &'static str,
    /// The minimum and maximum number of arguments.
    pub arguments: (usize, usize),
    implementation: Implementation,
}

#[derive(Debug)]
enum Implementation {
    /// A function of evaluated arguments.
    Compute(fn(&[Cell]) -> Result<Cell>),
    /// A function of a number. An argument that is not a number yields NaN.
    Math(fn(f64) -> f64),
    /// A function of seconds since 1970.
    Calendar(Unit),
    Exists,
    Case,
}

const fn row(name: &'static str, min: usize, max: usize, does: Implementation) -> FunctionRow {
    FunctionRow {
        name,
        arguments: (min, max),
        implementation: does,
    }
}

const ROWS: [FunctionRow; 34] = [
    row("log", 1, 1, Implementation::Math(f64::ln)),
    row("log2", 1, 1, Implementation::Math(f64::log2)),
    row("exp", 1, 1, Implementation::Math(f64::exp)),
    row("sqrt", 1, 1, Implementation::Math(f64::sqrt)),
    row("abs", 1, 1, Implementation::Compute(abs)),
    row("ceil", 1, 1, Implementation::Math(f64::ceil)),
    row("floor", 1, 1, Implementation::Math(f64::floor)),
    row("lower", 1, 1, Implementation::Compute(lower)),
    row("upper", 1, 1, Implementation::Compute(upper)),
    row("substr", 3, 3, Implementation::Compute(substr)),
    row("format", 1, 64, Implementation::Compute(format_text)),
    row("split", 1, 3, Implementation::Compute(split)),
    row("startswith", 2, 2, Implementation::Compute(starts_with)),
    row("contains", 2, 2, Implementation::Compute(contains)),
    row("strlen", 1, 1, Implementation::Compute(strlen)),
    row("to_number", 1, 1, Implementation::Compute(to_number)),
    row("to_str", 1, 1, Implementation::Compute(to_str)),
    row("exists", 1, 1, Implementation::Exists),
    row("case", 3, 3, Implementation::Case),
    row("timefmt", 1, 2, Implementation::Compute(timefmt)),
    row("strftime", 1, 2, Implementation::Compute(timefmt)),
    row("parsetime", 2, 2, Implementation::Compute(parsetime)),
    row("parse_time", 2, 2, Implementation::Compute(parsetime)),
    row("minute", 1, 1, Implementation::Calendar(Unit::Minute)),
    row("hour", 1, 1, Implementation::Calendar(Unit::Hour)),
    row("day", 1, 1, Implementation::Calendar(Unit::Day)),
    row("month", 1, 1, Implementation::Calendar(Unit::Month)),
    row(
        "monthofyear",
        1,
        1,
        Implementation::Calendar(Unit::MonthOfYear),
    ),
    row("year", 1, 1, Implementation::Calendar(Unit::Year)),
    row(
        "dayofmonth",
        1,
        1,
        Implementation::Calendar(Unit::DayOfMonth),
    ),
    row("dayofweek", 1, 1, Implementation::Calendar(Unit::DayOfWeek)),
    row("dayofyear", 1, 1, Implementation::Calendar(Unit::DayOfYear)),
    row("geodistance", 2, 4, Implementation::Compute(geodistance)),
    row("round", 1, 1, Implementation::Math(f64::round)),
];

pub(super) fn find(name: &str) -> Result<&'static FunctionRow, String> {
    if name.eq_ignore_ascii_case("matched_terms") {
        return Err("matched_terms is not supported: searches do not score, so they do not record which terms matched".to_string());
    }
    ROWS.iter()
        .find(|row| row.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            format!(
                "Unknown function name '{name}': there are {}",
                names.join(", ")
            )
        })
}

pub(super) fn call(row: &FunctionRow, arguments: &[Expression], names: &dyn Names) -> Result<Cell> {
    match &row.implementation {
        Implementation::Exists => Ok(Cell::from_bool(match &arguments[0] {
            Expression::Name(name) => names.cell(name) != Cell::Null,
            other => other.evaluate(names).is_ok_and(|cell| cell != Cell::Null),
        })),
        Implementation::Case => {
            let holds = arguments[0].evaluate(names)?.is_true();
            arguments[if holds { 1 } else { 2 }].evaluate(names)
        }
        Implementation::Math(function) => {
            let value = arguments[0].evaluate(names)?;
            if value == Cell::Null {
                return Ok(Cell::Null);
            }
            Ok(value
                .as_number()
                .map_or(Cell::Nan, |value| Cell::from_f64(function(value.as_f64()))))
        }
        Implementation::Calendar(unit) => {
            let value = arguments[0].evaluate(names)?.as_number();
            let part = value.and_then(|value| calendar::part(value, *unit));
            Ok(part.map_or(Cell::Null, Cell::int))
        }
        Implementation::Compute(function) => {
            let cells: Result<Vec<_>> = arguments.iter().map(|it| it.evaluate(names)).collect();
            let cells = cells?;
            if cells.contains(&Cell::Null) {
                return Ok(Cell::Null);
            }
            function(&cells).map_err(|refusal| Refusal {
                message: format!("{}: {}", row.name, refusal.message),
                ..refusal
            })
        }
    }
}

fn abs(cells: &[Cell]) -> Result<Cell> {
    Ok(match cells[0].as_number() {
        None => Cell::Nan,
        Some(value) if value < Number::Int(0) => Cell::Number(value.negate()),
        Some(value) => Cell::Number(value),
    })
}

/// Returns the text of a text or a number.
fn text(cell: &Cell) -> Result<Vec<u8>> {
    match cell {
        Cell::List(_) | Cell::Null => {
            Err(Refusal::new("a text is expected, not a list or nothing"))
        }
        cell => Ok(cell.print()),
    }
}

fn cased(cell: &Cell, of_text: fn(&str) -> String, of_bytes: fn(&[u8]) -> Vec<u8>) -> Result<Cell> {
    let text = text(cell)?;
    Ok(Cell::Text(match std::str::from_utf8(&text) {
        Ok(text) => of_text(text).into_bytes(),
        Err(_) => of_bytes(&text),
    }))
}

fn lower(cells: &[Cell]) -> Result<Cell> {
    cased(&cells[0], str::to_lowercase, |bytes| {
        bytes.to_ascii_lowercase()
    })
}

fn upper(cells: &[Cell]) -> Result<Cell> {
    cased(&cells[0], str::to_uppercase, |bytes| {
        bytes.to_ascii_uppercase()
    })
}

/// Returns a part of a text, in bytes. A negative offset counts from the end. A negative size is relative to the length
/// of the rest.
fn substr(cells: &[Cell]) -> Result<Cell> {
    let text = text(&cells[0])?;
    let length = text.len() as i64;
    let whole = |cell: &Cell| Ok(number(cell)?.as_f64() as i64);
    let (offset, count) = (whole(&cells[1])?, whole(&cells[2])?);
    let begin = if offset < 0 {
        length.saturating_add(offset)
    } else {
        offset
    }
    .clamp(0, length);
    let end = if count < 0 {
        length.saturating_add(count)
    } else {
        begin.saturating_add(count)
    };
    let end = end.clamp(begin, length);
    Ok(Cell::text(&text[begin as usize..end as usize]))
}

/// `format` fails if its output exceeds this size before a conversion. Nested calls could otherwise double the text
/// each time.
const FORMATTED_BYTES_MAX: usize = 1 << 20;

fn format_text(cells: &[Cell]) -> Result<Cell> {
    let format = text(&cells[0])?;
    let mut rest = cells[1..].iter();
    let mut out = Vec::new();
    let mut signs = format.iter();
    while let Some(&sign) = signs.next() {
        if sign != b'%' {
            out.push(sign);
            continue;
        }
        if out.len() > FORMATTED_BYTES_MAX {
            return Err(Refusal::new(format!(
                "format makes a text of more than {FORMATTED_BYTES_MAX} bytes"
            )));
        }
        match signs.next() {
            Some(b'%') => out.push(b'%'),
            Some(b's') => match rest.next() {
                Some(cell) => out.extend(cell.print()),
                None => {
                    return Err(Refusal::new(
                        "Not enough arguments for format: each %s takes one",
                    ));
                }
            },
            _ => {
                return Err(Refusal::new(
                    "Unknown format specifier: write %s for a value and %% for a percent sign",
                ));
            }
        }
    }
    Ok(Cell::Text(out))
}

/// `split(text, separators = ",", trimmed = " ")`: omits empty parts.
fn split(cells: &[Cell]) -> Result<Cell> {
    let of = text(&cells[0])?;
    let separators = cells.get(1).map_or(Ok(b",".to_vec()), text)?;
    let trimmed = cells.get(2).map_or(Ok(b" ".to_vec()), text)?;
    let parts = of
        .split(|byte| separators.contains(byte))
        .filter_map(|part| {
            let begin = part.iter().position(|byte| !trimmed.contains(byte))?;
            let end = part.iter().rposition(|byte| !trimmed.contains(byte))?;
            Some(Cell::text(&part[begin..=end]))
        });
    Ok(Cell::List(parts.collect()))
}

fn starts_with(cells: &[Cell]) -> Result<Cell> {
    Ok(Cell::from_bool(
        text(&cells[0])?.starts_with(&text(&cells[1])?),
    ))
}

/// Counts the occurrences of the second text in the first. An empty text occurs before each byte and at the end.
fn contains(cells: &[Cell]) -> Result<Cell> {
    let (text_in, of) = (text(&cells[0])?, text(&cells[1])?);
    if of.is_empty() {
        return Ok(Cell::int(text_in.len() as i64 + 1));
    }
    let (mut count, mut rest) = (0, &text_in[..]);
    while let Some(at) = rest.windows(of.len()).position(|part| part == of) {
        count += 1;
        rest = &rest[at + of.len()..];
    }
    Ok(Cell::int(count))
}

fn strlen(cells: &[Cell]) -> Result<Cell> {
    Ok(Cell::int(text(&cells[0])?.len() as i64))
}

fn to_number(cells: &[Cell]) -> Result<Cell> {
    Ok(Cell::Number(number(&cells[0])?))
}

fn to_str(cells: &[Cell]) -> Result<Cell> {
    Ok(Cell::Text(text(&cells[0])?))
}

fn timefmt(cells: &[Cell]) -> Result<Cell> {
    let format = cells.get(1).map_or(Ok(b"%FT%TZ".to_vec()), text)?;
    let Some(at) = cells[0].as_number() else {
        return Ok(Cell::Null);
    };
    let text = calendar::format(at, &format)?;
    Ok(text.map_or(Cell::Null, Cell::Text))
}

fn parsetime(cells: &[Cell]) -> Result<Cell> {
    let seconds = calendar::parse(&text(&cells[0])?, &text(&cells[1])?)?;
    Ok(seconds.map_or(Cell::Null, Cell::int))
}

/// Returns the distance in metres between two points. Each is a text "lon,lat", or a longitude and a latitude.
fn geodistance(cells: &[Cell]) -> Result<Cell> {
    let mut rest = cells;
    let mut point = || -> Result<Point> {
        let bad = |shown: String| {
            Refusal::new(format!(
                "{shown:?} is not a point: write 'lon,lat', or two numbers"
            ))
        };
        match rest {
            [Cell::Text(at), behind @ ..] if Number::parse(at).is_none() => {
                rest = behind;
                Point::parse(at).ok_or_else(|| bad(printable(at)))
            }
            [lon, lat, behind @ ..] => {
                rest = behind;
                let found = Point::new(number(lon)?.as_f64(), number(lat)?.as_f64());
                found.ok_or_else(|| bad(printable(&lon.print())))
            }
            _ => Err(bad(String::new())),
        }
    };
    let (a, b) = (point()?, point()?);
    match rest {
        [] => Ok(Cell::from_f64((a.distance_m(b) * 100.0).round() / 100.0)),
        _ => Err(Refusal::new("geodistance takes two points")),
    }
}
