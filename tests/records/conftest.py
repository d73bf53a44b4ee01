"""Runs the tests that touch the kernel twice: as plain Python, and compiled."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

import millstream.records
from millstream.records import builder, record

_SOURCE = Path(millstream.records.__file__).parent
_ROOT = Path(__file__).parents[2]


def _load(path: Path, package: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{package}.kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(cache: Path) -> Path:
    """The compiled kernel for the source as it is now; built once for each version of it."""
    sources = [_SOURCE / "kernel.py", _SOURCE / "kernel.pxd", _ROOT / "setup.py"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = cache / digest / f"kernel{suffix}"
    if built.exists():
        return built
    work = cache / f"{digest}-{os.getpid()}"
    package = work / "src/millstream/records"
    package.mkdir(parents=True)
    for path in [_SOURCE / "__init__.py", *sources[:2]]:
        shutil.copy(path, package)
    shutil.copy(_SOURCE.parent / "__init__.py", package.parent)
    shutil.copy(_ROOT / "setup.py", work)
    run = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "out"],
        cwd=work,
        env={**os.environ, "MILLSTREAM_PURE": "0", "CFLAGS": "-O1"},
        capture_output=True,
        text=True,
        check=False,
    )
    made = work / f"out/millstream/records/kernel{suffix}"
    if made.exists():
        built.parent.mkdir(exist_ok=True)
        made.replace(built)
    shutil.rmtree(work)
    assert built.exists(), f"the kernel does not compile:\n{run.stdout}\n{run.stderr}"
    return built


@pytest.fixture(scope="session")
def plain_kernel() -> ModuleType:
    return _load(_SOURCE / "kernel.py", "plain")


@pytest.fixture(scope="session")
def compiled_kernel(request: pytest.FixtureRequest) -> ModuleType:
    pytest.importorskip("Cython")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler")
    return _load(_compile(request.config.cache.mkdir("kernel")), "compiled")


@pytest.fixture(params=["plain", "compiled"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the two kernels, in place of whichever the package has loaded."""
    module: ModuleType = request.getfixturevalue(f"{request.param}_kernel")
    monkeypatch.setattr(record, "decode", module.decode)
    monkeypatch.setattr(record, "find_flaw", module.find_flaw)
    monkeypatch.setattr(builder, "encode", module.encode)
    return module
