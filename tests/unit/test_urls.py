"""Where a URL points, for people: never with its password."""

from __future__ import annotations

import pytest

from holdfast.kernel.drivers import describe_url
from holdfast.kernel.drivers.addresses import without_password


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("sqlite:///shop.db", "sqlite shop.db"),
        ("postgresql://app:secret@db.example:6543/shop", "postgresql db.example:6543/shop"),
        ("postgresql:///shop", "postgresql localhost/shop"),
        ("postgresql://app:secret@/shop?host=db.example&port=6543", "postgresql db.example:6543/shop"),
        ("postgresql://db.example/?dbname=shop&host=other&password=secret", "postgresql db.example/shop"),
        ("postgresql:///shop?host=/run/postgresql", "postgresql /run/postgresql/shop"),
        ("postgresql://app:1/secret@db.example/shop", "postgresql an address that cannot be read"),
        ("postgresql://app:1#secret@db.example/shop", "postgresql an address that cannot be read"),
        ("postgresql://app:secret@[::1/shop", "postgresql an address that cannot be read"),
    ],
)
def test_a_url_is_described_by_its_server_and_database(url: str, label: str) -> None:
    assert describe_url(url) == label


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop@home.db", "sqlite:///shop@home.db"),
        ("postgresql://app@db/shop", "postgresql://app@db/shop"),
        ("postgresql://app:secret@db/shop?a=b", "postgresql://app:***@db/shop?a=b"),
        ("postgresql://app:/se@cret@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql:///shop?password=secret&user=app", "postgresql:///shop?password=***&user=app"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
