"""Steps, memory and layer times that are derived, against what others measured and published.

`python -m benchmarks.derived_measured RUNS.json ... [--layers LAYERS.json]` prints the record. It
measures nothing: every run is predicted from its dimensions by `ppopt.derivation`. `--rows SOURCE`
prints single runs of a source.
"""
