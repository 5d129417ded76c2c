"""The common beginning of all Redis scripts of `RedisBudgets`: arguments, time, reservations, counters, rate windows.

Invariants: Money is added by HINCRBY and formatted by "%.0f", so that no amount is rounded, or written as 1e+16. The
other numbers are whole, too, and far below 2^53. Each operation is one script, and therefore atomic.

The names of keys are stored: there, `gates` are limit counters, and `holds` are reservations.

A generation is the life of the data in one history of replication. It ends when data may have been lost, by a flush, a
restart or a failover; then every node has to announce its reservations again. The server gives a history its id, a new
one at each start and whenever a replica is promoted, even one that was the primary before.

KEYS: 1 `life`, a hash: generation; history (its id); warm (µs: end of the time for re-announcements); seen (µs: the
last call before that end, or the first after it); away (how many nodes have not announced in this generation); patience
(µs after `warm` for which these nodes are waited for); cursor; floor (the cursor before all spend totals were dropped:
older totals may lack exchanges released before it); floor_until (µs: after that, an older ledger, restored from a
backup, is accepted). 2 the calling node's hash: `n` the number of its operations, `e` the fencing token of its last
announcement, `left` the generation in which the node stopped, if it did. 3 `sums`, a hash: `s<counter>` spent;
`w<counter>` start of the window, and the ledger's time of the spend total. 4 `gates`, a hash: `h<counter>` reserved,
`o<counter>` open, `c<counter>` closed, deleted when all are 0. 5 `holds`, a hash: exchange → packed {node, nusd,
tokens, second, closed at (µs; 0: open), {{counter, since, maximum or false, true if it has a rate window, of a quota:
what is reserved there}, …}}.
6 `index`, a sorted set of `<node>\\0<exchange>`. 7 `closed`, a sorted set: exchanges by the time they were closed. 8
`nodes`, a hash: node → the generation of its last complete announcement, empty if only other nodes have seen it. From 9
on: see each script.
ARGV: 1 the node. 2 its fencing token, or empty. 3 a new random token. 4 the time in µs; empty: the server's time. 5 the
number of the node's operations that the node has seen confirmed, 6 in which generation. 7 the script's arguments: JSON.
Reply: generation, operations, fencing token, status, and the values of the script.
"""

from __future__ import annotations

from hashlib import sha1

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A Redis script."""

    text: bytes
    sha: bytes
    """the script's SHA-1 for EVALSHA"""


def script(body: str) -> Script:
    """A script of the common beginning and `body`."""
    text = (_BEGIN + body).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


