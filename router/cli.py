"""`homing`: a table from command names to the functions behind them.

Each target is imported only when its command runs, so `homing --help` and a mistyped command answer at once and work
with a broken configuration or a missing optional dependency. A target is a plain function whose annotated parameters
(typer) are the command's flags and whose docstring is its help. Nothing imports this module.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import typer


class Command(NamedTuple):
    target: str
    summary: str


COMMANDS = {
    "serve": Command("router.supervisor:serve", "Run the router."),
    "check": Command("router.check:check", "Check a configuration, and say what is wrong where."),
    "config init": Command("router.check:init", "Print a configuration with every setting explained."),
    "config show": Command("router.check:show", "Print every value in effect, and whence it is."),
    "config schema": Command("router.check:schema", "Print the configuration's JSON Schema."),
    "demo": Command(
        "loadtests.demo:demo", "Four simulated replicas and one router; --compare measures against round robin."
    ),
    "bench proxy": Command(
        "loadtests.bench_proxy:bench_proxy", "Measure what the router itself costs, beside other proxies."
    ),
    "bench chaos": Command("loadtests.chaos:chaos", "Make replicas and a worker fail, and count what clients see."),
    "simulate": Command("loadtests.simulate:run", "Try a configuration on simulated traffic; sweep a setting."),
    "replica simulate": Command("replica.server:simulate", "Run one simulated vLLM replica."),
    "explain": Command("router.remote:explain", "Show where a running router would send a request, and why."),
    "status": Command("router.remote:status", "Show a running router and its replicas."),
    "drain": Command("router.remote:drain", "Let a replica of a running router get nothing new."),
    "undrain": Command("router.remote:undrain", "Let a drained replica take part again."),
    "reload": Command("router.remote:reload", "Have a running router read its configuration again."),
    "record": Command("router.recorder:record", "Write a running router's traffic as a trace without text."),
    "version": Command("router.version:version", "Print the version."),
}

EXAMPLES = """\
Examples:
  homing demo                     a fleet to play with, no GPU needed
  homing serve -c router.yaml     route to the replicas listed in router.yaml
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; the exit code is the command's own, 2 for a wrong name or flag."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in {"-h", "--help", "help"}:
        print(_overview())
        return
    if args[0] == "--version":
        args = ["version"]
    name = _find(args)
    if name is None:
        sys.exit(_group(args) if len(args) == 1 or args[1] in {"-h", "--help"} else _unknown(args))
    words = name.count(" ") + 1
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(_load(COMMANDS[name].target))
    app(args[words:], prog_name=f"homing {name}")


def _find(args: Sequence[str]) -> str | None:
    for words in (2, 1):
        name = " ".join(args[:words])
        if name in COMMANDS:
            return name
    return None


def _load(target: str) -> Callable[..., object]:
    module, _, function = target.partition(":")
    loaded: Callable[..., object] = getattr(importlib.import_module(module), function)
    return loaded


def _overview() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    head = "Homing: a cache-aware router for fleets of vLLM replicas.\n\nUsage: homing COMMAND [FLAGS]\n"
    return "\n".join([head, *rows, "", EXAMPLES, "`homing COMMAND --help` tells the flags of a command."])


def _group(args: Sequence[str]) -> int:
    """Answer a command's first word alone: what can follow it."""
    names = [name for name in COMMANDS if name.startswith(f"{args[0]} ")]
    if not names:
        return _unknown(args)
    asked = len(args) > 1
    rows = [f"  homing {name:<{max(map(len, names))}}  {COMMANDS[name].summary}" for name in names]
    print("\n".join([f"Usage: homing {args[0]} COMMAND [FLAGS]\n", *rows]), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _unknown(args: Sequence[str]) -> int:
    group = [name for name in COMMANDS if name.startswith(f"{args[0]} ")]
    wanted = " ".join(args[:2]) if group else args[0]
    near = difflib.get_close_matches(wanted, COMMANDS, n=1, cutoff=0.5)
    hint = f"Did you mean `homing {near[0]}`?" if near else "`homing --help` lists the commands."
    print(f"homing: no command `{wanted}`. {hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
