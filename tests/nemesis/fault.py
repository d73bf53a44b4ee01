"""The faults of the nemesis: each is injected, held for a while, and undone.

`deck` is the list of all kinds; without libfaketime, clocks are not changed. A kind chooses its
victims when it is injected (the leader or controller at that time), and returns a `Fault`, which
can be undone once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nemesis.cluster import Cluster, is_etcd_leader
from nemesis.node import BrokerNode, EtcdNode, Node, faketime_library

#: Less than the time by which a record's timestamp may be ahead of the broker's clock.
_SKEW_S_MAX = 3000


@dataclass(frozen=True, slots=True)
class Fault:
    what: str
    undo: Callable[[], None]


class Kind(NamedTuple):
    name: str
    strike: Callable[[Cluster, random.Random], Fault]


def kill(nodes: list[Node]) -> Fault:
    for node in nodes:
        node.kill()
    return Fault(
        f"kill -9 of {_names(nodes)}", lambda: [node.start(wait=False) for node in nodes] and None
    )


def pause(nodes: list[Node]) -> Fault:
    for node in nodes:
        node.pause()
    return Fault(f"SIGSTOP of {_names(nodes)}", lambda: [node.resume() for node in nodes] and None)


def cut(cluster: Cluster, pairs: Iterable[tuple[Node, Node]], what: str) -> Fault:
    """Drop all packets from the first of each pair to the second."""
    pairs = list(pairs)
    for source, target in pairs:
        cluster.network.cut(source.name, target.name)

    def restore() -> None:
        for source, target in pairs:
            cluster.network.restore(source.name, target.name)

    return Fault(what, restore)


def isolate(cluster: Cluster, nodes: list[Node]) -> Fault:
    others = [node for node in cluster.nodes if node not in nodes]
    pairs = [(node, other) for node in nodes for other in others]
    pairs += [(other, node) for node, other in pairs]
    return cut(cluster, pairs, f"{_names(nodes)} cut off from the rest")


def restart_alone(cluster: Cluster, broker: BrokerNode) -> Fault:
    """Kill a broker, and start it while it is cut off from all others."""
    broker.kill()
    isolation = isolate(cluster, [broker])
    broker.start(wait=False)
    return Fault(f"{broker.name} killed, and started cut off from the rest", isolation.undo)


def deafen(cluster: Cluster, node: Node) -> Fault:
    pairs = [(other, node) for other in cluster.nodes if other is not node]
    return cut(cluster, pairs, f"{node.name} receives no packets")


def silence(cluster: Cluster, node: Node) -> Fault:
    pairs = [(node, other) for other in cluster.nodes if other is not node]
    return cut(cluster, pairs, f"packets from {node.name} are dropped")


def part(cluster: Cluster, one: Node, other: Node) -> Fault:
    return cut(
        cluster,
        [(one, other), (other, one)],
        f"{one.name} and {other.name} cut off from each other",
    )


def fill(broker: BrokerNode) -> Fault:
    broker.fill_disk()
    return Fault(f"the disk of {broker.name} is full", broker.clear_disk)


def skew(broker: BrokerNode, seconds: int) -> Fault:
    broker.set_clock(seconds)
    return Fault(f"the clock of {broker.name} is {seconds:+d} s off", lambda: broker.set_clock(0))


def _names(nodes: Iterable[Node]) -> str:
    return " and ".join(node.name for node in nodes)


# Victims


def a_leader(cluster: Cluster, chooser: random.Random) -> BrokerNode:
    found = sorted(cluster.leaders("plain"))
    return _broker(cluster, chooser.choice(found) if found else None, chooser)


def the_controller(cluster: Cluster, chooser: random.Random) -> BrokerNode:
    return _broker(cluster, cluster.controller(), chooser)


def _broker(cluster: Cluster, number: int | None, chooser: random.Random) -> BrokerNode:
    for broker in cluster.brokers:
        if broker.number == number:
            return broker
    return chooser.choice(cluster.brokers)


def the_etcd_leader(cluster: Cluster, chooser: random.Random) -> EtcdNode:
    leading = [member for member in cluster.members if is_etcd_leader(member)]
    return chooser.choice(leading or cluster.members)


def two(nodes: list[Node], chooser: random.Random) -> list[Node]:
    return chooser.sample(nodes, 2)


def deck() -> list[Kind]:
    """Return every kind of fault once."""
    kinds = [
        Kind("kill-leader", lambda c, r: kill([a_leader(c, r)])),
        Kind("kill-controller", lambda c, r: kill([the_controller(c, r)])),
        Kind("kill-two-brokers", lambda c, r: kill(two(list(c.brokers), r))),
        Kind("kill-and-isolate", lambda c, r: restart_alone(c, a_leader(c, r))),
        Kind("pause-leader", lambda c, r: pause([a_leader(c, r)])),
        Kind("pause-controller", lambda c, r: pause([the_controller(c, r)])),
        Kind("isolate-leader", lambda c, r: isolate(c, [a_leader(c, r)])),
        Kind("isolate-controller", lambda c, r: isolate(c, [the_controller(c, r)])),
        Kind("deafen-leader", lambda c, r: deafen(c, a_leader(c, r))),
        Kind("silence-leader", lambda c, r: silence(c, a_leader(c, r))),
        Kind("deafen-etcd", lambda c, r: deafen(c, the_etcd_leader(c, r))),
        Kind("kill-etcd-leader", lambda c, r: kill([the_etcd_leader(c, r)])),
        Kind("pause-etcd-leader", lambda c, r: pause([the_etcd_leader(c, r)])),
        Kind("isolate-etcd-leader", lambda c, r: isolate(c, [the_etcd_leader(c, r)])),
        Kind("kill-two-etcd", lambda c, r: kill(two(list(c.members), r))),
        Kind("part-brokers", lambda c, r: part(c, *two(list(c.brokers), r))),
        Kind("part-broker-etcd", lambda c, r: part(c, a_leader(c, r), the_etcd_leader(c, r))),
        Kind("isolate-pair", lambda c, r: isolate(c, two(c.nodes, r))),
        Kind("fill-disk", lambda c, r: fill(a_leader(c, r))),
    ]
    if faketime_library() is not None:
        kinds.append(
            Kind(
                "skew-clock",
                lambda c, r: skew(a_leader(c, r), r.choice((-1, 1)) * r.randint(60, _SKEW_S_MAX)),
            )
        )
    return kinds
