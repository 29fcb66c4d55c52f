//! Hotels with realistic values: those of a file of French hotels (`Hébergements classés`, Atout France), repeated as
//! often as necessary. Values that the file lacks are random.
//!
//! Towns and postcodes have the skew of the file, half of the hotels have no number of rooms, and prices increase with
//! the stars.

use std::path::Path;

use larder_types::Random;

use crate::Result;

/// The columns of the file that are used.
const KIND: usize = 2;
const STARS: usize = 3;
const POSTCODE: usize = 8;
const TOWN: usize = 9;
const ROOMS: usize = 14;

/// The searched attributes, of which a hotel has one value each; `''` is an empty argument. Hotels also have a
/// telephone number and an address.
pub const SCHEMA: &str = "SCHEMA town TAG SEPARATOR '' postcode TAG SEPARATOR '' kind TAG SEPARATOR '' stars NUMERIC price NUMERIC rating NUMERIC rooms NUMERIC";

#[derive(Debug, Clone)]
pub struct Hotel {
    pub town: String,
    pub postcode: String,
    pub kind: String,
    pub stars: u32,
    pub rooms: Option<u32>,
    pub price: u32,
    /// In tenths.
    pub rating: u32,
}

pub struct Hotels {
    pub all: Vec<Hotel>,
    /// All prices and ratings, ascending.
    pub prices: Vec<u32>,
    pub ratings: Vec<u32>,
}

impl Hotels {
    /// Reads hotels from the file.
    ///
    /// # Errors
    /// The file cannot be read, or is not such a file.
    pub fn read(file: &Path, count: usize) -> Result<Hotels> {
        let text = std::fs::read_to_string(file)?;
        let rows: Vec<Hotel> = text.lines().skip(1).filter_map(row).collect();
        if rows.is_empty() {
            return Err(format!("{} has no hotels, one in a line", file.display()).into());
        }
        let mut random = Random::new(11);
        let grown = (0..count).map(|number| {
            let hotel = rows[number % rows.len()].clone();
            let (price, rating) = drawn(hotel.stars, &mut random);
            Hotel {
                price,
                rating,
                ..hotel
            }
        });
        let all: Vec<Hotel> = grown.collect();
        let sorted = |of: fn(&Hotel) -> u32| {
            let mut values: Vec<u32> = all.iter().map(of).collect();
            values.sort_unstable();
            values
        };
        let (prices, ratings) = (sorted(|it| it.price), sorted(|it| it.rating));
        Ok(Hotels {
            all,
            prices,
            ratings,
        })
    }

    pub fn any<'a>(&'a self, random: &mut Random) -> &'a Hotel {
        &self.all[random.index(self.all.len())]
    }

    pub fn key(number: usize) -> String {
        format!("hotel:{number}")
    }

    /// Returns the command that writes a hotel.
    pub fn words(&self, number: usize) -> Vec<String> {
        let hotel = &self.all[number];
        let mut words = vec!["HSET".to_owned(), Hotels::key(number)];
        let mut set = |name: &str, value: String| words.extend([name.to_owned(), value]);
        set("town", hotel.town.clone());
        set("postcode", hotel.postcode.clone());
        set("kind", hotel.kind.clone());
        set("stars", hotel.stars.to_string());
        set("price", hotel.price.to_string());
        set("rating", tenths(hotel.rating));
        set(
            "address",
            format!("{} rue de la {number}e hirondelle", number % 97),
        );
        set("telephone", telephone(number as u64));
        if let Some(rooms) = hotel.rooms {
            set("rooms", rooms.to_string());
        }
        words
    }
}

/// Returns a random price and rating, which depend on the number of stars.
pub fn drawn(stars: u32, random: &mut Random) -> (u32, u32) {
    let base = 3000.0 * 1.45f64.powi(stars as i32);
    let spread = (0..4)
        .map(|_| random.index(1000) as f64 / 1000.0)
        .sum::<f64>()
        - 2.0;
    let price = base * (spread * 0.8).exp();
    let rating = 25 + random.index(14) + random.index(13);
    (price as u32, rating as u32)
}

pub fn tenths(rating: u32) -> String {
    format!("{}.{}", rating / 10, rating % 10)
}

pub fn telephone(number: u64) -> String {
    format!("0{:09}", number * 7919 % 1_000_000_007)
}

fn row(line: &str) -> Option<Hotel> {
    let fields: Vec<&str> = line.split(';').collect();
    let field = |at: usize| fields.get(at).copied();
    // A tag may contain spaces and apostrophes, but queries would have to quote them.
    let word = |at: usize| {
        let letters = field(at)?.trim().chars();
        let word: String = letters
            .map(|it| if it.is_alphanumeric() { it } else { '_' })
            .collect();
        (!word.is_empty()).then(|| word.to_lowercase())
    };
    Some(Hotel {
        town: word(TOWN)?,
        postcode: word(POSTCODE)?,
        kind: word(KIND)?,
        stars: field(STARS)?
            .chars()
            .next()
            .and_then(|it| it.to_digit(10))
            .unwrap_or(0),
        rooms: field(ROOMS).and_then(|it| it.trim().parse().ok()),
        price: 0,
        rating: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_and_a_short_one_is_skipped() {
        let line = "2015-03-07;2015-03-07;CAMPING;2 étoiles;Tourisme;;CHAUVIÈRES;LIEU;61350;SAINT-FRAIMBAULT;02;http;;;12;28";
        let hotel = row(line).expect("it is one");
        assert_eq!((hotel.town.as_str(), hotel.stars), ("saint_fraimbault", 2));
        assert_eq!((hotel.kind.as_str(), hotel.rooms), ("camping", Some(12)));
        assert!(row("2015;CAMPING").is_none());
    }
}
