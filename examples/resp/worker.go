// A worker with a stock Redis client for Go (go-redis) and nothing of Holdfast: it answers jobs of the queue `mail`.
//
//	HOST=127.0.0.1 PORT=6380 WORKER=w1 KEY=<64 hex digits> go run worker.go
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, worker := context.Background(), os.Getenv("WORKER")
	client := redis.NewClient(&redis.Options{
		Addr: os.Getenv("HOST") + ":" + os.Getenv("PORT"), Password: os.Getenv("KEY"), ReadTimeout: -1,
	})
	said, _ := json.Marshal(map[string]any{"worker_id": worker, "hostname": "go", "agw_version": "0.1.0",
		"capabilities": map[string]any{"tools": []string{}}})
	if err := client.Do(ctx, "WORKER.REGISTER", said, "RELEASE").Err(); err != nil {
		log.Fatal(err)
	}
	for {
		claimed, err := client.Do(ctx, "JOB.CLAIM", "mail", "BLOCK", 5000).Slice()
		if err != nil {
			log.Fatal(err)
		}
		client.Do(ctx, "WORKER.HEARTBEAT", worker)
		for _, each := range claimed {
			parts := each.([]any)
			var job struct {
				JobID   string         `json:"job_id"`
				Payload map[string]any `json:"payload"`
			}
			if err := json.Unmarshal([]byte(parts[0].(string)), &job); err != nil {
				log.Fatal(err)
			}
			answer, _ := json.Marshal(map[string]any{"sent to": job.Payload["to"], "by": "go-redis"})
			if err := client.Do(ctx, "JOB.COMPLETE", job.JobID, parts[1], answer).Err(); err != nil {
				log.Fatal(err)
			}
		}
	}
}
