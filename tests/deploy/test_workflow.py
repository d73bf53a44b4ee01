"""The release workflow."""

from __future__ import annotations

import tomllib

import yaml

from harness.tool.deploy_tool import REPOSITORY, go_tool, run

WORKFLOW = REPOSITORY / ".github" / "workflows" / "release.yml"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_the_workflow_is_well_formed() -> None:
    run(go_tool("actionlint"), WORKFLOW)


def test_wheels_are_built_for_every_version_of_the_metadata() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    versions = [name.rsplit(" ", 1)[1] for name in classifiers if ":: Python :: 3." in name]
    expected = [f"cp{version.replace('.', '')}-manylinux_*" for version in versions]
    assert PROJECT["tool"]["cibuildwheel"]["build"] == expected
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_wheels_are_built_for_both_architectures_and_published_with_the_sdist() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    rows = jobs["wheels"]["strategy"]["matrix"]["include"]
    assert {row["architecture"] for row in rows} == {"x86_64", "aarch64"}
    assert sorted(jobs["publish"]["needs"]) == ["sdist", "wheels"]


def test_only_a_pushed_tag_is_published() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    # YAML 1.1 reads the key `on` as true.
    assert workflow[True] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}
    assert workflow["jobs"]["publish"]["if"] == "github.event_name == 'push'"
