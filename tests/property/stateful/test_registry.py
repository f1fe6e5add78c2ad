"""Models on a disk and in an engine beside a dictionary: loaded, broken, removed, unloaded and looked for again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import HandlerFailed, KsrvError, NotFound, NotReady
from ksrv.model.config import FileMark, LoadedFiles, ModelSource
from ksrv.model.spec import ModelSpec
from ksrv.repository.entry import ModelEntry
from ksrv.request import ExecutorInputs
from tests.support.engine.engine_models import FunctionExecutor, Models, request, source
from tests.support.examples import examples
from tests.support.wait_until import wait_until

NAMES = ["a", "b"]
VERSIONS = ["1", "2", "10"]


class Marked(FunctionExecutor):
    """Answers the mark of its version, whose files may be broken."""

    def __init__(self, one: ModelSource) -> None:
        assert one.config is not None
        self.mark = int(one.config.parameters["mark"])
        self.broken = bool(one.config.parameters["broken"])
        super().__init__(one, self.answer)

    def answer(self, batch: ExecutorInputs) -> Any:
        return np.asarray(batch.tensors["x"].data) * 0 + self.mark

    def start(self) -> ModelSpec:
        if self.broken:
            raise HandlerFailed("its weights are broken")
        return super().start()


class RegistryMachine(RuleBasedStateMachine):
    """Two models of up to three versions."""

    def __init__(self) -> None:
        super().__init__()
        self.repository = Models()
        self.executors: list[Marked] = []
        self.engine = Engine(
            self.repository,  # type: ignore[arg-type]
            EngineSettings(watch_seconds=0),
            make_executor=self.make,
        )
        self.engine.start()
        self.disk: dict[str, dict[str, tuple[int, bool]]] = {}
        self.served: dict[str, dict[str, int]] = {}
        self.shown: dict[str, set[str]] = {}  # versions with a state, beside the serving versions
        self.seen: dict[
            str, dict[str, tuple[int, bool]]
        ] = {}  # the disk as a model was loaded from it
        self.unloaded: set[str] = set()
        self.marks = 0

    def make(self, one: ModelSource, number: int, threads: int) -> Marked:
        self.executors.append(Marked(one))
        return self.executors[-1]

    def teardown(self) -> None:
        self.engine.close(20)
        wait_until(lambda: all(one.closed for one in self.executors if one.alive or not one.broken))

    # ---- the model ------------------------------------------------------------------------------

    def renew(self, name: str, *, always: bool) -> bool:
        """Load what is on the disk; returns whether any of it failed."""
        disk, before = self.disk[name], self.served.get(name, {})
        seen = self.seen.get(name, {})
        served, failed = {}, set()
        for version, (mark, broken) in disk.items():
            fresh = always or version not in before or seen.get(version) != (mark, broken)
            if fresh and not broken:
                served[version] = mark
                continue
            if fresh:
                failed.add(version)
            if version in before:
                served[version] = before[version]
        self.served[name] = served or (before if failed else {})
        self.shown[name] = failed
        self.seen[name] = dict(disk)
        self.unloaded.discard(name)
        return bool(failed)

    # ---- what may happen ------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), version=st.sampled_from(VERSIONS), broken=st.booleans())
    def write(self, name: str, version: str, broken: bool) -> None:
        self.marks += 1
        self.disk.setdefault(name, {})[version] = self.marks, broken
        self.publish(name)

    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([*VERSIONS, "all"]))
    def delete(self, name: str, version: str) -> None:
        versions = self.disk.get(name, {})
        versions.pop(version, None)
        if version == "all" or not versions:
            self.disk.pop(name, None)
        self.publish(name)

    def publish(self, name: str) -> None:
        if name not in self.disk:
            self.repository.entries.pop(name, None)
            return
        self.repository.entries[name] = ModelEntry(name)
        for version, (mark, broken) in sorted(self.disk[name].items(), key=lambda one: int(one[0])):
            written = LoadedFiles(marks=(FileMark("weights", size=1, mtime_ns=mark),))
            one = source(name, version, parameters={"mark": mark, "broken": broken})
            self.repository.put(replace(one, loaded=written))

    @rule(name=st.sampled_from(NAMES))
    def load(self, name: str) -> None:
        if name not in self.disk:
            with pytest.raises(NotFound):
                self.engine.load(name)
            return
        if self.renew(name, always=True):
            with pytest.raises(KsrvError, match="broken"):
                self.engine.load(name)
        else:
            self.engine.load(name)

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        if name not in self.served:
            with pytest.raises(NotFound):
                self.engine.unload(name)
            return
        self.engine.unload(name)
        self.shown[name] = set(self.served[name]) or self.shown[name]
        self.served[name] = {}
        self.unloaded.add(name)

    @rule()
    def look(self) -> None:
        """The engine looks at the disk, as it does every few seconds."""
        self.engine.reload_changed()
        for name in [*self.served]:
            if name not in self.disk:
                del self.served[name]
                self.unloaded.discard(name)
        for name in self.disk:
            wanted = name not in self.unloaded and self.seen.get(name) != self.disk[name]
            if name not in self.served or wanted:
                self.renew(name, always=False)

    # ---- what always holds ----------------------------------------------------------------------

    @invariant()
    def serves(self) -> None:
        for name in NAMES:
            for version in ("", *VERSIONS):
                self.ask(name, version)
            assert self.engine.model_ready(name) if self.served.get(name) else True
        index = {(one.name, one.version): one.state for one in self.engine.index()}
        ready = {key for key, state in index.items() if state == "READY"}
        assert ready == {
            (name, version) for name, versions in self.served.items() for version in versions
        }

    def ask(self, name: str, version: str) -> None:
        asked = request(model=name, model_version=version)
        served = self.served.get(name)
        mark = None
        if served:
            mark = served[max(served, key=int)] if version == "" else served.get(version)
        if mark is not None:
            [output] = self.engine.submit(asked).wait().outputs
            assert np.asarray(output.data).tolist() == [[mark] * 4]
            return
        known = served is not None and (version == "" or version in self.shown[name])
        with pytest.raises(NotReady if known else NotFound):
            self.engine.submit(asked).wait()

    @invariant()
    def what_serves_is_open(self) -> None:
        marks = {mark for versions in self.served.values() for mark in versions.values()}
        assert marks <= {one.mark for one in self.executors if one.alive}


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = examples(90, stateful_step_count=20)
