"""Compiles the kernels where that is possible, and adds the documentation to the package.

The rest of the build is in pyproject.toml.

A kernel is a plain Python module with a `.pxd` beside it that gives its variables C types. It is
compiled where Cython and a C compiler are available. Elsewhere the build continues without
kernels, and the same source runs as Python. MILLSTREAM_PURE=1 builds without kernels. With
MILLSTREAM_PURE=0, as wheels for others are built, a kernel that cannot be compiled fails the build.

The pages that `make docs` has built in `build/docs` become the package's folder `docs_site`, for
`millstream docs`. A source distribution contains them. Without them the build continues, and
says so.
"""

from __future__ import annotations

import os
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

KERNELS = [
    "millstream.records.kernel",
    "millstream.records.arrow.arrow_decode",
    "millstream.records.arrow.arrow_encode",
    "millstream.client.consumer.record_kernel",
]

DIRECTIVES = {
    "language_level": 3,
    # Types come from the .pxd alone: an `int` annotation means Python's unbounded one.
    "annotation_typing": False,
    "wraparound": False,
}


def kernel_extensions() -> list[Extension]:
    pure = os.environ.get("MILLSTREAM_PURE", "")
    if pure not in ("", "0"):
        return []
    if sys.maxsize < 1 << 62:  # The kernels keep timestamps in what a C pointer takes.
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if pure == "0":
            raise
        return []
    sources = {name: f"src/{name.replace('.', '/')}.py" for name in KERNELS}
    extensions = cythonize(
        # Tests build the kernels of one package alone.
        [Extension(name, [path]) for name, path in sources.items() if os.path.exists(path)],
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
        quiet=True,
    )
    for extension in extensions:
        # Set here because cythonize builds new extensions and does not carry it over.
        extension.optional = pure != "0"
    return list(extensions)


PAGES = os.path.join("build", "docs")


class BuildWithPages(build_py):
    """Copies the built pages into the package, unless it is installed editable."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        if not os.path.exists(os.path.join(PAGES, "index.html")):
            self.announce("no documentation: run `make docs` first to include it", level=3)
            return
        target = os.path.join(self.build_lib, "millstream", "docs_site")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(PAGES, target, ignore=shutil.ignore_patterns(".*", "objects.inv"))


setup(ext_modules=kernel_extensions(), cmdclass={"build_py": BuildWithPages})
