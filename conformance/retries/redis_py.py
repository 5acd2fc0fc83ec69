"""Runs GET, INCR and a pipeline with redis-py. `run` explains the arguments and the lines."""

import json
import sys

import redis

kind, port = sys.argv[1], int(sys.argv[2])
client = (redis.RedisCluster if kind == "cluster" else redis.Redis)(host="127.0.0.1", port=port)
for line in sys.stdin:
    name, *keys = line.split()
    try:
        if name == "PIPELINE":
            pipeline = client.pipeline() if kind == "cluster" else client.pipeline(transaction=False)
            for key in keys:
                pipeline.incr(key)
            answer = {"value": str(pipeline.execute())}
        else:
            answer = {"value": str(getattr(client, name.lower())(keys[0]))}
    except Exception as error:
        answer = {"error": type(error).__name__}
    print(json.dumps(answer), flush=True)
