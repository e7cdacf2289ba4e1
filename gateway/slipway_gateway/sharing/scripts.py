"""What runs inside Redis: the buckets of `quotas.gcra` for all gateways, each request by its id.

KEYS: a tenant's buckets, its running requests by the end of their leases, what running requests hold. A script takes
from all buckets or from none. Times are those of the server, in seconds since `EPOCH_S`, so that their fractions are
exact enough; gateways' clocks do not count. A bucket is {time until which it is not full, refunded, changes, interval,
burst}; one of an earlier release has no burst until a request comes.
"""

EPOCH_S = 1767225600  # 2026-01-01
# Time after the end of its lease until a request of a killed gateway is removed, with what it holds.
FORGOTTEN_AFTER_S = 3600
_KEPT_S = 86400
_MONTH_KEPT_S = 40 * 86400

NOW = f"""
local time = redis.call('TIME')
local now = (tonumber(time[1]) - {EPOCH_S}) + tonumber(time[2]) / 1000000
"""

_STATE = f"""
local function read(name)
  local packed = redis.call('HGET', KEYS[1], name)
  return packed and cmsgpack.unpack(packed) or nil
end
local function write(name, state)
  redis.call('HSET', KEYS[1], name, cmsgpack.pack(state))
end
-- Drops what a bucket owes beyond what fills it once, as `Bucket._forgive`.
local function forgive(state)
  local latest = state[5] and now + 2 * state[5] * state[4]
  if latest and state[1] > latest then
    state[1], state[2] = latest, state[2] + state[1] - latest
  end
end
local function keep(full_in)
  redis.call('EXPIRE', KEYS[1], math.ceil(full_in) + {_KEPT_S})
  redis.call('EXPIRE', KEYS[2], {_KEPT_S})
  redis.call('EXPIRE', KEYS[3], {_KEPT_S})
end
"""

# ARGV: id, lease, concurrency (0: any), then for each limit its name, interval, burst, amount.
# Returns 1 or 0; which limit was reached; the seconds to wait for it; for each limit the seconds until it is full.
_RESERVE = (
    _STATE
    + f"""
local id, lease, concurrency = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local since = string.format('%.6f', now - {FORGOTTEN_AFTER_S})
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', since, 'LIMIT', 0, 100)
for _, one in ipairs(old) do
  redis.call('ZREM', KEYS[2], one)
  redis.call('HDEL', KEYS[3], one)
end
local reached, longest = '', 0
if concurrency > 0 and redis.call('ZCOUNT', KEYS[2], string.format('(%.6f', now), '+inf') >= concurrency then
  reached, longest = 'concurrency', 1
end
local names, states, amounts, full = {{}}, {{}}, {{}}, {{}}
for at = 4, #ARGV, 4 do
  local name, interval, burst = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local amount = math.min(tonumber(ARGV[at + 3]), burst)
  local state = read(name) or {{now, 0, now, interval, burst}}
  if state[4] ~= interval or state[5] ~= burst then
    local changes = state[3] + (state[4] == interval and 0 or 1)
    state = {{now + math.max(0, state[1] - now) / state[4] * interval, state[2], changes, interval, burst}}
    forgive(state)
    write(name, state)
  end
  local wait = math.max(state[1], now) + (amount - burst) * interval - now
  if reached ~= 'concurrency' and wait > math.max(interval * 1e-9, 1e-7) and wait > longest then
    reached, longest = name, wait
  end
  names[#names + 1], states[#states + 1], amounts[#amounts + 1] = name, state, amount
end
local largest, hold = 0, {{}}
for at, state in ipairs(states) do
  if reached == '' then
    state[1] = math.max(state[1], now) + amounts[at] * state[4]
    hold[names[at]] = {{amounts[at], state[1], state[2], state[3]}}
    write(names[at], state)
  end
  largest = math.max(largest, state[1] - now)
  full[at] = string.format('%.9f', math.max(0, state[1] - now))
end
if reached == '' then
  redis.call('HSET', KEYS[3], id, cmsgpack.pack(hold))
  redis.call('ZADD', KEYS[2], string.format('%.6f', now + lease), id)
  keep(largest)
end
return {{reached == '' and 1 or 0, reached, string.format('%.9f', longest), unpack(full)}}
"""
)

# ARGV: id, then for each limit its name and what was used; what is not named keeps its reservation. Once for an id.
_SETTLE = (
    _STATE
    + f"""
local id = ARGV[1]
redis.call('ZREM', KEYS[2], id)
local packed = redis.call('HGET', KEYS[3], id)
if not packed then return 0 end
redis.call('HDEL', KEYS[3], id)
local holds, largest = cmsgpack.unpack(packed), redis.call('TTL', KEYS[1]) - {_KEPT_S}
for at = 2, #ARGV, 2 do
  local name, used = ARGV[at], tonumber(ARGV[at + 1])
  local hold, state = holds[name], read(name)
  if hold and state then
    if used >= hold[1] then
      local more = math.min(used - hold[1], state[5] and 2 * state[5] or math.huge)
      state[1] = math.max(state[1], now) + more * state[4]
      forgive(state)
    elseif hold[4] == state[3] then
      local left = hold[2] - (state[2] - hold[3]) - now
      local refund = math.max(0, math.min((hold[1] - used) * state[4], left))
      state[1], state[2] = state[1] - refund, state[2] + refund
    end
    write(name, state)
    largest = math.max(largest, state[1] - now)
  end
end
keep(largest)
return 1
"""
)

