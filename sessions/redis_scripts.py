"""What the server does in one step: a Lua script per operation, in what Redis ≥ 7.0 and Valkey ≥ 8 have in common.

Theory of operation
    KEYS[1] is a hash: record, token, owner, fence, seq (last entry of this owner), covered (its last compaction),
    entries and bytes (size of the log), lease_until_ms, active_ms (last write but renewals). KEYS[2] is a stream with
    an entry `<fence>-<seq>` each, and the present owner's claim `<fence>-0`. A stream takes only rising ids, so the
    claim alone already shuts out every earlier owner; the scripts also say why.

Rules
* Time is the server's. Numbers that are compared for equality are compared as the decimal strings that they are.
* Every write sets the end of both keys to the same instant.
* `#!lua` makes the server refuse a script as a whole when it is out of memory or cannot write its log: no script
  stops half way.
* A reply is a list that starts with a status word.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source, and the SHA-1 by which the server knows it."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


_PRELUDE = """#!lua
local hash, log = KEYS[1], KEYS[2]
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function extend(lease_ttl_ms, retention_ms)
  redis.call('HSET', hash, 'lease_until_ms', now_ms + lease_ttl_ms)
  redis.call('PEXPIREAT', hash, now_ms + retention_ms)
  redis.call('PEXPIREAT', log, now_ms + retention_ms)
end

local function keep(lease_ttl_ms, retention_ms)
  redis.call('HSET', hash, 'active_ms', now_ms)
  extend(lease_ttl_ms, retention_ms)
end
"""

# record, token digest, owner, fence, lease TTL, retention
CREATE = Script(
    _PRELUDE
    + """
local record, token, owner, fence = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held = redis.call('HMGET', hash, 'record', 'owner', 'fence', 'seq')
if held[1] then
  if held[1] ~= record or held[2] ~= owner or held[3] ~= fence or held[4] ~= '0' then
    return {'EXISTS'}
  end
else
  redis.call('XADD', log, fence .. '-0', 'claim', owner)
  redis.call('HSET', hash, 'record', record, 'token', token, 'owner', owner, 'fence', fence,
    'seq', '0', 'covered', '0', 'entries', '0', 'bytes', '0')
end
keep(ARGV[5], ARGV[6])
return {'OK'}
"""
)

# owner, '1' if a token is shown, its digest, lease TTL, retention, greatest fence seen. OK: fence, record, entries,
# the fence before.
ACQUIRE = Script(
    _PRELUDE
    + """
local owner, shown, token = ARGV[1], ARGV[2] == '1', ARGV[3]
local held = redis.call('HMGET', hash, 'fence', 'owner', 'token', 'lease_until_ms', 'record')
if not held[1] then
  return {'UNKNOWN'}
end
if shown then
  if token ~= held[3] then
    return {'TOKEN'}
  end
else
  local remaining_ms = held[4] - now_ms
  if remaining_ms > 0 and held[2] ~= owner then
    return {'HELD', held[2], remaining_ms}
  end
end
local fence = math.max(held[1], ARGV[6]) + 1
redis.call('XADD', log, string.format('%d-0', fence), 'claim', owner)
redis.call('XDEL', log, held[1] .. '-0')
redis.call('HSET', hash, 'fence', fence, 'owner', owner, 'seq', '0', 'covered', '0')
keep(ARGV[4], ARGV[5])
local entries = {}
for _, stored in ipairs(redis.call('XRANGE', log, '-', '+')) do
  if stored[2][1] == 'entry' then
    entries[#entries + 1] = stored[2][2]
  end
end
return {'OK', fence, held[5], entries, tonumber(held[1])}
"""
)

# Both kinds of append: fence, owner, sequence, entry, lease TTL, retention, entries at most, bytes at most.
_NEXT = (
    _PRELUDE
    + """
local fence, owner, seq, entry = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local held = redis.call('HMGET', hash, 'fence', 'owner', 'seq', 'covered', 'entries', 'bytes')
if not held[1] then
  return {'UNKNOWN'}
end
if held[1] ~= fence or held[2] ~= owner then
  return {'STALE', held[1]}
end
local id = fence .. '-' .. ARGV[3]
if seq ~= held[3] + 1 then
  if seq > 0 then
    local stored = redis.call('XRANGE', log, id, id)[1]
    if seq < tonumber(held[4]) or (stored and stored[2][2] == entry) then
      return {'DUPLICATE'}
    end
  end
  return {'GAP', held[3] + 1}
end
"""
)

APPEND = Script(
    _NEXT
    + """
local entries, bytes = held[5] + 1, held[6] + #entry
if entries > tonumber(ARGV[7]) or bytes > tonumber(ARGV[8]) then
  return {'FULL'}
end
redis.call('XADD', log, id, 'entry', entry)
redis.call('HSET', hash, 'seq', seq, 'entries', entries, 'bytes', bytes)
keep(ARGV[5], ARGV[6])
return {'OK'}
"""
)

COMPACT = Script(
    _NEXT
    + """
redis.call('XADD', log, id, 'entry', entry)
redis.call('XTRIM', log, 'MINID', id)
redis.call('HSET', hash, 'seq', seq, 'covered', seq, 'entries', 1, 'bytes', #entry)
keep(ARGV[5], ARGV[6])
return {'OK'}
"""
)

# fence, owner, lease TTL, retention
RENEW = Script(
    _PRELUDE
    + """
local held = redis.call('HMGET', hash, 'fence', 'owner')
if not held[1] then
  return {'UNKNOWN'}
end
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return {'STALE', held[1]}
end
extend(ARGV[3], ARGV[4])
return {'OK'}
"""
)

# Secrets: KEYS[1] is a sorted set of their digests by the moment at which each is over, KEYS[2] a hash of what they
# grant. Both are there for as long as the last of them.
_SECRETS = """#!lua
local ends, grants = KEYS[1], KEYS[2]
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local over = redis.call('ZRANGEBYSCORE', ends, '-inf', now_ms)
for _, digest in ipairs(over) do
  redis.call('HDEL', grants, digest)
  redis.call('ZREM', ends, digest)
end
"""

# digest, grant, TTL, how many there may be; one that is there takes no further place
KEEP_SECRET = Script(
    _SECRETS
    + """
if not redis.call('ZSCORE', ends, ARGV[1]) and redis.call('ZCARD', ends) >= tonumber(ARGV[4]) then
  return {'FULL'}
end
redis.call('ZADD', ends, now_ms + ARGV[3], ARGV[1])
redis.call('HSET', grants, ARGV[1], ARGV[2])
local last_ms = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIREAT', ends, last_ms)
redis.call('PEXPIREAT', grants, last_ms)
return {'OK'}
"""
)

# digest, '1' if it is spent by this
FIND_SECRET = Script(
    _SECRETS
    + """
local grant = redis.call('HGET', grants, ARGV[1])
if not grant then
  return {'NONE'}
end
if ARGV[2] == '1' then
  redis.call('HDEL', grants, ARGV[1])
  redis.call('ZREM', ends, ARGV[1])
end
return {'OK', grant}
"""
)
