"""The Redis scripts of `RedisBudgets`. For their common beginning and their keys, see `script.py`.

Invariant: the decisions of the scripts equal those of `verdicts.py`, `rates.py` and `sqlite/tables.py`: one contract
test suite and one model run against both stores.
"""

from __future__ import annotations

from proxy.budgets.redis.script import script

# {exchange, nusd, tokens, {{counter, since, maximum, rpm, tpm, parallel, position of the window in KEYS, amount of a
# quota}, …}}; false: not bounded, or no quota. Replies: granted {levels}, denied {reason, counter, µs to wait or false,
# spent or false, reserved, levels}, unseeded {indices of counters in the arguments, from 1}, warming {µs}.
# A level, if rates are bounded: requests, µs, tokens, µs.
RESERVE = script("""
local id, nusd, tokens, counters = question[1], question[2], question[3], question[4]
local known = call("HEXISTS", RESERVATIONS, id) == 1
local sum_fields, counter_fields = {}, {}
for i, counter in ipairs(counters) do
  sum_fields[2 * i - 1], sum_fields[2 * i] = "w" .. counter[1], "s" .. counter[1]
  counter_fields[2 * i - 1], counter_fields[2 * i] = "h" .. counter[1], "o" .. counter[1]
end
local sums, counts = {}, {}
if #counters > 0 then
  sums, counts = call("HMGET", SUMS, unpack(sum_fields)), call("HMGET", COUNTERS, unpack(counter_fields))
end

local unseeded, failures, waits, bounds, matters = {}, 0, 0, {}, false
local why, where, spent, reserved
local function fail(because, counter, wait, one)
  if failures == 0 then
    why, where, spent, reserved = because, counter[1], one and one.spent or false, one and one.reserved or 0
  end
  failures = failures + 1
  if wait and waits then waits = math.max(waits, wait) else waits = false end
end
local function wait(buckets, column, surplus)
  for at = 1, #buckets, 3 do
    surplus = surplus - buckets[at + column]
    if surplus <= 0 then return (buckets[at] + 61) * 1000000 - now end
  end
end
for i, counter in ipairs(counters) do
  local one = {reserved = tonumber(counts[2 * i - 1] or "0"), open = tonumber(counts[2 * i] or "0")}
  bounds[i] = one
  matters = matters or counter[3] or counter[6]
  if counter[3] then
    local since = sums[2 * i - 1] and string.match(sums[2 * i - 1], "^%S+")
    if since == counter[2] then
      one.spent = tonumber(sums[2 * i])
      if one.spent + one.reserved + (counter[8] or nusd) > counter[3] then fail("money", counter, nil, one) end
    else
      unseeded[#unseeded + 1] = i
    end
  end
  if counter[7] then
    local buckets, requests, used = window(KEYS[counter[7]]), 0, 0
    for at = 1, #buckets, 3 do requests, used = requests + buckets[at + 1], used + buckets[at + 2] end
    one.buckets, one.requests, one.tokens = buckets, requests, used
    local rpm, tpm = counter[4], counter[5]
    if rpm and requests + 1 > rpm then fail("requests", counter, wait(buckets, 1, requests + 1 - rpm)) end
    if tpm and used + tokens > tpm then fail("tokens", counter, wait(buckets, 2, used + tokens - tpm)) end
  end
  if counter[6] and one.open >= counter[6] then fail("parallel", counter) end
end

local function reset(buckets, column)
  for at = #buckets - 2, 1, -3 do
    if buckets[at + column] > 0 then return (buckets[at] + 61) * 1000000 - now end
  end
  return 0
end
local function levels()
  local all = {}
  for i, counter in ipairs(counters) do
    if counter[7] then
      local one, level = bounds[i], {false, 0, false, 0}
      if counter[4] then level[1], level[2] = math.max(0, counter[4] - one.requests), reset(one.buckets, 1) end
      if counter[5] then level[3], level[4] = math.max(0, counter[5] - one.tokens), reset(one.buckets, 2) end
      all[#all + 1] = level
    end
  end
  return all
end

if known then return answer("granted", levels()) end
if #unseeded > 0 then return answer("unseeded", unseeded) end
if failures > 0 then
  -- What was settled may be spent and still be reserved, until every node has announced and asked the ledger.
  if why == "money" and tonumber(life[2]) > now then return answer("warming", life[2] - now) end
  return answer("denied", why, where, waits, spent, reserved, levels())
end
if matters then
  check_history()
  local warm = tonumber(life[2])
  if warm > now then return answer("warming", warm - now) end
  -- Another one is waited for, or its own reservations may be missing: it announces them first.
  if warm_until() > now or call("HGET", NODES, node) ~= life[1] then return answer("warming", 200000) end
end
local bound = {}
for i, counter in ipairs(counters) do
  local one = bounds[i]
  bound[i] = {counter[1], counter[2], counter[3], counter[7] and true, counter[8] or nil}
  one.reserved, one.open = one.reserved + nusd, one.open + 1
  if counter[7] then
    count(KEYS[counter[7]], second, 1, tokens)
    one.requests, one.tokens = one.requests + 1, one.tokens + tokens
  end
end
begin(id, {node, nusd, tokens, second, 0, bound})
write()
return answer("granted", levels())
""")

