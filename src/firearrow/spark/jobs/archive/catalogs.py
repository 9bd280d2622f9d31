"""Catalogs of Iceberg, by pyiceberg: what fails in them is one sentence, without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

from firearrow.errors import CatalogError, ConfigError, FirearrowError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_SECRET: Final = re.compile(r"credential|secret|token|password|access-key|session", re.IGNORECASE)
_USER: Final = re.compile(r"(?<=://)[^/@\s]+@")
_SENTENCE_MAX: Final = 300
T = TypeVar("T")


@dataclass(frozen=True)
class IcebergCatalog:
    """A catalog. ``properties`` are pyiceberg's, which adds those of its own configuration of ``name``.

    ``label`` names the catalog in errors. Without ``name``, it is pyiceberg's default.
    """

    label: str
    name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets

    def check(self) -> None:
        """Raise ConfigError for wrong properties and missing packages; a catalog that does not answer is not wrong."""
        if find_spec("pyiceberg") is None:
            raise ConfigError(f"{self.label} needs the package pyiceberg: install the extra iceberg (docs/start.md)")
        try:
            _ = self.opened
        except CatalogError:  # it may answer later
            return

    @cached_property
    def opened(self) -> Catalog:
        """The catalog; raises as ``check``, and CatalogError if it does not answer."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        try:
            return self.work(lambda: load_catalog(self.name, **self.properties))
        except CatalogError as error:
            if isinstance(error.__cause__, ValueError | ImportError | NotInstalledError):
                raise ConfigError(str(error)) from None
            raise

    def work(self, job: Callable[[], T]) -> T:
        """Run some work of the library; raise CatalogError with one sentence if it fails."""
        try:
            return job()
        except FirearrowError:
            raise
        except Exception as error:  # the boundary: each kind of catalog has a library with errors of its own
            text = " ".join(str(error).split())[:_SENTENCE_MAX] or type(error).__name__
            raise CatalogError(f"{self.label}: {self._without_secrets(text)}") from error

    def _without_secrets(self, text: str) -> str:
        for key, value in self.properties.items():
            if _SECRET.search(key) and value:
                text = text.replace(value, "...")
        return _USER.sub("...@", text)
