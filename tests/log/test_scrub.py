from __future__ import annotations

from harness.log_home import LogHome, append, make_batch, read_batches
from millstream.log.scrub import scrub


def test_damage_is_found_and_what_follows_is_checked(home: LogHome) -> None:
    log = home.open()
    for number in range(4):
        append(log, make_batch(2, b"%d" % number * 30))
    batches = read_batches(log)
    home.stop(clean=True)
    path = home.log_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    assert scrub(home.disk, path) == []
    second, third = len(batches[0]), len(batches[0] + batches[1])
    data[second + 90] ^= 1
    data[third + 7] ^= 4
    path.write_bytes(data)
    findings = scrub(home.disk, path)
    assert [finding.position for finding in findings] == [second, third]
    assert "CRC" in findings[0].reason
    assert "order" in findings[1].reason
    path.write_bytes(data[:-1])
    assert scrub(home.disk, path)[-1].reason == "the file ends inside a batch"
    data[third + 16] = 1
    path.write_bytes(data)
    assert scrub(home.disk, path)[-1].position == third
