//! Measures the local index of a space: searches, changes and memory of 256,000 hotels, fifty in each city.
//!
//! `cargo run --release -p larder-space --example space_index [HOTELS]` prints a line for each, in microseconds of
//! processor time. Linux accounts that time to this process: other load on the machine affects the caches, but is not
//! counted.

use std::hint::black_box;
use std::sync::Arc;

use larder_space::aggregate::{Aggregation, Limits};
use larder_space::index::{Objects, SpaceIndex, effort};
use larder_space::object::{Hash, Object};
use larder_space::schema::Definition;
use larder_space::search::Search;

const SPACE: &str = "hotels PREFIX 1 hotel: SCHEMA name TEXT address TAG city TAG kind TAG stars NUMERIC price NUMERIC rooms NUMERIC opened TIMESTAMP place GEO pets BOOLEAN";

/// Returns the processor time of this process, in seconds.
fn spent() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|it| it.parse::<f64>().ok());
    nanos.unwrap_or_default() / 1e9
}

struct Hotels(Vec<Vec<u8>>);

impl Objects for Hotels {
    fn object(&self, _: u32, key: &[u8], read: &mut dyn FnMut(&[u8])) {
        let number = std::str::from_utf8(&key["hotel:".len()..]).expect("a key of this example");
        let number: usize = number.parse().expect("a key of this example");
        read(&self.0[number]);
    }
}

/// Returns pseudo-random numbers (splitmix64).
fn draw(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *seed;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) % below
}

fn hotel(number: u64, cities: u64, seed: &mut u64) -> Hash {
    let city = draw(seed, cities);
    let words = [
        "grand", "old", "station", "garden", "palace", "river", "central", "royal",
    ];
    let mut word = || words[draw(seed, words.len() as u64) as usize];
    let fields = [
        (
            "name",
            format!("Hotel {} {} {}", word(), word(), number % 977),
        ),
        (
            "address",
            format!("{} {} street of city{city}", number % 200, number),
        ),
        ("city", format!("City{city}")),
        (
            "kind",
            ["hotel", "hostel", "apartment", "camping"][draw(seed, 4) as usize].to_string(),
        ),
        ("stars", (1 + draw(seed, 5)).to_string()),
        (
            "price",
            format!("{}.{:02}", 20 + draw(seed, 480), draw(seed, 100)),
        ),
        ("rooms", (1 + draw(seed, 300)).to_string()),
        ("opened", (draw(seed, 1_600_000_000)).to_string()),
        (
            "place",
            format!(
                "{}.{:05},{}.{:05}",
                draw(seed, 20),
                draw(seed, 100_000),
                40 + draw(seed, 15),
                draw(seed, 100_000)
            ),
        ),
        ("pets", (draw(seed, 2) == 0).to_string()),
    ];
    Hash::from_iter(fields.iter().map(|(name, value)| (*name, value.as_str())))
}