# {exchange, nusd, {counter of a quota: amount, …}} → 1 or 0.
GROW = script("""
local one = reservation(question[1])
if not one or one[5] ~= 0 then return answer("done", 1) end
local more = set_amounts(one[6], question[3], false)
if question[2] > one[2] or more then
  move_all(one[6], math.max(question[2] - one[2], 0), 0, 0)
  one[2] = math.max(one[2], question[2])
  store(question[1], one)
  write()
end
for _, counter in ipairs(one[6]) do
  if counter[3] then
    local sum = call("HMGET", SUMS, "w" .. counter[1], "s" .. counter[1])
    if sum[1] and string.match(sum[1], "^%S+") == counter[2] then
      local nusd = tonumber(call("HGET", COUNTERS, "h" .. counter[1]) or "0")
      if tonumber(sum[2]) + nusd > counter[3] then return answer("done", 0) end
    end
  end
end
return answer("done", 1)
""")

# {{{exchange, nusd, tokens, {counter of a quota: amount, …}}, …}, {counter: position of its window in KEYS, …}}
CLOSE = script("""
for _, ended in ipairs(question[1]) do
  local one = reservation(ended[1])
  if one then finish(ended[1], one, ended[2], ended[3], ended[4], question[2]) end
end
write()
return answer("done")
""")

# → the time in µs, and all nodes. The node's key expires a day after its last heartbeat. Nodes that were waited for in
# vain are forgotten: they are dead, or announce when they are back.
HEARTBEAT = script("""
check_history()
call("EXPIRE", NODE, 86400)
if tonumber(life[7] or 0) > 0 and warm_until() <= now then
  local all = call("HGETALL", NODES)
  for at = 1, #all, 2 do
    if all[at + 1] ~= life[1] then call("HDEL", NODES, all[at]) end
  end
  count_away()
end
return answer("done", whole(now), call("HKEYS", NODES))
""")

# → 1 if no reservation of the node's last process was lost: it announced them in this generation, and may have left.
RESUMES = script("""
check_history()
if call("HGET", NODE, "left") == life[1] then
  call("HSET", NODES, node, life[1])
  count_away()
end
call("HDEL", NODE, "left")
return answer("done", call("HGET", NODES, node) == life[1] and 1 or 0)
""")

# {{nodes in this node's list}, patience in µs, the generation of the list} → all exchanges of this node. It has a new
# fencing token from now on.
BEGIN_ANNOUNCEMENT = script("""
check_history()
life[8] = question[2]
call("HSET", LIFE, "patience", whole(life[8]))
if question[3] ~= life[1] and tonumber(life[2]) + life[8] > now then
  for _, other in ipairs(question[1]) do call("HSETNX", NODES, other, "") end
  count_away()
end
word = ARGV[3]
call("HSET", NODE, "e", word)
call("EXPIRE", NODE, 86400)
return answer("done", call("ZRANGEBYLEX", INDEX, "[" .. node .. "\\0", "(" .. node .. "\\1"))
""")

