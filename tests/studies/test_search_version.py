"""The version of stored results is raised when they lose their meaning."""

from __future__ import annotations

import json

from ppopt import versions
from tests.studies import search_version


def test_a_stored_result_has_the_answer_of_today() -> None:
    recorded = json.loads(search_version.RECORD.read_text(encoding="utf-8"))
    today = search_version.answers()
    changed = {
        name: (earlier, today[name])
        for name, earlier in recorded["answers"].items()
        if name in today and today[name] != earlier
    }
    if recorded["version"] == versions.SEARCH_VERSION:
        assert not changed, (
            "stored results are no longer right: raise SEARCH_VERSION in "
            "ppopt/versions.py, then run python -m tests.studies.search_version"
        )
    assert recorded == {"version": versions.SEARCH_VERSION, "answers": today}, (
        "run python -m tests.studies.search_version"
    )
