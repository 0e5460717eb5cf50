// What go-redis makes of the gateway's replies: it says HELLO 3, pipelines, and pops a job. Prints JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, worker := context.Background(), os.Getenv("WORKER")
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("HOST") + ":" + os.Getenv("PORT"), Password: os.Getenv("KEY")})
	said, _ := json.Marshal(map[string]any{"worker_id": worker, "hostname": "go", "agw_version": "1",
		"capabilities": map[string]any{"tools": []string{}}, "max_concurrent_jobs": 9})
	answers := map[string]any{"registered": fmt.Sprint(client.Do(ctx, "WORKER.REGISTER", said, "RELEASE").Err())}
	pipe := client.Pipeline()
	pipe.Set(ctx, "k", "v", 0)
	got, none := pipe.Get(ctx, "k"), pipe.Get(ctx, "none")
	pipe.HSet(ctx, "h", "a", "1")
	hash := pipe.HGetAll(ctx, "h")
	pipe.ZAdd(ctx, "z", redis.Z{Score: 1.5, Member: "m"})
	scores := pipe.ZRangeWithScores(ctx, "z", 0, -1)
	pipe.LPush(ctx, "l", "x", "y")
	list := pipe.LRange(ctx, "l", 0, -1)
	_, _ = pipe.Exec(ctx)
	answers["piped"] = []any{got.Val(), none.Err() == redis.Nil, hash.Val(), scores.Val(), list.Val()}
	multi := client.TxPipeline()
	multi.Set(ctx, "m", "1", 0)
	inside := multi.Get(ctx, "m")
	_, problem := multi.Exec(ctx)
	answers["multi"] = []any{inside.Val(), fmt.Sprint(problem)}
	client.LPush(ctx, "queue:in", "a", "b")
	answers["popped"] = []any{client.BRPop(ctx, time.Second, "queue:in").Val(), client.RPop(ctx, "queue:in").Val(),
		client.RPop(ctx, "queue:in").Err() == redis.Nil}
	answers["removed"] = client.LRem(ctx, "queue:processing", 1, "a").Val()
	_ = json.NewEncoder(os.Stdout).Encode(answers)
}
