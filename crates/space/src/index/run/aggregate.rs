//! The rows or groups of an aggregation.

use std::sync::Arc;

use super::{Consumer, Reader, Run};
use crate::aggregate::{Aggregation, Limits, Partial};
use crate::error::Result;
use crate::expression::Cell;
use crate::index::SpaceIndex;
use crate::index::finder::FinderQuery;
use crate::object::Object;

/// Collects the rows or groups of an aggregation.
#[derive(Debug)]
pub struct AggregateConsumer {
    partial: Partial,
    limits: Limits,
    /// The number of rows after which the run ends. A cursor continues there.
    rows_max: usize,
}

impl SpaceIndex {
    /// Starts an aggregation that runs in steps. With `after`, it is restricted to keys after this one, to continue the
    /// cursor of a [streamed](Aggregation::is_streamed) aggregation.
    pub fn aggregate(
        &self,
        aggregation: Arc<Aggregation>,
        limits: Limits,
        after: Option<&[u8]>,
    ) -> Run<AggregateConsumer> {
        let continues =
            aggregation.is_streamed() && (aggregation.cursor.is_some() || after.is_some());
        let consumer = AggregateConsumer {
            partial: Partial::new(&aggregation, limits),
            limits,
            rows_max: if continues {
                // An additional row shows that there are more.
                limits.rows_max.max(1).saturating_add(1)
            } else {
                usize::MAX
            },
        };
        Run::start(self, aggregation, consumer, after)
    }

    /// Returns the value of a name in an aggregation, if the index contains it as it is stored.
    fn cell(&self, row: u32, name: &str) -> Option<Cell> {
        use crate::base::instant;
        use crate::base::number::Number;
        use crate::index::column::{Data, codes};
        use crate::object::ObjectKind;
        use crate::value::Column;
        if name == "__key" {
            return Some(Cell::text(self.rows.key(row)));
        }
        // The field of a document may have any type.
        if self.definition().on != ObjectKind::Hash {
            return None;
        }
        let definition = self.definition();
        let attribute = self.attribute(definition.by_name(name)?.id)?;
        Some(match &attribute.data {
            data if data.is_missing(row) => Cell::Null,
            Data::Numbers(codes) if codes.get(row) < codes::OTHER => {
                Cell::Number(Number::from_ordered_code(codes.get(row))?)
            }
            Data::Numbers(codes) => match codes.others.get(&row)? {
                Column::Numbers(list) => Cell::Number(*list.first()?),
                _ => return None,
            },
            Data::Instants(codes) if codes.get(row) < codes::OTHER => {
                Cell::Number(instant::seconds(codes::instant(codes.get(row))))
            }
            Data::Values(values) => Cell::text(values.raw(row)?),
            _ => return None,
        })
    }
}

impl Consumer for AggregateConsumer {
    type Request = Aggregation;
    type Output = Partial;

    fn query<'r>(&self, aggregation: &'r Aggregation) -> FinderQuery<'r> {
        FinderQuery {
            keys: aggregation.options.keys.as_ref(),
            ..FinderQuery::new(&aggregation.predicate, self.rows_max)
        }
    }

    fn row_work(aggregation: &Aggregation) -> usize {
        aggregation.row_work()
    }

    fn matches(&self) -> usize {
        self.partial.total() as usize
    }

    fn restart(&mut self, aggregation: &Aggregation) {
        self.partial = Partial::new(aggregation, self.limits);
    }

    fn consume(
        &mut self,
        aggregation: &Aggregation,
        reader: &mut Reader<'_>,
        batch: &mut Vec<u32>,
        _: bool,
    ) -> Result<()> {
        batch
            .drain(..)
            .try_for_each(|row| self.add(aggregation, reader, row))
    }

    fn end_step(&mut self, _: &Aggregation, _: &mut Reader<'_>, _: Option<u64>) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    fn into_output(self) -> Partial {
        self.partial
    }
}

impl AggregateConsumer {
    fn add(&mut self, aggregation: &Aggregation, reader: &mut Reader<'_>, row: u32) -> Result<()> {
        let index = reader.index;
        let key = index.rows.key(row);
        let cells = aggregation.load_from(|name| index.cell(row, name));
        if let Some(cells) = cells {
            return self.partial.add_loaded(aggregation, key, cells);
        }
        let mut found = None;
        reader.object(row, key, &mut |bytes| found = Object::decode(bytes).ok());
        let Some(mut object) = found else {
            return Ok(());
        };
        if let Object::Hash(hash) = &mut object {
            hash.expire(reader.now_ms);
        }
        self.partial
            .add(aggregation, index.definition(), key, &object)
    }
}
