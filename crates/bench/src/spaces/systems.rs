//! How each system keeps hotels, and is asked for them.

use std::net::{SocketAddr, TcpStream};

use larder_protocol::resp::client::{Token, request};
use larder_types::Random;

use super::drive::{Asked, Line, Replies, send_all};
use super::hotels::{ATTRIBUTES, Hotels, price_text};
use crate::Result;
use crate::net::{postgres, resp};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// A hotel by its key.
    Get,
    /// All of a city, whole.
    City,
    /// One of a city by its address.
    Address,
    /// Those of a city in a range of prices: a tenth.
    Price,
    /// Another price of a hotel. The last one: what others must find is not known afterwards.
    Update,
}

impl Question {
    pub const ALL: [Question; 5] = [
        Question::Get,
        Question::City,
        Question::Address,
        Question::Price,
        Question::Update,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Question::Get => "get",
            Question::City => "city (50 rows)",
            Question::Address => "city and address (1 row)",
            Question::Price => "city and a range of prices (5 rows)",
            Question::Update => "update of a price",
        }
    }

    /// At least so many times PostgreSQL's, for each CPU second of the server.
    pub fn bar(self) -> f64 {
        match self {
            Question::Get => 1.5,
            _ => 1.3,
        }
    }
}

pub trait System {
    fn connect(&self) -> Result<Line>;
    /// Makes what keeps them, and puts all in.
    fn load(&self, hotels: &Hotels) -> Result<()>;
    /// A request for a hotel, from its number, or for what is like it; a range of prices in hundredths.
    fn ask(
        &self,
        asked: &mut Asked,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    );

    /// Requests of one kind, drawn.
    fn asked(&self, question: Question, hotels: &Hotels, count: usize) -> Asked {
        let mut random = Random::new(7);
        let mut asked = Asked::default();
        for _ in 0..count {
            let number = hotels.any(&mut random);
            let low = 2000 + random.index(43_200) as u32;
            let prices = (low, low + 4800);
            self.ask(&mut asked, question, hotels, number, prices);
            let hotel = &hotels.all[number];
            let city = &hotels.of_city[hotel.city as usize];
            let in_range = |at: &&u32| {
                let price = hotels.all[**at as usize].price;
                prices.0 <= price && price <= prices.1
            };
            asked.end(match question {
                Question::Get | Question::Address | Question::Update => 1,
                Question::City => city.len(),
                Question::Price => city.iter().filter(in_range).count(),
            });
        }
        asked
    }
}

/// With the indexes that a clause of FT.CREATE names, or one for each attribute.
pub struct Larder {
    pub address: SocketAddr,
    pub indexes: &'static str,
}

/// Counts the rows of FT.SEARCH (an array of a total, keys and contents), of HGETALL (one) and of HSET (one).
struct OfLarder(resp::Replies);

impl Replies for OfLarder {
    fn next(&mut self, bytes: &[u8]) -> Result<Option<(usize, u32)>> {
        let Some(size) = self.0.size(bytes)? else {
            return Ok(None);
        };
        let rows = match Token::first(bytes) {
            Some((Token::Array(parts), head)) => match Token::first(&bytes[head..]) {
                Some((Token::Integer(_), _)) => (parts.saturating_sub(1) / 2) as u32,
                _ => 1,
            },
            _ => 1,
        };
        Ok(Some((size, rows)))
    }
}

const SCHEMA_OF_LARDER: &str = "SCHEMA name TEXT address TAG city TAG kind TAG stars NUMERIC price NUMERIC rooms NUMERIC opened NUMERIC place GEO pets TAG";

impl Larder {
    pub fn search(&self, asked: &mut Asked, query: &str, more: &[&str]) {
        let mut words: Vec<&[u8]> = vec![b"FT.SEARCH", b"hotels", query.as_bytes()];
        words.extend(more.iter().map(|word| word.as_bytes()));
        request(&mut asked.bytes, &words);
    }
}

