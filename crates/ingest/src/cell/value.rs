//! Decodes the value of a cell according to its Arrow type.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::i256;
use arrow_schema::{DataType, IntervalUnit, TimeUnit};

use super::shape::{FieldShape, Meaning, PLAIN};
use crate::time::{Interval, Ticks};

/// A decoded value.
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    /// Half precision.
    Float16(f32),
    Float32(f32),
    Float64(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    Uuid(&'a [u8]),
    Date(i64),
    Timestamp {
        value: i64,
        ticks: Ticks,
        is_zoned: bool,
    },
    TimeOfDay(i64, Ticks),
    Duration(i64, Ticks),
    Interval(Interval),
    Decimal(Digits, i8),
    List(ArrayRef, &'a FieldShape),
    Struct(&'a dyn Array, usize, &'a FieldShape),
    Map(&'a dyn Array, usize, &'a FieldShape),
}

/// A decimal's unscaled number.
pub(crate) enum Digits {
    I128(i128),
    I256(i256),
}

/// Returns the value at `row`.
///
/// # Errors
/// For a value that its own type does not permit.
pub(crate) fn value_of<'a>(
    shape: &'a FieldShape,
    array: &'a dyn Array,
    row: usize,
) -> Result<Value<'a>, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    macro_rules! at {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row)
        };
    }
    macro_rules! by_unit {
        ($unit:expr, $second:ty, $milli:ty, $micro:ty, $nano:ty) => {
            match $unit {
                TimeUnit::Second => at!($second),
                TimeUnit::Millisecond => at!($milli),
                TimeUnit::Microsecond => at!($micro),
                TimeUnit::Nanosecond => at!($nano),
            }
        };
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Int8 if shape.meaning == Meaning::Bool => Value::Bool(at!(Int8Type) != 0),
        DataType::Int8 => Value::Int(at!(Int8Type).into()),
        DataType::Int16 => Value::Int(at!(Int16Type).into()),
        DataType::Int32 => Value::Int(at!(Int32Type).into()),
        DataType::Int64 => Value::Int(at!(Int64Type)),
        DataType::UInt8 => Value::UInt(at!(UInt8Type).into()),
        DataType::UInt16 => Value::UInt(at!(UInt16Type).into()),
        DataType::UInt32 => Value::UInt(at!(UInt32Type).into()),
        DataType::UInt64 => Value::UInt(at!(UInt64Type)),
        DataType::Float16 => Value::Float16(at!(Float16Type).to_f32()),
        DataType::Float32 => Value::Float32(at!(Float32Type)),
        DataType::Float64 => Value::Float64(at!(Float64Type)),
        DataType::Utf8 => Value::Str(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Value::Str(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Value::Str(array.as_string_view().value(row)),
        DataType::Binary => Value::Bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Value::Bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Value::Bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => {
            let bytes = array.as_fixed_size_binary().value(row);
            match shape.meaning {
                Meaning::Uuid => Value::Uuid(bytes),
                _ => Value::Bytes(bytes),
            }
        }
        DataType::Date32 => Value::Date(at!(Date32Type).into()),
        DataType::Date64 => {
            let millis = at!(Date64Type);
            const DAY_MILLIS: i64 = 86_400_000;
            if millis.rem_euclid(DAY_MILLIS) != 0 {
                return Err(format!(
                    "a date of {millis} ms is within a day; write it as a timestamp"
                ));
            }
            Value::Date(millis.div_euclid(DAY_MILLIS))
        }
        DataType::Timestamp(unit, zone) => Value::Timestamp {
            value: by_unit!(
                unit,
                TimestampSecondType,
                TimestampMillisecondType,
                TimestampMicrosecondType,
                TimestampNanosecondType
            ),
            ticks: Ticks::of(*unit),
            is_zoned: zone.is_some(),
        },
        DataType::Time32(unit) => {
            let value = match unit {
                TimeUnit::Second => at!(Time32SecondType),
                _ => at!(Time32MillisecondType),
            };
            time_of_day(value.into(), Ticks::of(*unit))?
        }
        DataType::Time64(unit) => {
            let value = match unit {
                TimeUnit::Microsecond => at!(Time64MicrosecondType),
                _ => at!(Time64NanosecondType),
            };
            time_of_day(value, Ticks::of(*unit))?
        }
        DataType::Duration(unit) => Value::Duration(
            by_unit!(
                unit,
                DurationSecondType,
                DurationMillisecondType,
                DurationMicrosecondType,
                DurationNanosecondType
            ),
            Ticks::of(*unit),
        ),
        DataType::Interval(unit) => Value::Interval(match unit {
            IntervalUnit::YearMonth => Interval {
                months: at!(IntervalYearMonthType),
                ..Interval::default()
            },
            IntervalUnit::DayTime => {
                let value = at!(IntervalDayTimeType);
                Interval {
                    days: value.days,
                    nanos: i64::from(value.milliseconds) * 1_000_000,
                    ..Interval::default()
                }
            }
            IntervalUnit::MonthDayNano => {
                let value = at!(IntervalMonthDayNanoType);
                Interval {
                    months: value.months,
                    days: value.days,
                    nanos: value.nanoseconds,
                }
            }
        }),
        DataType::Decimal32(_, scale) => {
            Value::Decimal(Digits::I128(at!(Decimal32Type).into()), *scale)
        }
        DataType::Decimal64(_, scale) => {
            Value::Decimal(Digits::I128(at!(Decimal64Type).into()), *scale)
        }
        DataType::Decimal128(_, scale) => Value::Decimal(Digits::I128(at!(Decimal128Type)), *scale),
        DataType::Decimal256(_, scale) => Value::Decimal(Digits::I256(at!(Decimal256Type)), *scale),
        DataType::Dictionary(..) => {
            let index = dictionary_index(array, row)?;
            return value_of(shape, array.as_any_dictionary().values().as_ref(), index);
        }
        DataType::RunEndEncoded(ends, _) => {
            let (values, index) = match ends.data_type() {
                DataType::Int16 => run_of::<Int16Type>(array, row),
                DataType::Int32 => run_of::<Int32Type>(array, row),
                _ => run_of::<Int64Type>(array, row),
            };
            return value_of(shape, values.as_ref(), index);
        }
        DataType::Union(fields, _) => {
            let union = array.as_union();
            let type_id = union.type_id(row);
            let place = fields.iter().position(|(id, _)| id == type_id);
            let place = place.ok_or("a union names a type that it does not have")?;
            let child = union.child(type_id).as_ref();
            return value_of(shape.child(place), child, union.value_offset(row));
        }
        DataType::List(_) => Value::List(array.as_list::<i32>().value(row), shape.child(0)),
        DataType::LargeList(_) => Value::List(array.as_list::<i64>().value(row), shape.child(0)),
        DataType::FixedSizeList(..) => {
            Value::List(array.as_fixed_size_list().value(row), shape.child(0))
        }
        DataType::ListView(_) => {
            Value::List(array.as_list_view::<i32>().value(row), shape.child(0))
        }
        DataType::LargeListView(_) => {
            Value::List(array.as_list_view::<i64>().value(row), shape.child(0))
        }
        DataType::Struct(_) => Value::Struct(array, row, shape),
        DataType::Map(..) => Value::Map(array, row, shape),
    })
}

fn time_of_day(value: i64, ticks: Ticks) -> Result<Value<'static>, String> {
    if !(0..86_400 * ticks.0).contains(&value) {
        return Err(format!(
            "a time of day of {value} ticks of 1/{} s is not within a day",
            ticks.0
        ));
    }
    Ok(Value::TimeOfDay(value, ticks))
}

fn run_of<K: RunEndIndexType>(array: &dyn Array, row: usize) -> (&ArrayRef, usize) {
    let runs = array.as_run::<K>();
    (runs.values(), runs.get_physical_index(row))
}

fn dictionary_index(array: &dyn Array, row: usize) -> Result<usize, String> {
    let dictionary = array.as_any_dictionary();
    let keys = dictionary.keys();
    // `normalized_keys` would allocate a vector per call, so only the one key is read.
    let key = match value_of(&PLAIN, keys, row)? {
        Value::Int(key) => usize::try_from(key).ok(),
        Value::UInt(key) => usize::try_from(key).ok(),
        _ => None,
    };
    key.filter(|key| *key < dictionary.values().len())
        .ok_or_else(|| "a dictionary index points past its dictionary".into())
}
