//! Parses expressions.
//!
//! ```text
//! expression = or ;  or = and {"||" and} ;  and = test {"&&" test}
//! test    = sum [("==" | "!=" | "<" | "<=" | ">" | ">=") sum]
//! sum     = product {("+" | "-") product} ;  product = power {("*" | "/" | "%") power} ;  power = unary ["^" power]
//! unary   = ("!" | "-") unary | number | 'text' | "text" | "@" name | function "(" [expression {"," expression}] ")" | "(" expression ")"
//! ```
//!
//! A name consists of letters, digits, `_`, `.`, and `$[]*` as in JSON paths. Other characters need a `\` before them.
//! Names of functions ignore case.

use super::cell::Cell;
use super::functions::{self, FunctionRow};
use crate::base::number::Number;
use crate::error::{Refusal, Result};

#[derive(Debug, Clone)]
pub enum Expression {
    Constant(Cell),
    /// A column, without its `@`.
    Name(String),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    Binary(Operation, Box<Expression>, Box<Expression>),
    Call(&'static FunctionRow, Vec<Expression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
}

/// The maximum length of an expression. Its depth is limited too, because each level uses stack.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
const DEPTH_MAX: usize = 128;

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// A syntax error, with its column.
    pub fn parse(text: &str) -> Result<Expression> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Refusal::new(format!(
                "an expression has at most {TEXT_BYTES_MAX} bytes, this one {}",
                text.len()
            )));
        }
        let chars: Vec<char> = text.chars().collect();
        let mut parser = ExpressionParser {
            chars: &chars,
            at: 0,
            depth: 0,
        };
        let expression = parser.binary(0)?;
        parser.blanks();
        if parser.at == chars.len() {
            Ok(expression)
        } else {
            Err(parser.syntax("an operator or the end is expected here"))
        }
    }

    /// Returns the number of operators, functions, names and constants, a measure of the cost of evaluation.
    pub fn terms(&self) -> usize {
        1 + match self {
            Expression::Constant(_) | Expression::Name(_) => 0,
            Expression::Not(inner) | Expression::Negate(inner) => inner.terms(),
            Expression::Binary(_, left, right) => left.terms() + right.terms(),
            Expression::Call(_, arguments) => arguments.iter().map(Expression::terms).sum(),
        }
    }

    pub fn names<'a>(&'a self, each: &mut impl FnMut(&'a str)) {
        match self {
            Expression::Constant(_) => {}
            Expression::Name(name) => each(name),
            Expression::Not(inner) | Expression::Negate(inner) => inner.names(each),
            Expression::Binary(_, left, right) => {
                left.names(each);
                right.names(each);
            }
            Expression::Call(_, arguments) => arguments.iter().for_each(|it| it.names(each)),
        }
    }
}

/// The operators of each level, loosest first. Within a level, a longer operator precedes its prefixes.
const LEVELS: [&[(&str, Operation)]; 5] = [
    &[("||", Operation::Or)],
    &[("&&", Operation::And)],
    &[
        ("==", Operation::Equal),
        ("!=", Operation::NotEqual),
        ("<=", Operation::AtMost),
        (">=", Operation::AtLeast),
        ("<", Operation::Less),
        (">", Operation::Greater),
    ],
    &[("+", Operation::Add), ("-", Operation::Subtract)],
    &[
        ("*", Operation::Multiply),
        ("/", Operation::Divide),
        ("%", Operation::Remainder),
    ],
];

struct ExpressionParser<'a> {
    chars: &'a [char],
    at: usize,
    depth: usize,
}

