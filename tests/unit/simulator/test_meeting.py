"""Where ranks meet: values, ends of collectives, and ranks that do not come."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuscope.device import ranks as module
from gpuscope.device.ranks import Begun, Meeting, NoMeeting, Ranks, ranks_of_process, take_part


def begun(start_ns, work_ns=100, what="a sum"):
    return Begun(start_ns, what, work_ns, f"from {start_ns}")


def test_it_ends_when_the_last_has_come_and_the_slowest_is_done():
    meeting = Meeting(2)
    meeting.begin(("g", 0), 0, begun(1_000))
    meeting.begin(("g", 0), 1, begun(5_000))
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(meeting.end_ns, ("g", 0), 0, 100, 1_100)
        late = pool.submit(meeting.end_ns, ("g", 0), 1, 130, 5_130)
        # Rank 0 may be told of a time on the way; the end is the same to both.
        on_the_way = early.result(10)
        assert 5_100 <= on_the_way <= late.result(10) == 5_130
    assert meeting.end_ns(("g", 0), 0, 100, on_the_way) == 5_130
    assert meeting.brought(("g", 0)) == ["from 1000", "from 5000"]


def test_a_rank_goes_on_as_far_as_the_others_clock_lets_it():
    meeting = Meeting(2)
    meeting.begin(("a", 0), 0, begun(10))
    meeting.begin(("b", 0), 1, begun(12))
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(meeting.end_ns, ("b", 0), 1, 100, 112)
        # Rank 1 stands at 112, so that it cannot begin "a" before: rank 0 need not wait for it.
        assert meeting.end_ns(("a", 0), 0, 100, 110) in (110 + 100, 112 + 100)
        assert waits.result(10) == 110 + 100


def test_values_of_all_ranks_come_back_again_and_again():
    meeting = Meeting(3)

    def act(rank):
        return [meeting.gather("round", rank, (number, rank)) for number in range(50)]

    with ThreadPoolExecutor(3) as pool:
        for told in pool.map(act, range(3)):
            assert told == [[(number, rank) for rank in range(3)] for number in range(50)]


def test_what_was_begun_is_forgotten_when_all_have_begun_the_next():
    meeting = Meeting(1)
    for number in range(5):
        meeting.begin(("g", number), 0, begun(1_000 * number))
    with pytest.raises(KeyError):
        meeting.brought(("g", 3))
    assert meeting.brought(("g", 4)) == ["from 4000"]


def test_ranks_that_all_wait_for_each_other_are_told():
    meeting = Meeting(2)
    told = []

    def wait_in(name, rank):
        with pytest.raises(NoMeeting) as raised:
            meeting.gather(name, rank, None)
        told.append(str(raised.value))

    threads = [
        threading.Thread(target=wait_in, args=one, daemon=True) for one in (("x", 0), ("y", 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(told) == 2
    assert "rank 0 waits for the others at 'x'" in told[0]
    assert "rank 1 waits for the others at 'y'" in told[0]


def test_the_ranks_of_a_process_are_those_of_torchrun_or_those_it_takes_part_in(monkeypatch):
    monkeypatch.setattr(module, "_mine", [])
    assert ranks_of_process() is None
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    found = ranks_of_process()
    assert (found.rank, found.world_size, found.meeting) == (3, 8, None)
    take_part(Ranks(1, 2))
    assert ranks_of_process() == Ranks(1, 2)


def test_groups_of_one_name_are_numbered():
    ranks = Ranks(0, 2)
    assert [ranks.new_group("a"), ranks.new_group("b"), ranks.new_group("a")] == ["a", "b", "a (2)"]
