//! The date functions of expressions. All dates are in UTC.

use larder_types::civil_date;

use crate::base::instant::{MICROS_PER_SECOND, SECONDS_PER_DAY, days_of, from_seconds};
use crate::base::number::Number;
use crate::error::{Refusal, Result, printable};

/// A part of an instant. The first four yield the start of the current minute, hour, day or month; the others yield a
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Minute,
    Hour,
    Day,
    Month,
    Year,
    /// Counted from 0.
    MonthOfYear,
    /// Counted from 1.
    DayOfMonth,
    /// Counted from 0, which is Sunday.
    DayOfWeek,
    /// Counted from 0.
    DayOfYear,
}

struct Date {
    year: i64,
    month: i64,
    day: i64,
    /// Since 1970-01-01.
    days: i64,
    second_of_day: i64,
}

/// Returns `None` if the instant does not fit in 64 bits of microseconds.
fn date(seconds: Number) -> Option<Date> {
    let seconds = from_seconds(seconds)?.div_euclid(MICROS_PER_SECOND);
    let days = seconds.div_euclid(SECONDS_PER_DAY);
    let (year, month, day) = civil_date(days);
    Some(Date {
        year: i64::try_from(year).ok()?,
        month: i64::from(month),
        day: i64::from(day),
        days,
        second_of_day: seconds.rem_euclid(SECONDS_PER_DAY),
    })
}

impl Date {
    fn day_of_year(&self) -> i64 {
        self.days - days_of(self.year, 1, 1).expect("each year has a first day")
    }

    /// Returns the day of the week, from 0 for Sunday. 1970-01-01 was a Thursday.
    fn day_of_week(&self) -> i64 {
        (self.days + 4).rem_euclid(7)
    }
}

pub fn part(seconds: Number, unit: Unit) -> Option<i64> {
    let date = date(seconds)?;
    let day = date.days * SECONDS_PER_DAY;
    Some(match unit {
        Unit::Minute => day + date.second_of_day / 60 * 60,
        Unit::Hour => day + date.second_of_day / 3600 * 3600,
        Unit::Day => day,
        Unit::Month => days_of(date.year, date.month, 1)? * SECONDS_PER_DAY,
        Unit::Year => date.year,
        Unit::MonthOfYear => date.month - 1,
        Unit::DayOfMonth => date.day,
        Unit::DayOfWeek => date.day_of_week(),
        Unit::DayOfYear => date.day_of_year(),
    })
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Formats an instant like C's `strftime`, with the conversions that do not depend on a locale. Returns `None` if the
/// instant is out of range.
///
/// # Errors
/// The format contains another conversion.
pub fn format(seconds: Number, format: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(date) = date(seconds) else {
        return Ok(None);
    };
    let mut out = Vec::new();
    let mut signs = format.iter();
    while let Some(&sign) = signs.next() {
        match sign {
            b'%' => out.extend(conversion(&date, signs.next().copied())?.into_bytes()),
            sign => out.push(sign),
        }
    }
    Ok(Some(out))
}

fn conversion(date: &Date, sign: Option<u8>) -> Result<String> {
    let (hour, minute, second) = (
        date.second_of_day / 3600,
        date.second_of_day / 60 % 60,
        date.second_of_day % 60,
    );
    let (month, day_name) = (
        MONTHS[(date.month - 1) as usize],
        DAYS[date.day_of_week() as usize],
    );
    let twelve = (hour + 11) % 12 + 1;
    Ok(match sign {
        Some(b'Y') => date.year.to_string(),
        Some(b'C') => format!("{:02}", date.year.div_euclid(100)),
        Some(b'y') => format!("{:02}", date.year.rem_euclid(100)),
        Some(b'm') => format!("{:02}", date.month),
        Some(b'd') => format!("{:02}", date.day),
        Some(b'e') => format!("{:2}", date.day),
        Some(b'H') => format!("{hour:02}"),
        Some(b'I') => format!("{twelve:02}"),
        Some(b'M') => format!("{minute:02}"),
        Some(b'S') => format!("{second:02}"),
        Some(b'p') => if hour < 12 { "AM" } else { "PM" }.to_string(),
        Some(b'j') => format!("{:03}", date.day_of_year() + 1),
        Some(b'u') => ((date.day_of_week() + 6) % 7 + 1).to_string(),
        Some(b'w') => date.day_of_week().to_string(),
        Some(b's') => (date.days * SECONDS_PER_DAY + date.second_of_day).to_string(),
        Some(b'a') => day_name[..3].to_string(),
        Some(b'A') => day_name.to_string(),
        Some(b'b' | b'h') => month[..3].to_string(),
        Some(b'B') => month.to_string(),
        Some(b'F') => format!("{}-{:02}-{:02}", date.year, date.month, date.day),
        Some(b'D') => format!(
            "{:02}/{:02}/{:02}",
            date.month,
            date.day,
            date.year.rem_euclid(100)
        ),
        Some(b'T') => format!("{hour:02}:{minute:02}:{second:02}"),
        Some(b'R') => format!("{hour:02}:{minute:02}"),
        Some(b'Z') => "GMT".to_string(),
        Some(b'z') => "+0000".to_string(),
        Some(b'n') => "\n".to_string(),
        Some(b't') => "\t".to_string(),
        Some(b'%') => "%".to_string(),
        other => return Err(unknown(other)),
    })
}

fn unknown(sign: Option<u8>) -> Refusal {
    let sign = sign.map_or(String::new(), |sign| char::from(sign).to_string());
    Refusal::new(format!(
        "%{sign} is not a conversion of a date: write, for example, %Y-%m-%d %H:%M:%S"
    ))
}

/// Parses a text by a format of [`format`] into seconds since 1970. Returns `None` if the text does not match.
///
/// # Errors
/// The format contains a conversion that cannot be parsed.
pub fn parse(text: &[u8], format: &[u8]) -> Result<Option<i64>> {
    let mut parsed = ParsedDate {
        rest: text,
        year: 1970,
        month: 1,
        day: 1,
        hour: 0,
        minute: 0,
        second: 0,
        is_afternoon: None,
    };
    let mut signs = format.iter();
    while let Some(&sign) = signs.next() {
        let fits = match sign {
            b'%' => parsed.conversion(signs.next().copied())?,
            sign if sign.is_ascii_whitespace() => {
                parsed.rest = parsed.rest.trim_ascii_start();
                Some(())
            }
            sign => parsed.sign(sign),
        };
        if fits.is_none() {
            return Ok(None);
        }
    }
    Ok(parsed.seconds())
}

struct ParsedDate<'a> {
    rest: &'a [u8],
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    is_afternoon: Option<bool>,
}

