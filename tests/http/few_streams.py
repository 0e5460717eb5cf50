"""`holdfast` with a cap of a tenth as many streams: `python -m tests.http.few_streams serve …`."""

from __future__ import annotations

from holdfast.cli import main
from holdfast.http.security import checks

STREAMS = checks.STREAMS_ALL // 10

if __name__ == "__main__":
    checks.STREAMS_ALL = STREAMS
    main()
