"""A text (or pair) -> tokens with their characters, and batches of them as the model wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from clearhead.errors import InputError, TextTooLong
from clearhead.models.families import Family
from clearhead.tokens import Tokens, make_tokens


@dataclass(frozen=True)
class Encoded:
    """One text as the model reads it: `tokens` for people, `ids` and `types` for the model."""

    tokens: Tokens
    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    warnings: tuple[str, ...]


def check_text(text: object, name: str = "text") -> str:
    """The text itself. Errors: InputError for what is not a string, has nothing to read, or cannot be encoded."""
    if not isinstance(text, str):
        raise InputError(f"trace: {name} must be a string", got=type(text).__name__, do="Use trace_many for a list.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"trace: {name} holds half of a character (a lone surrogate) at position {error.start}",
            got=ascii(text[error.start]),
            do="Decode the text again from its bytes.",
        ) from None
    if not text.strip():
        raise InputError(f"trace: {name} has nothing to read", got="an empty text" if not text else "only white space")
    return text


def encode(
    text: str, pair: str | None, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, family: Family
) -> Encoded:
    """Tokenise without cutting. Errors: InputError for an unusable text, TextTooLong beyond the model's limit."""
    check_text(text)
    if pair is not None:
        check_text(pair, "pair")
    found: Any = tokenizer(
        text,
        pair,
        truncation=False,
        padding=False,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_token_type_ids=family.segments,
        verbose=False,
    )
    ids, offsets = tuple(found["input_ids"]), list(found["offset_mapping"])
    check_length(ids, offsets, pair, limit(config, family), tokenizer)
    template = [bool(flag) for flag in found["special_tokens_mask"]]
    segments = [sequence or 0 for sequence in found.sequence_ids(0)]
    pieces = list(tokenizer.convert_ids_to_tokens(list(ids)))
    special = set(tokenizer.all_special_ids)
    typed = [
        i in special and not t and (pair if s and pair else text)[a:b] == piece
        for i, t, s, (a, b), piece in zip(ids, template, segments, offsets, pieces, strict=True)
    ]
    tokens = make_tokens(text, pair, ids, pieces, offsets, template, segments, typed)
    types = tuple(found["token_type_ids"]) if family.segments else None
    return Encoded(tokens, ids, types, tuple(doubled(pieces, template, typed)))


def doubled(pieces: Sequence[str], template: Sequence[bool], typed: Sequence[bool]) -> list[str]:
    """A warning where the text itself repeats a special token that the tokenizer has just added."""
    return [
        f"the text itself writes {pieces[k]!r}, which the tokenizer has added already: it now stands there twice"
        for k in range(1, len(pieces))
        if typed[k] and template[k - 1] and pieces[k] == pieces[k - 1]
    ]


def limit(config: PretrainedConfig, family: Family) -> int | None:
    """The most tokens that the model has positions for."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and family.padded_positions:
        return int(positions) - int(config.pad_token_id or 0) - 1
    return None if positions is None else int(positions)


def check_length(
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    pair: str | None,
    most: int | None,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Errors: InputError for a text without a token; TextTooLong for more than `most`: both lengths, the ways out."""
    if not ids:
        raise InputError("trace: the tokenizer makes no token of this text", got="0 tokens", allowed="1 or more")
    if most is None or len(ids) <= most:
        return
    do = "Shorten the texts, or trace parts of them with trace_many."
    if pair is None:
        room = most - tokenizer.num_special_tokens_to_add(pair=False)
        ends = [stop for start, stop in offsets if stop > start][:room]
        do = f"Cut it (text[:{ends[-1] if ends else 0}] fits), or trace parts of it with trace_many."
    raise TextTooLong(
        "trace: the text is longer than the model's limit", got=f"{len(ids)} tokens", allowed=f"at most {most}", do=do
    )


@dataclass(frozen=True)
class Batch:
    """Texts side by side: `inputs` for the model, and where each text stands in its row."""

    inputs: dict[str, Tensor]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def padded(self) -> bool:
        """True where any row is longer than its text."""
        return min(self.lengths) < self.inputs["input_ids"].shape[1]


def collate(
    texts: Sequence[Encoded], family: Family, config: PretrainedConfig, side: str, device: torch.device
) -> Batch:
    """One batch, padded on `side` ("left" or "right"), with attention mask and position ids always given."""
    lengths = tuple(len(text.ids) for text in texts)
    size = max(lengths)
    starts = tuple(size - length if side == "left" else 0 for length in lengths)
    pad = int(config.pad_token_id) if isinstance(config.pad_token_id, int) and config.pad_token_id >= 0 else 0

    def rows(parts: Sequence[Sequence[int]], filler: int) -> Tensor:
        table = torch.full((len(texts), size), filler, dtype=torch.long)
        for row, part, start in zip(table, parts, starts, strict=True):
            row[start : start + len(part)] = torch.tensor(part, dtype=torch.long)
        return table.to(device)

    ids = rows([text.ids for text in texts], pad)
    mask = rows([[1] * length for length in lengths], 0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(ids, mask, family, config)}
    if all(text.types is not None for text in texts):
        inputs["token_type_ids"] = rows([text.types or () for text in texts], 0)
    return Batch(inputs, starts, lengths)


def positions(ids: Tensor, mask: Tensor, family: Family, config: PretrainedConfig) -> Tensor:
    """Position ids as the family counts them, padding not counted.

    RoBERTa and MPNet start at padding id + 1, and give the padding id itself to every padding token, typed ones too.
    """
    if not family.padded_positions:
        return (mask.cumsum(-1) - 1).clamp(min=0)
    pad = int(config.pad_token_id or 0)
    counted = ids.ne(pad).long() * mask
    return counted.cumsum(-1) * counted + pad
