"""Tells an operator which object stores take no requests, and since which moment they do again.

Each store is asked in a thread of its own: one that hangs hides no other.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

Probe = Callable[[], str | None]  # why the store takes no requests. None: it takes them

SILENT: Final = "it has not answered yet"


@dataclass(frozen=True)
class StoreWatchConfig:
    interval_s: float = 5.0  # between an answer and the next question, while a store takes no requests …
    calm_interval_s: float = 30.0  # … and while it takes them
    silent_s: float = 6.0  # then a question without an answer is told


class StoreWatch:
    def __init__(
        self,
        probes: Mapping[str, Probe],
        tell: Callable[[str], None],
        config: StoreWatchConfig = StoreWatchConfig(),
    ) -> None:
        """`probes`: by the store's name in messages. `tell`: prints a line, from any thread."""
        self._probes = probes
        self._tell = tell
        self._config = config
        self._reasons: dict[str, str] = {}  # why a store takes no requests, as told
        self._lock = threading.Lock()
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watches until the block ends. A question under way is not waited for."""
        for name, probe in self._probes.items():
            threading.Thread(
                target=self._watch, args=(name, probe), name=f"store-watch-{name}", daemon=True
            ).start()
        try:
            yield
        finally:
            self._stop.set()

    def _watch(self, name: str, probe: Probe) -> None:
        while not self._stop.is_set():
            overdue = threading.Timer(self._config.silent_s, self._note, (name, SILENT))
            overdue.daemon = True
            overdue.start()
            try:
                reason = probe()
            except Exception as error:  # noqa: BLE001 - the next question may be answered
                reason = f"{type(error).__name__}: {error}"
            finally:
                overdue.cancel()
            self._note(name, reason)
            self._stop.wait(self._config.calm_interval_s if reason is None else self._config.interval_s)

    def _note(self, name: str, reason: str | None) -> None:
        with self._lock:
            before = self._reasons.get(name)
            if reason == before or self._stop.is_set():
                return
            if reason is None:
                del self._reasons[name]
                self._tell(f"{name} takes requests again")
                log.info("store takes requests", extra={"action": "store_back", "store": name})
                return
            self._reasons[name] = reason
            self._tell(f"{name} takes no requests: {reason.rstrip('.')}; waiting for it")
            log.warning(
                "store takes no requests",
                extra={"action": "store_away", "store": name, "reason": reason},
            )
