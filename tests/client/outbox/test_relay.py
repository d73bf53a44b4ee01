"""The relay as a process, with real databases and a real broker."""

from __future__ import annotations

import random
import signal
import time

import pytest

from client.outbox.outbox_home import OutboxHome, committed_records, values_by_key
from harness.process.broker_process import BrokerProcess, wait_until
from harness.seed import choose_seed


def test_events_arrive_as_they_were_written(home: OutboxHome, topic: str) -> None:
    connection = home.connect()
    home.outbox.write(connection, topic, key="k", value="text", headers={"a": "1", "b": None})
    home.outbox.write(connection, topic, key=b"\x00\xff", value=None, partition=1)
    home.outbox.write(connection, topic, value=b"\x00" * 10)
    connection.commit()
    home.outbox.write(connection, topic, key="k", value="rolled back")
    connection.rollback()
    (created_ms,) = home.query("SELECT created_ms FROM millstream_outbox WHERE id = 1")[0]
    connection.close()
    home.drain()
    records = {record.value(): record for record in committed_records(home.bootstrap, topic)}
    assert set(records) == {b"text", None, b"\x00" * 10}
    assert records[b"text"].key() == b"k"
    assert records[b"text"].headers() == [("a", b"1"), ("b", None)]
    assert records[b"text"].timestamp()[1] == created_ms
    assert (records[None].key(), records[None].partition()) == (b"\x00\xff", 1)
    assert records[b"\x00" * 10].key() is None
    assert home.query("SELECT count(*) FROM millstream_outbox") == [(0,)]


def test_sent_rows_stay_for_keep_s(home: OutboxHome, topic: str) -> None:
    home.write(topic, [("k", "1"), ("k", "2")])
    relay = home.start_relay("--keep", "3600")
    home.wait_until_sent()
    assert home.query("SELECT count(*) FROM millstream_outbox") == [(2,)]
    home.kill(relay)
    home.start_relay("--keep", "0.001")
    wait_until(
        lambda: home.query("SELECT count(*) FROM millstream_outbox") == [(0,)], "old rows to go"
    )
    assert values_by_key(home.bootstrap, topic) == {"k": ["1", "2"]}


def test_a_relay_ends_on_a_signal(home: OutboxHome, topic: str) -> None:
    relay = home.start_relay()
    home.write(topic, [("k", "1")])
    home.wait_until_sent()
    relay.send_signal(signal.SIGINT)
    assert relay.wait(60) == 0, home.said()
    assert "1 event sent" in home.said()


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
def test_rows_with_smaller_ids_that_commit_late_are_sent(home: OutboxHome, topic: str) -> None:
    """The database assigns ids before the commit. A position among the ids would skip such rows."""
    slow = home.connect()
    home.outbox.write(slow, topic, key="slow", value="1")
    home.start_relay()
    home.write(topic, [("fast", "2")])
    wait_until(
        lambda: home.query("SELECT count(*) FROM millstream_outbox") == [(0,)], "the fast row"
    )
    slow.commit()
    slow.close()
    home.drain()
    assert values_by_key(home.bootstrap, topic) == {"fast": ["2"], "slow": ["1"]}


def test_the_database_wakes_a_relay(home: OutboxHome, topic: str) -> None:
    home.start_relay("--poll", "3600")
    for number in range(2):
        # Once one event is sent, the relay has found no more and waits.
        home.write(topic, [("k", str(number))])
        home.wait_until_sent()
    assert values_by_key(home.bootstrap, topic) == {"k": ["0", "1"]}


def fight(home: OutboxHome, topic: str, kills: int, relays: int, seed: int) -> None:
    """Write events of 20 keys and kill relays at random: each must arrive once and in order."""
    chance = random.Random(seed)
    expected: dict[str, list[str]] = {f"key-{number}": [] for number in range(20)}

    def write_some() -> None:
        events = []
        for _ in range(chance.randrange(1, 400)):
            key = chance.choice(list(expected))
            expected[key].append(str(len(expected[key])))
            events.append((key, expected[key][-1]))
        home.write(topic, events)

    running = [home.start_relay("--batch-rows", "50") for _ in range(relays)]
    for _ in range(kills):
        for _ in range(chance.randrange(1, 6)):
            write_some()
        # A kill may happen at any time, also during the start.
        time.sleep(chance.choice([0.0, 0.02, 0.5, 1.0, 1.5]) + chance.uniform(0, 0.5))
        victim = chance.randrange(relays)
        home.kill(running[victim])
        running[victim] = home.start_relay("--batch-rows", "50", "--keep", "60")
    write_some()
    home.wait_until_sent(180)
    for relay in running:
        home.kill(relay)
    assert values_by_key(home.bootstrap, topic) == {k: v for k, v in expected.items() if v}


def test_each_event_is_sent_once_although_relays_are_killed(home: OutboxHome, topic: str) -> None:
    seed = choose_seed("OUTBOX_SEED")
    fight(home, topic, kills=3, relays=2, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_kills(home: OutboxHome, topic: str) -> None:
    seed = choose_seed("OUTBOX_SEED")
    fight(home, topic, kills=100, relays=3, seed=seed)


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
def test_each_event_is_sent_once_although_the_broker_is_killed(
    home: OutboxHome, topic: str, broker: BrokerProcess
) -> None:
    home.write(topic, [("k", str(number)) for number in range(200)])
    home.start_relay("--batch-rows", "10")
    wait_until(lambda: home.pending() < 150, f"the relay to begin\n{home.said()}")
    broker.kill()
    broker.start()
    home.write(topic, [("k", str(number)) for number in range(200, 250)])
    home.wait_until_sent(180)
    assert values_by_key(home.bootstrap, topic) == {"k": [str(n) for n in range(250)]}
