//! The workloads: three sets of search classes, the modification classes, and three mixes of each set.
//!
//! | set | subject of the searches |
//! |---|---|
//! | A | places: a town, a town and a price range, a postcode and its stars |
//! | B | places and qualities: a town and its stars, a price and a rating anywhere, a postcode |
//! | C | qualities only, with few values and many hotels: stars and a rating, a kind and a price, a number of rooms and stars |
//!
//! Mix 1 mostly reads (nine searches in ten operations), mix 2 is balanced, and mix 3 mostly writes (one search in ten
//! operations).

use larder_space::plan::{Modification, QueryClass, Workload};
use larder_types::Random;

use super::hotels::{Hotels, drawn, telephone, tenths};

/// A class, and its share of the searches of its set, or of the modifications.
pub struct Class {
    pub name: &'static str,
    /// `None`: a modification.
    pub set: Option<char>,
    pub share: f64,
    /// Creates a search, or a modification of this hotel.
    pub build_command: fn(&Hotels, usize, &mut Random) -> Vec<String>,
    /// For a search, the attributes constrained to one value, and to a range. For a modification, the changed
    /// attributes.
    equal: &'static [&'static str],
    range: &'static [&'static str],
}

pub const CLASSES: [Class; 13] = [
    Class {
        name: "town",
        set: Some('A'),
        share: 0.6,
        build_command: |all, _, random| search(&format!("@town:{{{}}}", all.any(random).town)),
        equal: &["town"],
        range: &[],
    },
    Class {
        name: "town, price",
        set: Some('A'),
        share: 0.3,
        build_command: |all, _, random| {
            let price = range("price", &all.prices, 0.1, random, u32::to_string);
            search(&format!("@town:{{{}}} {price}", all.any(random).town))
        },
        equal: &["town"],
        range: &["price"],
    },
    Class {
        name: "postcode, stars",
        set: Some('A'),
        share: 0.1,
        build_command: |all, _, random| {
            let hotel = all.any(random);
            let stars = hotel.stars;
            search(&format!(
                "@postcode:{{{}}} @stars:[{stars} {stars}]",
                hotel.postcode
            ))
        },
        equal: &["postcode", "stars"],
        range: &[],
    },
    Class {
        name: "town, stars",
        set: Some('B'),
        share: 0.4,
        build_command: |all, _, random| {
            let (hotel, stars) = (all.any(random), all.any(random).stars);
            search(&format!(
                "@town:{{{}}} @stars:[{stars} {stars}]",
                hotel.town
            ))
        },
        equal: &["town", "stars"],
        range: &[],
    },
    Class {
        name: "price, rating",
        set: Some('B'),
        share: 0.2,
        build_command: |all, _, random| {
            let price = range("price", &all.prices, 0.01, random, u32::to_string);
            let rating = range("rating", &all.ratings, 0.1, random, |it| tenths(*it));
            search(&format!("{price} {rating}"))
        },
        equal: &[],
        range: &["price", "rating"],
    },
    Class {
        name: "postcode",
        set: Some('B'),
        share: 0.4,
        build_command: |all, _, random| {
            search(&format!("@postcode:{{{}}}", all.any(random).postcode))
        },
        equal: &["postcode"],
        range: &[],
    },
    Class {
        name: "stars, rating",
        set: Some('C'),
        share: 0.3,
        build_command: |all, _, random| {
            let stars = all.any(random).stars;
            let rating = range("rating", &all.ratings, 0.03, random, |it| tenths(*it));
            search(&format!("@stars:[{stars} {stars}] {rating}"))
        },
        equal: &["stars"],
        range: &["rating"],
    },
    Class {
        name: "kind, price",
        set: Some('C'),
        share: 0.4,
        build_command: |all, _, random| {
            let price = range("price", &all.prices, 0.005, random, u32::to_string);
            search(&format!("@kind:{{{}}} {price}", all.any(random).kind))
        },
        equal: &["kind"],
        range: &["price"],
    },
    Class {
        name: "rooms, stars",
        set: Some('C'),
        share: 0.3,
        build_command: |all, _, random| {
            let (rooms, stars) = (all.any(random).rooms.unwrap_or(12), all.any(random).stars);
            search(&format!(
                "@rooms:[{rooms} {rooms}] @stars:[{stars} {stars}]"
            ))
        },
        equal: &["rooms", "stars"],
        range: &[],
    },
    Class {
        name: "a price changes",
        set: None,
        share: 0.6,
        build_command: |all, number, random| {
            let price = drawn(all.all[number].stars, random).0.to_string();
            set(number, &[("price", price)])
        },
        equal: &["price"],
        range: &[],
    },
    Class {
        name: "a rating changes",
        set: None,
        share: 0.25,
        build_command: |_, number, random| set(number, &[("rating", tenths(drawn(3, random).1))]),
        equal: &["rating"],
        range: &[],
    },
    Class {
        name: "a telephone changes",
        set: None,
        share: 0.1,
        build_command: |_, number, random| {
            set(number, &[("telephone", telephone(random.below(1 << 30)))])
        },
        equal: &[],
        range: &[],
    },
    Class {
        name: "stars and price change",
        set: None,
        share: 0.05,
        build_command: |all, number, random| {
            let stars = all.any(random).stars;
            let price = drawn(stars, random).0.to_string();
            set(number, &[("stars", stars.to_string()), ("price", price)])
        },
        equal: &["stars", "price"],
        range: &[],
    },
];

