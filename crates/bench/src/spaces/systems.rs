//! The compared systems, with the way in which each stores hotels and executes the questions.

use std::net::{SocketAddr, TcpStream};

use larder_protocol::resp::client::{Token, request};
use larder_types::Random;

use super::deployment::{SpaceDeployment, words_of};
use super::drive::{EncodedRequests, Line, Replies, send_all};
use super::hotels::{Hotels, price_text};
use crate::Result;
use crate::net::{mariadb, postgres, resp};

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// A hotel by its key.
    Get,
    /// All hotels of a city, with all columns.
    City,
    /// One hotel of a city by its address.
    Address,
    /// The hotels of a city in a price range: a tenth.
    Price,
    /// A change of a hotel's price. It comes last, because the expected results of other questions are not known
    /// afterwards.
    Update,
}

impl Question {
    /// Returns the parameters of the question's statement, for this hotel.
    pub fn parameters(self, hotels: &Hotels, number: usize, prices: (u32, u32)) -> Vec<String> {
        let hotel = &hotels.all[number];
        let (city, key) = (hotel.value("city").to_owned(), Hotels::key(number));
        let (low, high) = (price_text(prices.0), price_text(prices.1));
        match self {
            Question::Get => vec![key],
            Question::City => vec![city],
            Question::Address => vec![city, hotel.value("address").to_owned()],
            Question::Price => vec![city, low, high],
            Question::Update => vec![low, key],
        }
    }

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

    /// Returns the minimum number of replies per CPU second of the server, as a multiple of PostgreSQL's.
    pub fn bar(self) -> f64 {
        match self {
            Question::Get => 1.5,
            _ => 1.3,
        }
    }
}

/// The random subject of a request.
pub struct RequestSubject {
    /// The number of a hotel.
    pub number: usize,
    /// A price range, in hundredths.
    pub prices: (u32, u32),
}

pub fn draw_subject(hotels: &Hotels, random: &mut Random) -> RequestSubject {
    let number = hotels.any(random);
    let low = 2000 + random.index(43_200) as u32;
    let prices = (low, low + 4800);
    RequestSubject { number, prices }
}

impl RequestSubject {
    /// Returns the expected number of rows.
    pub fn rows(&self, question: Question, hotels: &Hotels) -> usize {
        let city = &hotels.of_city[hotels.all[self.number].city as usize];
        let in_range = |at: &&u32| {
            let price = hotels.all[**at as usize].price;
            self.prices.0 <= price && price <= self.prices.1
        };
        match question {
            Question::Get | Question::Address | Question::Update => 1,
            Question::City => city.len(),
            Question::Price => city.iter().filter(in_range).count(),
        }
    }
}

pub trait System {
    fn connect(&self) -> Result<Line>;
    /// Creates the tables and indexes, and loads all hotels.
    fn load(&self, hotels: &Hotels) -> Result<()>;
    /// Appends a request about a hotel, or about hotels like it, with a price range in hundredths.
    fn push_request(
        &self,
        requests: &mut EncodedRequests,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    );

    /// Returns random requests of one kind.
    fn build_requests(&self, question: Question, hotels: &Hotels, count: usize) -> EncodedRequests {
        let mut random = Random::new(7);
        let mut requests = EncodedRequests::default();
        for _ in 0..count {
            let drawn = draw_subject(hotels, &mut random);
            self.push_request(&mut requests, question, hotels, drawn.number, drawn.prices);
            requests.end(drawn.rows(question, hotels));
        }
        requests
    }
}

/// larder, with the indexes of an INDEX clause, or one for each attribute.
pub struct Larder {
    pub address: SocketAddr,
    pub indexes: &'static str,
}

/// Counts the rows of FT.SEARCH (an array of a total, keys and contents), of HGETALL (one) and of HSET (one).
struct LarderReplies(resp::Replies);

