"""Catalogs of Iceberg, by pyiceberg: what fails in them is one sentence, without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from firearrow.errors import CatalogError, ConfigError, FirearrowError, require_packages

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ANSWER_SECONDS: Final = 30.0
_SECRET: Final = re.compile(r"credential|secret|token|password|access-key|session", re.IGNORECASE)
_USER: Final = re.compile(r"(?<=://)[^/@\s]+@")
_SENTENCE_MAX: Final = 300
T = TypeVar("T")


@dataclass(frozen=True)
class IcebergCatalog:
    """A catalog. ``properties`` are pyiceberg's; it adds the properties that its configuration has for ``name``.

    ``label`` names the catalog in errors. Without ``name``, it is pyiceberg's default.
    """

    label: str
    name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets
    _held: list[Catalog] = field(default_factory=list, init=False, repr=False, compare=False)
    _running: dict[str, Thread] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check(self) -> None:
        """Raise ConfigError for wrong properties and missing packages; a catalog that does not answer is not wrong."""
        require_packages(f"{self.label} needs", "iceberg", "pyiceberg")
        try:
            _ = self.opened
        except CatalogError:  # it may answer later
            return

    @property
    def opened(self) -> Catalog:
        """The catalog; raises as ``check``, and CatalogError if it does not answer."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        if not self._held:
            try:
                opened = self._in_time("opening", lambda: load_catalog(self.name, **self.properties), ANSWER_SECONDS)
            except CatalogError as error:
                if isinstance(error.__cause__, ValueError | ImportError | NotInstalledError):
                    raise ConfigError(str(error)) from None
                raise
            self._held[:] = [opened]
        return self._held[0]

    def work(self, job: Callable[[], T], seconds: float | None = None) -> T:
        """Run some work of the library; raise CatalogError with one sentence if it fails.

        Work that takes longer than ``seconds`` goes on in a thread. The caller gets CatalogError, and so does each
        later one until the work has ended.
        """
        return self._ended(job) if seconds is None else self._in_time("work", job, seconds)

    def _in_time(self, kind: str, job: Callable[[], T], seconds: float) -> T:
        """Run a job in a thread, because some libraries, such as that of REST catalogs, wait without a limit."""
        results: list[T] = []
        errors: list[FirearrowError] = []

        def run() -> None:
            try:
                results.append(self._ended(job))
            except FirearrowError as error:
                errors.append(error)

        if kind in self._running and self._running[kind].is_alive():
            raise CatalogError(f"{self.label}: there is no answer yet")
        self._running[kind] = Thread(target=run, name=f"catalog-{kind}", daemon=True)
        self._running[kind].start()
        self._running[kind].join(seconds)
        if errors:
            raise errors[0]
        if not results:
            raise CatalogError(f"{self.label}: there is no answer after {seconds:g} s")
        return results[0]

    def _ended(self, job: Callable[[], T]) -> T:
        try:
            return job()
        except FirearrowError:
            raise
        except Exception as error:  # the boundary: each kind of catalog has a library with errors of its own
            text = self._without_secrets(" ".join(str(error).split()))[:_SENTENCE_MAX]
            raise CatalogError(f"{self.label}: {text or type(error).__name__}") from error

    def _without_secrets(self, text: str) -> str:
        for key, value in self.properties.items():
            if _SECRET.search(key) and value:
                text = text.replace(value, "...")
        return _USER.sub("...@", text)
