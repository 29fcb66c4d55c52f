//! Subscription to a range: the range is filled and pinned, so that every change of its rows is reported
//! (`propagate::subscription` stores the subscriptions and records the changes).

use std::ops::ControlFlow;

use crate::base::key_range::{KeyRange, table_name};
use crate::engine::Engine;
use crate::error::{Error, text};
use crate::evaluate::needs::ReadOutcome;
use crate::join::{JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::propagate::subscription::{Pin, Subscription};
use crate::tables::scan::Limits;

impl Engine {
    /// Subscribes to one row, or to all rows whose keys have a prefix. Returns the subscription's number, or what is
    /// needed first.
    ///
    /// # Errors
    /// The bytes do not name a table, or the engine does not track the changes of its rows.
    pub fn subscribe(
        &mut self,
        key_or_prefix: &[u8],
        is_key: bool,
        now: u64,
    ) -> Result<ReadOutcome<u64>, Error> {
        self.begin(now);
        let name = table_name(key_or_prefix).ok_or_else(|| Error::NoTable {
            key: key_or_prefix.to_vec(),
        })?;
        let table = self.tables.find_or_create(name);
        self.refuse_unsubscribable(table)?;
        self.tables[table].subscriptions += 1;
        let subscription = Subscription {
            table,
            range: if is_key {
                KeyRange::point(key_or_prefix)
            } else {
                KeyRange::prefix(key_or_prefix)
            },
            pins: Vec::new(),
        };
        let number = self.subscriptions.add(subscription);
        match self.refresh_subscription(number, now) {
            Ok(ReadOutcome::Done(())) => Ok(ReadOutcome::Done(number)),
            not_yet => {
                self.unsubscribe(number);
                not_yet.map(|needs| needs.map(|()| number))
            }
        }
    }

    fn refuse_unsubscribable(&self, table: TableId) -> Result<(), Error> {
        let state = &self.tables[table];
        let makers = state.makers.iter();
        let mut makers = makers.filter_map(|&maker| self.joins.get(maker));
        let why = match makers.find(|join| join.definition.mode != JoinMode::Push) {
            Some(join) => format!(
                "is computed by join {} only when it is read: remove pull, snapshot or auto from that join, or subscribe to its sources",
                join.name
            ),
            None if state.supplied.is_some() => {
                "has its rows in an external source and is loaded only where it is read: subscribe to the output of a join over it".to_owned()
            }
            None => return Ok(()),
        };
        Err(Error::NotSubscribable {
            table: text(&state.name[..state.name.len() - 1]),
            why,
        })
    }

    /// Settles the range of a subscription, and fills parts of it that were dropped.
    ///
    /// # Errors
    /// As [`Engine::range`].
    pub fn refresh_subscription(&mut self, number: u64, now: u64) -> Result<ReadOutcome, Error> {
        let Some(subscription) = self.subscriptions.all.get(&number) else {
            return Ok(ReadOutcome::Done(()));
        };
        let (table, range) = (subscription.table, subscription.range.clone());
        if self.tables[table].makers.is_empty() {
            return Ok(ReadOutcome::Done(()));
        }
        let limits = Limits {
            keys_only: true,
            ..Limits::default()
        };
        let mut stop = |_: &[u8], _: &[u8]| ControlFlow::Break(());
        // The filled ranges must be pinned before eviction.
        let limit = self.memory.limit_bytes.take();
        let read = self.range(&range.lo, &range.hi, limits, now, &mut stop);
        if read == Ok(ReadOutcome::Done(())) {
            self.pin_range(number, table, &range);
        }
        self.memory.limit_bytes = limit;
        self.make_room();
        read
    }

    fn pin_range(&mut self, number: u64, table: TableId, range: &KeyRange) {
        let mut pins = Vec::new();
        for &maker in &self.tables[table].makers {
            let Some(join) = self.joins.get(maker) else {
                continue;
            };
            for fill in join.fills.status().overlapping(&range.lo, &range.hi) {
                pins.push(Pin {
                    join: maker,
                    fill,
                    serial: join.fills.get(fill).serial,
                });
            }
        }
        let Some(subscription) = self.subscriptions.all.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut subscription.pins, pins.clone());
        let new = pins.into_iter().filter(|pin| !before.contains(pin));
        for pin in new {
            if let Some(join) = self.joins.get_mut(pin.join) {
                join.fills.pin(pin.fill, 1);
            }
        }
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, number: u64) {
        let Some(subscription) = self.subscriptions.remove(number) else {
            return;
        };
        self.tables[subscription.table].subscriptions -= 1;
        for pin in subscription.pins {
            if self.is_pin_valid(pin)
                && let Some(join) = self.joins.get_mut(pin.join)
            {
                join.fills.pin(pin.fill, -1);
            }
        }
    }

    pub(crate) fn is_pin_valid(&self, pin: Pin) -> bool {
        let join = self.joins.get(pin.join);
        join.is_some_and(|join| join.fills.is_current(pin.fill, pin.serial))
    }

    /// Returns the subscriptions whose ranges must be refreshed before all their changes are recorded.
    pub fn stale_subscriptions(&self) -> Vec<u64> {
        let stale = self.subscriptions.all.iter();
        let stale = stale.filter(|(_, subscription)| self.is_stale(subscription));
        stale.map(|(number, _)| *number).collect()
    }

    fn is_stale(&self, subscription: &Subscription) -> bool {
        let makers = &self.tables[subscription.table].makers;
        let is_unsettled = |join: &JoinId| {
            let join = self.joins.get(*join);
            join.is_some_and(|join| !join.fills.unsettled().is_empty())
        };
        let is_upstream_unsettled = |maker: &JoinId| {
            let join = self.joins.get(*maker);
            join.is_some_and(|join| join.upstream.iter().any(is_unsettled))
        };
        let is_pin_stale = |pin: &Pin| {
            let join = self.joins.get(pin.join);
            // A replaced join is not among the makers any more.
            !self.is_pin_valid(*pin)
                || !makers.contains(&pin.join)
                || join.is_some_and(|join| join.fills.get(pin.fill).unsettled().is_some())
        };
        !makers.is_empty()
            && (subscription.pins.iter().any(is_pin_stale)
                || makers.iter().any(is_upstream_unsettled))
    }
}
