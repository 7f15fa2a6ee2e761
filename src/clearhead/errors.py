"""Every error that clearhead raises on purpose.

    ClearheadError
    ├── InputError            a text, an option or a file that cannot be used (also a ValueError)
    │   └── TextTooLong       a text of more tokens than the model has positions for
    ├── LoadError             a model that cannot be loaded as asked
    ├── UnsupportedModel      a model, or a part of one, that clearhead does not follow
    ├── ProofError            what was captured does not rebuild the model's own output
    ├── NotDefined            the quantity asked for does not exist here
    └── MissingExtra          an optional dependency that is not installed (also an ImportError)

Each says in one line what was asked, what was got, what is allowed and what to do.
"""


class ClearheadError(Exception):
    """Base of all errors below.

    `asked` names the thing asked for and what is wrong with it; `got`, `allowed` and `do` complete the line.
    """

    def __init__(self, asked: str, *, got: object = None, allowed: str = "", do: str = "") -> None:
        self.asked, self.got, self.allowed, self.do = asked, got, allowed, do
        parts = [asked.rstrip(".")]
        if got is not None:
            parts.append(f"got {got}")
        if allowed:
            parts.append(f"allowed: {allowed}")
        line = "; ".join(parts) + "."
        super().__init__(f"{line} {do}" if do else line)


class InputError(ClearheadError, ValueError):
    """A text, an option or a file that cannot be used."""


class TextTooLong(InputError):
    """A text of more tokens than the model has positions for."""


class LoadError(ClearheadError):
    """A model that cannot be loaded as asked."""


class UnsupportedModel(ClearheadError):
    """A model, or a part of one, that clearhead does not follow."""


class ProofError(ClearheadError):
    """What was captured does not rebuild the model's own output."""


class NotDefined(ClearheadError):
    """The quantity asked for does not exist for this trace."""


class MissingExtra(ClearheadError, ImportError):
    """An optional dependency that is not installed."""
