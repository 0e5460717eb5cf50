-- What happens to workers and items on a Redis server, each in one script: claims are atomic, every end names its token.
-- Keys: <p>item:<id>; <p>pending:<pool>, <p>claimed:<pool>, <p>done:<pool>, <p>poisoned:<pool> and <p>all:<pool>, items by
-- number; <p>worker:<id>, <p>told:<id> (its metadata, each field as JSON), <p>holds:<id> (its items); <p>workers (all ever),
-- <p>alive; <p>number (of the last item).
local p, verb = KEYS[1], ARGV[1]
local function now()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end
local function text(time)
    return string.format('%.0f', time)
end
local function live(worker)
    local status = redis.call('HGET', p .. 'worker:' .. worker, 'status')
    return status and status ~= 'terminated' and status ~= 'lost'
end
local function move(id, to)
    local key = p .. 'item:' .. id
    local item = redis.call('HMGET', key, 'status', 'pool', 'number')
    redis.call('ZREM', p .. item[1] .. ':' .. item[2], id)
    redis.call('ZADD', p .. to .. ':' .. item[2], item[3], id)
    redis.call('HSET', key, 'status', to)
end
local function let_go(id)
    local key = p .. 'item:' .. id
    redis.call('SREM', p .. 'holds:' .. redis.call('HGET', key, 'claimed_by'), id)
    redis.call('HDEL', key, 'claimed_by')
end
local function give_back(id, outcome, error)
    local key = p .. 'item:' .. id
    local to = 'pending'
    let_go(id)
    if outcome ~= 'released' then
        local attempts = redis.call('HINCRBY', key, 'attempts', 1)
        if attempts >= tonumber(redis.call('HGET', key, 'max_retries')) then to = 'poisoned' end
    end
    if error ~= '' then redis.call('HSET', key, 'error', error) end
    move(id, to)
end
local function held_in(worker, pool)
    local found = {}
    for _, id in ipairs(redis.call('SMEMBERS', p .. 'holds:' .. worker)) do
        if pool == '' or redis.call('HGET', p .. 'item:' .. id, 'pool') == pool then table.insert(found, id) end
    end
    table.sort(found)
    return found
end
local function take_back(worker, pool, outcome)
    local held = held_in(worker, pool)
    for _, id in ipairs(held) do give_back(id, outcome, '') end
    return #held
end
local function item(id)
    return { id, redis.call('HGETALL', p .. 'item:' .. id) }
end
local function worker(id)
    local held = redis.call('SRANDMEMBER', p .. 'holds:' .. id)
    return { id, redis.call('HGETALL', p .. 'worker:' .. id), redis.call('HGETALL', p .. 'told:' .. id), held or '', text(now()) }
end
if verb == 'push' then
    -- id, pool, data, tries
    local number = redis.call('INCR', p .. 'number')
    redis.call('HSET', p .. 'item:' .. ARGV[2], 'pool', ARGV[3], 'data', ARGV[4], 'max_retries', ARGV[5], 'attempts', 0,
        'status', 'pending', 'number', number, 'token', 0)
    redis.call('ZADD', p .. 'pending:' .. ARGV[3], number, ARGV[2])
    redis.call('ZADD', p .. 'all:' .. ARGV[3], number, ARGV[2])
    return 1
elseif verb == 'claim' then
    -- pool, worker, 1 for one that it has already; -1: the worker is lost
    local status = redis.call('HGET', p .. 'worker:' .. ARGV[3], 'status')
    if status == 'lost' then return -1 end
    if status == 'terminating' then return false end
    local first = ARGV[4] == '1' and held_in(ARGV[3], ARGV[2])[1]
    if first then return item(first) end
    local id = redis.call('ZRANGE', p .. 'pending:' .. ARGV[2], 0, 0)[1]
    if not id then return false end
    move(id, 'claimed')
    redis.call('HSET', p .. 'item:' .. id, 'claimed_by', ARGV[3])
    redis.call('HINCRBY', p .. 'item:' .. id, 'token', 1)
    redis.call('SADD', p .. 'holds:' .. ARGV[3], id)
    return item(id)
