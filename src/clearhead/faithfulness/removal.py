"""The model without some of a text's tokens: many variants of one text in few forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from clearhead.errors import InputError, NotDefined, ProofError

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.models.model import Model
    from clearhead.target import Goal
    from clearhead.trace import Trace

Removal = Literal["delete", "mask", "mean"]
REMOVALS: tuple[Removal, ...] = ("delete", "mask", "mean")
BATCH_TOKENS = 4096
"""The most tokens of one forward pass."""
TOLERANCE = 64
"""Times the square root of width x layers x epsilon: how far the number of the whole text may lie from the model's."""


@dataclass
class Without:
    """Numbers of one text without any of its tokens, each set of tokens run once.

    "delete": the tokens are taken out, so that the others move together; "mask": the tokenizer's mask token stands in
    their place; "mean": the mean of all input embeddings does. Tokens that the tokenizer's template added stay always.
    Variants of equal length share a forward pass, so there is no padding.
    Errors: InputError for another removal; NotDefined for a tokenizer without a mask token, or a text without a token
    of its own; ProofError where the whole text, run this way, does not give the model's own number.
    """

    model: Model
    trace: Trace
    goal: Goal
    removal: Removal
    known: dict[frozenset[int], float] = field(default_factory=dict[frozenset[int], float])

    def __post_init__(self) -> None:
        if self.removal not in REMOVALS:
            raise InputError("compare: removal", got=repr(self.removal), allowed=", ".join(map(repr, REMOVALS)))
        if self.removal == "mask" and self.model.tokenizer.mask_token_id is None:
            raise NotDefined("removal='mask': this tokenizer has no mask token", allowed="'delete', 'mean'")
        self.tokens = [k for k, origin in enumerate(self.trace.tokens.origin) if origin != "template"]
        """Positions that may be removed."""
        if not self.tokens:
            raise NotDefined("compare: the text has no token of its own to remove")
        if self.removal == "delete" and len(self.tokens) == len(self.trace.tokens):
            do = "This tokenizer adds no token of its own; replace tokens instead."
            raise NotDefined("removal='delete': nothing of the text would be left", allowed="'mask', 'mean'", do=do)
        self._inputs = {name: t for name, t in self.trace.inputs.items() if name != "position_ids"}
        self._fill = self._mean_embedding() if self.removal == "mean" else None
        self._prove()

    def __call__(self, removed: Sequence[Sequence[int]]) -> list[float]:
        """The number without each of these sets of positions."""
        wanted = [frozenset(positions) for positions in removed]
        by_length: dict[int, list[frozenset[int]]] = {}
        for one in dict.fromkeys(wanted):
            if one not in self.known:
                by_length.setdefault(len(one) if self.removal == "delete" else 0, []).append(one)
        batch = max(1, BATCH_TOKENS // len(self.trace.tokens))
        for alike in by_length.values():
            for start in range(0, len(alike), batch):
                some = alike[start : start + batch]
                self.known.update(zip(some, self._run(self._variants(some)), strict=True))
        return [self.known[one] for one in wanted]

    @property
    def whole(self) -> float:
        """The number of the whole text."""
        return self([[]])[0]

    def _variants(self, removed: Sequence[frozenset[int]]) -> dict[str, Tensor]:
        """Inputs of one batch."""
        import torch

        n, device = len(self.trace.tokens), self._inputs["input_ids"].device
        gone = torch.tensor([[k in one for k in range(n)] for one in removed], device=device)
        inputs = {name: tensor.expand(len(removed), n) for name, tensor in self._inputs.items()}
        if self.removal == "delete":
            return {name: tensor[~gone].view(len(removed), -1) for name, tensor in inputs.items()}
        if self.removal == "mask":
            mask: Any = self.model.tokenizer.mask_token_id
            return inputs | {"input_ids": torch.where(gone, mask, inputs["input_ids"])}
        embedded = self._embedding(inputs.pop("input_ids"))
        assert self._fill is not None
        return inputs | {"inputs_embeds": torch.where(gone[..., None], self._fill, embedded)}

    def _run(self, inputs: dict[str, Tensor]) -> list[float]:
        found = self.goal.of(self.goal.run(self.model.hf, inputs))
        count = len(next(iter(inputs.values())))
        if tuple(found.shape) != (count,) or not bool(found.isfinite().all()):
            raise InputError(
                f"compare: the target {self.goal.name!r}",
                got=f"shape {tuple(found.shape)}",
                allowed="one finite number a text",
            )
        return found.double().tolist()

    def _prove(self) -> None:
        """The whole text in a batch with another variant, against the untouched model alone."""
        own = self._run(self._inputs)[0]
        last = self.tokens[-1:]
        found = self([[], last])[0]
        eps, size = self.trace.eps, self.model.width * self.model.layers
        allowed = TOLERANCE * eps * size**0.5 * max(abs(own), 1e-3)
        if abs(found - own) > allowed:
            raise ProofError(
                f"compare: the whole text, run with removal={self.removal!r}, does not give the model's own number",
                got=f"{found:.9g} for {own:.9g}",
                allowed=f"a difference of {allowed:.2g}",
            )

    @property
    def _embedding(self) -> Callable[[Tensor], Tensor]:
        found: Any = self.model.hf.get_input_embeddings()
        return found

    def _mean_embedding(self) -> Tensor:
        """The mean of the embeddings of the whole vocabulary, as the model looks them up."""
        import torch

        count, device = int(self.model.config.vocab_size), self._inputs["input_ids"].device
        with torch.no_grad():
            sums = [self._embedding(ids).double().sum(0) for ids in torch.arange(count, device=device).split(8192)]
        return (torch.stack(sums).sum(0) / count).to(self.model.hf.dtype)