/// The nine workloads: a set, the number of the mix, and the share of searches among all operations.
pub const WORKLOADS: [(char, u8, f64); 9] = [
    ('A', 1, 0.9),
    ('A', 2, 0.5),
    ('A', 3, 0.1),
    ('B', 1, 0.9),
    ('B', 2, 0.5),
    ('B', 3, 0.1),
    ('C', 1, 0.9),
    ('C', 2, 0.5),
    ('C', 3, 0.1),
];

/// The number of rows that a search requests.
const ROWS: &str = "20";

fn search(query: &str) -> Vec<String> {
    let words = ["FT.SEARCH", "hotels", query, "LIMIT", "0", ROWS];
    words.map(str::to_owned).to_vec()
}

fn set(number: usize, values: &[(&str, String)]) -> Vec<String> {
    let mut words = vec!["HSET".to_owned(), Hotels::key(number)];
    for (name, value) in values {
        words.extend([(*name).to_owned(), value.clone()]);
    }
    words
}

/// Returns a range with about this share of the values.
fn range(
    name: &str,
    sorted: &[u32],
    share: f64,
    random: &mut Random,
    text: impl Fn(&u32) -> String,
) -> String {
    let width = (sorted.len() as f64 * share) as usize;
    let first = random.index(sorted.len() - width);
    let (low, high) = (text(&sorted[first]), text(&sorted[first + width]));
    format!("@{name}:[{low} {high}]")
}

/// Returns the share of each class in a workload.
pub fn shares((set, _, searches): (char, u8, f64)) -> Vec<f64> {
    let share = |class: &Class| match class.set {
        Some(of) if of == set => class.share * searches,
        Some(_) => 0.0,
        None => class.share * (1.0 - searches),
    };
    CLASSES.iter().map(share).collect()
}

impl Class {
    fn is_query(&self, query: &QueryClass) -> bool {
        let same = |own: &[&str], other: &mut dyn Iterator<Item = &String>| {
            let mut other: Vec<&str> = other.map(String::as_str).collect();
            let mut own = own.to_vec();
            own.sort_unstable();
            other.sort_unstable();
            own == other
        };
        self.set.is_some()
            && same(self.equal, &mut query.equal.iter())
            && same(self.range, &mut query.range.keys())
    }

    fn is_modification(&self, modification: &Modification) -> bool {
        let mut own = self.equal.to_vec();
        own.sort_unstable();
        let mut other: Vec<&str> = modification.changes.iter().map(String::as_str).collect();
        other.sort_unstable();
        self.set.is_none() && own == other
    }
}

/// Converts a recording to one of the workloads: the classes in order, with their shares. Classes without a share are
/// kept with frequency 0.
///
/// # Errors
/// A class was not recorded.
pub fn weighted(recorded: &Workload, shares: &[f64]) -> Result<Workload, String> {
    let mut workload = Workload {
        gets: 0.0,
        queries: Vec::new(),
        modifications: Vec::new(),
        ..recorded.clone()
    };
    for (class, share) in CLASSES.iter().zip(shares) {
        let missing = || format!("the recording has no class {:?}", class.name);
        if class.set.is_some() {
            let found = recorded.queries.iter().find(|it| class.is_query(it));
            workload.queries.push(QueryClass {
                name: class.name.to_owned(),
                frequency: *share,
                ..found.ok_or_else(missing)?.clone()
            });
        } else {
            let found = (recorded.modifications.iter()).find(|it| class.is_modification(it));
            workload.modifications.push(Modification {
                name: class.name.to_owned(),
                frequency: *share,
                ..found.ok_or_else(missing)?.clone()
            });
        }
    }
    Ok(workload)
}