RESERVE, SETTLE = NOW + _RESERVE, NOW + _SETTLE

# Many of both, each by itself: one that fails stops no other. KEYS: the three of each tenant. ARGV: one text, a line
# for each call: its kind, the number of its tenant from 0 on, and its arguments, with spaces between them. Returns a
# line for each call: its results, or `error` and a message. One text takes a client a tenth of the time of many values.
BATCH = (
    NOW
    + f"""
local kinds = {{}}
function kinds.reserve(KEYS, ARGV)
{_RESERVE}
end
function kinds.settle(KEYS, ARGV)
{_SETTLE}
end
local lines = {{}}
for line in string.gmatch(ARGV[1], '[^\\n]+') do
  local values = {{}}
  for value in string.gmatch(line, '%S+') do values[#values + 1] = value end
  local tenant = 3 * tonumber(values[2])
  local keys = {{KEYS[tenant + 1], KEYS[tenant + 2], KEYS[tenant + 3]}}
  local done, result = pcall(kinds[values[1]], keys, {{unpack(values, 3)}})
  if not done then
    local text = type(result) == 'table' and result.err or tostring(result)
    lines[#lines + 1] = 'error ' .. string.gsub(text, '[\\r\\n]', ' ')
  else
    lines[#lines + 1] = type(result) == 'table' and table.concat(result, ' ') or tostring(result)
  end
end
return table.concat(lines, '\\n')
"""
)

# ARGV: lease, then ids of requests that still run.
RENEW = (
    NOW
    + f"""
local ends = string.format('%.6f', now + tonumber(ARGV[1]))
for at = 2, #ARGV do
  redis.call('ZADD', KEYS[2], ends, ARGV[at])
end
redis.call('EXPIRE', KEYS[2], {_KEPT_S})
redis.call('EXPIRE', KEYS[3], {_KEPT_S})
return #ARGV - 1
"""
)

# What gateways spent of one budget. KEYS: a tenant's month, the leases of its gateways. A gateway is {sequence, day,
# written that day, written that month, reserved}: each writes its own totals, so that a call may come twice, and after
# a loss of data only the totals of gateways that are gone are missing. Amounts are millionths of the currency: the
# largest budget is exact.
# ARGV: gateway, sequence, lease, day, its written day, its written month, unwritten, budget of the day and of the month
# (-1: none), parts, 1: reserve more than is unwritten. Returns what is left of the day and of the month, how much of it
# this gateway may spend before it comes again, and 0 where it was not known before.
SPEND = (
    NOW
    + f"""
local id, sequence, lease, day = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local function read(name)
  local packed = redis.call('HGET', KEYS[1], 'gateway:' .. name)
  return packed and cmsgpack.unpack(packed) or {{0, day, 0, 0, 0}}
end
local function total(name) return tonumber(redis.call('HGET', KEYS[1], name) or 0) end
local function put(name, value) redis.call('HSET', KEYS[1], name, string.format('%.0f', value)) end
local reserved = total('reserved')
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now), 'LIMIT', 0, 100)) do
  local state = read(gone)
  reserved, state[5] = reserved - state[5], 0
  redis.call('HSET', KEYS[1], 'gateway:' .. gone, cmsgpack.pack(state))
  redis.call('ZREM', KEYS[2], gone)
end
local own = read(id)
if sequence <= own[1] then
  put('reserved', reserved)
  return {{'0', '0', '0', 1}}
end
local was_known = own[1] > 0 and 1 or 0
local today = total('day:' .. day) + tonumber(ARGV[5]) - (own[2] == day and own[3] or 0)
local month = total('month') + tonumber(ARGV[6]) - own[4]
local unwritten = tonumber(ARGV[7])
reserved = reserved - own[5] + unwritten
local left, lefts = nil, {{}}
for at, spent in ipairs({{today, month}}) do
  local budget = tonumber(ARGV[7 + at])
  lefts[at] = budget < 0 and '' or string.format('%.0f', budget - spent - reserved)
  if budget >= 0 then left = math.min(left or math.huge, budget - spent - reserved) end
end
local more = 0
if ARGV[11] == '1' and left and left > 0 then more = math.floor(left / (2 * tonumber(ARGV[10]))) end
put('day:' .. day, today)
put('month', month)
put('reserved', reserved + more)
local state = {{sequence, day, tonumber(ARGV[5]), tonumber(ARGV[6]), unwritten + more}}
redis.call('HSET', KEYS[1], 'gateway:' .. id, cmsgpack.pack(state))
redis.call('ZADD', KEYS[2], string.format('%.6f', now + lease), id)
redis.call('EXPIRE', KEYS[1], {_MONTH_KEPT_S})
redis.call('EXPIRE', KEYS[2], {_MONTH_KEPT_S})
return {{lefts[1], lefts[2], string.format('%.0f', more), was_known}}
"""
)
