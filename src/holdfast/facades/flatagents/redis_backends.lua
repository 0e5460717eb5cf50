-- What happens to workers and items on a Redis server, each in one script: claims are atomic, every end names its token.
-- Keys: <p>item:<id>, <p>pool:<name> (pending, by number), <p>worker:<id>, <p>worker:<id>:items, <p>workers, <p>number.
local p, verb = KEYS[1], ARGV[1]
local function now()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end
local function live(worker)
    local status = redis.call('HGET', p .. 'worker:' .. worker, 'status')
    return status and status ~= 'terminated' and status ~= 'lost'
end
local function give_back(id, outcome, error)
    local key = p .. 'item:' .. id
    local item = redis.call('HMGET', key, 'attempts', 'max_retries', 'pool', 'number', 'claimed_by')
    redis.call('SREM', p .. 'worker:' .. item[5] .. ':items', id)
    redis.call('HDEL', key, 'claimed_by')
    local attempts = tonumber(item[1])
    if outcome ~= 'released' then
        attempts = attempts + 1
        redis.call('HSET', key, 'attempts', attempts)
    end
    if error ~= '' then redis.call('HSET', key, 'error', error) end
    if outcome ~= 'released' and attempts >= tonumber(item[2]) then
        redis.call('HSET', key, 'status', 'poisoned')
    else
        redis.call('HSET', key, 'status', 'pending')
        redis.call('ZADD', p .. 'pool:' .. item[3], item[4], id)
    end
end
local function take_back(worker, pool, outcome)
    local count = 0
    for _, id in ipairs(redis.call('SMEMBERS', p .. 'worker:' .. worker .. ':items')) do
        if pool == '' or redis.call('HGET', p .. 'item:' .. id, 'pool') == pool then
            give_back(id, outcome, '')
            count = count + 1
        end
    end
    return count
end
if verb == 'push' then
    local number = redis.call('INCR', p .. 'number')
    redis.call('HSET', p .. 'item:' .. ARGV[2], 'pool', ARGV[3], 'data', ARGV[4], 'max_retries', ARGV[5], 'attempts', 0,
        'status', 'pending', 'number', number, 'token', 0)
    redis.call('ZADD', p .. 'pool:' .. ARGV[3], number, ARGV[2])
    redis.call('SADD', p .. 'items:' .. ARGV[3], ARGV[2])
    return 1
elseif verb == 'claim' then
    local status = redis.call('HGET', p .. 'worker:' .. ARGV[3], 'status')
    if status == 'lost' then return redis.error_reply('LOST') end
    if status == 'terminating' then return false end
    local first = ARGV[4] == '1' and redis.call('SRANDMEMBER', p .. 'worker:' .. ARGV[3] .. ':items')
    if first then return first end
    local popped = redis.call('ZPOPMIN', p .. 'pool:' .. ARGV[2])
    if not popped[1] then return false end
    local key = p .. 'item:' .. popped[1]
    redis.call('HSET', key, 'status', 'claimed', 'claimed_by', ARGV[3])
    redis.call('HINCRBY', key, 'token', 1)
    redis.call('SADD', p .. 'worker:' .. ARGV[3] .. ':items', popped[1])
    return popped[1]
elseif verb == 'end' then
    -- id, token ('' for none), worker ('' for any), outcome, text
    local key = p .. 'item:' .. ARGV[2]
    local item = redis.call('HMGET', key, 'status', 'token', 'claimed_by', 'last')
    if not item[1] then return redis.error_reply('UNKNOWN') end
    local name = (ARGV[3] ~= '' and ARGV[3] or ARGV[4]) .. ' ' .. ARGV[5]
    local mine = item[1] == 'claimed' and ((ARGV[3] ~= '' and ARGV[3] == item[2]) or (ARGV[3] == '' and ARGV[4] == item[3]))
    if not mine then return item[4] == name and 1 or 0 end
    if redis.call('HGET', p .. 'worker:' .. item[3], 'status') == 'lost' then return 0 end
    redis.call('HSET', key, 'last', name)
    if ARGV[5] == 'succeeded' then
        redis.call('HSET', key, 'status', 'done', 'result', ARGV[6])
        redis.call('HINCRBY', key, 'attempts', 1)
        redis.call('HDEL', key, 'claimed_by')
        redis.call('SREM', p .. 'worker:' .. item[3] .. ':items', ARGV[2])
    else
        give_back(ARGV[2], ARGV[5], ARGV[6])
    end
    return 1
elseif verb == 'release_by_worker' then
    return take_back(ARGV[2], ARGV[3], 'lost')
elseif verb == 'register' then
    -- id, stale after (us), what it said of itself
    local key = p .. 'worker:' .. ARGV[2]
    if live(ARGV[2]) then
        if now() - redis.call('HGET', key, 'beat') <= tonumber(ARGV[3]) then return 0 end
        take_back(ARGV[2], '', 'lost')
    end
    redis.call('SADD', p .. 'workers', ARGV[2])
    redis.call('HSET', key, 'status', 'active', 'said', ARGV[4], 'more', '{}', 'beat', string.format('%.0f', now()),
        'begun', string.format('%.0f', now()))
    return redis.call('HINCRBY', key, 'incarnation', 1)
elseif verb == 'heartbeat' then
    if not live(ARGV[2]) then return 0 end
    local key = p .. 'worker:' .. ARGV[2]
    redis.call('HSET', key, 'beat', string.format('%.0f', now()))
    if ARGV[3] ~= '' then
        local more = cjson.decode(redis.call('HGET', key, 'more'))
        for name, value in pairs(cjson.decode(ARGV[3])) do more[name] = value end
        redis.call('HSET', key, 'more', cjson.encode(more))
    end
    return 1
elseif verb == 'update_status' then
    local key = p .. 'worker:' .. ARGV[2]
    local before = redis.call('HGET', key, 'status')
    if before == ARGV[3] then return 1 end
    if not live(ARGV[2]) then return 0 end
    redis.call('HSET', key, 'status', ARGV[3])
    -- One that was told to stop hands its items back; those of any other that ends have lost a try.
    if ARGV[3] == 'terminated' then take_back(ARGV[2], '', before == 'terminating' and 'released' or 'lost') end
    return 1
elseif verb == 'worker' then
    local row = redis.call('HGETALL', p .. 'worker:' .. ARGV[2])
    local held = redis.call('SRANDMEMBER', p .. 'worker:' .. ARGV[2] .. ':items')
    return { row, held or '', string.format('%.0f', now()) }
end
