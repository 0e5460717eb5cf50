"""What the machines do: the actions of every worker, on the table of papers, and the check of the agent's answer."""

import json
from pathlib import Path
from typing import Any

from paper_queue import PaperQueue

from holdfast.facades.flatagents import Backends, DistributedWorkerHooks, SQLiteRegistrationBackend

PAPERS = Path("papers.db").absolute()  # the crawler's
WORKERS = Path("workers.sqlite").absolute()  # Holdfast's, with the registry of workers


class JsonValidationHooks:
    """Hooks that were there before the workers, and know nothing of them."""

    def on_action(self, action: str, context: dict[str, Any]) -> dict[str, Any]:
        if action != "validate_json":
            return context
        answer = str(context["answer"])
        try:
            value = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
        except ValueError:
            raise ValueError("the answer has no JSON in it") from None
        if missing := [name for name in ("title", "abstract") if not value.get(name)]:
            raise ValueError(f"the answer has no {missing[0]}")
        return {"value": value}


class PaperHooks(DistributedWorkerHooks):
    """Both together. Processes that are launched find this class by its name, and make it anew."""

    def __init__(self) -> None:
        super().__init__(Backends(SQLiteRegistrationBackend(str(WORKERS)), PaperQueue(PAPERS)))
        self._validation = JsonValidationHooks()

    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        papers = PaperQueue(PAPERS).papers
        match action:
            case "complete_job":
                return {
                    "late": not papers.complete(context["job_id"], context["result"], worker_id=context["worker_id"])
                }
            case "fail_job":
                return {"late": not papers.fail(context["job_id"], context["error"], worker_id=context["worker_id"])}
            case "validate_json":
                return self._validation.on_action(action, context)
            case _:
                return super().on_action(action, context)