elseif verb == 'end' then
    -- id, token ('' for none), worker ('' for any), outcome, text; -1: there is no such item
    local key = p .. 'item:' .. ARGV[2]
    local known = redis.call('HMGET', key, 'status', 'token', 'claimed_by', 'last')
    if not known[1] then return -1 end
    local name = (ARGV[3] ~= '' and ARGV[3] or ARGV[4]) .. ' ' .. ARGV[5]
    local by_token, by_worker = ARGV[3] ~= '' and ARGV[3] == known[2], ARGV[3] == '' and ARGV[4] == known[3]
    if known[1] ~= 'claimed' or not (by_token or by_worker) then return known[4] == name and 1 or 0 end
    if redis.call('HGET', p .. 'worker:' .. known[3], 'status') == 'lost' then return 0 end
    redis.call('HSET', key, 'last', name)
    if ARGV[5] == 'succeeded' then
        redis.call('HSET', key, 'result', ARGV[6])
        redis.call('HINCRBY', key, 'attempts', 1)
        let_go(ARGV[2])
        move(ARGV[2], 'done')
    else
        give_back(ARGV[2], ARGV[5], ARGV[6])
    end
    return 1
elseif verb == 'release_by_worker' then
    return take_back(ARGV[2], ARGV[3], 'lost')
elseif verb == 'items' then
    -- pool, status or all, how many; the newest first
    local found = redis.call('ZREVRANGE', p .. ARGV[3] .. ':' .. ARGV[2], 0, ARGV[4] - 1)
    for number, id in ipairs(found) do found[number] = item(id) end
    return found
elseif verb == 'item' then
    return item(ARGV[2])
elseif verb == 'count' then
    return redis.call('ZCARD', p .. ARGV[3] .. ':' .. ARGV[2])
elseif verb == 'register' then
    -- id, stale after (us), what it said of itself
    local key = p .. 'worker:' .. ARGV[2]
    if live(ARGV[2]) then
        if now() - redis.call('HGET', key, 'beat') <= tonumber(ARGV[3]) then return 0 end
        take_back(ARGV[2], '', 'lost')
    end
    redis.call('SADD', p .. 'workers', ARGV[2])
    redis.call('SADD', p .. 'alive', ARGV[2])
    redis.call('DEL', p .. 'told:' .. ARGV[2])
    redis.call('HSET', key, 'status', 'active', 'said', ARGV[4], 'beat', text(now()), 'begun', text(now()))
    return redis.call('HINCRBY', key, 'incarnation', 1)
elseif verb == 'heartbeat' then
    -- id, then fields of its metadata, each with its JSON
    if not live(ARGV[2]) then return 0 end
    redis.call('HSET', p .. 'worker:' .. ARGV[2], 'beat', text(now()))
    for number = 3, #ARGV, 2 do redis.call('HSET', p .. 'told:' .. ARGV[2], ARGV[number], ARGV[number + 1]) end
    return 1
elseif verb == 'update_status' then
    local key = p .. 'worker:' .. ARGV[2]
    local before = redis.call('HGET', key, 'status')
    if before == ARGV[3] then return 1 end
    if not live(ARGV[2]) then return 0 end
    redis.call('HSET', key, 'status', ARGV[3])
    if not live(ARGV[2]) then redis.call('SREM', p .. 'alive', ARGV[2]) end
    -- One that was told to stop hands its items back; those of any other that ends have lost a try.
    if ARGV[3] == 'terminated' then take_back(ARGV[2], '', before == 'terminating' and 'released' or 'lost') end
    return 1
elseif verb == 'worker' then
    return worker(ARGV[2])
elseif verb == 'workers' then
    local found = redis.call('SMEMBERS', p .. ARGV[2])
    for number, id in ipairs(found) do found[number] = worker(id) end
    return found
end
