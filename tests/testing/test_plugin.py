"""The plugin in small test sessions inside a test, as in a project that installs Millstream."""

from __future__ import annotations

import confluent_kafka  # noqa: F401 - what is loaded here is not loaded anew by each inner session
import pytest

import millstream.testing.broker  # noqa: F401

pytest_plugins = ["pytester"]

STRICT = ("-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider")


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    """Run a test session in which warnings are errors."""
    return pytester.runpytest_inprocess(*STRICT)


def test_tests_share_a_broker_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from millstream import Admin

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
            with Admin(millstream_broker.bootstrap_servers) as admin:
                topics = admin.list_topics()
            assert millstream_topic in topics
            assert seen["topic"] not in topics
            assert millstream_producer.send(millstream_topic, b"x").result(60).offset == 0
            millstream_broker.stop()

        def test_stopped(
            millstream_broker, millstream_producer, millstream_consumer, millstream_topic
        ):
            millstream_producer.send(millstream_topic, b"x")
            [record] = millstream_consumer.poll(timeout=60)
            assert record.value == b"x"
            assert millstream_consumer.committed() == {}
            millstream_consumer.commit()
            assert millstream_consumer.committed() == {(millstream_topic, 0): 1}
            millstream_broker.stop()
            millstream_producer.send(millstream_topic, b"never delivered")

        def test_bare_clients(
            millstream_confluent_producer, millstream_confluent_consumer, millstream_topic
        ):
            millstream_confluent_producer.produce(millstream_topic, b"x")
            assert millstream_confluent_consumer.poll(60).value() == b"x"

        def test_third(millstream_broker, millstream_topic_factory):
            assert millstream_broker is seen["broker"]
            name = millstream_topic_factory(partitions=3, configs={"retention.ms": 1000})
            millstream_broker.delete_topic(name)

        @pytest.mark.millstream_fresh_broker({"auto.create.topics.enable": False})
        def test_own(millstream_broker, millstream_confluent_producer):
            assert millstream_broker.bootstrap_servers != seen["broker"].bootstrap_servers
            found = millstream_confluent_producer.list_topics("missing", timeout=60)
            assert found.topics["missing"].error is not None

        @pytest.mark.millstream_fresh_broker(settings={"num.partitions": 7})
        def test_own_by_name(millstream_confluent_producer):
            millstream_confluent_producer.list_topics("made", timeout=60)
            found = millstream_confluent_producer.list_topics("made", timeout=60).topics["made"]
            assert len(found.partitions) == 7
        """
    )
    run(pytester).assert_outcomes(passed=7)


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
        def test_own(millstream_broker, millstream_confluent_producer, turn):
            assert millstream_broker not in brokers
            brokers.append(millstream_broker)
            millstream_confluent_producer.list_topics("made", timeout=60)
            found = millstream_confluent_producer.list_topics("made", timeout=60).topics["made"]
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


def test_a_session_without_the_fixtures_does_not_import_the_broker(
    pytester: pytest.Pytester,
) -> None:
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


def test_a_secure_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from millstream import Admin

        def test_it(millstream_secure_broker):
            broker = millstream_secure_broker
            with Admin(broker.bootstrap_servers, **broker.options("admin")) as admin:
                admin.create_topic("made")
                assert "made" in admin.list_topics()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
