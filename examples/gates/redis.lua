-- A fenced write for Redis. KEYS: the value, its mark. ARGV: the token, the new value.
-- Gives {1, token} if it was written, {0, newest} if the token is old. Tokens are compared as numbers, which are exact
-- up to 2^53, more than any token.
local newest = tonumber(redis.call('GET', KEYS[2]) or '0')
local token = tonumber(ARGV[1])
if not token or token < 1 then
    return redis.error_reply('ERR the token must be a number above 0')
end
if token < newest then
    return {0, newest}
end
if token > newest then
    redis.call('SET', KEYS[2], ARGV[1])
end
redis.call('SET', KEYS[1], ARGV[2])
return {1, token}
