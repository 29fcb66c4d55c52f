//! The encoding of the value of a space's name, in the journal and in a cluster's map.
//!
//! | part | size | meaning |
//! |---|---|---|
//! | format | 1 | 1; 2: a space whose subspaces were cut by its objects; 3: also with added or removed subspaces; 4: like 3, with regions in another order than the slots |
//! | kind | 1 | 1: a space, as below; 2: an alias, followed by the name of its space |
//! | created | 8 | a number that a space keeps for its lifetime, and that no other space of its name has |
//! | scans | 1 | 1: objects that exist when the space is declared are indexed |
//! | definition | | [`Definition::encode`]; in formats 2 to 4 preceded by its size in bytes (4) |
//! | cuts | | in formats 2 to 4: [`Regions::encode`], of which this much is [written](Written) |

use std::sync::Arc;

use larder_space::copies::{RegionFields, Regions};
use larder_space::schema::Definition;
use larder_types::key_hash;
use larder_types::wire::{WireReader, put_bytes};

use super::DeclaredSpace;

const FORMAT: u8 = 1;
const WITH_CUTS: u8 = 2;
const WITH_NUMBERS: u8 = 3;
const WITH_ORDERS: u8 = 4;
const SPACE: u8 = 1;
const ALIAS: u8 = 2;

/// The value of a name.
#[derive(Debug, Clone)]
pub enum NameRecord {
    Space(Arc<DeclaredSpace>),
    Alias(String),
}

/// `cuts`: the cuts of its subspaces, once they were cut by its objects.
pub fn encode_space(
    definition: &Definition,
    created: u64,
    scans: bool,
    cuts: Option<&Regions>,
) -> Vec<u8> {
    let definition = definition.encode();
    let Some(cuts) = cuts.filter(|cuts| cuts.version > 0) else {
        return [&head(FORMAT, created, scans)[..], &definition].concat();
    };
    let format = match cuts.required_fields() {
        RegionFields::Cuts => WITH_CUTS,
        RegionFields::Numbers => WITH_NUMBERS,
        RegionFields::Orders => WITH_ORDERS,
    };
    let mut out = head(format, created, scans);
    put_bytes(&mut out, &definition);
    cuts.encode(&mut out);
    out
}

fn head(format: u8, created: u64, scans: bool) -> Vec<u8> {
    let mut out = vec![format, SPACE];
    out.extend_from_slice(&created.to_le_bytes());
    out.push(u8::from(scans));
    out
}

pub fn encode_alias(space: &str) -> Vec<u8> {
    [&[FORMAT, ALIAS], space.as_bytes()].concat()
}

/// # Errors
/// A description of the problem.
pub fn decode(record: &[u8]) -> Result<NameRecord, String> {
    let malformed = |error: larder_types::wire::Malformed| error.0.to_owned();
    let mut reader = WireReader::new(record);
    let format = reader.u8().map_err(malformed)?;
    if !(FORMAT..=WITH_ORDERS).contains(&format) {
        return Err(format!(
            "its format is {format}, and this version of larder reads {FORMAT} to {WITH_ORDERS}: start a newer version"
        ));
    }
    match reader.u8().map_err(malformed)? {
        SPACE => {
            let created = reader.u64().map_err(malformed)?;
            let scans = reader.flag().map_err(malformed)?;
            let written = match format {
                WITH_CUTS => Some(RegionFields::Cuts),
                WITH_NUMBERS => Some(RegionFields::Numbers),
                WITH_ORDERS => Some(RegionFields::Orders),
                _ => None,
            };
            let (bytes, cuts) = match written {
                Some(written) => {
                    let bytes = reader.bytes().map_err(malformed)?;
                    let cuts = Regions::decode(&mut reader, written).map_err(malformed)?;
                    reader.end().map_err(malformed)?;
                    (bytes, Some(cuts))
                }
                None => (reader.rest(), None),
            };
            let definition = Definition::decode(bytes);
            let definition = definition.map_err(|refusal| refusal.to_string())?;
            let hash = |plain: Definition| {
                let head = head(FORMAT, created, scans);
                key_hash(&[&head[..], &plain.encode()].concat())
            };
            // Different subspaces, or cuts of them, do not change the version of the definition.
            let version = hash(definition.without_subspaces());
            let columns = hash(definition.without_layout());
            Ok(NameRecord::Space(Arc::new(DeclaredSpace {
                regions: build_regions(&definition, columns, cuts),
                definition: Arc::new(definition),
                created,
                scans,
                version,
                columns,
            })))
        }
        ALIAS if format != FORMAT => Err("an alias has no cuts".to_owned()),
        ALIAS => String::from_utf8(record[2..].to_vec())
            .map(NameRecord::Alias)
            .map_err(|_| "the name of its space is no UTF-8".to_owned()),
        kind => Err(format!(
            "its kind is {kind}, which this version of larder does not know"
        )),
    }
}

