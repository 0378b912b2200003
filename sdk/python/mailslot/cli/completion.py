"""`mailslot completion bash|zsh|fish`: a script that completes commands, options and their values.

    parsers ──> Word: a command, its options and what each takes ──> the script of a shell

Rule 1: what is completed is read off the parsers: nothing is listed twice.
Rule 2: the script is whole. A Tab starts no process of ours, so it is quick, and shows nothing of a server.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mailslot.cli import service
from mailslot.cli.catalog import ROWS, load
from mailslot.cli.exits import Exit
from mailslot.cli.options import Command, Group, Parser, parser
from mailslot.cli.terminal import put_safe


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how it is written, what it means, and what it takes."""

    names: tuple[str, ...]
    meaning: str
    takes: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Word:
    """One command, or the second word of one: `path` is how it is typed."""

    path: tuple[str, ...]
    meaning: str
    options: tuple[Option, ...] = ()
    choices: tuple[str, ...] = ()
    """What its first positional word can be, as far as that is known."""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flags(self) -> list[str]:
        """Every way to write one of its options."""
        return [name for option in self.options for name in option.names]


def words() -> list[Word]:
    """Every command that is installed."""
    own = [word for name, row in ROWS.items() for word in _of(name, row.meaning)]
    return own + [Word((name,), meaning) for name, meaning in service.described().items()]


def _of(name: str, meaning: str) -> Iterator[Word]:
    loaded = load(name)
    if isinstance(loaded, Command):
        yield _word((name,), meaning, loaded.parser())
    elif isinstance(loaded, Group):
        yield Word((name,), meaning, choices=tuple(loaded.commands))
        for second, (what, command) in loaded.commands.items():
            yield _word((name, second), what, command.parser())


def _word(path: tuple[str, ...], meaning: str, made: Parser) -> Word:
    options = tuple(_option(made, action) for action in made.options())
    first = next(iter(made.positionals()), None)
    return Word(path, meaning, options, tuple(first.choices or ()) if first is not None else ())


def _option(made: Parser, action: argparse.Action) -> Option:
    # argparse writes its help with the default in it, which may be an address of this machine.
    meaning = re.sub(r"\s*\((?:env|default)[^()]*\)", "", action.help or "").replace("%%", "%")
    return Option(tuple(action.option_strings), meaning, action.nargs != 0, tuple(action.choices or ()))


# -- bash ---------------------------------------------------------------------------------------------------------

_BASH: Final = """\
# bash completion of mailslot. Now: source <(mailslot completion bash)
# For good: mailslot completion bash > ~/.local/share/bash-completion/completions/mailslot
_mailslot() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path=${COMP_WORDS[1]} found=
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  if (( COMP_CWORD > 2 )); then
    case $path in %(groups)s) path+=" ${COMP_WORDS[2]}" ;; esac
  fi
  if (( COMP_CWORD == 1 )); then
    found=%(commands)s
  else
    case "$path $prev" in
%(values)s
    *)
      case $path in
%(flags)s
      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$found" -- "$cur"))
}
complete -o default -F _mailslot mailslot
"""


def bash(known: list[Word]) -> str:
    """The script for bash."""
    values, flags = [], []
    for word in known:
        path = " ".join(word.path)
        for option in word.options:
            if option.takes:
                patterns = "|".join(shlex.quote(f"{path} {name}") for name in option.names)
                values.append(f"    {patterns}) found={shlex.quote(' '.join(option.choices))} ;;")
        found = f"found={shlex.quote(' '.join(word.flags))}"
        if word.choices:
            chosen = f"found={shlex.quote(' '.join(word.choices))}"
            found = f"if [[ $cur == -* ]]; then {found}; else {chosen}; fi"
        flags.append(f"      {shlex.quote(path)}) {found} ;;")
    return _BASH % {
        "groups": "|".join(_groups(known)) or "''",
        "commands": shlex.quote(" ".join(word.name for word in _first(known))),
        "values": "\n".join(values),
        "flags": "\n".join(flags),
    }


# -- zsh ----------------------------------------------------------------------------------------------------------

_ZSH: Final = """\
#compdef mailslot
# zsh completion of mailslot. Now: source <(mailslot completion zsh)
# For good: mailslot completion zsh > a file `_mailslot` in a folder of $fpath
_mailslot() {
  local -a commands
  if (( CURRENT == 2 )); then
    commands=(%(commands)s)
    _describe command commands
    return
  fi
  local path_=$words[2]
  case $path_ in
%(groups)s
  esac
  shift words; (( CURRENT-- ))
  case $path_ in
%(flags)s
    *) _files ;;
  esac
}
if [[ $funcstack[1] == _mailslot ]]; then _mailslot "$@"; else compdef _mailslot mailslot; fi
"""

