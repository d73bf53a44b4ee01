"""Creating and reading projects on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.spark.pipeline.project import (
    SERVERS_KEY,
    ProjectError,
    ProjectExistsError,
    ProjectMissingError,
    find,
    make,
)


def test_a_new_project_is_read_and_its_brokers_can_be_overridden(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    written = make(folder, "shop", "127.0.0.1:9092")
    assert all(path.is_file() for path in written)
    project = find(folder)
    assert project.spec.name == "shop"
    assert project.spec.storage == (folder / "storage").as_uri()
    assert project.spec.configuration[SERVERS_KEY] == "127.0.0.1:9092"
    other = find(folder / "spark-pipeline.yml", {SERVERS_KEY: "broker:1"})
    assert other.spec.configuration[SERVERS_KEY] == "broker:1"
    assert other.spec.configuration["spark.sql.shuffle.partitions"] == "4"
    compile((folder / "transformations" / "orders.py").read_text(), "orders.py", "exec")


def test_existing_files_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ProjectExistsError, match="not empty"):
        make(tmp_path, "shop", "127.0.0.1:9092")


def test_storage_may_be_a_relative_path(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: a\nstorage: here\n")
    assert find(tmp_path).spec.storage == (tmp_path / "here").as_uri()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: a\n", "storage"),
        ("name: a\nstorage: s\nlibrary: x\n", "library"),
        ("name: [a\n", "while parsing"),
        ("", "spark-pipeline.yml"),
        ("name: a\nstorage: s\nlibraries:\n  - transformations\n", "spark-pipeline.yml"),
    ],
)
def test_an_invalid_specification_is_named_with_its_error(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(text)
    with pytest.raises(ProjectError, match=reason):
        find(tmp_path)


def test_a_missing_project_names_the_init_command(tmp_path: Path) -> None:
    with pytest.raises(ProjectMissingError, match="millstream pipeline init"):
        find(tmp_path)


def test_start_settings_of_spark(tmp_path: Path) -> None:
    make(tmp_path / "shop", "shop", "localhost:9092")
    given = {"spark.executor.memory": "2g", "spark.sql.ansi.enabled": "true", "shop.open": "1"}
    found = find(tmp_path / "shop", given).static_config()
    assert found["spark.executor.memory"] == "2g"
    assert "metastore" in found["spark.driver.extraJavaOptions"]
    assert not {"spark.sql.ansi.enabled", "shop.open"} & set(found)
