#!lua flags=allow-oom
-- sweep.lua: takes a reservation that nobody has published, to publish it.
--
-- KEYS  1 {v:ID}:voucher   2 {v:ID}:reservations   3 {v:ID}:held   (as in reserve.lua; only the second is used)
-- ARGV  1 order id   2 the stamp_ms with which the sweeper saw the reservation
--
-- Answers, all texts:
--   TAKEN requested_at stamp_ms quantity user   the stamp is new, the release token is cleared; requested_at never changes
--   GONE                                        no such reservation, or another sweeper renewed it
-- Errors, nothing changed: DAMAGED, WRONGTYPE.
--
-- Invariant: of several sweepers that saw the same stamp, one gets the reservation. The new stamp is later than the old one even if
-- Redis' clock went back; else the same stamp could be taken twice.

local order, seen = ARGV[1], ARGV[2]

local function damaged(what, text)
  error({err = 'DAMAGED ' .. what .. ' is ' .. string.gsub(string.sub(tostring(text), 1, 40), '[^%w%p ]', '?')})
end

local function integer(what, text)
  local n = tonumber(text)
  if not n or n > 9007199254740991 or n < -9007199254740991 or string.format('%d', n) ~= text then
    damaged(what, text)
  end
  return n
end

local reservation = redis.call('HGET', KEYS[2], order)
if not reservation then
  return {'GONE'}
end
local requested_at, stamp, units, user = string.match(reservation, '^(%d+) (%d+) (%d+) %S+ (.*)$')
if not requested_at then
  damaged('reservation', reservation)
end
integer('requested_at', requested_at)
integer('quantity', units)
local before = integer('stamp_ms', stamp)
if stamp ~= seen then
  return {'GONE'}
end
local time = redis.call('TIME')
local now = math.max(time[1] * 1000 + math.floor(time[2] / 1000), before + 1)
local renewed = string.format('%d', now)
redis.call('HSET', KEYS[2], order, requested_at .. ' ' .. renewed .. ' ' .. units .. ' - ' .. user)
return {'TAKEN', requested_at, renewed, units, user}
