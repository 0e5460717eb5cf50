"""Jobs for processes of their own, which import them from here."""

from __future__ import annotations

from holdfast import Holdfast, JobContext

app = Holdfast("sqlite:///nobody-opens-this.db")


@app.job(isolate="process")
def count(ctx: JobContext, n: int) -> int:
    return ctx.step_sync("count", int, n + 1)
