"""A drafter around another one, of which it changes a part."""

from typing import Any

from jspec.protocols import Drafter


class DrafterWrapper(Drafter):
    """A drafter that is its `drafter` in all that a subclass does not define.

    What the engine and merges ask of a drafter is listed once, in `jspec.Drafter`; all of it is
    passed on.
    """

    drafter: Drafter

    def draft(self, params, state, frame):
        """The drafter's own draft."""
        return self.drafter.draft(params, state, frame)


class _Inner:
    """An attribute that is looked up in the drafter inside."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        if wrapper is None:  # a dataclass asks whether the class has a default
            raise AttributeError(self._name)
        return getattr(wrapper.drafter, self._name)


for _name in vars(Drafter):
    if not _name.startswith("_") and _name != "draft":
        setattr(DrafterWrapper, _name, _Inner(_name))
