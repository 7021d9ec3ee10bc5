"""The adversary: random cases of every kind against oracles that share no code with the product.

python -m tests.fuzz --minutes 10 --seed 1 --workers 2

A category (`tests.fuzz.category`) draws cases, checks them and makes them smaller. Cases are plain
data, so that a failing one can be written as a test.
"""
