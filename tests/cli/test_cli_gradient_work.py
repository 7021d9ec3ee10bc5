"""Gradient work on the command line: what verify counts, what an order for PyTorch leaves out."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_run import done

STEP = "eval 1f1b --stages 2 --batches 4 --unshard 2 --gradient-sync 2 --optimizer 1 -o"


def test_verify_counts_what_is_around_the_microbatches(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done(STEP, path)
    assert "16 operations and 6 around the microbatches, every rule" in done("verify", path).out


def test_an_order_of_compute_says_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done(STEP, path)
    note = "note: this order is of compute alone"
    assert note in done(f"export {path} --to torch-csv -o {tmp_path / 'a.csv'}").err
    assert note not in done(f"export {path} --to torch-comms -o {tmp_path / 'b.csv'}").err
