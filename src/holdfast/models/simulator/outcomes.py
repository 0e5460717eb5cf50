"""What becomes of a request in a batch: the script's answer, the refusal it would have met alone, or a rule's fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.models.batch_wire import errored
from holdfast.models.protocol import Wire
from holdfast.models.script import Script
from holdfast.models.simulator.batches import BatchedRequest, SimulatedBatch
from holdfast.models.simulator.faults import refuse_media
from holdfast.models.simulator.files import Cabinet
from holdfast.models.simulator.refusal import RequestRefused, need
from holdfast.models.simulator.rules import chosen
from holdfast.models.simulator.strict import check_request
from holdfast.models.steps import Rejected
from holdfast.models.wire import to_batch_message

_NOT_IN_BATCHES = ("stream", "speed")


class BatchOutcomes:
    """Answers requests of batches, as the Messages API would answer them alone."""

    def __init__(self, script: Script, *, seed: int, key: str, cabinet: Cabinet) -> None:
        self._script, self._seed, self._key, self._cabinet = script, seed, key, cabinet

    def __call__(self, batch: SimulatedBatch, asked: BatchedRequest) -> Wire:
        for fault in ("error", "expire", "cancel"):
            if chosen(batch.do.get(fault), asked.number, f"{self._seed}/{fault}"):
                return _faulty(fault, batch.do[fault])
        try:
            return {"type": "succeeded", "message": self._message(batch, asked)}
        except RequestRefused as refused:
            return errored(refused.error)
        except Rejected as problem:
            return errored(RequestRefused(str(problem)).error)
        except UsageError as problem:  # the script's, which has run out
            return errored({"type": "api_error", "message": str(problem)})
        except Exception as problem:  # noqa: BLE001  # a request that breaks us, or the script, has a batch around it
            return errored({"type": "api_error", "message": f"Internal server error: {problem!r}"})

    def _message(self, batch: SimulatedBatch, asked: BatchedRequest) -> Wire:
        account, body = batch.account, asked.params
        facts = check_request(body, key=self._key, account=account)
        self._cabinet.check_references(body, account, batch.ends_us)
        for name in _NOT_IN_BATCHES:
            need(not body.get(name), f"{name}: not supported in a batch")
        refuse_media(body, batch.do)
        need(facts.batch, f"model: {body['model']} does not take batches")
        return to_batch_message(self._script.turn(body), body, asked.custom_id, key=self._key, account=account)


def _faulty(fault: str, which: Any) -> Wire:
    if fault != "error":
        return {"type": {"expire": "expired", "cancel": "canceled"}[fault]}
    says = which if isinstance(which, Mapping) else {}
    return errored({"type": says.get("type", "api_error"), "message": says.get("message", "failed by rule")})