impl ExpressionParser<'_> {
    fn syntax(&self, expected: &str) -> Refusal {
        let near: String = self.chars[self.at..].iter().take(16).collect();
        Refusal::at_column(
            self.at + 1,
            format!(
                "Syntax error at offset {} near {near:?}: {expected}",
                self.at
            ),
        )
    }

    fn blanks(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, sign: &str) -> bool {
        self.blanks();
        let fits = sign
            .chars()
            .enumerate()
            .all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        self.at += if fits { sign.len() } else { 0 };
        fits
    }

    fn parse_nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            return Err(self.syntax(&format!("expressions are nested at most {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn binary(&mut self, level: usize) -> Result<Expression> {
        let Some(operators) = LEVELS.get(level) else {
            return self.power();
        };
        let mut left = self.binary(level + 1)?;
        // A chain of operators nests to the left, so it is as deep as it is long.
        let mut length = 0;
        while let Some((_, operation)) = operators.iter().find(|(sign, _)| self.take(sign)) {
            length += 1;
            if length > DEPTH_MAX {
                return Err(self.syntax(&format!(
                    "at most {DEPTH_MAX} operators may follow in a row: use parentheses"
                )));
            }
            let right = self.binary(level + 1)?;
            left = Expression::Binary(*operation, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn power(&mut self) -> Result<Expression> {
        let base = self.unary()?;
        if self.take("^") {
            let exponent = self.parse_nested(Self::power)?;
            Ok(Expression::Binary(
                Operation::Power,
                Box::new(base),
                Box::new(exponent),
            ))
        } else {
            Ok(base)
        }
    }

    fn unary(&mut self) -> Result<Expression> {
        self.blanks();
        match self.chars.get(self.at) {
            None => Err(self.syntax("a value is missing at the end")),
            Some('!') => {
                self.at += 1;
                Ok(Expression::Not(Box::new(self.parse_nested(Self::unary)?)))
            }
            Some('-') => {
                self.at += 1;
                Ok(match self.parse_nested(Self::unary)? {
                    Expression::Constant(Cell::Number(number)) => {
                        Expression::Constant(Cell::Number(number.negate()))
                    }
                    inner => Expression::Negate(Box::new(inner)),
                })
            }
            Some('(') => {
                self.at += 1;
                let inner = self.parse_nested(|parser| parser.binary(0))?;
                self.close()?;
                Ok(inner)
            }
            Some('@') => {
                self.at += 1;
                let name = self.name();
                if name.is_empty() { Err(self.syntax("after @ the name of a field is expected")) } else { Ok(Expression::Name(name)) }
            }
            Some('\'' | '"') => self.quoted(),
            Some(c) if c.is_ascii_digit() || *c == '.' => self.number(),
            Some(c) if c.is_alphabetic() || *c == '_' => self.call(),
            Some(_) => Err(self.syntax("a value is expected here: a number, a text in quotes, a field such as @price, or a function")),
        }
    }

    fn close(&mut self) -> Result<()> {
        if self.take(")") {
            Ok(())
        } else {
            Err(self.syntax("a closing ) is expected here"))
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(&c) = self.chars.get(self.at) {
            if c == '\\' && self.at + 1 < self.chars.len() {
                self.at += 1;
                name.push(self.chars[self.at]);
            } else if c.is_alphanumeric() || "_.$[]".contains(c) {
                name.push(c);
            } else {
                break;
            }
            self.at += 1;
        }
        name
    }

    fn quoted(&mut self) -> Result<Expression> {
        let (begin, quote) = (self.at, self.chars[self.at]);
        let mut text = String::new();
        self.at += 1;
        loop {
            match self.chars.get(self.at) {
                None => {
                    self.at = begin;
                    return Err(self.syntax("the quote that opens here is not closed"));
                }
                Some(&c) if c == quote => break,
                Some('\\') if self.at + 1 < self.chars.len() => {
                    self.at += 1;
                    text.push(match self.chars[self.at] {
                        'n' => '\n',
                        't' => '\t',
                        c => c,
                    });
                }
                Some(&c) => text.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(Expression::Constant(Cell::text(text)))
    }

    fn number(&mut self) -> Result<Expression> {
        let begin = self.at;
        while let Some(&c) = self.chars.get(self.at) {
            let after_exponent = self.at > begin && matches!(self.chars[self.at - 1], 'e' | 'E');
            if !(c.is_ascii_alphanumeric()
                || c == '.'
                || (after_exponent && (c == '+' || c == '-')))
            {
                break;
            }
            self.at += 1;
        }
        let text: String = self.chars[begin..self.at].iter().collect();
        match Number::parse(text.as_bytes()) {
            Some(number) => Ok(Expression::Constant(Cell::Number(number))),
            None => {
                self.at = begin;
                Err(self.syntax("this is not a number"))
            }
        }
    }

    fn call(&mut self) -> Result<Expression> {
        let begin = self.at;
        let name = self.name();
        if !self.take("(") {
            self.at = begin;
            return match name.to_ascii_lowercase().as_str() {
                "inf" => {
                    self.at += name.len();
                    Ok(Expression::Constant(Cell::Number(Number::INFINITY)))
                }
                "null" => {
                    self.at += name.len();
                    Ok(Expression::Constant(Cell::Null))
                }
                _ => Err(self.syntax(
                    "a function is followed by (, a field begins with @, and a text is in quotes",
                )),
            };
        }
        let mut arguments = Vec::new();
        if !self.take(")") {
            loop {
                arguments.push(self.parse_nested(|parser| parser.binary(0))?);
                if !self.take(",") {
                    break;
                }
            }
            self.close()?;
        }
        let row = match functions::find(&name) {
            Ok(row) => row,
            Err(message) => return Err(Refusal::at_column(begin + 1, message)),
        };
        if !(row.arguments.0..=row.arguments.1).contains(&arguments.len()) {
            let (min, max) = row.arguments;
            let range = if min == max {
                min.to_string()
            } else {
                format!("{min} to {max}")
            };
            return Err(Refusal::at_column(
                begin + 1,
                format!(
                    "Function `{}` takes {range} arguments, here are {}",
                    row.name,
                    arguments.len()
                ),
            ));
        }
        Ok(Expression::Call(row, arguments))
    }
}
