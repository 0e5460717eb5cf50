"""Sometimes-checks: rare events that must happen now and then, or the simulation has a blind spot.

A batch of seeds that never reached one of these fails and names it, however green it is otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

EVENTS: Final = {
    "stale completion refused": "an outcome came under a token that was over",
    "commit-unknown complete recognised": "the answer to a completion was lost, and its repeat was told so",
    "commit-unknown enqueue repeated": "the answer to an enqueue was lost, and its repeat inserted nothing",
    "commit-unknown claim expired": "the answer to a claim was lost, so nobody renewed the lease",
    "steal from the living": "a job was rescued from a worker that was only stopped or cut off",
    "presence-based rescue": "a lease ended early because its worker's sign of life was gone",
    "presence of the living lost": "a worker was given up although its process lived",
    "rescue put off": "a job that lost its lease again waits before it is tried again",
    "rescue at limit finalised": "a job lost its lease too often and failed",
    "orphan failed": "a job of a queue with on_orphan=fail lost its worker",
    "lease ceiling reached": "an attempt was not renewed any more",
    "self-fence fired": "a worker stopped an attempt that nobody had taken yet",
    "given up and back": "a worker was given up for lost and registered again by itself",
    "id taken": "a worker was refused because its id seemed alive",
    "term change": "a duty went from one holder to another",
    "duty taken from the dead": "a duty was taken before its term was over",
    "cleanup refused for stale term": "a holder stopped past its term tried to clean up",
    "epoch bump under a lease": "an attempt begun in one epoch ended in another",
    "lease of a lost server refused": "an attempt came with a token that only the lost server had given out",
    "hint lost and found by poll": "nobody heard of a job, and it was claimed all the same",
    "deadline exceeded": "a job that nobody ran was failed at its deadline",
    "deadline exceeded when rescued": "a job lost its lease after its deadline",
    "attempt timed out": "a handler ran into its timeout",
    "signal before park": "a signal was there before the job waited for it",
    "signal while parking": "a signal came between the look for it and the wait",
    "signal after park": "a signal woke a parked job",
    "wait timed out": "a parked job woke without its signal",
    "parent woken by last child": "the end of a child woke its parent",
    "launch repeated": "a parent that ran again found its children launched",
    "stored step returned": "an attempt got a result that an earlier one had stored",
    "cancel reaches running handler": "a handler was interrupted because its job was cancelled",
    "cancel finalised by sweep": "the worker died before it could end a cancelled job",
    "cancel wins over outcome": "a job ended well after its cancel was accepted, and counts as cancelled",
    "cancel refuses park": "a job wanted to wait after its cancel was accepted",
    "family cancelled": "a child was cancelled with its parent",
    "drain handed back": "a worker that left handed a running job back",
    "key names the same job": "a repeated submit was one job",
    "key refused": "a key was used for something else",
    "wake-up made a job due": "the sweep found a scheduled job whose time had come",
    "store away and back": "an outcome waited for the store and was stored",
}

AGENT_EVENTS: Final = {
    "run completed": "a run ended by itself",
    "run failed": "a run failed",
    "run cancelled": "a run was cancelled",
    "run cancelled with its parent": "a cancel reached a run below",
    "run below a run below a run": "agents called agents two levels deep",
    "turn bought again after a death": "a worker died with an answer that it had not stored",
    "turn answered after a failure": "the provider failed, and answered when it was asked again",
    "call skipped": "a run ended before its calls did",
    "once failed and was not repeated": "a tool that may start once lost its worker or failed",
    "provider: rate limited": "429, with or without a time",
    "provider: overloaded": "529",
    "provider: unreachable": "no connection",
    "provider: slow": "the headers came late",
    "provider: stalled": "the stream stood still, perhaps for longer than a lease",
    "provider: cut": "the stream was cut",
    "provider: cut at the end": "the stream was cut before its last event",
    "provider: batch refused": "a submit was refused",
    "provider: batch lost before": "a submit was lost on its way",
    "provider: batch lost after": "a batch was made, and the answer lost",
    "provider: batch slow": "a submit took longer than a lease may last",
    "provider: expired": "a request of a batch expired",
    "provider: errored": "a request of a batch ended in an error",
    "provider: canceled": "a request of a batch was canceled",
    "provider: missing": "a result was missing",
    "provider: duplicated": "a result came twice",
    "turn answered by a batch": "a result was applied",
    "turn answered by another batch": "a request that was not answered was asked again",
    "batch adopted": "a batch whose submit was lost was known by its results",
    "batch submitted again": "a batch that the provider does not have was submitted once more",
    "batch of several runs": "turns of several runs shared a batch",
}


class Rare(Counter[str]):
    def hit(self, name: str) -> None:
        assert name in EVENTS or name in AGENT_EVENTS, name
        self[name] += 1

    def blind_spots(self, events: Iterable[str] = EVENTS) -> list[str]:
        return [name for name in events if not self[name]]

    def table(self) -> Iterable[str]:
        width = max(map(len, EVENTS))
        return (f"  {name:{width}}  {self[name]:>9,}" for name in (*EVENTS, *AGENT_EVENTS))
