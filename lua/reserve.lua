#!lua
-- reserve.lua: takes units of a voucher for one order, or says why not. The whole decision of the gate is one step.
--
-- KEYS  1 {v:ID}:voucher        hash, one voucher
--       2 {v:ID}:reservations   hash, order id -> "requested_at stamp_ms quantity token user" (token "-": none), orders in flight only
--       3 {v:ID}:held           hash, user id -> units reserved or sold
-- ARGV  1 order id   2 user id   3 quantity, 1 or more   4 release token of this try, without spaces, not "-"
--
-- Answers, all texts; the first line that fits:
--   UNKNOWN                                        Redis does not have the voucher
--   SAME quantity requested_at partition           this order is in flight; its release token is cleared
--   OTHER quantity                                 this order is in flight with another quantity; nothing is changed
--   NOT_READY gate                                 the gate is warming or frozen
--   PAUSED held | CLOSED held                      the state
--   NOT_STARTED held begins_ms now_ms | ENDED held the window is [begins, ends), the clock is Redis' own
--   LIMIT held                                     the user would hold more than per_user_limit
--   SOLD_OUT held                                  less stock than asked for
--   RESERVED held requested_at partition           units taken; held is what the user held before
-- Errors, nothing changed: DAMAGED (a key has a content that no script writes), WRONGTYPE, BADARG, OOM (no allow-oom: a full
-- memory refuses this script before it starts).
--
-- Invariant: total = stock + reserved + sold and reserved = sum of reservations hold before and after. A script is not rolled back,
-- so everything is read and checked before the first write. Ids are opaque text: a Lua number would merge those beyond 2^53.

local order, user, quantity, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function damaged(what, text)
  error({err = 'DAMAGED ' .. what .. ' is ' .. string.gsub(string.sub(tostring(text), 1, 40), '[^%w%p ]', '?')})
end

-- Numbers are exact below 2^53; '10.0', '1e3', '007' and what is missing are no integers.
local function integer(what, text)
  local n = tonumber(text)
  if not n or n > 9007199254740991 or n < -9007199254740991 or string.format('%d', n) ~= text then
    damaged(what, text)
  end
  return n
end

local wanted = tonumber(quantity)
if not wanted or wanted < 1 or not string.find(quantity, '^%d+$') then
  return redis.error_reply('BADARG quantity must be an integer of 1 or more')
end
if token == '-' or not string.find(token, '^%S+$') then
  return redis.error_reply('BADARG a release token is text without spaces')
end

local v = redis.call('HMGET', KEYS[1], 'gate', 'state', 'begins_ms', 'ends_ms', 'per_user_limit', 'stock', 'reserved', 'partition')
local reservation = redis.call('HGET', KEYS[2], order)
local held = redis.call('HGET', KEYS[3], user) or '0'

local gate, state, partition = v[1], v[2], v[8]
if not gate and redis.call('EXISTS', KEYS[1]) == 0 then
  return {'UNKNOWN'}
end
local begins, ends = integer('begins_ms', v[3]), integer('ends_ms', v[4])
local limit, stock, reserved = integer('per_user_limit', v[5]), integer('stock', v[6]), integer('reserved', v[7])
local holds = integer('held', held)
integer('partition', partition)

if reservation then
  local requested_at, stamp, units, old_token, buyer = string.match(reservation, '^(%d+) (%d+) (%d+) (%S+) (.*)$')
  if not requested_at then
    damaged('reservation', reservation)
  end
  integer('requested_at', requested_at)
  integer('quantity', units)
  if units ~= quantity then
    return {'OTHER', units}
  end
  if old_token ~= '-' then
    -- From now on somebody else stands on this reservation too, so the try that made it may no longer give it back.
    redis.call('HSET', KEYS[2], order, requested_at .. ' ' .. stamp .. ' ' .. units .. ' - ' .. buyer)
  end
  return {'SAME', units, requested_at, partition}
end

if gate ~= 'ready' then
  if gate ~= 'warming' and gate ~= 'frozen' then
    damaged('gate', gate)
  end
  return {'NOT_READY', gate}
end
if state ~= 'open' then
  if state ~= 'paused' and state ~= 'closed' then
    damaged('state', state)
  end
  return {state == 'paused' and 'PAUSED' or 'CLOSED', held}
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local instant = string.format('%d', now)
if now < begins then
  return {'NOT_STARTED', held, v[3], instant}
end
if now >= ends then
  return {'ENDED', held}
end
if holds + wanted > limit then
  return {'LIMIT', held}
end
if stock < wanted then
  return {'SOLD_OUT', held}
end

redis.call('HSET', KEYS[1], 'stock', string.format('%d', stock - wanted), 'reserved', string.format('%d', reserved + wanted))
redis.call('HSET', KEYS[2], order, instant .. ' ' .. instant .. ' ' .. quantity .. ' ' .. token .. ' ' .. user)
redis.call('HSET', KEYS[3], user, string.format('%d', holds + wanted))
return {'RESERVED', held, instant, partition}
