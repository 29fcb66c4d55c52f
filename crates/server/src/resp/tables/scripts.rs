//! EVAL and EVALSHA of the known scripts. Each is executed atomically on the core that owns its key.

use larder_join::Engine;
use larder_protocol::resp::Request;
use larder_types::text_row;

use super::super::known_scripts::{Script, ScriptCall};
use super::super::objects::wrong_type;
use super::super::state::ConnectionState;
use super::expire::{deadline, ensure_positive};
use super::parse_integer;
use super::rows::{get, key_exists, put_text, write};
use crate::tables::{NoReply, Refusal, has_object, refusal};

/// The return value of a script.
enum ScriptReply {
    Integer(i64),
    /// `false` in Lua.
    Nil,
    Pair(i64, i64),
}

/// The return value of a script, and what the write must wait for.
type ScriptResult = Result<(ScriptReply, Option<u64>), NoReply>;

pub(in crate::resp) fn eval(
    state: &mut ConnectionState,
    request: Request<'_>,
    by_hash: bool,
) -> Result<(), NoReply> {
    let call = ScriptCall::parse(request, by_hash)?;
    let returned = write(state, |engine, now| call.execute(engine, now))?;
    let mut encoder = state.encoder();
    match returned {
        ScriptReply::Integer(number) => encoder.integer(number),
        ScriptReply::Nil => encoder.null(),
        ScriptReply::Pair(first, second) => {
            encoder.array(2);
            encoder.integer(first);
            encoder.integer(second);
        }
    }
    Ok(())
}

impl ScriptCall<'_> {
    fn execute(&self, engine: &mut Engine, now: u64) -> ScriptResult {
        match self.script {
            Script::LockRelease => self.lock_release(engine, now),
            Script::LockExtend => self.lock_extend(engine, now),
            Script::LockReacquire => self.lock_reacquire(engine, now),
            Script::IncrementPresent if !key_exists(engine, self.key, now)? => {
                Ok((ScriptReply::Nil, None))
            }
            Script::IncrementPresent | Script::Increment => {
                let (sum, waits_for) = self.increment(engine, now)?;
                Ok((ScriptReply::Integer(sum), waits_for))
            }
            Script::RateLimit => self.rate_limit(engine, now),
        }
    }

    /// Returns whether the lock has the caller's token.
    fn is_held(&self, engine: &mut Engine, now: u64) -> Result<bool, NoReply> {
        self.refuse_object(engine, now)?;
        let mut is_held = false;
        get(engine, &text_row(self.key), now, |token| {
            is_held = token == self.args[0];
        })?;
        Ok(is_held)
    }

    fn lock_release(&self, engine: &mut Engine, now: u64) -> ScriptResult {
        if !self.is_held(engine, now)? {
            return Ok((ScriptReply::Integer(0), None));
        }
        let removed = engine.remove(&text_row(self.key), now).map_err(refusal)?;
        Ok((ScriptReply::Integer(1), removed.waits_for))
    }

    fn lock_extend(&self, engine: &mut Engine, now: u64) -> ScriptResult {
        let is_held = self.is_held(engine, now)?;
        let expires_at = engine.expires_at(&text_row(self.key), now);
        let Some(expires_at) = expires_at.filter(|_| is_held) else {
            // A lock without a TTL cannot be extended.
            return Ok((ScriptReply::Integer(0), None));
        };
        let mut ttl = parse_integer(self.args[1])?;
        if self.args[2] == b"0" {
            ttl = ttl.saturating_add_unsigned(expires_at.saturating_sub(now));
        }
        let waits_for = self.expire(engine, (ttl, 1), now, "pexpire")?;
        Ok((ScriptReply::Integer(1), waits_for))
    }

    fn lock_reacquire(&self, engine: &mut Engine, now: u64) -> ScriptResult {
        if !self.is_held(engine, now)? {
            return Ok((ScriptReply::Integer(0), None));
        }
        let ttl = parse_integer(self.args[1])?;
        let waits_for = self.expire(engine, (ttl, 1), now, "pexpire")?;
        Ok((ScriptReply::Integer(1), waits_for))
    }

    /// Counts consumed points in a time window that starts with the first of them. Returns the count and the remaining
    /// time of the window in milliseconds.
    fn rate_limit(&self, engine: &mut Engine, now: u64) -> ScriptResult {
        let row = &*text_row(self.key);
        let seconds = parse_integer(self.args[1])?;
        // Errors that Redis would report after the first step are reported before it.
        let window = ensure_positive((seconds, 1000, true), "set")?;
        parse_integer(self.args[0])?;
        let mut waits_for = None;
        if !key_exists(engine, self.key, now)? {
            let until = deadline(window, now, "set")?;
            waits_for = put_text(engine, self.key, b"0", Some(until), now)?;
        }
        let (consumed, more) = self.increment(engine, now)?;
        waits_for = waits_for.max(more);
        let left = match engine.expires_at(row, now) {
            Some(at) => at.saturating_sub(now) as i64,
            None => {
                let more = self.expire(engine, (seconds, 1000), now, "expire")?;
                waits_for = waits_for.max(more);
                seconds.saturating_mul(1000)
            }
        };
        Ok((ScriptReply::Pair(consumed, left), waits_for))
    }

    fn refuse_object(&self, engine: &mut Engine, now: u64) -> Result<(), Refusal> {
        if has_object(engine, self.key, now) {
            Err(wrong_type())
        } else {
            Ok(())
        }
    }

    fn increment(&self, engine: &mut Engine, now: u64) -> Result<(i64, Option<u64>), NoReply> {
        let by = parse_integer(self.args[0])?;
        self.refuse_object(engine, now)?;
        let (sum, written) = engine
            .increment(&text_row(self.key), by, now)
            .map_err(refusal)?;
        Ok((sum, written.waits_for))
    }

    /// Executes EXPIRE or PEXPIRE on the text. A time in the past removes it.
    fn expire(
        &self,
        engine: &mut Engine,
        (ttl, unit): (i64, i64),
        now: u64,
        command: &str,
    ) -> Result<Option<u64>, NoReply> {
        let row = &*text_row(self.key);
        let at = deadline((ttl, unit, true), now, command)?;
        if at <= now {
            return Ok(engine.remove(row, now).map_err(refusal)?.waits_for);
        }
        engine.expire(row, Some(at), now).map_err(refusal)?;
        Ok(None)
    }
}
