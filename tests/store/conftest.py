"""What tests of the store share."""

from collections.abc import Iterator

import pytest

from tests.store.stores import KINDS, defaults


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have a module's tests run for each way to keep queues; see ``stores.defaults``."""
    defaults["store_type"] = request.param
    yield request.param
    defaults.clear()