impl ParsedDate<'_> {
    fn sign(&mut self, sign: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[sign])?;
        Some(())
    }

    fn number(&mut self, digits_max: usize) -> Option<i64> {
        let size = self
            .rest
            .iter()
            .take(digits_max)
            .take_while(|b| b.is_ascii_digit())
            .count();
        let number = std::str::from_utf8(&self.rest[..size]).ok()?.parse().ok()?;
        self.rest = &self.rest[size..];
        Some(number)
    }

    /// Parses a name or its first three letters, and returns its position in the list.
    fn name(&mut self, names: &[&str]) -> Option<i64> {
        let begins = |name: &str, rest: &[u8]| {
            rest.get(..name.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(name.as_bytes()))
        };
        let place = names
            .iter()
            .position(|name| begins(&name[..3], self.rest))?;
        let is_whole = begins(names[place], self.rest);
        self.rest = &self.rest[if is_whole { names[place].len() } else { 3 }..];
        Some(place as i64)
    }

    fn conversion(&mut self, sign: Option<u8>) -> Result<Option<()>> {
        let mut parts = |signs: &[u8]| -> Result<Option<()>> {
            for sign in signs {
                let fits = if sign.is_ascii_alphabetic() {
                    self.conversion(Some(*sign))?
                } else {
                    self.sign(*sign)
                };
                if fits.is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        };
        match sign {
            Some(b'F') => return parts(b"Y-m-d"),
            Some(b'T') => return parts(b"H:M:S"),
            Some(b'R') => return parts(b"H:M"),
            Some(b'D') => return parts(b"m/d/y"),
            _ => {}
        }
        Ok(match sign {
            Some(b'Y') => self.number(4).map(|it| self.year = it),
            Some(b'y') => self
                .number(2)
                .map(|it| self.year = it + if it < 69 { 2000 } else { 1900 }),
            Some(b'm') => self.number(2).map(|it| self.month = it),
            Some(b'd' | b'e') => {
                self.rest = self.rest.trim_ascii_start();
                self.number(2).map(|it| self.day = it)
            }
            Some(b'H') => self.number(2).map(|it| self.hour = it),
            Some(b'I') => self.number(2).map(|it| self.hour = it % 12),
            Some(b'M') => self.number(2).map(|it| self.minute = it),
            Some(b'S') => self.number(2).map(|it| self.second = it),
            Some(b'b' | b'B' | b'h') => self.name(&MONTHS).map(|it| self.month = it + 1),
            Some(b'a' | b'A') => self.name(&DAYS).map(|_| ()),
            Some(b'p') => {
                let half = self.rest.get(..2).map(<[u8]>::to_ascii_uppercase);
                self.is_afternoon = half.as_deref().map(|half| half == b"PM");
                let fits = matches!(half.as_deref(), Some(b"AM" | b"PM"));
                self.rest = self.rest.get(2..).unwrap_or_default();
                fits.then_some(())
            }
            Some(b'%') => self.sign(b'%'),
            other => return Err(Refusal::new(printable(unknown(other).message.as_bytes()))),
        })
    }

    fn seconds(&self) -> Option<i64> {
        let hour = self.hour
            + if self.is_afternoon == Some(true) {
                12
            } else {
                0
            };
        let fits = self.rest.is_empty() && hour < 24 && self.minute < 60 && self.second < 61;
        let days = days_of(self.year, self.month, self.day)?;
        fits.then_some(days * SECONDS_PER_DAY + hour * 3600 + self.minute * 60 + self.second)
    }
}