_ZSH_GROUP: Final = """\
    %(name)s)
      if (( CURRENT == 3 )); then
        commands=(%(commands)s)
        _describe command commands
        return
      fi
      path_+=" $words[3]"; shift words; (( CURRENT-- )) ;;"""


def zsh(known: list[Word]) -> str:
    """The script for zsh."""
    groups = [
        _ZSH_GROUP % {"name": name, "commands": _described([word for word in known if word.path[:-1] == (name,)])}
        for name in _groups(known)
    ]
    flags = [f"    {shlex.quote(' '.join(word.path))}) {_arguments(word)} ;;" for word in known if word.options]
    return _ZSH % {"commands": _described(_first(known)), "groups": "\n".join(groups), "flags": "\n".join(flags)}


def _described(known: list[Word]) -> str:
    return " ".join(shlex.quote(f"{word.name}:{word.meaning.replace(':', chr(92) + ':')}") for word in known)


def _arguments(word: Word) -> str:
    specs = [spec for option in word.options for spec in _specs(option)]
    rest = f"1:word:({' '.join(word.choices)})" if word.choices else "*:word:_default"
    return " ".join(["_arguments", *map(shlex.quote, [*specs, rest])])


def _specs(option: Option) -> list[str]:
    meaning = re.sub(r"([\[\]:\\])", r"\\\1", option.meaning)
    taken = f":value:({' '.join(option.choices)})" if option.choices else ":value:" if option.takes else ""
    return [f"{name}[{meaning}]{taken}" for name in option.names]


# -- fish ---------------------------------------------------------------------------------------------------------

_FISH: Final = """\
# fish completion of mailslot. Now: mailslot completion fish | source
# For good: mailslot completion fish > ~/.config/fish/completions/mailslot.fish
complete -c mailslot -f
"""


def fish(known: list[Word]) -> str:
    """The script for fish."""
    lines = [
        f"complete -c mailslot -n __fish_use_subcommand -a {word.name} -d {_fish(word.meaning)}"
        for word in _first(known)
    ]
    for word in known:
        here = _fish("; and ".join(f"__fish_seen_subcommand_from {part}" for part in word.path))
        if len(word.path) == 2:
            seconds = " ".join(other.name for other in known if other.path[:-1] == word.path[:-1])
            only = f"__fish_seen_subcommand_from {word.path[0]}; and not __fish_seen_subcommand_from {seconds}"
            lines.append(f"complete -c mailslot -n {_fish(only)} -a {word.name} -d {_fish(word.meaning)}")
        elif word.choices and word.options:
            lines.append(f"complete -c mailslot -n {here} -a {_fish(' '.join(word.choices))}")
        lines += [f"complete -c mailslot -n {here}{_fish_option(option)}" for option in word.options]
    return _FISH + "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names)
    taken = f" -x -a {_fish(' '.join(option.choices))}" if option.choices else " -x" if option.takes else ""
    return f"{names}{taken} -d {_fish(option.meaning)}"


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# -- the command --------------------------------------------------------------------------------------------------

SHELLS: Final = {"bash": bash, "zsh": zsh, "fish": fish}


def _first(known: list[Word]) -> list[Word]:
    return [word for word in known if len(word.path) == 1]


def _groups(known: list[Word]) -> list[str]:
    return list(dict.fromkeys(word.path[0] for word in known if len(word.path) > 1))


def _parser() -> Parser:
    made = parser(
        "completion",
        "Print a script that completes mailslot's commands, options and values in your shell.",
        "source <(mailslot completion bash)         # now; also for zsh",
        "mailslot completion fish | source          # now",
        "mailslot completion bash > ~/.local/share/bash-completion/completions/mailslot     # for good",
        "mailslot completion fish > ~/.config/fish/completions/mailslot.fish                # for good",
        server=False,
    )
    made.add_argument("shell", choices=tuple(SHELLS), help="your shell")
    return made


def _act(made: Parser, options: argparse.Namespace) -> int:
    put_safe(SHELLS[options.shell](words()).rstrip("\n"))
    return Exit.COMPLETED


COMPLETION: Final = Command(_parser, _act)
