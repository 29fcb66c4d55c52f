//! Commands on objects: hashes and JSON documents.

use super::super::Id;
use super::super::spec::{Group, Keys, Place, Spec, Subject};
use super::row;

const OBJECT: &str = "O(log(R)+F) for F fields of the hash";

/// A command on one object, which its first argument names.
const fn object(
    id: Id,
    name: &'static str,
    arity: i32,
    flags: &'static str,
    syntax: &'static str,
    summary: &'static str,
    complexity: &'static str,
) -> Spec {
    let (group, subject) = (Group::Objects, Subject::Tables);
    row(
        id,
        name,
        arity,
        flags,
        group,
        subject,
        Keys::One,
        Place::Owner,
        syntax,
        summary,
        complexity,
        "0.1.0",
        &[],
    )
}

#[rustfmt::skip]
pub const ROWS: &[Spec] = &[
    object(Id::HDel, "HDEL", -3, "write fast", "key field [field ...]",
        "Removes fields of a hash, and the hash with its last; answers how many there were", OBJECT),
    object(Id::HExists, "HEXISTS", 3, "readonly fast", "key field",
        "Whether a hash has a field: 1 or 0", OBJECT),
    object(Id::HExpire, "HEXPIRE", -6, "write denyoom fast", "key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Lets fields go after some time; of each 1, 2 if it went at once, 0 if the condition does not hold, or -2 if there is none", OBJECT),
    object(Id::HExpireAt, "HEXPIREAT", -6, "write denyoom fast", "key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "As HEXPIRE, at a time since 1970", OBJECT),
    object(Id::HExpireTime, "HEXPIRETIME", -5, "readonly fast", "key FIELDS numfields field [field ...]",
        "When fields go, in seconds since 1970; -1 of one that stays, -2 if there is none", OBJECT),
    object(Id::HGet, "HGET", 3, "readonly fast", "key field",
        "The value of a field, or nil", OBJECT),
    object(Id::HGetAll, "HGETALL", 2, "readonly", "key",
        "All fields of a hash with their values, in the order in which they came to be", OBJECT),
    object(Id::HGetDel, "HGETDEL", -5, "write fast", "key FIELDS numfields field [field ...]",
        "Removes fields; answers the values that they had", OBJECT),
    object(Id::HGetEx, "HGETEX", -5, "write fast", "key [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | PERSIST] FIELDS numfields field [field ...]",
        "The values of fields; and when they go from now on", OBJECT),
    object(Id::HIncrBy, "HINCRBY", 4, "write denyoom fast", "key field increment",
        "Adds to an integer in a field, 0 if it is absent; answers the sum", OBJECT),
    object(Id::HIncrByFloat, "HINCRBYFLOAT", 4, "write denyoom fast", "key field increment",
        "Adds to a number in a field, 0 if it is absent; answers the sum", OBJECT),
    object(Id::HKeys, "HKEYS", 2, "readonly", "key",
        "The names of a hash's fields", OBJECT),
    object(Id::HLen, "HLEN", 2, "readonly fast", "key",
        "How many fields a hash has", OBJECT),
    object(Id::HMGet, "HMGET", -3, "readonly fast", "key field [field ...]",
        "The values of fields, nil for each that is absent", OBJECT),
    object(Id::HMSet, "HMSET", -4, "write denyoom fast", "key field value [field value ...]",
        "As HSET; answers OK", OBJECT),
    object(Id::HPersist, "HPERSIST", -5, "write fast", "key FIELDS numfields field [field ...]",
        "Lets fields stay that were to go; of each 1, -1 if it was to stay, or -2 if there is none", OBJECT),
    object(Id::HPExpire, "HPEXPIRE", -6, "write denyoom fast", "key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "As HEXPIRE, in milliseconds", OBJECT),
    object(Id::HPExpireAt, "HPEXPIREAT", -6, "write denyoom fast", "key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "As HEXPIREAT, in milliseconds", OBJECT),
    object(Id::HPExpireTime, "HPEXPIRETIME", -5, "readonly fast", "key FIELDS numfields field [field ...]",
        "As HEXPIRETIME, in milliseconds", OBJECT),
    object(Id::HPTtl, "HPTTL", -5, "readonly fast", "key FIELDS numfields field [field ...]",
        "As HTTL, in milliseconds", OBJECT),
    object(Id::HRandField, "HRANDFIELD", -2, "readonly", "key [count [WITHVALUES]]",
        "Some field of a hash; several different ones, or with a negative count any", OBJECT),
    object(Id::HScan, "HSCAN", -3, "readonly", "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
        "The fields of a hash that match, all at once: the next cursor is always 0", OBJECT),
    object(Id::HSet, "HSET", -4, "write denyoom fast", "key field value [field value ...]",
        "Sets fields of a hash, which is made if there is none; answers how many are new", OBJECT),
    object(Id::HSetNx, "HSETNX", 4, "write denyoom fast", "key field value",
        "Sets a field unless there is one; answers 1 or 0", OBJECT),
    object(Id::HStrLen, "HSTRLEN", 3, "readonly fast", "key field",
        "Bytes of a field's value; 0 if it is absent", OBJECT),
    object(Id::HTtl, "HTTL", -5, "readonly fast", "key FIELDS numfields field [field ...]",
        "Seconds until fields go; -1 of one that stays, -2 if there is none", OBJECT),
    object(Id::HVals, "HVALS", 2, "readonly", "key",
        "The values of a hash's fields", OBJECT),
];
