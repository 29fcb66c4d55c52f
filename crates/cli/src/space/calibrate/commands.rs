//! The commands of a calibration, which write, search and change objects; and the parser of FT.EXPLAIN.

pub const PREFIX: &str = "larder-calibrate:";
/// Number of objects with the same `k`. `k` is a number, because an object may have several tags, and a search by tag
/// contacts one more region. The objects of a group are not written consecutively, so the objects that a search finds
/// are spread over the memory.
pub const GROUP: u64 = 100;
/// Number of additional fields of long objects. They are not indexed.
const LONG_FIELDS: u64 = 14;
/// Modulus of the numeric values, which are practically random.
const NUMBERS: u64 = 1_000_003;
/// Multipliers per field, so that objects with close values in one field have distant values in another.
const FACTORS: [u64; 5] = [7_919, 104_729, 611_953, 350_377, 821_641];
/// A tenth of all objects is a multiple of this.
const TENTH: u64 = 10 * GROUP;

pub fn key(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// The objects of the calibration: their number, a multiple of 1,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects(u64);

impl Objects {
    pub const COUNT_MIN: u64 = 20_000;
    /// Maximum for which [`Objects::scattered`] visits every object.
    pub const COUNT_MAX: u64 = 5_000_000;

    /// Rounds `count` up to a permitted number.
    pub fn rounded_up(count: u64) -> Objects {
        Objects(
            count
                .clamp(Objects::COUNT_MIN, Objects::COUNT_MAX)
                .next_multiple_of(TENTH),
        )
    }

    pub fn count(self) -> u64 {
        self.0
    }

    /// A tenth of all objects: so many have `a` set, and as many others have `b`.
    fn tenth(self) -> u64 {
        self.0 / 10
    }

    fn groups(self) -> u64 {
        self.0 / GROUP
    }

    /// Number of groups of short objects. The groups of long objects follow.
    fn short_groups(self) -> u64 {
        self.groups() - self.tenth() / GROUP
    }

    /// Returns the command that writes an object. The first tenth has `a`, the second `b`, and the last is long.
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

    /// Length of a short or a long object's fields and values, with their length prefixes.
    pub fn bytes(self, is_long: bool) -> f64 {
        let words = self.write(if is_long { self.0 - 1 } else { self.0 / 2 });
        let bytes: usize = words.iter().skip(2).map(|word| word.len() + 1).sum();
        bytes as f64
    }

    /// Returns the group of an object: one of the short or of the long groups.
    fn group(self, number: u64) -> u64 {
        let short = self.short_groups();
        match number.checked_sub(self.0 - self.tenth()) {
            None => number % short,
            Some(long) => short + long % (self.groups() - short),
        }
    }

    /// Returns the object of a turn, which is far from those of the preceding turns.
    pub fn scattered(self, turn: u64) -> u64 {
        turn % self.0 * 7919 % self.0
    }

    /// Returns a command that changes the given fields of one object. The values differ at each turn.
    pub fn change(self, turn: u64, fields: &[&str]) -> Vec<String> {
        self.set(self.scattered(turn), turn, fields)
    }

    /// Returns a command that writes fields of an object, with values derived from `values`.
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

    /// Returns a query that finds all objects of a short group.
    pub fn short_group_query(self, number: u64) -> String {
        let k = number % self.short_groups();
        format!("@k:[{k} {k}]")
    }

    /// Returns a query that finds all objects of a long group.
    pub fn long_group_query(self, number: u64) -> String {
        let short = self.short_groups();
        let k = short + number % (self.groups() - short);
        format!("@k:[{k} {k}]")
    }

    /// Returns a range query that finds `objects` objects, different ones each time. The index lists them, and there is
    /// no other condition.
    pub fn range_query(self, number: u64, objects: u64) -> String {
        let width = NUMBERS * objects / self.0;
        let low = number * 7919 % (NUMBERS - width);
        format!("@n1:[{low} {}]", low + width)
    }

    /// Returns a query that checks `objects` objects from an index, and matches half of them.
    pub fn half_matching_query(self, number: u64, objects: u64) -> String {
        format!(
            "{} @n2:[0 {}]",
            self.range_query(number, objects),
            NUMBERS / 2
        )
    }

    /// Returns a query that matches about `share` of a group's objects, different ones each time.
    pub fn group_share_query(self, number: u64, share: f64) -> String {
        let width = (NUMBERS as f64 * share) as u64;
        let low = number * 7919 % (NUMBERS - width);
        format!(
            "{} @n3:[{low} {}]",
            self.short_group_query(number),
            low + width
        )
    }

    /// Returns a range query over several regions that matches nothing, because no object has the tag.
    pub fn many_regions_query(self) -> String {
        let at = |share: f64| (self.groups() as f64 * share).floor() + 0.5;
        format!("@a:{{none}} @k:[{} {}]", at(0.3), at(0.45))
    }
}

/// Returns a query that scans all objects and matches a fourth of them.
pub fn scan_query(number: u64) -> String {
    let low = number * 7919 % (NUMBERS / 2);
    let high = low + NUMBERS / 2;
    format!("@n1:[{low} {high}] @n2:[{low} {high}]")
}

/// A query between two values that exist.
pub const NO_MATCH: &str = "@k:[100.5 100.5]";
/// The same for an attribute that is in no subspace.
pub const NO_MATCH_OUTSIDE_SUBSPACE: &str = "@n4:[100.5 100.5]";
/// Average number of index entries of an object: `k`, five numbers, and `a` or `b` for one object in five.
pub const INDEXES: f64 = 6.2;
/// Two conditions that nothing satisfies.
pub const NO_MATCH_TWO_CONDITIONS: &str = "@k:[100.5 100.5] @n2:[100.5 100.5]";

pub fn search(space: &str, query: &str, rows: u64) -> Vec<String> {
    let rows = rows.to_string();
    let words = ["FT.SEARCH", space, query, "LIMIT", "0", &rows];
    words.map(str::to_owned).to_vec()
}

pub fn parts(words: &[String]) -> Vec<&[u8]> {
    words.iter().map(|word| word.as_bytes()).collect()
}

/// Parses regions and cores from the output of FT.EXPLAIN: `subspace k: 2 of 64 regions, at 1 of 8 cores, ..`,
/// `all owners: 8 of 8 cores, ..`.
pub fn parse_contacts(text: &str) -> Option<(u64, u64)> {
    let is_line = |line: &&str| line.starts_with("subspace ") || line.starts_with("all owners");
    let line = text.lines().find(is_line)?;
    let before = |what: &str| -> Option<u64> {
        let (head, _) = line.split_once(what)?;
        let (head, _) = head.rsplit_once(" of ")?;
        let digits = head.rsplit(|it: char| !it.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let regions = if line.starts_with("subspace ") {
        before(" regions")?
    } else {
        0
    };
    Some((regions, before(" cores")?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn contacts_are_parsed_from_the_explanation() {
        let text = "TAG:@k {\n  x\n}\n\nsubspace k: 2 of 64 regions, at 1 of 8 cores, 1 of 4 nodes\nnode-3 core 1: index k";
        assert_eq!(parse_contacts(text), Some((2, 1)));
        let all = "x\n\nall owners: 8 of 8 cores, 4 of 4 nodes\n";
        assert_eq!(parse_contacts(all), Some((0, 8)));
        let filling =
            "all owners, because regions of subspace k are incomplete: 3 of 3 cores, 1 of 1 nodes";
        assert_eq!(parse_contacts(filling), Some((0, 3)));
        assert_eq!(parse_contacts("TAG"), None);
    }

    #[test]
    fn groups_have_one_size_and_only_short_or_only_long_objects() {
        for objects in [Objects::rounded_up(0), Objects::rounded_up(55_000)] {
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
    fn scattered_turns_visit_every_object() {
        for objects in [Objects::rounded_up(20_000), Objects::rounded_up(123_456)] {
            let turns = 0..objects.count();
            let all: BTreeSet<u64> = turns.map(|it| objects.scattered(it)).collect();
            assert_eq!(all.len() as u64, objects.count());
        }
    }

    /// Half of the objects in a range of one number are in a range of another, not all or none.
    #[test]
    fn numbers_of_an_object_are_independent() {
        let objects = Objects::rounded_up(20_000);
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
    fn a_change_sets_the_named_fields() {
        let objects = Objects::rounded_up(20_000);
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