impl Replies for LarderReplies {
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

const SCHEMA_OF_LARDER: &str = "SCHEMA name TEXT address TAG SEPARATOR '' city TAG SEPARATOR '' kind TAG stars NUMERIC price NUMERIC rooms NUMERIC opened NUMERIC place GEO pets TAG";

/// The best indexes for the questions.
pub const INDEXES_OF_LARDER: &str = "INDEX 3 city city,price address";

/// Declares the space `hotels`, without subspaces.
pub fn declare(deployed: &SpaceDeployment) -> Result<()> {
    deployed.command(&words_of(&declaration(INDEXES_OF_LARDER)))?;
    Ok(())
}

pub fn declaration(indexes: &str) -> String {
    format!("FT.CREATE hotels ON HASH PREFIX 1 hotel: {indexes} {SCHEMA_OF_LARDER}")
}

impl Larder {
    pub fn search(&self, requests: &mut EncodedRequests, query: &str, more: &[&str]) {
        let mut words: Vec<&[u8]> = vec![b"FT.SEARCH", b"hotels", query.as_bytes()];
        words.extend(more.iter().map(|word| word.as_bytes()));
        request(&mut requests.bytes, &words);
    }
}

impl System for Larder {
    fn connect(&self) -> Result<Line> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        let replies = Box::new(LarderReplies(resp::Replies::default()));
        Ok(Line { stream, replies })
    }

    fn load(&self, hotels: &Hotels) -> Result<()> {
        let mut requests = EncodedRequests::default();
        let create = declaration(self.indexes);
        let create: Vec<&[u8]> = words_of(&create).into_iter().map(str::as_bytes).collect();
        request(&mut requests.bytes, &create);
        requests.end(1);
        for number in 0..hotels.all.len() {
            let words = hotels.words(number);
            let words: Vec<&[u8]> = words.iter().map(|it| it.as_bytes()).collect();
            request(&mut requests.bytes, &words);
            requests.end(1);
        }
        send_all(self.connect()?, &requests)?;
        Ok(())
    }

    fn push_request(
        &self,
        requests: &mut EncodedRequests,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    ) {
        let hotel = &hotels.all[number];
        let key = Hotels::key(number);
        let city = hotel.value("city");
        match question {
            Question::Get => request(&mut requests.bytes, &[&b"HGETALL"[..], key.as_bytes()]),
            Question::City => {
                self.search(
                    requests,
                    &format!("@city:{{{city}}}"),
                    &["LIMIT", "0", "1000"],
                );
            }
            Question::Address => {
                let address = hotel.value("address");
                let query = format!("@city:{{{city}}} @address:{{\"{address}\"}}");
                self.search(requests, &query, &["LIMIT", "0", "10"]);
            }
            Question::Price => {
                let (low, high) = (price_text(prices.0), price_text(prices.1));
                let query = format!("@city:{{{city}}} @price:[{low} {high}]");
                self.search(requests, &query, &["LIMIT", "0", "1000"]);
            }
            Question::Update => {
                let price = price_text(prices.0);
                let words = [&b"HSET"[..], key.as_bytes(), b"price", price.as_bytes()];
                request(&mut requests.bytes, &words);
            }
        }
    }
}

pub struct Postgres(pub SocketAddr);

/// Counts received rows, and the changed rows that a command reports.
struct PostgresReplies;

impl Replies for PostgresReplies {
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

/// The best indexes for these questions: `city, address` and `city, price` cover all conditions.
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
    ("update", "UPDATE hotels SET price = $1 WHERE key = $2"),
];

impl System for Postgres {
    fn connect(&self) -> Result<Line> {
        let stream = postgres::connect_with(self.0, &STATEMENTS)?;
        stream.set_nodelay(true)?;
        let replies = Box::new(PostgresReplies);
        Ok(Line { stream, replies })
    }

