"""An environment that remembers what was read from it: what a step costs is the same where that is."""

from __future__ import annotations

from collections.abc import Mapping

from amk.schedule_ir.expr import Env, IntArray, Value


class _Reads(dict[str, int]):
    """Loop variables that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, int], log: dict[str, int]) -> None:
        super().__init__(values)
        self._log = log

    def __getitem__(self, name: str) -> int:
        value = super().__getitem__(name)
        self._log[name] = value
        return value


class Probe(Env):
    """An environment of one (worker, agent) that records what is read from it in `log`."""

    log: dict[str, int]

    def __init__(
        self, loops: Mapping[str, int], worker: int, agent: int, pos: int, tables: Mapping[str, IntArray]
    ) -> None:
        log: dict[str, int] = {}
        # the fields `worker` and `pos` are properties here, so the dataclass must not set them
        self.__dict__.update(loops=_Reads(loops, log), agent=agent, tables=tables, log=log, _worker=worker, _pos=pos)

    @property
    def worker(self) -> int:
        self.log["worker"] = self.__dict__["_worker"]
        return self.__dict__["_worker"]  # type: ignore[no-any-return]

    @property
    def pos(self) -> int:
        self.log["pos"] = self.__dict__["_pos"]
        return self.__dict__["_pos"]  # type: ignore[no-any-return]

    def symbol(self, name: str) -> Value:
        if name in ("1", "agent", "worker") or name in self.loops:
            return super().symbol(name)
        value = int(self.tables[name][self.__dict__["_worker"]])
        self.log[name] = value
        return value