# {generation, {{exchange, nusd, tokens, second or 0, ended, true if it was stored before, {{counter, since, maximum,
# window or false}, …}, {counter of a quota: amount, …}}, …}, {counter: its window, …}, {orphans}} → "other" if the
# generation is another one. A window: its position in KEYS.
ANNOUNCE = script("""
if question[1] ~= life[1] then return answer("other") end
for _, own in ipairs(question[2]) do
  local id, nusd, tokens, ended, amounts = own[1], own[2], own[3], own[5], own[8]
  local free = nusd == 0
  for _, amount in pairs(amounts) do free = free and amount == 0 end
  local one = reservation(id)
  if one then
    if one[1] ~= node then
      call("ZREM", INDEX, one[1] .. "\\0" .. id)
      call("ZADD", INDEX, 0, node .. "\\0" .. id)
      one[1] = node
    end
    if ended then
      finish(id, one, nusd, tokens, amounts, question[3])
    else
      if one[5] ~= 0 then call("ZREM", CLOSED, id) end
      local open = one[5] == 0 and 1 or 0
      move_all(one[6], nusd - one[2], 1 - open, open - 1)
      set_amounts(one[6], amounts, true)
      one[2], one[5] = nusd, 0
      store(id, one)
    end
  elseif not own[6] and not (ended and free) then -- if it was stored before and is not now, the ledger has it
    local when, bound = second, {}
    if own[4] > 0 then when = math.min(own[4], second) end
    for i, counter in ipairs(own[7]) do
      bound[i] = {counter[1], counter[2], counter[3], counter[4] and true, amounts[counter[1]]}
      -- An ended one may still be in the rate window.
      if counter[4] and not ended then count(KEYS[counter[4]], when, 1, tokens) end
    end
    one = {node, nusd, tokens, when, 0, bound}
    begin(id, one)
    if ended then finish(id, one, nusd, tokens, amounts, question[3]) end
  end
end
for _, id in ipairs(question[4]) do
  local one = reservation(id)
  if one and one[1] == node and one[5] == 0 then forget(id, one) end
end
write()
return answer("done")
""")

# {generation} → all nodes, or "other" if the generation is another one. The node has announced all its reservations.
END_ANNOUNCEMENT = script("""
if question[1] ~= life[1] then return answer("other") end
call("HSET", NODES, node, life[1])
count_away()
return answer("done", call("HKEYS", NODES))
""")

# The node has stopped, and nothing of it runs. Its unsettled reservations stay.
LEAVE = script("""
if call("HGET", NODES, node) == life[1] then call("HSET", NODE, "left", life[1]) end
call("HDEL", NODES, node)
count_away()
return answer("done")
""")

# KEYS 9: the other node's. {node} → all its exchanges. Its fencing token changes: if it is alive, it re-announces, and
# reserves nothing before. One that is waited for stays so: its exchanges may not be counted yet.
ORPHANS = script("""
if call("EXISTS", KEYS[9]) == 1 then call("HSET", KEYS[9], "e", ARGV[3]) end
call("HDEL", KEYS[9], "left")
if call("HGET", NODES, question[1]) == life[1] then call("HDEL", NODES, question[1]) end
return answer("done", call("ZRANGEBYLEX", INDEX, "[" .. question[1] .. "\\0", "(" .. question[1] .. "\\1"))
""")

# {{exchanges}, node}: closes the open ones of the node, at their reserved amounts.
END = script("""
for _, id in ipairs(question[1]) do
  local one = reservation(id)
  if one and one[5] == 0 and one[1] == question[2] then
    one[5] = now
    store(id, one)
    call("ZADD", CLOSED, whole(now), id)
    move_all(one[6], 0, -1, 1)
  end
end
write()
return answer("done")
""")

