//! The demo's third act: searches for hotels by any of their attributes, while prices change and rooms are sold.
//!
//! `hotel` generates the hotels and evaluates queries on single hotels, so that every search result is compared with a
//! scan of all hotels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_client::{Reply, RespClient};
use larder_types::Random;

use crate::demo::hotel::{CITIES, Hotel, Query, hotels};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{StepPrinter, count, duration, print_line, rate};

const SPACE: &str = "FT.CREATE hotels PREFIX 1 hotel: SCHEMA name TEXT city TAG stars NUMERIC price NUMERIC free NUMERIC place GEO";
const HOTELS_MAX: usize = 20_000;
const SEARCHERS: usize = 3;
/// Time for which prices change during searches.
const CHANGE_TIME: Duration = Duration::from_millis(900);
/// Rooms that are sold at the end, and the guests who want them.
const ROOMS: usize = 10;
const GUESTS: usize = 4;
const ATTEMPTS: usize = 25;
/// Commands in one pipeline.
const PIPELINE_LENGTH: usize = 200;

/// Runs the act, with about as many hotels as there are users.
pub fn run(address: &str, users: usize, seed: u64, story: &mut StepPrinter) -> Result<(), Failure> {
    print_line("Third act. The people travel, and look for hotels by whatever they care for:\n")?;
    let client = RespClient::new(address);
    let mut act = Act {
        client: &client,
        address,
        random: Random::new(seed ^ 0x686f_7465),
        hotels: Vec::new(),
    };
    act.write(users.clamp(500, HOTELS_MAX), story)?;
    act.search(story)?;
    act.change_under_searches(story)?;
    act.sell_the_last_rooms(story)
}

struct Act<'a> {
    client: &'a RespClient,
    address: &'a str,
    random: Random,
    hotels: Vec<Hotel>,
}

/// The observations of a searcher.
#[derive(Default)]
struct SearchStats {
    times: Vec<Duration>,
    found: u64,
    /// Hotels in results that do not match the query.
    mismatches: u64,
}

