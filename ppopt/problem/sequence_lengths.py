"""Factors of microbatches from the lengths of their documents.

The times of the stages are those of one document of R tokens (`reference_tokens`), of which
attention takes a share a (`attention_share`), which grows with the square of the length of a
document; all else grows with the tokens. A microbatch of documents of d tokens each then has, on
times, the factor (1 - a) sum(d) / R + a sum(d^2) / R^2, and sum(d) / R on memory: with attention
that does not store its scores (FlashAttention) activations grow with the tokens.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem import exact
from ppopt.problem.field_values import FieldReader, as_list, is_list
from ppopt.problem.microbatches import DIGITS

Lengths = tuple[tuple[int, ...], ...]
"""Lengths of the documents of every microbatch, in tokens."""
LARGEST = 10**12
"""Maximum number of tokens of a document."""


def read_lengths(value: object, field: str = "microbatch_tokens") -> Lengths:
    """Read a list with one entry per microbatch: its tokens, or a list of lengths of documents.

    Raises InputError on anything else.
    """
    if not is_list(value):
        raise InputError(f"{field}: give a list with one entry per microbatch, as [[4096, 28672]]")
    entries = as_list(value, field)
    if not entries:
        raise InputError(f"{field}: the list is empty; give one entry per microbatch, as [4096]")
    documents = [as_list(entry, field) if is_list(entry) else [entry] for entry in entries]
    for microbatch, lengths in enumerate(documents):
        if not lengths:
            raise InputError(f"{field}: microbatch {microbatch} has no document")
        for length in lengths:
            if type(length) is not int or not 0 < length <= LARGEST:
                raise InputError(
                    f"{field}: microbatch {microbatch}: {str(length)[:40]} is no number of tokens "
                    "from 1 to 10^12"
                )
    return tuple(map(tuple, documents))


def read_share(value: object) -> Fraction:
    """Read a share of time between 0 and 1; None is 0. Raises InputError on anything else."""
    share: Fraction = exact.read(0 if value is None else value, "attention_share").value
    if not 0 <= share <= 1:
        raise InputError(f"attention_share: {exact.plain(share)} is not between 0 and 1")
    return share


def read_reference(value: object) -> int:
    """Read the tokens of the reference document; raises InputError if it is no count."""
    if value is None:
        raise InputError(
            "reference_tokens: missing; the tokens of the one document of which the times of the "
            "stages are"
        )
    return exact.count(value, "reference_tokens")


def time_factors(lengths: Lengths, reference: int, share: Fraction) -> tuple[Fraction, ...]:
    """Factor on the times of every microbatch."""
    return tuple(
        (1 - share) * Fraction(sum(documents), reference)
        + share * Fraction(sum(length**2 for length in documents), reference**2)
        for documents in lengths
    )


def slice_factors(slices: int, share: Fraction) -> tuple[Fraction, ...]:
    """Factor on the times of every slice of one document under causal attention.

    Slice q of Q attends on average to q + 1/2 of Q parts of the document, all slices together to
    Q / 2 each: so attention takes (2 q + 1) / Q times an equal part.
    """
    return tuple(
        1 - share + share * Fraction(2 * slice_index + 1, slices) for slice_index in range(slices)
    )


def factors_of(fields: dict[str, Any], reader: FieldReader) -> dict[str, Any]:
    """The factors that follow from the lengths in a pipeline's fields, in place of these fields.

    Without lengths, the share of attention gives the factors of slices, if there are any; it and
    the reference describe the times, and may be given without use. The reader remembers which
    factors were rounded. Raises InputError if lengths of some microbatches or the reference are
    missing, ConflictError if the same factors are given, too.
    """
    lengths, slices = fields["microbatch_tokens"], fields["slices"] or 1
    share = read_share(fields["attention_share"])
    if lengths is None:
        return _of_slices(fields, slices, share)
    if share and slices > 1:
        raise no_slices_of_documents()
    if fields["microbatch_times"] is not None:
        raise ConflictError("microbatch_tokens: gives microbatch_times; keep one of them")
    reference = read_reference(fields["reference_tokens"] or fields["tokens_per_microbatch"])
    documents = read_lengths(lengths)
    if len(documents) != fields["batches"]:
        raise InputError(
            f"microbatch_tokens: has {len(documents)} entries for {fields['batches']} microbatches"
        )
    times = time_factors(documents, reference, share)
    factors = {"microbatch_times": times}
    if fields["microbatch_memory"] is None:
        tokens = map(sum, documents)
        factors["microbatch_memory"] = tuple(Fraction(each, reference) for each in tokens)
    rounded = {
        field: tuple(max(Fraction(1, 10**DIGITS), round(factor, DIGITS)) for factor in values)
        for field, values in factors.items()
    }
    reader.note(field for field, values in factors.items() if rounded[field] != values)
    rounded |= _mean_counts(
        fields, exact.total(map(Fraction, map(sum, documents))) / reference, times
    )
    return rounded | dict.fromkeys(("microbatch_tokens", "attention_share", "reference_tokens"))


def _mean_counts(
    fields: dict[str, Any], references: Fraction, times: tuple[Fraction, ...]
) -> dict[str, Any]:
    """Mean tokens and floating-point operations of a microbatch, if those of a reference are given.

    All microbatches have the tokens of so many `references`. Attention is a larger share of the
    times than of the operations, so the smaller of both factors counts for these.
    """
    factors = {
        "tokens_per_microbatch": references,
        "flops_per_microbatch": min(references, exact.total(times)),
    }
    return {
        field: max(1, floor(exact.count(fields[field], field) * factor / len(times)))
        for field, factor in factors.items()
        if fields[field] is not None
    }


def no_slices_of_documents() -> ConflictError:
    """The error for packed documents that are cut into slices, which attention makes unequal."""
    return ConflictError(
        "attention_share: of packed documents no two microbatches have the same slices; give "
        "microbatch_times and slice_times, or no slices"
    )


def _of_slices(fields: dict[str, Any], slices: int, share: Fraction) -> dict[str, Any]:
    """Factors of slices that follow from the share of attention; perhaps none."""
    used = {} if fields["reference_tokens"] is None else {"reference_tokens": None}
    if fields["attention_share"] is None:
        return used
    used["attention_share"] = None
    if slices == 1:
        return used
    if fields["slice_times"] is not None:
        if share:
            raise ConflictError("attention_share: gives slice_times; keep one of them")
        return used
    return used | {"slice_times": slice_factors(slices, share)}