impl System for Larder {
    fn connect(&self) -> Result<Line> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        let replies = Box::new(OfLarder(resp::Replies::default()));
        Ok(Line { stream, replies })
    }

    fn load(&self, hotels: &Hotels) -> Result<()> {
        let mut asked = Asked::default();
        let create = format!(
            "FT.CREATE hotels ON HASH PREFIX 1 hotel: {} {SCHEMA_OF_LARDER}",
            self.indexes
        );
        let create: Vec<&[u8]> = create.split_whitespace().map(str::as_bytes).collect();
        request(&mut asked.bytes, &create);
        asked.end(1);
        for (number, hotel) in hotels.all.iter().enumerate() {
            let key = Hotels::key(number);
            let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
            for (name, value) in ATTRIBUTES.iter().zip(&hotel.values) {
                words.extend([name.as_bytes(), value.as_bytes()]);
            }
            request(&mut asked.bytes, &words);
            asked.end(1);
        }
        send_all(self.connect()?, &asked)?;
        Ok(())
    }

    fn ask(
        &self,
        asked: &mut Asked,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    ) {
        let hotel = &hotels.all[number];
        let key = Hotels::key(number);
        let city = hotel.value("city");
        match question {
            Question::Get => request(&mut asked.bytes, &[&b"HGETALL"[..], key.as_bytes()]),
            Question::City => {
                self.search(asked, &format!("@city:{{{city}}}"), &["LIMIT", "0", "1000"]);
            }
            Question::Address => {
                let address = hotel.value("address");
                let query = format!("@city:{{{city}}} @address:{{\"{address}\"}}");
                self.search(asked, &query, &["LIMIT", "0", "10"]);
            }
            Question::Price => {
                let (low, high) = (price_text(prices.0), price_text(prices.1));
                let query = format!("@city:{{{city}}} @price:[{low} {high}]");
                self.search(asked, &query, &["LIMIT", "0", "1000"]);
            }
            Question::Update => {
                let price = price_text(prices.0);
                let words = [&b"HSET"[..], key.as_bytes(), b"price", price.as_bytes()];
                request(&mut asked.bytes, &words);
            }
        }
    }
}

pub struct Postgres(pub SocketAddr);

/// Counts rows that come, and those that a command says it changed.
struct OfPostgres;

impl Replies for OfPostgres {
    fn next(&mut self, bytes: &[u8]) -> Result<Option<(usize, u32)>> {
        let Some(size) = postgres::ready_at(bytes)? else {
            return Ok(None);
        };
        let (mut at, mut rows) = (0, 0);
        while let Some((kind, body, size)) = postgres::first(&bytes[at..]) {
            rows += match kind {
                b'D' => 1,
                b'C' if body == b"UPDATE 1\0" => 1,
                _ => 0,
            };
            at += size;
            if kind == b'Z' {
                break;
            }
        }
        Ok(Some((size, rows)))
    }
}

/// With the indexes that serve these questions best: `city, address` and `city, price` hold all that is asked by.
const SCHEMA: &str = "CREATE TABLE hotels (key text PRIMARY KEY, name text, address text, city text, kind text, stars int, \
    price float8, rooms int, opened bigint, place text, pets boolean) WITH (fillfactor = 80)";
const INDEXES: &str = "CREATE INDEX ON hotels (city, address); CREATE INDEX ON hotels (city, price); VACUUM ANALYZE hotels";

const STATEMENTS: [(&str, &str); 6] = [
    (
        "put",
        "INSERT INTO hotels VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    ),
    ("get", "SELECT * FROM hotels WHERE key = $1"),
    ("city", "SELECT * FROM hotels WHERE city = $1"),
    (
        "address",
        "SELECT * FROM hotels WHERE city = $1 AND address = $2",
    ),
    (
        "price",
        "SELECT * FROM hotels WHERE city = $1 AND price BETWEEN $2 AND $3",
    ),
    ("update", "UPDATE hotels SET price = $2 WHERE key = $1"),
];

impl System for Postgres {
    fn connect(&self) -> Result<Line> {
        let stream = postgres::connect_with(self.0, &STATEMENTS)?;
        stream.set_nodelay(true)?;
        let replies = Box::new(OfPostgres);
        Ok(Line { stream, replies })
    }

    fn load(&self, hotels: &Hotels) -> Result<()> {
        postgres::run(self.0, SCHEMA)?;
        let mut asked = Asked::default();
        // However durable commits are, these may be lost.
        asked.bytes = postgres::query("SET synchronous_commit = off");
        asked.end(0);
        for (number, hotel) in hotels.all.iter().enumerate() {
            let key = Hotels::key(number);
            let mut values = vec![key.as_str()];
            values.extend(hotel.values.iter().map(String::as_str));
            postgres::execute(&mut asked.bytes, "put", &values);
            asked.end(0);
        }
        send_all(self.connect()?, &asked)?;
        for statement in INDEXES.split("; ") {
            postgres::run(self.0, statement)?;
        }
        Ok(())
    }

    fn ask(
        &self,
        asked: &mut Asked,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    ) {
        let hotel = &hotels.all[number];
        let key = Hotels::key(number);
        let city = hotel.value("city");
        let (low, high) = (price_text(prices.0), price_text(prices.1));
        let out = &mut asked.bytes;
        match question {
            Question::Get => postgres::execute(out, "get", &[&key]),
            Question::City => postgres::execute(out, "city", &[city]),
            Question::Address => {
                postgres::execute(out, "address", &[city, hotel.value("address")]);
            }
            Question::Price => postgres::execute(out, "price", &[city, &low, &high]),
            Question::Update => postgres::execute(out, "update", &[&key, &low]),
        }
    }
}
