"""Every subject that has pages. A new one is a module, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.http.pages import inbox, jobs, now, run, runs, search
from holdfast.http.pages.routes import Pages

PAGES: Sequence[Pages] = (now.pages, inbox.pages, runs.pages, run.pages, jobs.pages, search.pages)
