"""Planted bugs of the web: who may do what, what another site may cause, streams, webhooks."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Code, Mutant, Words

GATE: Final = "holdfast.http.security.gate:Gate"
SECURITY: Final = "http/test_security.py"
MUTANTS: Final = (
    Mutant(
        "change from another site",
        "a page of another site changes something with the cookie of whoever looks at it",
        (Code("holdfast.http.security.checks:is_forged", 'return site != "same-origin"', "return False"),),
        (f"{SECURITY}::test_what_another_site_may_have_sent_is_known",),
    ),
    Mutant(
        "change whose origin nobody asks",
        "no change is asked where it comes from",
        (Code(f"{GATE}.check_change", "self.check_origin(connection)", "pass"),),
        (f"{SECURITY}::test_a_browser_logs_in_with_a_token_or_a_link",),
    ),
    Mutant(
        "role that nobody asks",
        "a viewer does what only an admin may",
        (Code(f"{GATE}.check", "if not principal.may(rule.role):", "if False:"),),
        (f"{SECURITY}::test_every_route_is_for_its_role",),
    ),
    Mutant(
        "scope that nobody asks",
        "a token for one thing is good for all",
        (Code(f"{GATE}.check", "if not principal.scopes & {", "if False and not principal.scopes & {"),),
        (f"{SECURITY}::test_scopes_are_held",),
    ),
    Mutant(
        "stream that outlives the end of its token",
        "who has a token that has expired reads on",
        (Words("live_tokens", "expires_at > holdfast.now_us()", "expires_at > 0"),),
        ("http/test_live_bounds.py::test_a_token_that_expires_ends_its_streams",),
    ),
    Mutant(
        "socket that outlives the end of its token",
        "who has a token that has expired speaks on",
        (Words("live_tokens", "expires_at > holdfast.now_us()", "expires_at > 0"),),
        ("http/test_live_bounds.py::test_a_token_that_expires_ends_its_sockets",),
    ),
    Mutant(
        "login that outlives the end of its token",
        "a token expires, and the cookie that somebody got for it counts for seven days more",
        (Words("find_login", "t.expires_at > holdfast.now_us()", "t.expires_at > 0"),),
        ("http/test_access.py::test_a_login_ends_with_the_token_that_it_was_made_with",),
    ),
    Mutant(
        "change where all is read-only",
        "a read-only server changes something",
        (Code(f"{GATE}.check_change", "if self.options.read_only:", "if False:"),),
        (f"{SECURITY}::test_read_only_refuses_every_change",),
        ("AP-58",),
    ),
    Mutant(
        "fleet shown to a tenant",
        "a tenant sees what belongs to nobody's tenant",
        (Code(f"{GATE}.check", "if rule.fleet and (", "if False and ("),),
        (f"{SECURITY}::test_what_belongs_to_no_tenant_is_not_there_for_one",),
    ),
    Mutant(
        "runs of another tenant listed",
        "a list of runs shows those of every tenant",
        (
            Words("runs_of_tenant", "where tenant = :tenant and", "where true and"),
            Words(
                "runs_of_tenant",
                "(cast(:tenant as text) is null or tenant = :tenant) and",
                "(cast(:tenant as text) is null or true) and",
            ),
        ),
        (f"{SECURITY}::test_another_tenants_ids_are_not_there",),
        ("AP-57",),
    ),
    Mutant(
        "event skipped by Last-Event-ID",
        "a browser that comes back misses the event behind the last that it saw",
        (
            Code(
                "holdfast.http.sse:EventResponse._write",
                "self._run.stream(self._after)",
                "self._run.stream(self._after + 1)",
            ),
        ),
        ("http/test_sse.py::test_a_reader_that_reconnects_misses_nothing",),
    ),
    Mutant(
        "login that outlives its token",
        "a browser that logged in with a token stays logged in when that is revoked",
        (
            Words("end_logins_of", "where token = :token", "where token = :token and false"),
            Words("find_login", "t.revoked_at is null", "true"),
        ),
        ("http/test_access.py::test_a_revoked_token_ends_its_logins",),
    ),
    Mutant(
        "stream that outlives its token",
        "a stream goes on when its token is revoked",
        (Words("live_tokens", "and revoked_at is null"),),
        ("http/test_live.py::test_a_revoked_token_ends_its_streams",),
    ),
    Mutant(
        "delivery without a signature",
        "anybody may deliver to a webhook",
        (Code("holdfast.access.webhooks:Webhook._is_signed", "return any(matches)", "return True"),),
        ("http/test_hooks.py::test_what_is_not_signed_lately_is_refused",),
    ),
    Mutant(
        "old delivery taken",
        "a delivery that was signed long ago is taken",
        (Code("holdfast.access.webhooks:Webhook.read", "abs(now_us - int(sent) * 1_000_000) > TOLERANCE_US", "False"),),
        ("http/test_hooks.py::test_what_is_not_signed_lately_is_refused",),
    ),
    Mutant(
        "delivery taken twice",
        "a delivery that comes again starts another job",
        (Code("holdfast.access.webhooks:Webhook.take", "options(key=key,", "options(key=None,"),),
        ("http/test_hooks.py::test_a_delivery_becomes_one_job_however_often_it_comes",),
    ),
    Mutant(
        "idempotency key of another",
        "the key of one tenant brings the answer of another",
        (Code(f"{GATE}._changed", "owner = self._owner(by)", 'owner = ""'),),
        ("http/test_foreign_ids.py::test_a_key_that_another_has_used_is_free",),
    ),
)
