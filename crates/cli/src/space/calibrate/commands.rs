//! The commands of a calibration: objects that are written, searched and changed; and what FT.EXPLAIN answers.

pub const PREFIX: &str = "larder-calibrate:";
/// With the same `k`: a number, since of a tag an object may have several, and a search by it asks one region more. Objects of a group were not
/// written one after another: what a search finds is all over the memory.
pub const GROUP: u64 = 100;
/// What long objects have beside the others, which no index has.
const LONG_FIELDS: u64 = 14;
/// Of numbers, which are as good as drawn.
const NUMBERS: u64 = 1_000_003;
/// By field: objects that are alike in one number are not in another.
const FACTORS: [u64; 5] = [7_919, 104_729, 611_953, 350_377, 821_641];
/// A tenth of all objects is so many times this.
const TENTH: u64 = 10 * GROUP;

pub fn key(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// The objects that are measured with: their number, a multiple of 1,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects(u64);

impl Objects {
    pub const LEAST: u64 = 20_000;
    /// Up to there [`Objects::scattered`] is each of them.
    pub const MOST: u64 = 5_000_000;

    /// So many, or a few more.
    pub fn of(count: u64) -> Objects {
        Objects(
            count
                .clamp(Objects::LEAST, Objects::MOST)
                .next_multiple_of(TENTH),
        )
    }

    pub fn count(self) -> u64 {
        self.0
    }

    /// A tenth of all: with `a` set, and as many with `b`.
    fn tenth(self) -> u64 {
        self.0 / 10
    }

    fn groups(self) -> u64 {
        self.0 / GROUP
    }

    /// Of the groups, those of short objects. The others come last.
    fn short_groups(self) -> u64 {
        self.groups() - self.tenth() / GROUP
    }

    /// The words that write an object: `a` of the first ones, `b` of others, much more of the last ones.
    pub fn write(self, number: u64) -> Vec<String> {
        let mut words = self.set(number, number, &["k", "n1", "n2", "n3", "n4", "n5"]);
        match number / self.tenth() {
            0 => words.extend(["a", "yes"].map(str::to_owned)),
            1 => words.extend(["b", "yes"].map(str::to_owned)),
            9 => words.extend(
                (0..LONG_FIELDS).flat_map(|at| [format!("long{at:02}"), "of 12 bytes.".to_owned()]),
            ),
            _ => {}
        }
        words
    }

    /// Of a short object's fields and values, or of a long one's, and of their lengths.
    pub fn bytes(self, is_long: bool) -> f64 {
        let words = self.write(if is_long { self.0 - 1 } else { self.0 / 2 });
        let bytes: usize = words.iter().skip(2).map(|word| word.len() + 1).sum();
        bytes as f64
    }

    /// Of those of short objects, and of those of long ones.
    fn group(self, number: u64) -> u64 {
        let short = self.short_groups();
        match number.checked_sub(self.0 - self.tenth()) {
            None => number % short,
            Some(long) => short + long % (self.groups() - short),
        }
    }

    /// The object whose turn it is: one far from those whose turns were just before.
    pub fn scattered(self, turn: u64) -> u64 {
        turn % self.0 * 7919 % self.0
    }

    /// A change of these fields of one object; when its turn comes again its values are others.
    pub fn change(self, turn: u64, fields: &[&str]) -> Vec<String> {
        self.set(self.scattered(turn), turn, fields)
    }

    /// Writes an object's fields, their values by another number.
    fn set(self, number: u64, values: u64, fields: &[&str]) -> Vec<String> {
        let mut words = vec!["HSET".to_owned(), key(number)];
        for field in fields {
            let value = match *field {
                "k" => (self.group(number) + values / self.0) % self.groups(),
                _ => values * FACTORS[usize::from(field.as_bytes()[1] - b'1')] % NUMBERS,
            };
            words.extend([(*field).to_owned(), value.to_string()]);
        }
        words
    }

    /// What finds all objects of a group: short ones.
    pub fn short(self, number: u64) -> String {
        let k = number % self.short_groups();
        format!("@k:[{k} {k}]")
    }

    /// The same, of long ones.
    pub fn long(self, number: u64) -> String {
        let short = self.short_groups();
        let k = short + number % (self.groups() - short);
        format!("@k:[{k} {k}]")
    }

    /// A range that so many objects are in, another one each time: an index leads to them, and nothing else is asked.
    pub fn listed(self, number: u64, objects: u64) -> String {
        let width = NUMBERS * objects / self.0;
        let low = number * 7919 % (NUMBERS - width);
        format!("@n1:[{low} {}]", low + width)
    }

    /// What looks at so many objects that an index leads to, and finds half of them.
    pub fn half(self, number: u64, objects: u64) -> String {
        format!("{} @n2:[0 {}]", self.listed(number, objects), NUMBERS / 2)
    }

    /// Of the objects of a group, finds about this share, other ones each time.
    pub fn of_group(self, number: u64, share: f64) -> String {
        let width = (NUMBERS as f64 * share) as u64;
        let low = number * 7919 % (NUMBERS - width);
        format!("{} @n3:[{low} {}]", self.short(number), low + width)
    }

    /// A range of several regions of which nothing is found, since no object has the flag.
    pub fn wide(self) -> String {
        let at = |share: f64| (self.groups() as f64 * share).floor() + 0.5;
        format!("@a:{{none}} @k:[{} {}]", at(0.3), at(0.45))
    }
}

/// What looks at all objects, one after the other, and finds a fourth of them.
pub fn many(number: u64) -> String {
    let low = number * 7919 % (NUMBERS / 2);
    let high = low + NUMBERS / 2;
    format!("@n1:[{low} {high}] @n2:[{low} {high}]")
}

/// Between two values that there are.
pub const NOTHING: &str = "@k:[100.5 100.5]";
/// The same of an attribute that no subspace is made of.
pub const NOWHERE: &str = "@n4:[100.5 100.5]";
/// Indexes that have an object: of k, of five numbers, and of a or b that of one object of five.
pub const INDEXES: f64 = 6.2;
/// Two conditions, of which nothing fulfils either.
pub const NOTHING_BY_TWO: &str = "@k:[100.5 100.5] @n2:[100.5 100.5]";

pub fn search(space: &str, query: &str, rows: u64) -> Vec<String> {
    let rows = rows.to_string();
    let words = ["FT.SEARCH", space, query, "LIMIT", "0", &rows];
    words.map(str::to_owned).to_vec()
}

pub fn parts(words: &[String]) -> Vec<&[u8]> {
    words.iter().map(|word| word.as_bytes()).collect()
}

/// Regions and cores in what FT.EXPLAIN says: `subspace k: 2 of 64 regions, at 1 of 8 cores, ..`, `all owners: 8 of 8 cores, ..`.
pub fn contacted_in(told: &str) -> Option<(u64, u64)> {
    let is_line = |line: &&str| line.starts_with("subspace ") || line.starts_with("all owners");
    let line = told.lines().find(is_line)?;
    let before = |what: &str| -> Option<u64> {
        let (head, _) = line.split_once(what)?;
        let (head, _) = head.rsplit_once(" of ")?;
        let digits = head.rsplit(|it: char| !it.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let regions = match line.starts_with("subspace ") {
        true => before(" regions")?,
        false => 0,
    };
    Some((regions, before(" cores")?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn whom_a_search_asks_is_read_from_what_is_told() {
        let told = "TAG:@k {\n  x\n}\n\nsubspace k: 2 of 64 regions, at 1 of 8 cores, 1 of 4 nodes\nnode-3 core 1: index k";
        assert_eq!(contacted_in(told), Some((2, 1)));
        let all = "x\n\nall owners: 8 of 8 cores, 4 of 4 nodes\n";
        assert_eq!(contacted_in(all), Some((0, 8)));
        let filling =
            "all owners, since regions of subspace k are being filled: 3 of 3 cores, 1 of 1 nodes";
        assert_eq!(contacted_in(filling), Some((0, 3)));
        assert_eq!(contacted_in("TAG"), None);
    }

    #[test]
    fn groups_are_of_one_size_and_of_short_objects_or_of_long_ones() {
        for objects in [Objects::of(0), Objects::of(55_000)] {
            let (groups, short) = (objects.groups(), objects.short_groups());
            for at in [0, short - 1, short, groups - 1] {
                let all = 0..objects.count();
                let of: Vec<u64> = all.filter(|it| objects.group(*it) == at).collect();
                assert_eq!(of.len() as u64, GROUP);
                let length = objects.write(of[0]).len();
                assert_eq!(length > 20, at >= short, "group {at}");
            }
        }
    }

    #[test]
    fn each_object_has_its_turn() {
        for objects in [Objects::of(20_000), Objects::of(123_456)] {
            let turns = 0..objects.count();
            let all: BTreeSet<u64> = turns.map(|it| objects.scattered(it)).collect();
            assert_eq!(all.len() as u64, objects.count());
        }
    }

    /// Half of what a range of one number finds is in a range of another, and not all of it or none.
    #[test]
    fn numbers_of_an_object_say_nothing_of_one_another() {
        let objects = Objects::of(20_000);
        let fields = ["n1", "n2", "n3", "n4", "n5"];
        let all: Vec<Vec<u64>> = (0..objects.count())
            .map(|it| objects.set(it, it, &fields))
            .map(|words| {
                words[3..]
                    .iter()
                    .step_by(2)
                    .map(|it| it.parse().expect("a number"))
                    .collect()
            })
            .collect();
        for (one, other) in [(0, 1), (0, 2), (1, 2), (3, 4)] {
            for low in (0..NUMBERS - 20_000).step_by(100_000) {
                let within = all
                    .iter()
                    .filter(|it| (low..low + 20_000).contains(&it[one]));
                let (within, half) = within.fold((0, 0), |(all, half), it| {
                    (all + 1, half + u32::from(it[other] < NUMBERS / 2))
                });
                assert!(
                    (within * 3 / 10..within * 7 / 10).contains(&half),
                    "{one} {other} {low}: {half} of {within}"
                );
            }
        }
    }

    #[test]
    fn a_change_changes_what_it_names() {
        let objects = Objects::of(20_000);
        let value = |words: &[String]| words[3].clone();
        for field in ["k", "n1"] {
            let (first, again) = (
                objects.change(7, &[field]),
                objects.change(20_007, &[field]),
            );
            assert_eq!(first[1], again[1]);
            assert_ne!(value(&first), value(&again));
        }
        let flag = |number| objects.write(number).into_iter().nth(14);
        assert_eq!([flag(0), flag(2_000)].map(Option::unwrap), ["a", "b"]);
    }
}
