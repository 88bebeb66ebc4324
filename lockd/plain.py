"""`dataclass`, `field` and `replace` as in the standard library, without its cost at import.

Every launch waits for lockd. The standard `dataclasses` imports `inspect` and compiles six methods for each class: with
fifty classes that is several times an interpreter's start. Here the methods are shared closures. The import is the one
line that changes in a module; type checkers see the real thing.
Always holds: a class made here is a dataclass for all who ask (`dataclasses.fields` and `replace`, pydantic), as the
standard's own fields are made when first asked for. Defaults, factories, frozen, inheritance, `__post_init__` hold.
Never: takes an option of the standard that it would not honour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    _MISSING = object()

    class _Field:
        """What `field` said of a field: its default, or what makes one for each object; whether it counts in `==`."""

        __slots__ = ("compare", "default", "make")

        def __init__(self, default, make, compare):
            self.default, self.make, self.compare = default, make, compare

    def field(*, default=_MISSING, default_factory=_MISSING, compare=True):
        """The default of a field, and whether it counts when objects are compared."""
        return _Field(default, default_factory, compare)

    def replace(thing, /, **changes):
        """A copy of an object with some of its fields changed."""
        kept = {name: getattr(thing, name) for name in type(thing).__plain__ if name not in changes}
        return type(thing)(**kept, **changes)

    def dataclass(made=None, /, *, frozen=False):
        """A class whose annotated names are its fields."""
        if made is None:
            return lambda later: _complete(later, frozen)
        return _complete(made, frozen)

    def _complete(made, frozen):
        types, told = _fields_of(made)
        made.__plain__, made.__plain_fields__ = types, told
        made.__plain_compared__ = tuple(name for name in types if name not in told or told[name].compare)
        made.__match_args__ = tuple(types)
        made.__dataclass_fields__ = _StandardFields(made)
        made.__dataclass_params__ = _StandardParameters(frozen)
        methods = {"__init__": _init(made), "__repr__": _repr, "__eq__": _eq}
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        own_hash = made.__dict__.get("__hash__")  # None also where the class has an __eq__ of its own
        for name, method in methods.items():
            if name not in made.__dict__:
                setattr(made, name, method)
        made.__hash__ = own_hash or (_hash if frozen else None)
        return made

    def _fields_of(made):
        """(name → type, name → what is told of it) of a class, those that it inherits first."""
        types, told = dict(getattr(made, "__plain__", {})), dict(getattr(made, "__plain_fields__", {}))
        for name, kind in made.__annotations__.items():
            if str(kind).startswith(("ClassVar", "typing.ClassVar")):
                continue
            types[name] = kind
            told.pop(name, None)
            if name in made.__dict__:
                value = made.__dict__[name]
                told[name] = value if type(value) is _Field else _Field(value, _MISSING, True)
                if told[name].default is _MISSING:
                    delattr(made, name)
                else:
                    setattr(made, name, told[name].default)
        return types, told

    def _init(made):
        names = tuple(made.__plain__)
        known, count = frozenset(names), len(names)
        told = made.__plain_fields__
        shared = {name: one.default for name, one in told.items() if one.default is not _MISSING}
        factories = tuple((name, one.make) for name, one in told.items() if one.make is not _MISSING)
        then = getattr(made, "__post_init__", None)

        def __init__(self, /, *args, **given):
            values = self.__dict__
            values.update(shared)
            if args:
                if len(args) > count or not given.keys().isdisjoint(names[: len(args)]):
                    raise TypeError(f"{made.__name__}() got too many values, or two for one field")
                values.update(zip(names, args))  # noqa: B905 - fewer positions than names is usual
            values.update(given)
            for name, make in factories:
                if name not in values:
                    values[name] = make()
            if len(values) != count or not known.issuperset(given):
                wrong = sorted(known ^ values.keys())
                raise TypeError(f"{made.__name__}() has missing or unknown fields: {', '.join(wrong)}")
            if then:
                self.__post_init__()

        return __init__

    def _repr(self):
        words = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__plain__)
        return f"{type(self).__qualname__}({words})"

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or _values(self) == _values(other)

    def _hash(self):
        return hash(_values(self))

    def _values(self):
        values = self.__dict__
        return tuple([values[name] for name in self.__plain_compared__])

    def _refuse(self, name, *value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change field {name!r}")

    class _StandardFields:
        """`__dataclass_fields__`, made by the standard library when somebody asks."""

        def __init__(self, made):
            self.made = made

        def __get__(self, thing, owner=None):
            import dataclasses

            specs = []
            for name, kind in self.made.__plain__.items():
                one = self.made.__plain_fields__.get(name, _Field(_MISSING, _MISSING, True))
                said = {"default": one.default, "default_factory": one.make}
                said = {key: value for key, value in said.items() if value is not _MISSING}
                specs.append((name, kind, dataclasses.field(compare=one.compare, **said)))
            found = dataclasses.make_dataclass(self.made.__name__, specs).__dataclass_fields__
            self.made.__dataclass_fields__ = found
            return found

    class _StandardParameters:
        """`__dataclass_params__`, likewise."""

        def __init__(self, frozen):
            self.frozen = frozen

        def __get__(self, thing, owner=None):
            import dataclasses

            return dataclasses.make_dataclass("Asked", [], frozen=self.frozen).__dataclass_params__
