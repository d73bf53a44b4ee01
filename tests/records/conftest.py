"""Runs the tests of a kernel twice: as plain Python, and compiled.

KERNEL_CFLAGS sets compiler flags, for example for sanitizers (`make sanitize`).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import millstream.records
from millstream.records import builder, record, validation
from millstream.records.arrow import fetch_decoder, row_encoder
from millstream.spark import arrow

_SOURCE = Path(millstream.records.__file__).parent
_ROOT = Path(__file__).parents[2]
_CFLAGS = os.environ.get("KERNEL_CFLAGS", "-O1")


#: The path of each kernel in the package, without its ending.
_PATHS = {
    "kernel": "kernel",
    "arrow_decode": "arrow/arrow_decode",
    "arrow_encode": "arrow/arrow_encode",
}


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(cache: Path) -> Path:
    """Compile the kernels, once for each version of the sources."""
    sources = sorted(_SOURCE.rglob("*.pxd")) + [_SOURCE / f"{path}.py" for path in _PATHS.values()]
    content = b"".join(path.read_bytes() for path in [*sources, _ROOT / "setup.py"])
    content += _CFLAGS.encode()
    built = cache / hashlib.sha256(content).hexdigest()[:16]
    if built.exists():
        return built
    work = cache / f"{built.name}-{os.getpid()}"
    package = work / "src/millstream/records"
    (package / "arrow").mkdir(parents=True)
    for path in [*_SOURCE.glob("__init__.py"), *_SOURCE.glob("arrow/__init__.py"), *sources]:
        shutil.copy(path, package / path.relative_to(_SOURCE))
    shutil.copy(_SOURCE.parent / "__init__.py", package.parent)
    shutil.copy(_ROOT / "setup.py", work)
    run = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--parallel", "2", "--build-lib", "out"],
        cwd=work,
        # Libraries that are preloaded for the kernels would slow the compiler down.
        env={**os.environ, "MILLSTREAM_PURE": "0", "CFLAGS": _CFLAGS, "LD_PRELOAD": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    made = work / "out/millstream/records"
    if len(list(made.rglob("*.so"))) == len(_PATHS):
        made.replace(built)
    shutil.rmtree(work)
    assert built.exists(), f"the kernels do not compile:\n{run.stdout}\n{run.stderr}"
    return built


@pytest.fixture(scope="session")
def compiled_kernels(request: pytest.FixtureRequest) -> Path:
    """Return the folder of the compiled kernels."""
    pytest.importorskip("Cython")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler")
    cache = request.config.cache.mkdir("kernel")
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the test processes builds for all
        return _compile(cache)


def _both(name: str) -> tuple[Callable[..., ModuleType], Callable[..., ModuleType]]:
    """Return the parameters of one kernel: plain and compiled."""

    @pytest.fixture(scope="session", name=f"plain_{name}")
    def plain() -> ModuleType:
        return _load(_SOURCE / f"{_PATHS[name]}.py", f"plain.{name}")

    @pytest.fixture(scope="session", name=f"compiled_{name}")
    def compiled(compiled_kernels: Path) -> ModuleType:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        return _load(compiled_kernels / f"{_PATHS[name]}{suffix}", f"compiled.{name}")

    return plain, compiled


plain_kernel, compiled_kernel = _both("kernel")
plain_arrow_decode, compiled_arrow_decode = _both("arrow_decode")
plain_arrow_encode, compiled_arrow_encode = _both("arrow_encode")


@pytest.fixture(params=["plain", "compiled"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the two kernels, patched into the package."""
    module: ModuleType = request.getfixturevalue(f"{request.param}_kernel")
    monkeypatch.setattr(record, "decode", module.decode)
    monkeypatch.setattr(validation, "find_rejected", module.find_rejected)
    monkeypatch.setattr(builder, "encode", module.encode)
    return module


@pytest.fixture(params=["plain", "compiled"])
def arrow_decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the two decoders, patched into the package."""
    module: ModuleType = request.getfixturevalue(f"{request.param}_arrow_decode")
    monkeypatch.setattr(fetch_decoder, "RecordRun", module.RecordRun)
    monkeypatch.setattr(fetch_decoder, "Rows", module.Rows)
    return module


@pytest.fixture(params=["plain", "compiled"])
def arrow_encode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the two encoders, patched into the package."""
    module: ModuleType = request.getfixturevalue(f"{request.param}_arrow_encode")
    monkeypatch.setattr(row_encoder, "BatchWriter", module.BatchWriter)
    monkeypatch.setattr(row_encoder, "choose_partitions", module.choose_partitions)
    monkeypatch.setattr(arrow, "arrow_encode", module)
    return module
