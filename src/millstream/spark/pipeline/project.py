"""A pipeline project on disk: creating one, and reading its specification.

    spark-pipeline.yml     name, storage, configuration, location of the transformations
    transformations/       Python and SQL files that declare tables, views, sinks and flows
    storage/               checkpoints
    warehouse/, metastore/ tables and their catalog, if Spark runs on this machine

The specification has Spark's format; here `storage` may also be a path relative to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.model.error import MillstreamError
from millstream.spark.pipeline import project_template

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec

SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
#: The setting from which transformations read the bootstrap servers.
SERVERS_KEY: Final = "millstream.bootstrap.servers"
#: Spark rejects this setting in a pipeline's configuration; it must be set at the start.
_CATALOG: Final = "spark.sql.catalogImplementation"


class ProjectError(MillstreamError):
    """There is no project, or its specification is invalid. The message is for the user."""


class ProjectMissingError(ProjectError):
    """The folder has no project."""


class ProjectExistsError(ProjectError):
    """The folder for a new project is not empty."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project: the path of its specification, and its content."""

    path: Path
    spec: PipelineSpec

    @property
    def folder(self) -> Path:
        return self.path.parent

    def static_config(self) -> dict[str, str]:
        """Return the start settings of a Spark for this project.

        They keep tables and their catalog in the project's folder, and include the project's
        settings that Spark accepts only at its start, such as the memory of executors."""
        metastore = self.folder / "metastore"
        given = {
            name: value
            for name, value in self.spec.configuration.items()
            if name.startswith("spark.") and not name.startswith("spark.sql.")
        }
        ours = {
            _CATALOG: "hive",
            "spark.sql.warehouse.dir": (self.folder / "warehouse").as_uri(),
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={metastore};create=true"
            ),
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={metastore}.log",
        }
        return ours | given


def find(place: Path, configuration: Mapping[str, str] | None = None) -> Project:
    """Read the project of a folder or file. `configuration` overrides its settings."""
    from pyspark.errors import PySparkException
    from pyspark.pipelines.cli import unpack_pipeline_spec
    from yaml import YAMLError, safe_load

    path = _spec_path(place.resolve())
    try:
        found = safe_load(path.read_text(encoding="utf-8"))
        # Spark checks later that these keys exist and have the right type.
        if "storage" in found and ":/" not in found["storage"]:
            found["storage"] = (path.parent / found["storage"]).as_uri()
        if configuration:
            found["configuration"] = {**found.get("configuration", {}), **configuration}
        return Project(path, unpack_pipeline_spec(found))
    except (PySparkException, YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ProjectError(f"{path}: {error}") from error


def make(folder: Path, name: str, servers: str) -> list[Path]:
    """Create an example project in a new or empty folder. Return the files written."""
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProjectExistsError(f"{folder} exists and is not empty: name a new folder.")
    storage = (folder / "storage").as_uri()
    texts = {
        folder / SPEC_NAMES[0]: project_template.spec(name, storage, servers),
        folder / "transformations" / "orders.py": project_template.TRANSFORMATIONS,
        folder / "transformations" / "revenue.sql": project_template.VIEW,
        folder / ".gitignore": project_template.IGNORED,
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _spec_path(place: Path) -> Path:
    if place.is_file():
        return place
    found = [place / name for name in SPEC_NAMES if (place / name).is_file()]
    if not found:
        raise ProjectMissingError(
            f"{place} has no {SPEC_NAMES[0]}: name a project's folder, or make one with"
            " `millstream pipeline init DIR`."
        )
    if len(found) > 1:
        raise ProjectError(f"{place} has both {' and '.join(SPEC_NAMES)}: remove one.")
    return found[0]
