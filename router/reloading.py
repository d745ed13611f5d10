"""What a reload changes: two configurations compared, and the one that takes effect. Pure.

A setting of the class `restart` keeps the value that the process began with, whatever the file says now; the answer
names it, so that nobody is surprised. Replicas are compared by id: one more or less at the head of the list is one
change and not a change of all.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from router.config import Config, tree, validate
from router.diagnostics import Path, mask
from router.loading import Loaded, Secrets
from router.settings import Section, Setting
from router.tls import PEM_SETTINGS
from router.values import literal, written

HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Running:
    """A configuration in effect: the settings, the file's values that they came from, and the secrets."""

    config: Config
    values: dict[str, Any]
    secrets: Secrets


@dataclass(frozen=True, slots=True)
class Change:
    """From one configuration to the next. `changed` and `needs_restart` hold lines `path old -> new`."""

    running: Running
    changed: list[str]
    needs_restart: list[str]


def running(loaded: Loaded, secrets: Secrets) -> Running:
    """What a process begins with."""
    values = loaded.document.values
    assert isinstance(values, dict)  # Or it would not be valid.
    return Running(loaded.config, values, secrets)


def change(old: Running, loaded: Loaded, secrets: Secrets) -> Change:
    """What taking this configuration means."""
    new = running(loaded, secrets)
    before, after = dict(_leaves(tree(), old.config, ())), dict(_leaves(tree(), new.config, ()))
    values = copy.deepcopy(new.values)
    changed, needs_restart = [], []
    for path in [*before.keys(), *(after.keys() - before.keys())]:
        told = f"{'.'.join(path)} {_shown(before, path)} -> {_shown(after, path)}"
        found = after.get(path) or before[path]
        if _shown(before, path) == _shown(after, path) or _is_said(path, found, path in before and path in after):
            continue
        if found[0].reload == "restart":
            needs_restart.append(told)
            _keep(values, old.values, path)
        else:
            changed.append(told)
    changed += _secrets(old.secrets, secrets)
    if old.config.shadow.file == new.config.shadow.file is not None and old.secrets.shadow != secrets.shadow:
        changed.append("shadow.file (its content)")
    needs_restart += _kept(old.secrets, secrets)
    secrets = replace(secrets, gossip=old.secrets.gossip, redis_password=old.secrets.redis_password)
    config = validate(values)
    assert isinstance(config, Config)  # Each of its values was valid in one of the two.
    return Change(Running(config, values, secrets), sorted(changed), sorted(needs_restart))


_Leaf = tuple[Setting, object]


def _leaves(section: Section, values: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Leaf]]:
    """Each setting with its value; an item of a list goes by its id."""
    for name, child in section.children.items():
        value = getattr(values, name)
        below = (*path, name)
        if isinstance(child, Setting):
            yield below, (child, value)
        elif not child.many:
            yield from _leaves(child, value, below)
        else:
            items = [(item.id, item) for item in value] if isinstance(value, list) else value.items()
            for key, item in items:
                yield from _leaves(child, item, (*below, key))


def _is_said(path: tuple[str, ...], leaf: _Leaf, both: bool) -> bool:
    """Whether a setting of an item that comes or goes is no news: its id is in the path, and it has nothing else."""
    return not both and (path[-1] == "id" or leaf[1] is None)


def _shown(leaves: Mapping[tuple[str, ...], _Leaf], path: tuple[str, ...]) -> str:
    """A value as the file has it; `none` where there is no such item."""
    if path not in leaves:
        return "none"
    setting, value = leaves[path]
    return mask(literal(written(setting.kind, value)))


def _keep(values: dict[str, Any], old: Mapping[str, Any], path: Path) -> None:
    """Put back what the old file had at a path of plain sections, or that it had nothing."""
    *above, name = path
    for part in above:
        values = values.setdefault(str(part), {})
        old = old.get(str(part), {})
    if name in old:
        values[str(name)] = old[str(name)]
    else:
        values.pop(str(name), None)


def _kept(old: Secrets, new: Secrets) -> Iterator[str]:
    """The files whose content cannot change while the process runs, and has."""
    for name, before, after in (
        ("secret_file", old.gossip, new.gossip),
        ("password_file", old.redis_password, new.redis_password),
    ):
        if before and after and before != after:
            yield f"gossip.{name} (its content) {HIDDEN} -> {HIDDEN}"


def _secrets(old: Secrets, new: Secrets) -> Iterator[str]:
    """The files whose content has changed, and never what it is."""
    if old.admin_token and new.admin_token and old.admin_token != new.admin_token:
        yield f"admin.token_file (its content) {HIDDEN} -> {HIDDEN}"
    for replica in old.api_keys.keys() & new.api_keys.keys():
        if old.api_keys[replica] != new.api_keys[replica]:
            yield f"replicas.{replica}.api_key_file (its content) {HIDDEN} -> {HIDDEN}"
    for name, before, after in zip(PEM_SETTINGS, old.pems, new.pems, strict=True):
        if before and after and before != after:
            yield f"{name} (its content) {HIDDEN} -> {HIDDEN}"
