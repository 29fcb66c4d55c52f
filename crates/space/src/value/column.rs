//! The values of one attribute in one object.

use larder_types::wire::{Malformed, WireReader, put_bytes};

use crate::base::number::Number;
use crate::base::ordered::Scalar;
use crate::base::point::Point;
use crate::base::words::fold_case;
use crate::schema::Attribute;

/// The values of one type, in the order of the object. A column without values, such as that of an empty text, is
/// present, but no value search finds it.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Column {
    /// The object has no such field, or the field does not match the attribute's type.
    #[default]
    Missing,
    /// Trimmed, and folded unless the attribute is case-sensitive.
    Tags(Vec<Vec<u8>>),
    /// Unchanged.
    Texts(Vec<Vec<u8>>),
    Numbers(Vec<Number>),
    /// Microseconds since 1970.
    Instants(Vec<i64>),
    Flags(Vec<bool>),
    Points(Vec<Point>),
}

impl Column {
    pub fn is_missing(&self) -> bool {
        matches!(self, Column::Missing)
    }

    /// Returns the ordered values in the form that is compared with the bounds of a range. Texts are folded; points
    /// have no order and are omitted.
    pub fn scalars(&self) -> impl Iterator<Item = Scalar> + '_ {
        let count = match self {
            Column::Missing | Column::Points(_) => 0,
            Column::Tags(list) | Column::Texts(list) => list.len(),
            Column::Numbers(list) => list.len(),
            Column::Instants(list) => list.len(),
            Column::Flags(list) => list.len(),
        };
        (0..count).filter_map(|index| self.scalar(index))
    }

    fn scalar(&self, index: usize) -> Option<Scalar> {
        Some(match self {
            Column::Missing | Column::Points(_) => return None,
            Column::Tags(list) => Scalar::Bytes(list.get(index)?.clone()),
            Column::Texts(list) => Scalar::Bytes(fold_case(list.get(index)?)),
            Column::Numbers(list) => Scalar::Number(*list.get(index)?),
            Column::Instants(list) => Scalar::Instant(*list.get(index)?),
            Column::Flags(list) => Scalar::Boolean(*list.get(index)?),
        })
    }

    /// Returns the sort key: the first value. `None` sorts last.
    pub fn sort_value(&self, attribute: &Attribute) -> Option<Scalar> {
        match self {
            Column::Texts(list) if attribute.sorts_unfolded() => {
                Some(Scalar::Bytes(list.first()?.clone()))
            }
            Column::Points(list) => {
                let point = list.first()?;
                Some(Scalar::Bytes(
                    format!("{},{}", point.longitude, point.latitude).into_bytes(),
                ))
            }
            column => column.scalar(0),
        }
    }

    /// Appends the kind and the values, or nothing if the column is missing.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Column::Missing => {}
            Column::Tags(list) | Column::Texts(list) => {
                out.push(if matches!(self, Column::Tags(_)) {
                    1
                } else {
                    2
                });
                list.iter().for_each(|bytes| put_bytes(out, bytes));
            }
            Column::Numbers(list) => {
                out.push(3);
                list.iter().for_each(|number| number.encode_ordered(out));
            }
            Column::Instants(list) => {
                out.push(4);
                list.iter()
                    .for_each(|micros| out.extend_from_slice(&micros.to_le_bytes()));
            }
            Column::Flags(list) => {
                out.push(5);
                out.extend(list.iter().map(|flag| u8::from(*flag)));
            }
            Column::Points(list) => {
                out.push(6);
                for point in list {
                    out.extend_from_slice(&point.longitude.to_le_bytes());
                    out.extend_from_slice(&point.latitude.to_le_bytes());
                }
            }
        }
    }

    /// Decodes a column.
    ///
    /// # Errors
    /// The bytes are not an encoded column.
    pub fn decode(bytes: &[u8]) -> Result<Column, Malformed> {
        let Some((kind, rest)) = bytes.split_first() else {
            return Ok(Column::Missing);
        };
        let mut reader = WireReader::new(rest);
        Ok(match kind {
            1 => Column::Tags(values(&mut reader, |reader| Ok(reader.bytes()?.to_vec()))?),
            2 => Column::Texts(values(&mut reader, |reader| Ok(reader.bytes()?.to_vec()))?),
            3 => Column::Numbers(values(&mut reader, |reader| {
                Number::decode_ordered(reader.array()?)
                    .ok_or(Malformed("a column has an invalid number"))
            })?),
            4 => Column::Instants(values(&mut reader, |reader| {
                Ok(i64::from_le_bytes(reader.array()?))
            })?),
            5 => Column::Flags(values(&mut reader, |reader| reader.flag())?),
            6 => Column::Points(values(&mut reader, |reader| {
                let longitude = f64::from_le_bytes(reader.array()?);
                let latitude = f64::from_le_bytes(reader.array()?);
                Point::new(longitude, latitude)
                    .ok_or(Malformed("a column has a point beyond the map"))
            })?),
            _ => return Err(Malformed("a column has an unknown kind")),
        })
    }
}

fn values<T>(
    reader: &mut WireReader<'_>,
    mut value: impl FnMut(&mut WireReader<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut list = Vec::new();
    while !reader.rest().is_empty() {
        list.push(value(reader)?);
    }
    Ok(list)
}