    fn load(&self, hotels: &Hotels) -> Result<()> {
        postgres::run(self.0, SCHEMA)?;
        let mut requests = EncodedRequests::default();
        // The load need not be durable, whatever the setting for commits.
        requests.bytes = postgres::query("SET synchronous_commit = off");
        requests.end(0);
        for row in hotels.rows() {
            postgres::execute(&mut requests.bytes, "put", &row);
            requests.end(0);
        }
        send_all(self.connect()?, &requests)?;
        for statement in INDEXES.split("; ") {
            postgres::run(self.0, statement)?;
        }
        Ok(())
    }

    fn push_request(
        &self,
        requests: &mut EncodedRequests,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    ) {
        let name = match question {
            Question::Get => "get",
            Question::City => "city",
            Question::Address => "address",
            Question::Price => "price",
            Question::Update => "update",
        };
        let parameters = question.parameters(hotels, number, prices);
        postgres::execute(&mut requests.bytes, name, &parameters);
    }
}

/// The server, and its flush setting: 2 writes commits to the system and syncs once a second, 1 syncs each commit.
pub struct MariaDb(pub SocketAddr, pub u8);

/// The load need not be durable, whatever the setting for commits.
const LOADS_FAST: &str = "SET GLOBAL innodb_flush_log_at_trx_commit = 0";

/// Counts received rows, and the changed rows that a command reports.
struct OfMariaDb;

impl Replies for OfMariaDb {
    fn next(&mut self, bytes: &[u8]) -> Result<Option<(usize, u32)>> {
        mariadb::reply(bytes)
    }
}

const DATABASE: &str = "larder";
const SCHEMA_OF_MARIADB: &str = "CREATE TABLE hotels (`key` varchar(40) PRIMARY KEY, name varchar(80), address varchar(80), city varchar(40), kind varchar(20), stars int, \
    price double, rooms int, opened bigint, place varchar(40), pets varchar(5)) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
const INDEXES_OF_MARIADB: &str = "CREATE INDEX of_address ON hotels (city, address); CREATE INDEX of_price ON hotels (city, price); ANALYZE TABLE hotels";

/// In the order of their ids, starting with 1.
const STATEMENTS_OF_MARIADB: [&str; 6] = [
    "INSERT INTO hotels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "SELECT * FROM hotels WHERE `key` = ?",
    "SELECT * FROM hotels WHERE city = ?",
    "SELECT * FROM hotels WHERE city = ? AND address = ?",
    "SELECT * FROM hotels WHERE city = ? AND price BETWEEN ? AND ?",
    "UPDATE hotels SET price = ? WHERE `key` = ?",
];

impl System for MariaDb {
    fn connect(&self) -> Result<Line> {
        let stream = mariadb::connect_with(self.0, DATABASE, &STATEMENTS_OF_MARIADB)?;
        let replies = Box::new(OfMariaDb);
        Ok(Line { stream, replies })
    }

    fn load(&self, hotels: &Hotels) -> Result<()> {
        mariadb::run(self.0, "", &format!("CREATE DATABASE {DATABASE}"))?;
        mariadb::run(self.0, DATABASE, SCHEMA_OF_MARIADB)?;
        mariadb::run(self.0, "", LOADS_FAST)?;
        let mut requests = EncodedRequests::default();
        for row in hotels.rows() {
            mariadb::execute(&mut requests.bytes, 1, &row);
            requests.end(1);
        }
        send_all(self.connect()?, &requests)?;
        for statement in INDEXES_OF_MARIADB.split("; ") {
            mariadb::run(self.0, DATABASE, statement)?;
        }
        mariadb::run(
            self.0,
            "",
            &format!("SET GLOBAL innodb_flush_log_at_trx_commit = {}", self.1),
        )
    }

    fn push_request(
        &self,
        requests: &mut EncodedRequests,
        question: Question,
        hotels: &Hotels,
        number: usize,
        prices: (u32, u32),
    ) {
        let id = match question {
            Question::Get => 2,
            Question::City => 3,
            Question::Address => 4,
            Question::Price => 5,
            Question::Update => 6,
        };
        let parameters = question.parameters(hotels, number, prices);
        mariadb::execute(&mut requests.bytes, id, &parameters);
    }
}
