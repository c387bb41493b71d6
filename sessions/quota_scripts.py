"""A tenant's account in the server: who has a lease, who began within the minute, what the day has used.

Theory of operation
    KEYS[1] is a sorted set of leases by the moment at which each is over, KEYS[2] one of the last minute's starts by
    their moments, KEYS[3] a hash of what was drawn on `day`, a number of days since 1970. All three share the tenant's
    hash tag, so they live on one shard, and each is gone when nothing in it counts any more.

Rules
* Time is the server's.
* A script looks and enters in one step; a reply is a list that starts with a status word.
"""

from __future__ import annotations

from sessions.quotas import KINDS
from sessions.redis_scripts import Script

DAY_MS = 86_400_000
MINUTE_MS = 60_000
SESSION_RETRY_MS = 5_000  # nobody knows when a session ends

_PRELUDE = f"""#!lua
local leases, starts, used = KEYS[1], KEYS[2], KEYS[3]
local kinds = {{{", ".join(f"'{kind}'" for kind in KINDS)}}}
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local day = math.floor(now_ms / {DAY_MS})
local day_ends_ms = (day + 1) * {DAY_MS}
redis.call('ZREMRANGEBYSCORE', leases, '-inf', now_ms)
redis.call('ZREMRANGEBYSCORE', starts, '-inf', now_ms - {MINUTE_MS})
if tonumber(redis.call('HGET', used, 'day') or -1) ~= day then
  redis.call('DEL', used)
end

local function left_of(kind, limit)
  return limit - tonumber(redis.call('HGET', used, kind) or 0)
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
if sessions >= 0 and redis.call('ZCARD', leases) >= sessions then
  return {{'OVER', 'sessions', {SESSION_RETRY_MS}}}
end
if starts_max >= 0 and redis.call('ZCARD', starts) >= starts_max then
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
redis.call('ZADD', starts, now_ms, lease)
redis.call('PEXPIREAT', starts, now_ms + {MINUTE_MS})
return {{'OK', day, draw(5)}}
"""
)

# lease, TTL, sessions, (unused), then as above
DRAW = Script(
    _PRELUDE
    + """
local sessions = tonumber(ARGV[3])
if not redis.call('ZSCORE', leases, ARGV[1]) and sessions >= 0 and redis.call('ZCARD', leases) >= sessions then
  return {'LOST'}
end
lend(ARGV[1], ARGV[2])
return {'OK', day, draw(5)}
"""
)

# lease, the day on which it began, then of each kind what goes back
CLOSE_ACCOUNT = Script(
    _PRELUDE
    + """
if redis.call('ZREM', leases, ARGV[1]) == 1 and tonumber(ARGV[2]) == day then
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
