"""The record of versions of PyTorch: what is read of a run of pytest, and its table."""

from __future__ import annotations

from benchmarks import pytorch_versions

RESULTS = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.torch.test_a.TestTraps" name="test_one[x]"/>
<testcase classname="tests.torch.test_a" name="test_two"><failure>no</failure></testcase>
<testcase classname="tests.torch.test_a" name="test_three"><error>no</error></testcase>
<testcase classname="tests.torch.test_b" name="test_four"><skipped message="absent"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted_and_failures_named() -> None:
    row = pytorch_versions.outcomes(RESULTS)
    assert row == {
        "passed": 1,
        "skipped": 1,
        "failed": ["test_a::test_two", "test_a::test_three"],
    }
    made = {"torch": "2.11.0", "commit": "0123456789", "second": 1, **row}
    assert list(pytorch_versions.report([made, made | {"failed": []}]))[-2:] == [
        "| 2.11.0 | 1 | 1 | 1 | test_a::test_two, test_a::test_three | 01234567 |",
        "| 2.11.0 | 1 | 1 | 1 | 0 | 01234567 |",
    ]
