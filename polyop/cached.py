"""Properties that are computed once, without a lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property  # noqa: TID251
else:

    class cached_property(functools.cached_property):  # noqa: TID251
        """`functools.cached_property` as Python 3.12 has it.

        Before, a lock that is one for all objects of a class was held while a value was computed: a child that was forked
        meanwhile waited for it forever, and so would two threads whose values need each other's locks. Here two threads may
        compute the same value; both get the one that was kept first.

        Source  https://docs.python.org/3/library/functools.html#functools.cached_property, "Changed in version 3.12"
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            if self.attrname is None:
                raise TypeError("a cached property needs a name: it is assigned in a class")
            values = instance.__dict__
            if self.attrname not in values:
                values.setdefault(self.attrname, self.func(instance))
            return values[self.attrname]


__all__ = ["cached_property"]
