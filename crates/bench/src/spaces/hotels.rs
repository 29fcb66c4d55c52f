//! Generated hotels, about fifty in each city.

use larder_types::Random;

pub const ATTRIBUTES: [&str; 10] = [
    "name", "address", "city", "kind", "stars", "price", "rooms", "opened", "place", "pets",
];

pub struct Hotel {
    pub city: u32,
    pub stars: u32,
    /// In hundredths.
    pub price: u32,
    pub has_pets: bool,
    /// The values of [`ATTRIBUTES`].
    pub values: [String; 10],
}

pub struct Hotels {
    pub all: Vec<Hotel>,
    /// For each city, the numbers of its hotels.
    pub of_city: Vec<Vec<u32>>,
}

const PER_CITY: usize = 50;

impl Hotels {
    pub fn generate(count: usize, seed: u64) -> Hotels {
        let mut random = Random::new(seed);
        let cities = count.div_ceil(PER_CITY).max(1);
        let mut of_city = vec![Vec::new(); cities];
        let all = (0..count).map(|number| {
            let hotel = Hotel::generate(number, random.index(cities) as u32, &mut random);
            of_city[hotel.city as usize].push(number as u32);
            hotel
        });
        let all = all.collect();
        Hotels { all, of_city }
    }

    /// Returns the number of a random hotel.
    pub fn any(&self, random: &mut Random) -> usize {
        random.index(self.all.len())
    }

    pub fn key(number: usize) -> String {
        format!("hotel:{number}")
    }

    /// Returns all hotels as rows of a table: the key, then the values.
    pub fn rows(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.all.iter().enumerate().map(|(number, hotel)| {
            let values = hotel.values.iter().cloned();
            std::iter::once(Hotels::key(number)).chain(values).collect()
        })
    }

    /// Returns the command that writes a hotel to larder.
    pub fn words(&self, number: usize) -> Vec<String> {
        let mut words = vec!["HSET".to_owned(), Hotels::key(number)];
        for (name, value) in ATTRIBUTES.iter().zip(&self.all[number].values) {
            words.extend([(*name).to_owned(), value.clone()]);
        }
        words
    }
}

impl Hotel {
    fn generate(number: usize, city: u32, random: &mut Random) -> Hotel {
        let words = [
            "grand", "old", "station", "garden", "palace", "river", "central", "royal",
        ];
        let kinds = ["hotel", "hostel", "apartment", "camping"];
        let mut word = || words[random.index(words.len())];
        let name = format!("Hotel {} {} {}", word(), word(), number % 977);
        let stars = 1 + random.index(5) as u32;
        let price = 2000 + random.index(48_000) as u32;
        let has_pets = random.index(2) == 0;
        let degrees = |of: usize, from: usize, random: &mut Random| {
            format!("{}.{:05}", from + random.index(of), random.index(100_000))
        };
        let values = [
            name,
            format!("{} {number} street of city{city}", number % 200),
            format!("City{city}"),
            kinds[random.index(kinds.len())].to_owned(),
            stars.to_string(),
            price_text(price),
            (1 + random.index(300)).to_string(),
            random.index(1_600_000_000).to_string(),
            format!("{},{}", degrees(20, 0, random), degrees(15, 40, random)),
            has_pets.to_string(),
        ];
        Hotel {
            city,
            stars,
            price,
            has_pets,
            values,
        }
    }

    pub fn value(&self, attribute: &str) -> &str {
        let at = ATTRIBUTES.iter().position(|name| *name == attribute);
        &self.values[at.expect("an attribute of hotels")]
    }
}

pub fn price_text(price: u32) -> String {
    format!("{}.{:02}", price / 100, price % 100)
}
