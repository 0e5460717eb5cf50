"""Access to an app from outside, as a program sees it: `hf.access`."""

from __future__ import annotations

from holdfast.access.audit import Audit
from holdfast.access.logins import Logins
from holdfast.access.requests import Requests
from holdfast.access.tokens import Tokens
from holdfast.core import Core
from holdfast.webhooks import Webhooks


class Access:
    """`hf.access`: tokens, logins, the audit, requests that were answered, and webhooks."""

    def __init__(self, app: Core) -> None:
        self.tokens = Tokens(app)
        self.logins = Logins(app)
        self.audit = Audit(app)
        app.recorder = self.audit.by_program
        self.requests = Requests(app)
        self.webhooks = Webhooks()
