#!lua flags=allow-oom
-- gate.lua: the fence of one voucher. Who repairs a voucher raises it under a random epoch and opens it under the same one; whoever
-- raised it in between (a successor, an operator) has changed the epoch, and a frozen opener that wakes up opens nothing.
--
-- KEYS  1 {v:ID}:voucher   2 {v:ID}:reservations   3 {v:ID}:held   (as in reserve.lua)
-- ARGV  1 what to do, then:
--   raise    2 epoch   3 partition   4 "reset" or ""
--            The voucher gets the epoch and a warming gate; one that is missing is created with seq 0. A frozen gate stays frozen
--            unless it is reset. Keys that were to expire stay. Answers the voucher.
--            reset (and creation): back to before the opening, so that the whole log can be settled again: seq 0, no offset, total and
--            sold 0, no rebuild field; reservations in flight stay, reserved and held are their sums, stock is -reserved. The loop is
--            over the orders in flight only. It heals DAMAGED and WRONGTYPE: what nobody can read is dropped, as if lost.
--   open     2 epoch   3 lowest seq
--            OPENED: the epoch still stands and the voucher stands at that seq or later, its opening at least: the gate is ready, by
--            this call or by one before it.
--            Else nothing is changed: UNKNOWN | EPOCH (another's) | GATE frozen | BEHIND seq
--   freeze   2 epoch    DONE: the gate is frozen under the epoch | UNKNOWN
--   rebuild  2 epoch    DONE: the gate is warming under the epoch and the field rebuild asks for a reset | UNKNOWN
--   archive  2 milliseconds   DONE: the three keys expire together after so long | UNKNOWN
-- A voucher is answered as: VOUCHER dropped, then the FIELDS below in order ("" for an absent offset or rebuild); dropped counts the
-- reservations that a reset could not read.
-- Errors, nothing changed: DAMAGED, WRONGTYPE, BADARG, DENIED.
--
-- Invariant: as in settle.lua. Everything is read and checked before the first write.

local VOUCHER, RESERVATIONS, HELD = KEYS[1], KEYS[2], KEYS[3]
local what, epoch = ARGV[1], ARGV[2]

local function damaged(name, text)
  error({err = 'DAMAGED ' .. name .. ' is ' .. string.gsub(string.sub(tostring(text), 1, 40), '[^%w%p ]', '?')})
end

local function whole(text)
  local n = tonumber(text)
  if n and n <= 9007199254740991 and n >= -9007199254740991 and string.format('%d', n) == text then
    return n
  end
end

local function one_of(...)
  local words = {...}
  return function(text)
    for _, word in ipairs(words) do
      if text == word then
        return true
      end
    end
  end
end

local function any(text)
  return text
end

-- name, what its text must be, its text in a new voucher
local FIELDS = {
  {'state', one_of('open', 'paused', 'closed'), 'open'},
  {'gate', one_of('warming', 'ready', 'frozen'), 'warming'},
  {'epoch', any, ''},
  {'rebuild', one_of('', '1'), ''},
  {'title', any, ''},
  {'total', whole, '0'},
  {'stock', whole, '0'},
  {'reserved', whole, '0'},
  {'sold', whole, '0'},
  {'per_user_limit', whole, '0'},
  {'begins_ms', whole, '0'},
  {'ends_ms', whole, '0'},
  {'price', function(text) return text and string.find(text, '^%d+ %u%u%u$') end, '0 XXX'},
  {'partition', whole, '0'},
  {'seq', whole, '0'},
  {'offset', function(text) return text == '' or whole(text) end, ''},
}

-- The voucher's fields by name, or nil. Strict: anything odd is an error; else what is odd or missing has its text in a new voucher.
local function read(strict)
  local kind = redis.call('TYPE', VOUCHER).ok
  if kind == 'none' or (kind ~= 'hash' and not strict) then
    return nil
  end
  local names = {}
  for i, field in ipairs(FIELDS) do
    names[i] = field[1]
  end
  local found, voucher = redis.call('HMGET', VOUCHER, unpack(names)), {}
  for i, field in ipairs(FIELDS) do
    local name, fits, fresh = field[1], field[2], field[3]
    local text = found[i]
    if not text and (name == 'rebuild' or name == 'offset') then
      text = ''
    end
    if not fits(text) then
      if strict then
        damaged(name, text)
      end
      text = fresh
    end
    voucher[name] = text
  end
  return voucher
end

-- A user of Redis who may use only some of the commands would leave half a change behind.
local function permitted(...)
  for _, command in ipairs({...}) do
    if not redis.acl_check_cmd(unpack(command)) then
      error({err = 'DENIED this user of Redis may not use ' .. command[1]})
    end
  end
end

-- Drops what cannot be read, sums up what is in flight and writes the voucher as it was before its opening.
local function reset(voucher)
  local entries = {}
  if redis.call('TYPE', RESERVATIONS).ok == 'hash' then
    entries = redis.call('HGETALL', RESERVATIONS)
  else
    redis.call('UNLINK', RESERVATIONS)
  end
  redis.call('UNLINK', HELD)
  local dropped, reserved, held = 0, 0, {}
  for i = 1, #entries, 2 do
    local requested_at, stamp, units, user = string.match(entries[i + 1], '^(%d+) (%d+) (%d+) %S+ (.*)$')
    local quantity = whole(units)
    if quantity and whole(requested_at) and whole(stamp) then
      reserved = reserved + quantity
      held[user] = (held[user] or 0) + quantity
    else
      redis.call('HDEL', RESERVATIONS, entries[i])
      dropped = dropped + 1
    end
  end
  for user, units in pairs(held) do
    redis.call('HSET', HELD, user, string.format('%d', units))
  end
  voucher.total, voucher.sold, voucher.seq, voucher.offset, voucher.rebuild = '0', '0', '0', '', ''
  voucher.reserved, voucher.stock = string.format('%d', reserved), string.format('%d', -reserved)
  if voucher.stock == '-0' then
    voucher.stock = '0'
  end
  redis.call('UNLINK', VOUCHER)
  local fields = {}
  for _, field in ipairs(FIELDS) do
    local name = field[1]
    if voucher[name] ~= '' or (name ~= 'offset' and name ~= 'rebuild') then
      fields[#fields + 1] = name
      fields[#fields + 1] = voucher[name]
    end
  end
  redis.call('HSET', VOUCHER, unpack(fields))
  return dropped
end

if what == 'raise' then
  local partition, dropped = ARGV[3], 0
  if not whole(partition) then
    return redis.error_reply('BADARG partition must be an integer')
  end
  local voucher = read(ARGV[4] ~= 'reset')
  permitted({'HSET', VOUCHER, 'epoch', ''}, {'HDEL', VOUCHER, 'epoch'}, {'UNLINK', VOUCHER}, {'HGETALL', VOUCHER},
    {'PERSIST', VOUCHER})
  if not voucher or ARGV[4] == 'reset' then
    if not voucher then
      voucher = {}
      for _, field in ipairs(FIELDS) do
        voucher[field[1]] = field[3]
      end
      voucher.partition = partition
    end
    voucher.gate, voucher.epoch = 'warming', epoch
    dropped = reset(voucher)
  else
    if voucher.gate ~= 'frozen' then
      voucher.gate = 'warming'
    end
    voucher.epoch = epoch
    redis.call('HSET', VOUCHER, 'gate', voucher.gate, 'epoch', epoch)
  end
  for _, key in ipairs(KEYS) do
    redis.call('PERSIST', key)
  end
  local answer = {'VOUCHER', string.format('%d', dropped)}
  for _, field in ipairs(FIELDS) do
    answer[#answer + 1] = voucher[field[1]]
  end
  return answer
end

if what == 'open' then
  local needed = whole(ARGV[3])
  if not needed then
    return redis.error_reply('BADARG the lowest seq must be an integer')
  end
  local voucher = read(true)
  if not voucher then
    return {'UNKNOWN'}
  end
  if voucher.epoch ~= epoch then
    return {'EPOCH'}
  end
  if voucher.gate == 'frozen' then
    return {'GATE', voucher.gate}
  end
  if whole(voucher.seq) < math.max(needed, 1) then
    return {'BEHIND', voucher.seq}
  end
  redis.call('HSET', VOUCHER, 'gate', 'ready')
  return {'OPENED'}
end

-- What follows must work on a voucher whose numbers are odd (to freeze it is the answer to that), so it reads none of them.
local there = redis.call('EXISTS', VOUCHER) == 1
if what == 'freeze' then
  if not there then
    return {'UNKNOWN'}
  end
  redis.call('HSET', VOUCHER, 'gate', 'frozen', 'epoch', epoch)
  return {'DONE'}
end
if what == 'rebuild' then
  if not there then
    return {'UNKNOWN'}
  end
  redis.call('HSET', VOUCHER, 'gate', 'warming', 'epoch', epoch, 'rebuild', '1')
  return {'DONE'}
end
if what == 'archive' then
  if not whole(ARGV[2]) or whole(ARGV[2]) < 1 then
    return redis.error_reply('BADARG the time to live must be 1 ms or more')
  end
  if not there then
    return {'UNKNOWN'}
  end
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, ARGV[2])
  end
  return {'DONE'}
end
return redis.error_reply('BADARG unknown thing to do')
