"""A tenant's account in the server: who has a lease, who began within the minute, what the day has used.

Theory of operation
    KEYS[1] is a sorted set of leases by the moment at which each is over, KEYS[2] one of the last minute's starts by
    their moments, KEYS[3] a hash of what was drawn on `day`, a number of days since 1970, KEYS[4] a sorted set of the
    last minute's returns by their moments. All of them share the tenant's hash tag, so they live on one shard, and each
    is gone when nothing in it counts any more.

    A lease is called `<session>:<number>`. Those of one session count as one: of a caller who comes back before it is
    known that their connection has gone, and of one whose gateway was killed, the place is their own.

Rules
* Time is the server's.
* A lease is known by its number: that its call has taken another session up shows when it is next named. A request that
  comes late may name the former one; that takes no place which another has by then.
* Who comes back to a session that has a lease starts none, up to `RETURNS_PER_MINUTE_MAX` of it within a minute.
* A script looks and enters in one step; a reply is a list that starts with a status word.
"""

from __future__ import annotations

from sessions.quotas import KINDS
from sessions.redis_scripts import Script

DAY_MS = 86_400_000
MINUTE_MS = 60_000
SESSION_RETRY_MS = 5_000  # nobody knows when a session ends
# On a network that comes and goes a connection lasts some seconds. Who returns more often starts anew each time.
RETURNS_PER_MINUTE_MAX = 12
# The one that is there, the one that takes its place, and two whose ends a killed gateway or the network keeps back.
LEASES_PER_SESSION_MAX = 4

_PRELUDE = f"""#!lua
local leases, starts, used, returns = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local kinds = {{{", ".join(f"'{kind}'" for kind in KINDS)}}}
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local day = math.floor(now_ms / {DAY_MS})
local day_ends_ms = (day + 1) * {DAY_MS}
redis.call('ZREMRANGEBYSCORE', leases, '-inf', now_ms)
redis.call('ZREMRANGEBYSCORE', starts, '-inf', now_ms - {MINUTE_MS})
redis.call('ZREMRANGEBYSCORE', returns, '-inf', now_ms - {MINUTE_MS})
if tonumber(redis.call('HGET', used, 'day') or -1) ~= day then
  redis.call('DEL', used)
end

local function left_of(kind, limit)
  return limit - tonumber(redis.call('HGET', used, kind) or 0)
end

local function session_of(lease)
  return string.match(lease, '^[^:]*')
end

local function number_of(lease)
  return string.match(lease, '[^:]*$')
end

-- How many of these names are of the lease's own session, and how many other sessions they are of.
local function shared(names, lease)
  local session, own, others, seen = session_of(lease), 0, 0, {{}}
  for _, name in ipairs(redis.call('ZRANGE', names, 0, -1)) do
    local whose = session_of(name)
    if whose == session then
      own = own + 1
    elseif not seen[whose] then
      seen[whose], others = true, others + 1
    end
  end
  return own, others
end

local function has_room(lease, sessions)
  if sessions < 0 or redis.call('ZCARD', leases) < sessions then
    return true
  end
  local own, others = shared(leases, lease)
  return own > 0 or others < sessions
end

-- Under which name the lease was there, if it was.
local function drop(lease)
  if redis.call('ZREM', leases, lease) == 1 then
    return lease
  end
  for _, held in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    if number_of(held) == number_of(lease) then
      redis.call('ZREM', leases, held)
      return held
    end
  end
  return nil
end

-- Whether it takes the place of a lease of its session, which has not done so too often.
local function comes_back(lease, own)
  return own > 0 and shared(returns, lease) < {RETURNS_PER_MINUTE_MAX}
end

local function note(names, lease)
  redis.call('ZADD', names, now_ms, lease)
  redis.call('PEXPIREAT', names, now_ms + {MINUTE_MS})
end

local function lend(lease, ttl_ms)
  redis.call('ZADD', leases, now_ms + ttl_ms, lease)
  redis.call('PEXPIREAT', leases, redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')[2])
end

local function draw(first)
  local given = {{}}
  for i, kind in ipairs(kinds) do
    local limit, wanted = tonumber(ARGV[first + 2 * (i - 1)]), tonumber(ARGV[first + 2 * i - 1])
    given[i] = wanted
    if limit >= 0 and wanted > 0 then
      given[i] = math.max(0, math.min(wanted, left_of(kind, limit)))
      redis.call('HINCRBY', used, kind, string.format('%d', given[i]))
      redis.call('HSET', used, 'day', day)
      redis.call('PEXPIREAT', used, day_ends_ms)
    end
  end
  return given
end
"""

# lease, TTL, sessions, starts per minute, then of each kind its quota and what is wanted; a quota of -1 is none
OPEN_ACCOUNT = Script(
    _PRELUDE
    + f"""
local lease, sessions, starts_max = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local own = shared(leases, lease)
if own >= {LEASES_PER_SESSION_MAX} or not has_room(lease, sessions) then
  return {{'OVER', 'sessions', {SESSION_RETRY_MS}}}
end
local returning = comes_back(lease, own)
if starts_max >= 0 and not returning and redis.call('ZCARD', starts) >= starts_max then
  local first_ms = redis.call('ZRANGE', starts, -starts_max, -starts_max, 'WITHSCORES')[2]
  return {{'OVER', 'starts_per_minute', first_ms + {MINUTE_MS} - now_ms}}
end
for i, kind in ipairs(kinds) do
  local limit = tonumber(ARGV[3 + 2 * i])
  if limit >= 0 and kind ~= 'tool_calls' and left_of(kind, limit) <= 0 then
    return {{'OVER', kind, day_ends_ms - now_ms}}
  end
end
lend(lease, ARGV[2])
note(returning and returns or starts, lease)
return {{'OK', day, draw(5)}}
"""
)

# lease, TTL, sessions, (unused), then as above
DRAW = Script(
    _PRELUDE
    + """
local lease, held = ARGV[1], drop(ARGV[1])
if held ~= lease and not has_room(lease, tonumber(ARGV[3])) then
  lease = held
end
if not lease then
  return {'LOST'}
end
lend(lease, ARGV[2])
return {'OK', day, draw(5)}
"""
)

# lease, the day on which it began, then of each kind what goes back
CLOSE_ACCOUNT = Script(
    _PRELUDE
    + """
if drop(ARGV[1]) and tonumber(ARGV[2]) == day then
  for i, kind in ipairs(kinds) do
    local back = tonumber(ARGV[2 + i])
    if back > 0 and redis.call('HEXISTS', used, kind) == 1 then
      redis.call('HINCRBY', used, kind, string.format('%d', -back))
    end
  end
end
return {'OK'}
"""
)
