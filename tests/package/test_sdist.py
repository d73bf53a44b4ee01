"""The sdist and the wheel: built, and installed from the sdist alone."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
#: The modules that are compiled: each has a file with its C types.
KERNELS = sorted(
    file.relative_to(ROOT / "src").with_suffix("").as_posix()
    for file in (ROOT / "src").rglob("*.pxd")
    if file.with_suffix(".py").exists() and file.stem != "memory"
)

#: Results of a build. The translation to C is kept, because it takes most of the time.
COMPILED = shutil.ignore_patterns("lib.*", "temp.*", "bdist.*", "*.so")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("cc") is None and shutil.which("gcc") is None, reason="there is no C compiler"
    ),
]


def build(kind: str, sources: Path, output: Path, **variables: str) -> Path:
    """Build one distribution; return its file."""
    environment = {**os.environ, **variables}
    result = subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "-o", output, sources],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (file,) = output.iterdir()
    return file


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = tmp_path_factory.mktemp("checkout")
    for name in PARTS:
        shutil.copy(ROOT / name, checkout / name)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", checkout / "src", ignore=unwanted)
    shutil.copytree(ROOT / "tests" / "package", checkout / "tests" / "package", ignore=unwanted)
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # -O0: the compiler needs a fraction of the time.
    output = tmp_path_factory.mktemp("wheel")
    return build("wheel", unpacked, output, MILLSTREAM_PURE="0", CFLAGS="-O0")


def test_the_sdist_has_the_sources_and_nothing_else(unpacked: Path) -> None:
    files = {
        file.relative_to(unpacked).as_posix() for file in unpacked.rglob("*") if file.is_file()
    }
    outside = {name for name in files if not name.startswith("src/")}
    assert outside == {*PARTS, "PKG-INFO", "setup.cfg"}
    suffixes = {PurePosixPath(name).suffix for name in files}
    assert not suffixes & {".c", ".so", ".pyc"}
    modules = {
        file.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.pxd", "py.typed")
        for file in (ROOT / "src").rglob(pattern)
    }
    assert modules <= files


def test_the_wheel_has_every_module_and_every_kernel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    compiled = {name.split(".cpython", 1)[0] for name in names if name.endswith(".so")}
    assert sorted(compiled) == KERNELS
    assert "millstream/py.typed" in names
    modules = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*.py")}
    assert modules <= names


def test_the_metadata_describes_the_package(wheel: Path) -> None:
    metadata = wheel_metadata(wheel)
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    versions = [name.rsplit(" ", 1)[1] for name in classifiers if ":: Python :: 3." in name]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    labels = {entry.split(",")[0] for entry in metadata.get_all("Project-URL", [])}
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= labels
    assert metadata["Description-Content-Type"] == "text/markdown"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert not extras & {"dev", "test", "lint", "docs", "bench", "build"}


def wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_an_installed_wheel_runs_compiled(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", target, wheel], check=True)
    program = "import millstream.records as r; print(r.__file__, r.kernel_is_compiled())"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [str(target / "millstream" / "records" / "__init__.py"), "True"]
    result = subprocess.run(
        [target / "bin" / "millstream", "--help"],
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "serve" in result.stdout


def test_without_a_compiler_the_wheel_has_no_kernels(unpacked: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sources"
    shutil.copytree(unpacked, copy, ignore=COMPILED)
    pure = build("wheel", copy, tmp_path / "out", CC="/bin/false")
    with zipfile.ZipFile(pure) as archive:
        names = archive.namelist()
    assert "millstream/records/kernel.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_a_release_build_needs_the_compiler(unpacked: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sources"
    shutil.copytree(unpacked, copy, ignore=COMPILED)
    result = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path / "out", copy],
        env={**os.environ, "CC": "/bin/false", "MILLSTREAM_PURE": "0"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert not list((tmp_path / "out").glob("*.whl"))
