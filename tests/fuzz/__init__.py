"""The adversary: random cases of every kind against oracles that share no code with the product.

python -m tests.fuzz --minutes 10 --seed 1 --workers 2

A category (`tests.fuzz.category`) draws cases and checks them. Cases are plain data, so that a
failing one can be written as a test; it is made smaller by drawing from simpler numbers
(`tests.fuzz.draws`). Properties that hypothesis checks have no category: `PPOPT_EXAMPLES=1000
pytest tests/verifier tests/oracles` draws as many times more examples of each.
"""
