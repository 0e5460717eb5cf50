"""Universal Agent's program on Holdfast: runs are queued, a pool of workers handles them, and each run is handled once.

`python universal_agent.py` takes a second. Programs that import `universal_agent` itself run unchanged after
`from holdfast.facades.universal_agent import install; install()`.
"""

import asyncio

from holdfast import Holdfast, ToolContext
from holdfast.facades.universal_agent import (
    GatewayRequest,
    InProcessGateway,
    PoolConfig,
    WorkerConfig,
    WorkerPoolManager,
    connect_runtime_db,
    get_run,
    queue_run,
)
from holdfast.models import Script, call, say

hf = Holdfast("sqlite:///runtime.db")
hf.script("analyst", Script(call("read_notes"), say("The notes are in order.")))


@hf.tool
def read_notes(ctx: ToolContext) -> str:
    """Read the notes in the workspace of the run."""
    return f"notes of {ctx.variables['session_id']}"


hf.agent("universal_agent", model="scripted:analyst", tools=[read_notes])  # "claude-sonnet-5-5" asks a real model


async def my_run_handler(run_id: str, workspace_dir: str) -> bool:
    """Ask the agent, in the workspace of the run. If this worker dies, another one finds the answer again."""
    run = get_run(conn, run_id)
    assert run is not None
    gateway = InProcessGateway()
    session = await gateway.create_session(user_id="custom", workspace_dir=workspace_dir)
    result = await gateway.run_query(session, GatewayRequest(user_input=run["last_job_prompt"]))
    print(f"{run_id}: {result.response_text}")
    return result.success


async def main() -> None:
    pool_config = PoolConfig(db_path=hf, min_workers=1, max_workers=4, scale_up_threshold=5)
    worker_config = WorkerConfig(lease_ttl_seconds=60, heartbeat_interval_seconds=15, poll_interval_seconds=1)
    pool = WorkerPoolManager(pool_config, worker_config, run_handler=my_run_handler)
    async with hf:
        await pool.start()
        for name in ("job_1", "job_2"):
            queue_run(conn, name, prompt="Look at the notes", max_iterations=5)
        while (get_run(conn, "job_2") or {})["status"] in ("queued", "running"):  # noqa: ASYNC110  as an operator looks
            await asyncio.sleep(0.05)
        stats = pool.get_pool_stats()
        print(f"Active workers: {stats['total_workers']}")
        print(f"Completed: {stats['total_completed']}")
        await pool.stop(drain=True)


if __name__ == "__main__":
    with connect_runtime_db(hf) as conn:
        asyncio.run(main())
