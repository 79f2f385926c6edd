"""A package whose public names wait for their first use, because importing torch takes seconds and a hint needs none.

sys.modules[__name__].__class__ = Lazy      at the end of its __init__.py, which defines HOMES: name → module, or
                                            "module:name" where it has another name there
"""

from importlib import import_module
from types import ModuleType


class Lazy(ModuleType):
    def __getattr__(self, name: str):
        if name in self.HOMES:
            module, _, known_as = self.HOMES[name].partition(":")
            vars(self)[name] = getattr(import_module(module, self.__name__), known_as or name)
            return vars(self)[name]
        try:
            return import_module(f".{name}", self.__name__)
        except ModuleNotFoundError as error:
            if error.name != f"{self.__name__}.{name}":
                raise  # it is there, and what it imports is not
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value) -> None:
        """An imported module does not hide the function of its name: `load`, `generate`, `check`."""
        if name not in self.HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.HOMES, *vars(self).get("__all__", ())})
