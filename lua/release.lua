#!lua flags=allow-oom
-- release.lua: gives a reservation back, if nobody but the try that made it stands on it.
--
-- Called only when the producer said that the request was not persisted and nobody was told 202. A repeat of the purchase and the
-- sweeper clear the token, because from then on another one may have published the request.
--
-- KEYS  1 {v:ID}:voucher   2 {v:ID}:reservations   3 {v:ID}:held   (as in reserve.lua)
-- ARGV  1 order id   2 release token of the try
--
-- Answers: RELEASED (the units are back in stock) | KEPT (no such reservation, or its token is another one or cleared)
-- Errors, nothing changed: DAMAGED, WRONGTYPE, DENIED.
--
-- Invariant: as in reserve.lua; everything is read and checked before the first write.

local order, token = ARGV[1], ARGV[2]

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

local v = redis.call('HMGET', KEYS[1], 'stock', 'reserved')
local reservation = redis.call('HGET', KEYS[2], order)
if not reservation then
  return {'KEPT'}
end
local units, its_token, user = string.match(reservation, '^%d+ %d+ (%d+) (%S+) (.*)$')
if not units then
  damaged('reservation', reservation)
end
if its_token ~= token or token == '-' then
  return {'KEPT'}
end
local stock, reserved, quantity = integer('stock', v[1]), integer('reserved', v[2]), integer('quantity', units)
local holds = integer('held', redis.call('HGET', KEYS[3], user) or '0') - quantity

-- A user of Redis who may use only one of the two commands would leave half a change behind.
for _, command in ipairs({'HDEL', 'HSET'}) do
  if not redis.acl_check_cmd(command, KEYS[1], 'stock', '0') then
    return redis.error_reply('DENIED this user of Redis may not use ' .. command)
  end
end
redis.call('HDEL', KEYS[2], order)
if holds == 0 then
  redis.call('HDEL', KEYS[3], user)
else
  redis.call('HSET', KEYS[3], user, string.format('%d', holds))
end
redis.call('HSET', KEYS[1], 'stock', string.format('%d', stock + quantity), 'reserved', string.format('%d', reserved - quantity))
return {'RELEASED'}
