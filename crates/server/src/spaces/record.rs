//! What the name of a space stands for, as the journal and a cluster's map keep it.
//!
//! | part | size | meaning |
//! |---|---|---|
//! | format | 1 | 1 |
//! | kind | 1 | 1: a space, as below; 2: an alias, the rest is the name of its space |
//! | created | 8 | a number that a space keeps as long as it is there, and no other of its name has |
//! | scans | 1 | 1: objects that are there when this is declared are to be looked at |
//! | definition | | [`Definition::encode`] |

use std::sync::Arc;

use larder_space::schema::Definition;
use larder_types::key_hash;
use larder_types::wire::WireReader;

use super::Declared;

const FORMAT: u8 = 1;
const SPACE: u8 = 1;
const ALIAS: u8 = 2;

/// What a name stands for.
#[derive(Debug, Clone)]
pub enum Named {
    Space(Arc<Declared>),
    Alias(String),
}

pub fn of_space(definition: &Definition, created: u64, scans: bool) -> Vec<u8> {
    let mut out = vec![FORMAT, SPACE];
    out.extend_from_slice(&created.to_le_bytes());
    out.push(u8::from(scans));
    out.extend(definition.encode());
    out
}

pub fn of_alias(space: &str) -> Vec<u8> {
    [&[FORMAT, ALIAS], space.as_bytes()].concat()
}

/// # Errors
/// What is wrong, in words.
pub fn read(record: &[u8]) -> Result<Named, String> {
    let malformed = |error: larder_types::wire::Malformed| error.0.to_owned();
    let mut reader = WireReader::new(record);
    let format = reader.u8().map_err(malformed)?;
    if format != FORMAT {
        return Err(format!(
            "its format is {format}, and this larder knows {FORMAT}: start a newer larder"
        ));
    }
    match reader.u8().map_err(malformed)? {
        SPACE => {
            let created = reader.u64().map_err(malformed)?;
            let scans = reader.flag().map_err(malformed)?;
            let definition = Definition::decode(reader.rest());
            Ok(Named::Space(Arc::new(Declared {
                definition: Arc::new(definition.map_err(|refusal| refusal.to_string())?),
                created,
                scans,
                version: key_hash(record),
            })))
        }
        ALIAS => String::from_utf8(record[2..].to_vec())
            .map(Named::Alias)
            .map_err(|_| "the name of its space is no UTF-8".to_owned()),
        kind => Err(format!(
            "its kind is {kind}, which this larder does not know"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_others_are_refused() {
        let words = ["hotels", "PREFIX", "1", "hotel:", "SCHEMA", "city", "TAG"];
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let definition = Definition::parse_create(&words).expect("it fits");
        let record = of_space(&definition, 7, true);
        let Ok(Named::Space(declared)) = read(&record) else {
            panic!("a space");
        };
        assert_eq!(declared.definition.encode(), definition.encode());
        assert_eq!((declared.created, declared.scans), (7, true));
        assert!(matches!(read(&of_alias("hotels")), Ok(Named::Alias(name)) if name == "hotels"));
        for at in 0..record.len() {
            assert!(read(&record[..at]).is_err(), "{at}");
        }
        for bad in [&b""[..], &[2, 1], &[1, 3], &[1, 2, 0xff]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