_BEGIN = """
local LIFE, NODE, SUMS, COUNTERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local RESERVATIONS, INDEX, CLOSED, NODES = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local call = redis.call
local node, question = ARGV[1], cjson.decode(ARGV[7])

local function whole(number) return string.format("%.0f", number + 0) end

local now = tonumber(ARGV[4])
if not now then
  local time = call("TIME")
  now = time[1] * 1000000 + time[2]
end
local second = math.floor(now / 1000000)

local life = call("HMGET", LIFE, "generation", "warm", "cursor", "floor", "floor_until", "history", "away", "patience",
  "seen")
local function count_away()
  local away = 0
  for _, announced in ipairs(call("HVALS", NODES)) do
    if announced ~= life[1] then away = away + 1 end
  end
  life[7] = away
  call("HSET", LIFE, "away", away)
end
local function begin_generation()
  life[1], life[2], life[9] = ARGV[3], whole(now + 1500000), whole(now)
  call("HSET", LIFE, "generation", life[1], "warm", life[2], "seen", life[9])
  count_away()
end
local operations = call("HINCRBY", NODE, "n", 1)
-- A failover undid some of the node's, and possibly those of other nodes.
local undone = ARGV[6] == life[1] and operations <= tonumber(ARGV[5])
if undone or not life[1] then begin_generation() end
if tonumber(life[2]) > now + 1500000 then -- the server's clock was set back
  life[2] = whole(now + 1500000)
  call("HSET", LIFE, "warm", life[2])
end
-- Every node calls twice a second. If none did, the server slept or was unreachable, and nobody could announce.
if life[9] and tonumber(life[9]) < tonumber(life[2]) then
  if now - life[9] > 1000000 then life[2] = whole(now + 1500000) end
  life[9] = whole(now)
  call("HSET", LIFE, "warm", life[2], "seen", life[9])
end
-- In another history than before, the last writes of nodes that are asleep may be missing.
local function check_history()
  local info = redis.pcall("INFO", "replication")
  local history = type(info) == "string" and string.match(info, "master_replid:(%x+)")
  if not history or life[6] == history then return end -- a server may hide it
  if life[6] then begin_generation() end
  life[6] = history
  call("HSET", LIFE, "history", history)
end
local function warm_until()
  return tonumber(life[2]) + (tonumber(life[7] or 0) > 0 and tonumber(life[8] or 0) or 0)
end
local word = call("HGET", NODE, "e") or ""
local function answer(status, ...) return {life[1], operations, word, status, ...} end
-- Sent before the node's last announcement, and late: the announcement supersedes it.
if word ~= "" and word ~= ARGV[2] then return answer("stale") end

local function floor_now()
  if life[5] and tonumber(life[5]) > now then return tonumber(life[4]) end
  return -1
end

local moves = {}
local function move(counter, nusd, open, closed)
  local one = moves[counter]
  if not one then
    one = {0, 0, 0}
    moves[counter] = one
  end
  one[1], one[2], one[3] = one[1] + nusd, one[2] + open, one[3] + closed
end
-- Money does not count at the counter of a quota.
local function move_all(counters, nusd, open, closed)
  for _, counter in ipairs(counters) do move(counter[1], counter[5] and 0 or nusd, open, closed) end
end
local function move_amounts(counters, sign)
  for _, counter in ipairs(counters) do
    if counter[5] then move(counter[1], sign * counter[5], 0, 0) end
  end
end
local function set_amounts(counters, amounts, shrink)
  local changes = false
  for _, counter in ipairs(counters) do
    local amount = counter[5] and amounts[counter[1]]
    if amount and amount ~= counter[5] and (shrink or amount > counter[5]) then
      move(counter[1], amount - counter[5], 0, 0)
      counter[5], changes = amount, true
    end
  end
  return changes
end
local function written(field, by)
  if by ~= 0 then return call("HINCRBY", COUNTERS, field, whole(by)) end
  return tonumber(call("HGET", COUNTERS, field) or "0")
end
local windows, changed = {}, {}
local function write()
  for key in pairs(changed) do call("SET", key, cmsgpack.pack(windows[key]), "EX", 122) end
  for counter, one in pairs(moves) do
    local h = written("h" .. counter, one[1])
    local o = written("o" .. counter, one[2])
    if one[3] ~= 0 then call("HINCRBY", COUNTERS, "c" .. counter, whole(one[3])) end
    if o == 0 and h == 0 and tonumber(call("HGET", COUNTERS, "c" .. counter) or "0") == 0 then
      call("HDEL", COUNTERS, "h" .. counter, "o" .. counter, "c" .. counter)
    end
  end
  moves = {}
end

local function reservation(id)
  local packed = call("HGET", RESERVATIONS, id)
  return packed and cmsgpack.unpack(packed)
end
local function store(id, one)
  call("HSET", RESERVATIONS, id, cmsgpack.pack(one))
end
local function begin(id, one)
  store(id, one)
  call("ZADD", INDEX, 0, one[1] .. "\\0" .. id)
  move_all(one[6], one[2], 1, 0)
  move_amounts(one[6], 1)
end
local function forget(id, one)
  call("HDEL", RESERVATIONS, id)
  call("ZREM", INDEX, one[1] .. "\\0" .. id)
  if one[5] ~= 0 then call("ZREM", CLOSED, id) end
  local open = one[5] == 0 and 1 or 0
  move_all(one[6], -one[2], -open, open - 1)
  move_amounts(one[6], -1)
end

-- The buckets of the last 60 s: second, requests, tokens, oldest first.
local function window(key)
  if windows[key] then return windows[key] end
  local packed = call("GET", key)
  local all = packed and cmsgpack.unpack(packed) or {}
  local kept = all
  if #all > 0 and (all[1] < second - 60 or all[#all - 2] > second + 60) then
    kept = {}
    for at = 1, #all, 3 do
      if all[at] >= second - 60 and all[at] <= second + 60 then
        kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = all[at], all[at + 1], all[at + 2]
      end
    end
  end
  windows[key] = kept
  return kept
end
local function count(key, when, requests, tokens)
  local buckets = window(key)
  local at = #buckets
  while at > 0 and buckets[at - 2] > when do at = at - 3 end
  if at > 0 and buckets[at - 2] == when then
    buckets[at - 1] = math.max(0, buckets[at - 1] + requests)
    buckets[at] = math.max(0, buckets[at] + tokens)
  elseif requests > 0 then
    table.insert(buckets, at + 1, when)
    table.insert(buckets, at + 2, requests)
    table.insert(buckets, at + 3, tokens)
  end
  if #buckets > 0 then changed[key] = true end
end
local function finish(id, one, nusd, tokens, amounts, places)
  if tokens ~= one[3] then
    for _, counter in ipairs(one[6]) do
      local place = counter[4] and places[counter[1]]
      if place then count(KEYS[place], one[4], 0, tokens - one[3]) end
    end
  end
  local free = nusd == 0
  for _, amount in pairs(amounts) do free = free and amount == 0 end
  if free then return forget(id, one) end
  set_amounts(one[6], amounts, true)
  local open = one[5] == 0 and 1 or 0
  move_all(one[6], nusd - one[2], -open, open)
  one[2], one[3] = nusd, tokens
  if open == 1 then
    one[5] = now
    call("ZADD", CLOSED, whole(now), id)
  end
  store(id, one)
end
"""