/// The subspaces of a space; `None` if it has none.
fn build_regions(
    definition: &Definition,
    version: u64,
    cuts: Option<Regions>,
) -> Option<Arc<Regions>> {
    let layout = &definition.layout;
    if layout.subspaces.is_empty() && layout.filling.is_none() {
        return None;
    }
    let regions = match cuts.filter(|cuts| cuts.match_definition(definition)) {
        Some(cuts) => Ok(cuts),
        None => Regions::by_hash(definition),
    };
    match regions {
        Ok(mut regions) => {
            regions.compute_ids(version);
            Some(Arc::new(regions))
        }
        Err(refusal) => {
            let space = &definition.name;
            tracing::error!(space, %refusal, "the subspaces of a space cannot be divided into regions; its searches contact all owners");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_space::schema::Alteration;

    use super::*;

    #[test]
    fn unchanged_subspaces_keep_their_numbers_and_cuts_while_others_change() {
        let space = |record: &[u8]| match decode(record) {
            Ok(NameRecord::Space(declared)) => declared,
            other => panic!("a space: {other:?}"),
        };
        let words = |line: &'static str| line.split(' ').map(str::as_bytes).collect::<Vec<_>>();
        let line =
            "hotels SUBSPACES 2 city stars REGIONS 16 SCHEMA city TAG stars NUMERIC price NUMERIC";
        let definition = Definition::parse_create(&words(line)).expect("it fits");
        let first = space(&encode_space(&definition, 7, true, None));
        let begin = words("SUBSPACES 3 price stars:4 city,price");
        let filling = match definition.parse_subspaces(&begin) {
            Ok(Alteration::Begin(filling)) => filling,
            other => panic!("it begins: {other:?}"),
        };
        let definition = definition.with_filling(Some(filling));
        let regions = |declared: &DeclaredSpace| declared.regions.clone().expect("subspaces");
        let cut = regions(&first)
            .with_definition(&definition, 17)
            .expect("it fits");
        let filling = space(&encode_space(&definition, 7, true, Some(&cut)));
        let of = |declared: &DeclaredSpace| {
            let regions = regions(declared);
            let all = (0..regions.count()).map(|at| (regions.number(at), regions.id(at)));
            (regions.serving(), all.collect::<Vec<_>>())
        };
        let ((_, before), (serving, during)) = (of(&first), of(&filling));
        assert_eq!((serving, during.len()), (2, 4));
        assert_eq!(during[..2], before, "the serving subspaces are unchanged");
        assert_eq!(first.version, filling.version);
        let switched = definition
            .with_filling_applied()
            .expect("some are being filled");
        let cut = regions(&filling)
            .with_definition(&switched, 0)
            .expect("it fits");
        let last = space(&encode_space(&switched, 7, true, Some(&cut)));
        let (serving, after) = of(&last);
        assert_eq!((serving, after.len()), (3, 3));
        assert_eq!(after, [during[2], during[1], during[3]]);
        assert_eq!(
            last.definition.subspace_texts(),
            ["price", "stars:4", "city,price"]
        );
        // A subspace that was removed and is added again takes the free number, and has another id.
        let begin = match switched.parse_subspaces(&words("SUBSPACES 1 city")) {
            Ok(Alteration::Begin(filling)) => switched.with_filling(Some(filling)),
            other => panic!("it begins: {other:?}"),
        };
        let cut = regions(&last).with_definition(&begin, 18).expect("it fits");
        let (_, added) = of(&space(&encode_space(&begin, 7, true, Some(&cut))));
        assert_eq!(added[3].0, before[0].0);
        assert_ne!(added[3].1, before[0].1);
    }

    #[test]
    fn encoded_records_decode_and_others_are_rejected() {
        let line = "hotels PREFIX 1 hotel: SUBSPACES 1 city SCHEMA city TAG";
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let definition = Definition::parse_create(&words).expect("it fits");
        let regions = Regions::by_hash(&definition).expect("256 regions");
        let attributes = vec![vec![
            regions.subspace(0).expect("one").dimensions()[0].attribute,
        ]];
        let values = |_| vec![(b"a".to_vec(), 1), (b"b".to_vec(), 1)];
        let cut = regions.recut(&attributes, &values, &|_| (0, 0));
        let along = regions.recut(&attributes, &values, &|slot| (slot / 64 % 2, 0));
        let plain = encode_space(&definition, 7, true, Some(&regions));
        assert_eq!(plain, encode_space(&definition, 7, true, None));
        let record = encode_space(&definition, 7, true, Some(&cut));
        let space = |record: &[u8]| match decode(record) {
            Ok(NameRecord::Space(declared)) => declared,
            other => panic!("a space: {other:?}"),
        };
        let (by_hash, declared) = (space(&plain), space(&record));
        assert_eq!(declared.definition.encode(), definition.encode());
        assert_eq!((declared.created, declared.scans), (7, true));
        assert_eq!(by_hash.version, declared.version);
        let regions = |declared: &DeclaredSpace| declared.regions.clone().expect("a subspace");
        let (before, after) = (regions(&by_hash), regions(&declared));
        assert!((before.version, after.version) == (0, 1) && before.id(0) != after.id(0));
        assert!(after.is_same_as(&cut) && !after.is_same_as(&before));
        assert_eq!(record[0], WITH_CUTS);
        let in_order = encode_space(&definition, 7, true, Some(&along));
        assert_eq!(in_order[0], WITH_ORDERS);
        let laid = regions(&space(&in_order));
        assert!(laid.is_same_as(&along) && laid.subspace(0) == after.subspace(0));
        assert_ne!(laid.id(0), after.id(0), "they are in other slots");
        assert!(
            matches!(decode(&encode_alias("hotels")), Ok(NameRecord::Alias(name)) if name == "hotels")
        );
        for record in [record, in_order] {
            for at in 0..record.len() {
                assert!(decode(&record[..at]).is_err(), "{at}");
            }
        }
        for bad in [
            &b""[..],
            &[2, 1],
            &[1, 3],
            &[1, 2, 0xff],
            &[2, 2, b'x'],
            &[3, 1],
            &[4, 1],
        ] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }
}