# {{exchanges}, node or false}; with a node: only its open ones → the number of released ones.
RELEASE = script("""
local released = 0
for _, id in ipairs(question[1]) do
  local one = reservation(id)
  if one and (not question[2] or (one[5] == 0 and one[1] == question[2])) then
    forget(id, one)
    released = released + 1
  end
end
write()
return answer("done", released)
""")

# {{counter, since, amount, as of, generation it was read for, or empty}, …}
SEED = script("""
local floor = tonumber(life[3] or floor_now())
local cursor
for _, sum in ipairs(question) do
  if sum[4] >= floor and (sum[5] == "" or sum[5] == life[1]) then
    cursor = math.min(cursor or sum[4], sum[4])
    local since, as_of = string.match(call("HGET", SUMS, "w" .. sum[1]) or "", "^(%S+) (%S+)$")
    if since ~= sum[2] or tonumber(as_of) <= sum[4] then -- a newer total of the same window stays
      call("HSET", SUMS, "w" .. sum[1], sum[2] .. " " .. whole(sum[4]), "s" .. sum[1], whole(sum[3]))
    end
  end
end
if cursor and not life[3] then call("HSET", LIFE, "cursor", whole(cursor)) end
return answer("done")
""")

# {after, until, {{exchange, settled at, started at, nUSD, {counters}, {counter of a quota: amount, …}}, …}} → 1 or 0.
ABSORB = script("""
if tonumber(life[3] or "") ~= question[1] then return answer("done", 0) end
local seeds, added = {}, {}
local function add(counter, change, amount)
  local seed = seeds[counter]
  if seed == nil then
    local since, as_of = string.match(call("HGET", SUMS, "w" .. counter) or "", "^(%S+) (%S+)$")
    seed = since and {tonumber(since), tonumber(as_of)} or false
    seeds[counter] = seed
  end
  if seed and seed[1] <= change[3] and seed[2] < change[2] then added[counter] = (added[counter] or 0) + amount end
end
for _, change in ipairs(question[3]) do
  for _, counter in ipairs(change[5]) do add(counter, change, change[4]) end
  for counter, amount in pairs(change[6]) do add(counter, change, amount) end
  local one = reservation(change[1])
  if one then forget(change[1], one) end
end
for counter, amount in pairs(added) do call("HINCRBY", SUMS, "s" .. counter, whole(amount)) end
write()
call("HSET", LIFE, "cursor", whole(question[2]))
return answer("done", 1)
""")

# {µs or false: the time of a ledger that was restored}
FORGET_SUMS = script("""
call("UNLINK", SUMS)
if life[3] then
  local floor = question[1] or math.max(tonumber(life[3]), floor_now())
  call("HDEL", LIFE, "cursor")
  call("HSET", LIFE, "floor", whole(floor), "floor_until", whole(now + 60000000))
end
return answer("done")
""")

CURSOR = script("""
return answer("done", life[3])
""")

# {µs} → exchanges that were closed longer ago, or before the clock was set back.
OVERDUE = script("""
local overdue = call("ZRANGEBYSCORE", CLOSED, "-inf", "(" .. whole(now - question[1]))
for _, id in ipairs(call("ZRANGEBYSCORE", CLOSED, whole(now + 1000000), "+inf")) do overdue[#overdue + 1] = id end
return answer("done", overdue)
""")

# {counters} → {since, spent, reserved, open, closed} of each, all false if unknown.
COUNTER_STATES = script("""
local found = {}
for i, counter in ipairs(question) do
  local sum = call("HMGET", SUMS, "w" .. counter, "s" .. counter)
  local counts = call("HMGET", COUNTERS, "h" .. counter, "o" .. counter, "c" .. counter)
  local since = sum[1] and string.match(sum[1], "^%S+") or false
  found[i] = {since, sum[2], counts[1], counts[2], counts[3]}
end
return answer("done", found)
""")
