"""The plugin as a project that installs Millstream sees it: small test sessions inside a test."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka  # noqa: F401 - what is loaded here is not loaded anew by each inner session
import pytest

import millstream.testing.broker  # noqa: F401

pytest_plugins = ["pytester"]

STRICT = ("-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider")


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    """A session of its own, in which warnings are errors."""
    return pytester.runpytest_inprocess(*STRICT)


def test_the_example_of_the_readme(pytester: pytest.Pytester) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    section = readme.partition("## In your tests")[2]
    pytester.makepyfile(section.partition("```python\n")[2].partition("```")[0])
    run(pytester).assert_outcomes(passed=2)


def test_tests_share_a_broker_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from confluent_kafka import Producer

        seen = {}

        def test_first(millstream_broker, millstream_topic, millstream_group):
            seen.update(broker=millstream_broker, topic=millstream_topic, group=millstream_group)
            millstream_broker.fail_produces(1000, "TOPIC_AUTHORIZATION_FAILED")

        def test_second(
            millstream_broker, millstream_session_broker, millstream_topic, millstream_group,
            millstream_producer,
        ):
            assert millstream_broker is seen["broker"] is millstream_session_broker
            assert millstream_topic != seen["topic"]
            assert millstream_group != seen["group"]
            topics = millstream_producer.list_topics(timeout=60).topics
            assert millstream_topic in topics
            assert seen["topic"] not in topics
            failures = []
            millstream_producer.produce(
                millstream_topic, b"x", on_delivery=lambda error, _: failures.append(error)
            )
            assert millstream_producer.flush(60) == 0
            assert failures == [None]
            millstream_broker.stop()

        def test_third(millstream_broker, millstream_topic_factory):
            assert millstream_broker is seen["broker"]
            name = millstream_topic_factory(partitions=3, configs={"retention.ms": 1000})
            millstream_broker.delete_topic(name)

        @pytest.mark.millstream_fresh_broker({"auto.create.topics.enable": False})
        def test_own(millstream_broker, millstream_producer):
            assert millstream_broker.bootstrap_servers != seen["broker"].bootstrap_servers
            missing = millstream_producer.list_topics("missing", timeout=60).topics["missing"]
            assert missing.error is not None

        @pytest.mark.millstream_fresh_broker(settings={"num.partitions": 7})
        def test_own_by_name(millstream_producer):
            millstream_producer.list_topics("made", timeout=60)
            found = millstream_producer.list_topics("made", timeout=60).topics["made"]
            assert len(found.partitions) == 7
        """
    )
    run(pytester).assert_outcomes(passed=5)


def test_ini_options(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        millstream_broker_scope = function
        millstream_broker_settings =
            num.partitions = 5
            auto.create.topics.enable=true
        """
    )
    pytester.makepyfile(
        """
        import pytest

        brokers = []

        @pytest.mark.parametrize("turn", range(2))
        def test_own(millstream_broker, millstream_producer, turn):
            assert millstream_broker not in brokers
            brokers.append(millstream_broker)
            millstream_producer.list_topics("made", timeout=60)
            found = millstream_producer.list_topics("made", timeout=60).topics["made"]
            assert len(found.partitions) == 5
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_a_wrong_scope_and_a_wrong_mark(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmillstream_broker_scope = class")
    pytester.makepyfile(
        """
        import pytest

        def test_scope(millstream_broker): pass

        @pytest.mark.millstream_fresh_broker({}, {})
        def test_mark(millstream_broker): pass
        """
    )
    result = run(pytester)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*must be session or function*", "*takes one argument*"])


def test_a_wrong_setting(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmillstream_broker_settings = num.partitions")
    pytester.makepyfile("def test_it(millstream_broker): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'num.partitions' is not KEY=VALUE*"])


def test_a_session_that_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_unused(request):
            assert request.config.pluginmanager.has_plugin("millstream")
            ours = {name for name in sys.modules if name.split(".")[0] == "millstream"}
            assert ours == {"millstream", "millstream.testing", "millstream.testing.plugin"}
            assert "confluent_kafka" not in sys.modules
        """
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=1)
