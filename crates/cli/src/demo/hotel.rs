//! Generated hotels, and queries for them: as query text, and as a predicate on one hotel.

use std::fmt;

use larder_types::Random;

/// Cities with longitude and latitude.
pub const CITIES: [(&str, f64, f64); 12] = [
    ("Lisbon", -9.14, 38.72),
    ("Porto", -8.61, 41.15),
    ("Madrid", -3.70, 40.42),
    ("Rome", 12.50, 41.90),
    ("Venice", 12.33, 45.44),
    ("Naples", 14.27, 40.85),
    ("Paris", 2.35, 48.86),
    ("Lyon", 4.84, 45.76),
    ("Vienna", 16.37, 48.21),
    ("Prague", 14.44, 50.08),
    ("Oslo", 10.75, 59.91),
    ("Athens", 23.73, 37.98),
];
const FIRST: [&str; 8] = [
    "Blue", "Old", "Golden", "Quiet", "Green", "White", "Grand", "Silver",
];
const SECOND: [&str; 8] = [
    "Lantern", "Harbour", "Garden", "Mill", "Bridge", "Swan", "Anchor", "Clock",
];
/// Radius of the earth, as in Redis.
const RADIUS_KM: f64 = 6_372.797_560_856;

#[derive(Debug, Clone, PartialEq)]
pub struct Hotel {
    pub name: String,
    pub city: &'static str,
    pub stars: u64,
    pub price: u64,
    pub free: u64,
    pub lon: f64,
    pub lat: f64,
}

pub fn hotels(number: usize, random: &mut Random) -> Vec<Hotel> {
    let mut one = || {
        let (city, lon, lat) = random.choose(&CITIES).unwrap_or(CITIES[0]);
        let stars = 1 + random.below(5);
        let [first, second] =
            [FIRST, SECOND].map(|words| random.choose(&words).unwrap_or(words[0]));
        // In steps of about ten meters, around the center of the city.
        let mut off = || (random.below(1_000) as f64 - 500.0) / 10_000.0;
        let (lon, lat) = (lon + off(), lat + off());
        Hotel {
            name: format!("{first} {second}"),
            city,
            stars,
            price: 20 * stars + random.below(100),
            free: random.below(30),
            lon: (lon * 10_000.0).round() / 10_000.0,
            lat: (lat * 10_000.0).round() / 10_000.0,
        }
    };
    (0..number).map(|_| one()).collect()
}

impl Hotel {
    pub fn key(id: usize) -> String {
        format!("hotel:{id}")
    }

    /// Returns the command that writes the hotel.
    pub fn write_command(&self, id: usize) -> Vec<String> {
        let place = format!("{},{}", self.lon, self.lat);
        let fields = [
            ("name", self.name.clone()),
            ("city", self.city.to_owned()),
            ("stars", self.stars.to_string()),
            ("price", self.price.to_string()),
            ("free", self.free.to_string()),
            ("place", place),
        ];
        let fields = fields.into_iter();
        let fields = fields.flat_map(|(name, value)| [name.to_owned(), value]);
        let head = ["HSET".to_owned(), Hotel::key(id)];
        head.into_iter().chain(fields).collect()
    }

    /// Parses the fields of a search result.
    pub fn from_fields(fields: &[String]) -> Hotel {
        let get = |name: &str| {
            let mut pairs = fields.chunks_exact(2);
            let found = pairs.find(|pair| pair[0] == name);
            found.map_or("", |pair| pair[1].as_str())
        };
        let number = |name: &str| get(name).parse().unwrap_or(0);
        let (lon, lat) = get("place").split_once(',').unwrap_or_default();
        let city = CITIES.iter().find(|(name, ..)| *name == get("city"));
        Hotel {
            name: get("name").to_owned(),
            city: city.map_or("", |(name, ..)| name),
            stars: number("stars"),
            price: number("price"),
            free: number("free"),
            lon: lon.parse().unwrap_or(0.0),
            lat: lat.parse().unwrap_or(0.0),
        }
    }
}

/// A query for hotels.
#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    City(&'static str),
    Room {
        city: &'static str,
        /// Minimum.
        stars: u64,
        /// Both inclusive.
        price: (u64, u64),
    },
    Priced {
        city: &'static str,
        price: u64,
    },
    Near {
        lon: f64,
        lat: f64,
        km: f64,
    },
    /// These words, consecutively.
    Named(String),
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Query::City(city) => write!(f, "@city:{{{city}}}"),
            Query::Room {
                city,
                stars,
                price: (low, high),
            } => write!(
                f,
                "@city:{{{city}}} @stars:[{stars} 5] @price:[{low} {high}]"
            ),
            Query::Priced { city, price } => write!(f, "@city:{{{city}}} @price:[{price} {price}]"),
            Query::Near { lon, lat, km } => write!(f, "@place:[{lon} {lat} {km} km]"),
            Query::Named(words) => write!(f, "@name:\"{words}\""),
        }
    }
}

impl Query {
    /// Returns whether a hotel matches the query.
    pub fn matches(&self, hotel: &Hotel) -> bool {
        match self {
            Query::City(city) => hotel.city == *city,
            Query::Room {
                city,
                stars,
                price: (low, high),
            } => {
                hotel.city == *city
                    && hotel.stars >= *stars
                    && (*low..=*high).contains(&hotel.price)
            }
            Query::Priced { city, price } => hotel.city == *city && hotel.price == *price,
            Query::Near { lon, lat, km } => {
                distance_km((*lon, *lat), (hotel.lon, hotel.lat)) <= *km
            }
            Query::Named(words) => hotel.name == *words,
        }
    }
}

fn distance_km(a: (f64, f64), b: (f64, f64)) -> f64 {
    let [a, b] = [a, b].map(|(lon, lat)| (lon.to_radians(), lat.to_radians()));
    let (u, v) = (((b.1 - a.1) / 2.0).sin(), ((b.0 - a.0) / 2.0).sin());
    2.0 * RADIUS_KM * (u * u + a.1.cos() * b.1.cos() * v * v).sqrt().asin()
}
