#!lua flags=allow-oom
-- settle.lua: applies one event of the log to Redis, once, in the order of voucher_seq.
--
-- KEYS  1 {v:ID}:voucher   2 {v:ID}:reservations   3 {v:ID}:held   (as in reserve.lua)
-- ARGV  1 voucher_seq, 1 or more   2 offset in order-events   3 the event's kind, then what the kind needs:
--   VoucherOpened    4 total   5 per_user_limit   6 begins_ms   7 ends_ms   8 price "minor CUR"   9 partition   10 title
--   VoucherChanged   4 total   5 state
--   OrderConfirmed, OrderCancelled, OrderExpired   4 order id   5 user id   6 quantity
--   OrderRejected, RequestRepeated                 4 order id
--   OrderPaid, RequestRefused                      nothing
--
-- Answers, all texts:
--   APPLIED     seq and offset are now this event's
--   SKIP seq    applied before; Redis stands at seq
--   GAP seq     events between seq and this one are missing; nothing is changed
--   UNKNOWN     Redis does not have the voucher, and this event does not create it
-- Errors, nothing changed: DAMAGED, WRONGTYPE, BADARG (also a kind this script does not know), DENIED.
--
-- What an event does        | a reservation of its order is there           | none: Redis had lost it, or it was decided before
--   OrderConfirmed          | it leaves reserved and held, then as on the right | the event's quantity: stock -> sold, held
--   OrderRejected, RequestRepeated | it goes back to stock and leaves held (also one made later: the order's fate is known) | nothing
--   OrderCancelled, OrderExpired   | the event's quantity: sold -> stock, leaves held; the reservation stays | the same
--   VoucherOpened, VoucherChanged  | total and state as in the event, stock moves by as much as total
-- VoucherOpened creates the voucher with its gate warming. The gate of a voucher that is there is never touched: a replay changes
-- terms, and only the one who repairs the voucher may open it.
--
-- Invariant: total = stock + reserved + sold and reserved = sum of reservations. Stock may be below zero between a loss in Redis and
-- the rejection of what was offered too much. Everything is read and checked before the first write.

local VOUCHER, RESERVATIONS, HELD = KEYS[1], KEYS[2], KEYS[3]
local kind = ARGV[3]

local function damaged(what, text)
  error({err = 'DAMAGED ' .. what .. ' is ' .. string.gsub(string.sub(tostring(text), 1, 40), '[^%w%p ]', '?')})
end

local function whole(text)
  local n = tonumber(text)
  if n and n <= 9007199254740991 and n >= -9007199254740991 and string.format('%d', n) == text then
    return n
  end
end

local function integer(what, text)
  return whole(text) or damaged(what, text)
end

local function argument(i)
  return whole(ARGV[i]) or error({err = 'BADARG argument ' .. i .. ' must be an integer'})
end

local function text(n)
  return string.format('%d', n)
end

local seq = argument(1)
argument(2)
local v = redis.call('HMGET', VOUCHER, 'seq', 'total', 'stock', 'reserved', 'sold')
local created = false
if not v[1] and redis.call('EXISTS', VOUCHER) == 0 then
  -- Reservations or held units without their voucher are what is left of a damage: the fence counts them in, this would not.
  if kind ~= 'VoucherOpened' or seq ~= 1 or redis.call('EXISTS', RESERVATIONS, HELD) > 0 then
    return {'UNKNOWN'}
  end
  v = {'0', '0', '0', '0', '0'}
  created = true
end
local at = integer('seq', v[1])
local total, stock = integer('total', v[2]), integer('stock', v[3])
local reserved, sold = integer('reserved', v[4]), integer('sold', v[5])
if seq <= at then
  return {'SKIP', v[1]}
end
if seq > at + 1 then
  return {'GAP', v[1]}
end

local removed       -- order id whose reservation goes away
local holders = {}  -- user id -> units more (or fewer) than now
local terms = {}    -- fields of the voucher beside the counters

local function hold(user, units)
  holders[user] = (holders[user] or 0) + units
end

local function take_off(order)
  local reservation = redis.call('HGET', RESERVATIONS, order)
  if not reservation then
    return
  end
  local units, user = string.match(reservation, '^%d+ %d+ (%d+) %S+ (.*)$')
  if not units then
    damaged('reservation', reservation)
  end
  local quantity = integer('quantity', units)
  removed = order
  reserved, stock = reserved - quantity, stock + quantity
  hold(user, -quantity)
end

local function retotal(new_total)
  stock, total = stock + new_total - total, new_total
end

if kind == 'OrderConfirmed' then
  local quantity = argument(6)
  take_off(ARGV[4])
  stock, sold = stock - quantity, sold + quantity
  hold(ARGV[5], quantity)
elseif kind == 'OrderRejected' or kind == 'RequestRepeated' then
  take_off(ARGV[4])
elseif kind == 'OrderCancelled' or kind == 'OrderExpired' then
  local quantity = argument(6)
  sold, stock = sold - quantity, stock + quantity
  hold(ARGV[5], -quantity)
elseif kind == 'VoucherOpened' then
  argument(5)
  argument(6)
  argument(7)
  argument(9)
  retotal(argument(4))
  terms = {'state', 'open', 'per_user_limit', ARGV[5], 'begins_ms', ARGV[6], 'ends_ms', ARGV[7], 'price', ARGV[8],
    'partition', ARGV[9], 'title', ARGV[10]}
  if created then
    terms[#terms + 1] = 'gate'
    terms[#terms + 1] = 'warming'
    terms[#terms + 1] = 'epoch'
    terms[#terms + 1] = ''
  end
elseif kind == 'VoucherChanged' then
  retotal(argument(4))
  terms = {'state', ARGV[5]}
elseif kind ~= 'OrderPaid' and kind ~= 'RequestRefused' then
  return redis.error_reply('BADARG unknown kind of event')
end

local holds = {}
for user, units in pairs(holders) do
  holds[user] = integer('held', redis.call('HGET', HELD, user) or '0') + units
end

-- A user of Redis who may use only one of the two commands would leave half a change behind.
for _, command in ipairs({'HDEL', 'HSET'}) do
  if not redis.acl_check_cmd(command, VOUCHER, 'seq', '0') then
    return redis.error_reply('DENIED this user of Redis may not use ' .. command)
  end
end
if removed then
  redis.call('HDEL', RESERVATIONS, removed)
end
for user, units in pairs(holds) do
  if units == 0 then
    redis.call('HDEL', HELD, user)
  else
    redis.call('HSET', HELD, user, text(units))
  end
end
redis.call('HSET', VOUCHER, 'seq', ARGV[1], 'offset', ARGV[2], 'total', text(total), 'stock', text(stock),
  'reserved', text(reserved), 'sold', text(sold), unpack(terms))
return {'APPLIED'}
