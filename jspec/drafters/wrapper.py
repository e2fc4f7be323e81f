"""A drafter around another one, of which it changes a part."""

from typing import TYPE_CHECKING, Any

from jspec.protocols import Drafter

if TYPE_CHECKING:
    from jspec.types import Frame, PyTree, Tree


class _Inner:
    """An attribute that is looked up in the drafter inside."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        if wrapper is None:  # a dataclass asks whether the class has a default
            raise AttributeError(self._name)
        return getattr(wrapper.drafter, self._name)


class DrafterWrapper(Drafter):
    """A drafter that is its `drafter` in all that a subclass does not define."""

    vars().update({name: _Inner(name) for name in vars(Drafter) if not name.startswith("_")})
    drafter: Drafter

    if TYPE_CHECKING:

        def draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, PyTree]: ...
