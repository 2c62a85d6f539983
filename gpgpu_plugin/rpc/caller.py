# SPDX-License-Identifier: Apache-2.0
"""Who may call which method of gpgpu-conductor.

A contract declares it next to each method, with the decorators ``hosts``,
``schedulers`` and ``operators``. Each kind of caller has a topic and a key of
its own (rpc.signature).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from collections.abc import Mapping

from gpgpu_plugin import context as gpgpu_context

_Method = typing.TypeVar('_Method', bound=Callable[..., object])

_Kind = gpgpu_context.CallerKind

_RULES = 'gpgpu_rules'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule for the calls of a method by one kind of callers.

    :ivar owner: argument that must be the caller's name, such as ``host`` or
        ``origin.host``; None: the method needs none, or checks rows itself
    :ivar once: a second conductor must not execute the same call again
    """

    owner: str | None = None
    once: bool = False


def hosts(owner: str | None, *,
          once: bool = False) -> Callable[[_Method], _Method]:
    """Return a decorator: hosts may call the method.

    :param owner: see Rule
    :param once: see Rule; where the same call, later, changes something again
    """
    return _allowed(_Kind.HOST, Rule(owner=owner, once=once))


def conductors() -> Callable[[_Method], _Method]:
    """Return a decorator: conductors send it to a host, with the host's key.

    Host and conductor have this key, and no call of the host has this topic.
    """
    return _allowed(_Kind.HOST, Rule())


def schedulers() -> Callable[[_Method], _Method]:
    """Return a decorator: schedulers may call the method."""
    return _allowed(_Kind.SCHEDULER, Rule())


def operators(*, once: bool = False) -> Callable[[_Method], _Method]:
    """Return a decorator: operators may call the method.

    :param once: see Rule; for each method that changes something
    """
    return _allowed(_Kind.OPERATOR, Rule(once=once))


def _allowed(kind: _Kind, rule: Rule) -> Callable[[_Method], _Method]:
    def decorate(method: _Method) -> _Method:
        setattr(method, _RULES, {**rules(method), kind: rule})
        return method
    return decorate


def rules(method: Callable[..., object]) -> Mapping[_Kind, Rule]:
    """Return who may call a method of a contract."""
    found: Mapping[_Kind, Rule] = getattr(method, _RULES, {})
    return found


def owner(rule: Rule, arguments: Mapping[str, object]) -> object:
    """Return the argument that must be the caller's name.

    :param arguments: primitives, of which nothing is known yet
    :returns: None also if there is no such argument
    """
    found: object = arguments
    for name in (rule.owner or '').split('.'):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
