#!/bin/sh
# A worker in a few lines of shell, with redis-cli and jq and nothing of Holdfast: it answers jobs of the queue `mail`.
#   HOST=127.0.0.1 PORT=6380 WORKER=w1 REDISCLI_AUTH=<64 hex digits> sh worker.sh
set -eu
gateway() { redis-cli --raw --no-auth-warning -h "$HOST" -p "$PORT" "$@"; }
gateway WORKER.REGISTER "{\"worker_id\": \"$WORKER\", \"hostname\": \"shell\", \"agw_version\": \"0.1.0\",
    \"capabilities\": {\"tools\": []}}" RELEASE
while true; do
    job=$(gateway BRPOP queue:mail 5)
    gateway WORKER.HEARTBEAT "$WORKER" >/dev/null
    [ -n "$job" ] || continue
    id=$(printf '%s' "$job" | jq -r .job_id)
    answer=$(printf '%s' "$job" | jq -c '{status: "completed", "sent to": .payload.to, by: "redis-cli"}')
    gateway JOB.UPDATE "$id" "$answer"
done