impl Act<'_> {
    fn write(&mut self, number: usize, story: &mut StepPrinter) -> Result<(), Failure> {
        let words: Vec<&[u8]> = SPACE.split(' ').map(str::as_bytes).collect();
        self.client.command(&words)?;
        self.hotels = hotels(number, &mut self.random);
        let started = Instant::now();
        for (group, first) in self
            .hotels
            .chunks(PIPELINE_LENGTH)
            .zip((0..).step_by(PIPELINE_LENGTH))
        {
            let commands: Vec<Vec<String>> = group
                .iter()
                .zip(first..)
                .map(|(hotel, id)| hotel.write_command(id))
                .collect();
            run_all(self.client, &commands)?;
        }
        let took = started.elapsed();
        story.print_step(
            "Declare the hotels' searchable attributes, and write the hotels",
            &[
                SPACE.to_owned(),
                format!(
                    "{} hotels written in {} ({}/s): each is a hash, found by all its attributes once its HSET is answered",
                    count(number as u64),
                    duration(took),
                    count(rate(number as u64, took) as u64)
                ),
            ],
        )
    }

    /// Runs some queries, and compares each result with a scan of all hotels.
    fn search(&mut self, story: &mut StepPrinter) -> Result<(), Failure> {
        let (name, lon, lat) = CITIES[3];
        let words = self.hotels[self.random.index(self.hotels.len())]
            .name
            .clone();
        let queries = [
            Query::City(name),
            Query::Room {
                city: name,
                stars: 4,
                price: (80, 150),
            },
            Query::Near { lon, lat, km: 2.0 },
            Query::Named(words),
        ];
        let mut lines = Vec::new();
        for query in queries {
            let mut times = Vec::new();
            let mut total = 0;
            for _ in 0..20 {
                let started = Instant::now();
                total = search(self.client, &query, 0)?.0;
                times.push(started.elapsed());
            }
            let expected = self.hotels.iter().filter(|it| query.matches(it)).count();
            if total != expected as u64 {
                return Err(Failure::new(format!(
                    "{query} finds {total} hotels, and {expected} are so"
                )));
            }
            times.sort();
            lines.push(format!(
                "FT.SEARCH hotels '{query}'  finds {}, in {}",
                count(total),
                duration(times[times.len() / 2])
            ));
        }
        lines.push("each compared with a look at every hotel: all equal".to_owned());
        story.print_step("Search by any attribute, or several", &lines)
    }

    /// Changes prices and searches for each change immediately, while others search.
    fn change_under_searches(&mut self, story: &mut StepPrinter) -> Result<(), Failure> {
        let is_over = AtomicBool::new(false);
        let address = self.address;
        let seeds: Vec<u64> = (0..SEARCHERS)
            .map(|_| self.random.below(u64::MAX))
            .collect();
        let is_over = &is_over;
        let (changed, seen) = std::thread::scope(|scope| {
            let searchers: Vec<_> = seeds
                .into_iter()
                .map(|seed| scope.spawn(move || search_until(address, seed, is_over)))
                .collect();
            let changed = self.change_prices(CHANGE_TIME);
            is_over.store(true, Ordering::Relaxed);
            let seen: Vec<Result<SearchStats, Failure>> = searchers
                .into_iter()
                .map(|it| {
                    it.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect();
            (changed, seen)
        });
        let mut all = SearchStats::default();
        let mut failed = 0;
        for one in seen {
            match one {
                Ok(one) => {
                    all.times.extend(one.times);
                    all.found += one.found;
                    all.mismatches += one.mismatches;
                }
                Err(_) => failed += 1,
            }
        }
        let changes = changed?;
        all.times.sort();
        let at = |part: usize| {
            duration(
                all.times
                    .get(all.times.len() * part / 100)
                    .copied()
                    .unwrap_or_default(),
            )
        };
        story.print_step(
            "Prices change while others search",
            &[
                format!(
                    "{} prices changed, each searched for as soon as its HSET was answered: found at the new price, not at the old",
                    count(changes)
                ),
                format!(
                    "meanwhile {} searches over {SEARCHERS} connections: half within {}, 99% within {}; {} hotels found",
                    count(all.times.len() as u64),
                    at(50),
                    at(99),
                    count(all.found)
                ),
                format!(
                    "searchers that failed: {failed}, hotels that did not match: {}",
                    all.mismatches
                ),
            ],
        )?;
        match failed + all.mismatches {
            0 => Ok(()),
            _ => Err(Failure::new("a search failed, or found what it should not")),
        }
    }

    fn change_prices(&mut self, time: Duration) -> Result<u64, Failure> {
        let started = Instant::now();
        let mut changes = 0;
        while started.elapsed() < time && !interrupt::is_interrupted() {
            let id = self.random.below(self.hotels.len() as u64) as usize;
            let (key, before) = (Hotel::key(id), self.hotels[id].price);
            let price = 20 + self.random.below(400);
            self.client.command(&[
                b"HSET",
                key.as_bytes(),
                b"price",
                price.to_string().as_bytes(),
            ])?;
            self.hotels[id].price = price;
            let city = self.hotels[id].city;
            for (requested, is_there) in [(price, true), (before, before == price)] {
                let query = Query::Priced {
                    city,
                    price: requested,
                };
                let (_, keys) = search(self.client, &query, 1_000)?;
                if keys.iter().any(|(own, _)| *own == key) != is_there {
                    return Err(Failure::new(format!(
                        "{key} costs {price} instead of {before}, but {query} does not return the new price"
                    )));
                }
            }
            changes += 1;
        }
        Ok(changes)
    }

    /// Several guests want the rooms of one hotel; each room is sold once.
    fn sell_the_last_rooms(&mut self, story: &mut StepPrinter) -> Result<(), Failure> {
        let id = self.random.below(self.hotels.len() as u64) as usize;
        let key = Hotel::key(id);
        let rooms = ROOMS.to_string();
        self.client
            .command(&[b"HSET", key.as_bytes(), b"free", rooms.as_bytes()])?;
        let address = self.address;
        let sold: Vec<Result<usize, Failure>> = std::thread::scope(|scope| {
            let guests: Vec<_> = (0..GUESTS)
                .map(|_| scope.spawn(|| buy(address, &key)))
                .collect();
            guests
                .into_iter()
                .map(|it| {
                    it.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        let sold: usize = sold.into_iter().sum::<Result<usize, Failure>>()?;
        let left = self
            .client
            .command(&[b"HMGET", key.as_bytes(), b"free", b"sold"])?;
        let is_right = texts(&left) == ["0", &rooms];
        if sold != ROOMS || !is_right {
            return Err(Failure::new(format!(
                "{sold} of {ROOMS} rooms were sold, and {key} has {left:?}"
            )));
        }
        story.print_step(
            "Sell the last rooms, each once",
            &[
                format!("OBJ.CHANGE {key} IF '@free:[1 +inf]' IN hotels DO SUB free 1 ADD sold 1"),
                format!(
                    "{GUESTS} concurrent guests tried {} times to buy one of {ROOMS} rooms: {sold} were sold",
                    GUESTS * ATTEMPTS
                ),
            ],
        )
    }
}

fn buy(address: &str, key: &str) -> Result<usize, Failure> {
    let client = RespClient::new(address);
    let words = format!("OBJ.CHANGE {key} IF # IN hotels DO SUB free 1 ADD sold 1");
    let parts: Vec<&[u8]> = words
        .split_whitespace()
        .map(|word| match word {
            "#" => &b"@free:[1 +inf]"[..],
            word => word.as_bytes(),
        })
        .collect();
    let mut sold = 0;
    for _ in 0..ATTEMPTS {
        if client.command(&parts)? == Reply::Integer(1) {
            sold += 1;
        }
    }
    Ok(sold)
}

fn search_until(address: &str, seed: u64, is_over: &AtomicBool) -> Result<SearchStats, Failure> {
    let client = RespClient::new(address);
    let (mut random, mut seen) = (Random::new(seed), SearchStats::default());
    while !is_over.load(Ordering::Relaxed) {
        let low = 20 + random.below(200);
        let query = Query::Room {
            city: CITIES[random.below(CITIES.len() as u64) as usize].0,
            stars: 1 + random.below(5),
            price: (low, low + 60),
        };
        let started = Instant::now();
        let (_, found) = search(&client, &query, 20)?;
        seen.times.push(started.elapsed());
        seen.found += found.len() as u64;
        let misfits = found.iter().filter(|(_, hotel)| !query.matches(hotel));
        seen.mismatches += misfits.count() as u64;
    }
    Ok(seen)
}

/// Returns the number of hotels that match a query, and at most `rows` of them.
fn search(
    client: &RespClient,
    query: &Query,
    rows: usize,
) -> Result<(u64, Vec<(String, Hotel)>), Failure> {
    let (query, rows) = (query.to_string(), rows.to_string());
    let reply = client.command(&[
        b"FT.SEARCH",
        b"hotels",
        query.as_bytes(),
        b"LIMIT",
        b"0",
        rows.as_bytes(),
    ])?;
    let Reply::Array(items) = &reply else {
        return Err(Failure::new(format!("{query}: {reply:?} is no answer")));
    };
    let total = match items.first() {
        Some(Reply::Integer(total)) => *total as u64,
        _ => return Err(Failure::new(format!("{query}: {reply:?} is no answer"))),
    };
    let hotels = items[1..].chunks_exact(2);
    let hotels = hotels.map(|pair| {
        let key = text(&pair[0]);
        (key, Hotel::from_fields(&texts(&pair[1])))
    });
    Ok((total, hotels.collect()))
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

fn texts(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::Array(items) => items.iter().map(text).collect(),
        _ => Vec::new(),
    }
}

fn run_all(client: &RespClient, commands: &[Vec<String>]) -> Result<(), Failure> {
    let parts: Vec<Vec<&[u8]>> = commands
        .iter()
        .map(|words| words.iter().map(String::as_bytes).collect())
        .collect();
    let parts: Vec<&[&[u8]]> = parts.iter().map(Vec::as_slice).collect();
    for reply in client.pipeline(&parts)? {
        if let Reply::Error(error) = reply {
            return Err(Failure::new(format!("{} {}", error.code, error.message)));
        }
    }
    Ok(())
}
