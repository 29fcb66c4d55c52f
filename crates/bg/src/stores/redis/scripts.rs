//! Atomic writes: scripts that change sets, counts and feeds together, inside Redis.

/// The index of a script in [`SCRIPTS`].
#[derive(Clone, Copy)]
pub enum Script {
    Invite,
    Accept,
    Reject,
    Thaw,
    Post,
}

/// The arguments are the member with the invitations or friends, and the other member; for a post, its author, its
/// entry and its text.
pub const SCRIPTS: [&str; 5] = [INVITE, ACCEPT, REJECT, THAW, POST];

const INVITE: &str = "
local m, o = ARGV[1], ARGV[2]
if redis.call('SADD', 'bg:invitations:' .. m, o) == 1 then
  redis.call('HINCRBY', 'bg:member:' .. m, 'invitations', 1)
end
return 1
";

const ACCEPT: &str = "
local m, o = ARGV[1], ARGV[2]
if redis.call('SREM', 'bg:invitations:' .. m, o) == 1 then
  redis.call('HINCRBY', 'bg:member:' .. m, 'invitations', -1)
end
local function befriend(one, other)
  if redis.call('SADD', 'bg:friends:' .. one, other) == 1 then
    redis.call('HINCRBY', 'bg:member:' .. one, 'friends', 1)
  end
  if redis.call('EXISTS', 'bg:posts:' .. other) == 1 then
    local feed = 'bg:feed:' .. one
    redis.call('ZUNIONSTORE', feed, 2, feed, 'bg:posts:' .. other)
  end
end
befriend(m, o)
befriend(o, m)
return 1
";

const REJECT: &str = "
local m, o = ARGV[1], ARGV[2]
if redis.call('SREM', 'bg:invitations:' .. m, o) == 1 then
  redis.call('HINCRBY', 'bg:member:' .. m, 'invitations', -1)
end
return 1
";

const THAW: &str = "
local m, o = ARGV[1], ARGV[2]
local function estrange(one, other)
  if redis.call('SREM', 'bg:friends:' .. one, other) == 1 then
    redis.call('HINCRBY', 'bg:member:' .. one, 'friends', -1)
  end
  if redis.call('EXISTS', 'bg:posts:' .. other) == 1 then
    local feed = 'bg:feed:' .. one
    redis.call('ZDIFFSTORE', feed, 2, feed, 'bg:posts:' .. other)
  end
end
estrange(m, o)
estrange(o, m)
return 1
";

const POST: &str = "
local m, entry, text = ARGV[1], ARGV[2], ARGV[3]
redis.call('SET', 'bg:post:' .. entry, text)
redis.call('ZADD', 'bg:posts:' .. m, 0, entry)
for _, friend in ipairs(redis.call('SMEMBERS', 'bg:friends:' .. m)) do
  redis.call('ZADD', 'bg:feed:' .. friend, 0, entry)
end
return 1
";