fn main() {
    let count: u64 = std::env::args()
        .nth(1)
        .map_or(256_000, |text| text.parse().expect("a number of hotels"));
    let cities = (count / 50).max(1);
    let words: Vec<&[u8]> = SPACE.split(' ').map(str::as_bytes).collect();
    let space = Arc::new(Definition::parse_create(&words).expect("it is a space"));
    let mut index = SpaceIndex::new(space.clone());
    let mut seed = 1;
    let hashes: Vec<Hash> = (0..count)
        .map(|number| hotel(number, cities, &mut seed))
        .collect();
    let keys: Vec<Vec<u8>> = (0..count)
        .map(|number| format!("hotel:{number}").into_bytes())
        .collect();
    let mut objects: Vec<Object> = hashes.into_iter().map(Object::Hash).collect();
    let hotels = Hotels(objects.iter().map(Object::encode).collect());

    let begin = spent();
    for (key, object) in keys.iter().zip(&objects) {
        index.put(key, object);
    }
    let took = spent() - begin;
    let stored: usize = hotels.0.iter().map(Vec::len).sum();
    println!("put, new: {:.2} us", took * 1e6 / count as f64);
    println!(
        "memory: {} bytes an object, which takes {} encoded",
        index.memory_bytes() as u64 / count.max(1),
        stored as u64 / count.max(1)
    );

    let city = |seed: &mut u64| format!("@city:{{city{}}}", draw(seed, cities));
    type Query<'q> = Box<dyn Fn(&mut u64) -> String + 'q>;
    let wide = || "@stars:[3 5]".to_string();
    let searches: Vec<(&str, Query<'_>, &str)> = vec![
        ("get by city, 50 rows", Box::new(city), "LIMIT 0 50"),
        (
            "get by city, 50 keys",
            Box::new(city),
            "LIMIT 0 50 NOCONTENT",
        ),
        ("get by city, first 10", Box::new(city), "LIMIT 0 10"),
        (
            "city and address, 1 row",
            Box::new(|seed| {
                let number = draw(seed, count) as usize;
                let Object::Hash(hash) = &objects[number] else {
                    return String::new();
                };
                let text = |name: &str| {
                    String::from_utf8_lossy(hash.get(name.as_bytes()).unwrap_or_default())
                        .into_owned()
                };
                format!(
                    "@city:{{{}}} @address:{{\"{}\"}}",
                    text("city"),
                    text("address")
                )
            }),
            "LIMIT 0 50",
        ),
        (
            "city and a range of price",
            Box::new(|seed| city(seed) + " @price:[100 200]"),
            "LIMIT 0 50",
        ),
        (
            "city, price, stars, pets",
            Box::new(|seed| city(seed) + " @price:[100 200] @stars:[2 4] @pets==true"),
            "LIMIT 0 50",
        ),
        ("60 %, first 10", Box::new(|_| wide()), "LIMIT 0 10"),
        (
            "60 %, first 10 by price",
            Box::new(|_| wide()),
            "LIMIT 0 10 SORTBY price",
        ),
        (
            "all, first 10 by price",
            Box::new(|_| "*".to_string()),
            "LIMIT 0 10 SORTBY price DESC",
        ),
        (
            "60 % and 50 %, first 10",
            Box::new(|_| wide() + " @pets==true"),
            "LIMIT 0 10",
        ),
        (
            "60 % and 50 %, without count",
            Box::new(|_| wide() + " @pets==true"),
            "LIMIT 0 10 WITHOUTCOUNT",
        ),
        (
            "60, 50 and 50 %, by price",
            Box::new(|_| wide() + " @pets==true @kind:{hotel|hostel}"),
            "LIMIT 0 10 SORTBY price",
        ),
        (
            "60, 50, 50 and 33 %, by price",
            Box::new(|_| wide() + " @pets==true @kind:{hotel|hostel} @rooms:[1 100]"),
            "LIMIT 0 10 SORTBY price",
        ),
        (
            "10 % of price, first 10",
            Box::new(|_| "@price:[100 148]".to_string()),
            "LIMIT 0 10",
        ),
        (
            "1 % of price, first 10",
            Box::new(|_| "@price:[100 104.8]".to_string()),
            "LIMIT 0 10",
        ),
        (
            "a word of the name, first 10",
            Box::new(|seed| draw(seed, 977).to_string()),
            "LIMIT 0 10",
        ),
        (
            "within 20 km, first 10",
            Box::new(|seed| format!("@place:[{} {} 20 km]", draw(seed, 20), 40 + draw(seed, 15))),
            "LIMIT 0 10",
        ),
        (
            "10 % of price, count",
            Box::new(|_| "@price:[100 148]".to_string()),
            "LIMIT 0 0",
        ),
    ];
    for (name, query, rest) in &searches {
        let mut seed = 7;
        let texts: Vec<String> = (0..1000).map(|_| query(&mut seed)).collect();
        let (mut runs, mut rows, mut examined) = (0_u32, 0_u64, 0_u64);
        let begin = spent();
        // Run long enough for the clock, whose resolution is a few milliseconds.
        while runs < 20_000 && (runs % 100 != 0 || spent() - begin < 0.5) {
            let mut words: Vec<&[u8]> = vec![texts[runs as usize % texts.len()].as_bytes()];
            words.extend(rest.split(' ').map(str::as_bytes));
            let search = Arc::new(Search::parse(&words, &space).expect("it is a search"));
            let mut run = index.search(search, usize::MAX);
            while !run.step(&index, &hotels, 0, effort(4096)) {}
            examined += run.profile().candidates + run.profile().scanned;
            let found = run.finish().expect("rows are few").finish(0);
            rows += black_box(found).len() as u64;
            runs += 1;
        }
        let spent = spent() - begin;
        println!(
            "{name}: {:.2} us, {} rows, {} looked at",
            spent * 1e6 / f64::from(runs),
            rows / u64::from(runs),
            examined / u64::from(runs)
        );
    }

    for (name, words) in [
        ("count by kind", "* GROUPBY 1 @kind REDUCE COUNT 0 AS n"),
        (
            "mean price by city, of 60 %",
            "@stars:[3,5] GROUPBY 1 @city REDUCE AVG 1 @price AS mean",
        ),
        (
            "100 rows of a cursor in the middle",
            "@stars:[3,5] LOAD 1 @price WITHCURSOR COUNT 100",
        ),
    ] {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let aggregation =
            Arc::new(Aggregation::parse(&words, &space).expect("it is an aggregation"));
        let limits = Limits {
            rows_max: 100,
            ..Limits::default()
        };
        let after = aggregation.cursor.is_some().then_some(&b"hotel:2"[..]);
        let (mut runs, begin) = (0_u32, spent());
        while runs < 5000 && spent() - begin < 0.5 {
            let mut run = index.aggregate(aggregation.clone(), limits, after);
            while !run.step(&index, &hotels, 0, effort(4096)) {}
            black_box(run.finish().expect("it is within limits"));
            runs += 1;
        }
        let spent = spent() - begin;
        println!("{name}: {:.2} us", spent * 1e6 / f64::from(runs));
    }
    drop(searches);

    for (name, field) in [
        ("price", "price"),
        ("stars, five values", "stars"),
        ("city", "city"),
        ("address, all distinct", "address"),
    ] {
        let (mut seed, runs) = (3, 50_000_u32);
        let mut numbers = Vec::new();
        for _ in 0..runs {
            let number = draw(&mut seed, count) as usize;
            let value = match field {
                "price" => (20 + draw(&mut seed, 480)).to_string(),
                "stars" => (1 + draw(&mut seed, 5)).to_string(),
                "city" => format!("City{}", draw(&mut seed, cities)),
                _ => format!("{} a street", draw(&mut seed, u64::MAX)),
            };
            if let Object::Hash(hash) = &mut objects[number] {
                hash.set(field.as_bytes(), value);
            }
            numbers.push(number);
        }
        let begin = spent();
        for number in numbers {
            index.put(&keys[number], &objects[number]);
        }
        let spent = spent() - begin;
        println!("update of {name}: {:.2} us", spent * 1e6 / f64::from(runs));
    }
    let begin = spent();
    for key in &keys[..keys.len() / 10] {
        index.remove(key);
    }
    println!(
        "remove: {:.2} us",
        (spent() - begin) * 1e6 / (count / 10).max(1) as f64
    );
}
