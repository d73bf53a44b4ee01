"""The network of the nemesis: a cut drops packets in one direction only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemesis.enclosure import enclosed, obstacle

_TESTS = Path(__file__).parent.parent
_SCRIPT = """
import subprocess, sys
from nemesis.network import Network

LISTEN = '''
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
    receiver.bind((sys.argv[1], 7))
    print("ready", flush=True)
    while True:
        print(receiver.recv(100).decode(), flush=True)
'''
SEND = '''
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(sys.argv[2].encode(), (sys.argv[1], 7))
'''
network = Network()
names = ("one", "two")
listeners = {}
for name in names:
    command = [sys.executable, "-c", LISTEN, network.add(name)]
    listeners[name] = subprocess.Popen(
        network.inside(name, command), stdout=subprocess.PIPE, text=True
    )
    assert listeners[name].stdout.readline() == "ready\\n"

def send(source, target, what):
    command = [sys.executable, "-c", SEND, network.addresses[target], what]
    subprocess.run(network.inside(source, command), check=True)

def receives(target, what):
    assert listeners[target].stdout.readline() == what + "\\n"

send("one", "two", "first")
receives("two", "first")
network.cut("one", "two")
send("one", "two", "lost")
send("two", "one", "back")
receives("one", "back")
network.restore("one", "two")
send("one", "two", "second")
receives("two", "second")
subprocess.run([sys.executable, "-c", SEND, network.addresses["two"], "outside"], check=True)
receives("two", "outside")
"""


def test_a_cut_drops_packets_in_one_direction() -> None:
    if reason := obstacle():
        pytest.skip(reason)
    process = subprocess.run(
        enclosed([sys.executable, "-c", _SCRIPT]),
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
