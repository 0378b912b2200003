"""Completion scripts in the shells themselves: they are read, and complete what the parsers take.

bash is everywhere; zsh and fish are asked when they are installed.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from mailslot.cli import catalog, completion
from mailslot.cli.completion import SHELLS, Word, words

SHELL_S_MAX = 30

ASK_BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD=$(( {count} - 1 ))
_mailslot
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

COMPLETED = [
    (["ru"], ["run"]),
    (["co"], ["completion"]),
    (["run", "--se"], ["--session"]),
    (["send", "--delivery", ""], ["queue", "steer", "inject"]),
    (["send", "--delivery", "s"], ["steer"]),
    (["cancel", "demo", "--queue", "h"], ["hold"]),
    (["goal", "pa"], ["pause"]),
    (["goal", "set", "demo", "--ro"], ["--rounds"]),
    (["completion", ""], ["bash", "zsh", "fish"]),
]


@functools.cache
def known() -> tuple[Word, ...]:
    return tuple(words())


def script(folder: Path, shell: str) -> Path:
    file = folder / f"completion.{shell}"
    file.write_text(SHELLS[shell](list(known())), "utf-8")
    return file


def asked(*argv: str, given: str | None = None) -> str:
    done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=SHELL_S_MAX, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_every_command_and_option_is_completed() -> None:
    paths = {word.path for word in known()}
    assert {(name,) for name in catalog.ROWS} <= paths
    assert ("goal", "block") in paths
    run = next(word for word in known() if word.path == ("run",))
    assert {"--session", "--agent", "--json", "--stdin", "--timeout", "--url", "--token", "--help"} <= set(run.flags)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_read_without_complaint_and_names_no_address(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = script(tmp_path, shell)
    assert asked(shell, "-n", str(file)) == ""
    assert "127.0.0.1" not in file.read_text("utf-8")


def test_bash_completes_with_a_real_complete(tmp_path: Path) -> None:
    assert asked("bash", "-c", f"source {script(tmp_path, 'bash')}; complete -p mailslot").strip() == (
        "complete -o default -F _mailslot mailslot"
    )


@pytest.mark.parametrize(("typed", "offered"), COMPLETED, ids=" ".join)
def test_bash_offers_what_fits(tmp_path: Path, typed: list[str], offered: list[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in ["mailslot", *typed])
    ask = ASK_BASH.format(script=script(tmp_path, "bash"), words=quoted, count=len(typed) + 1)
    assert set(asked("bash", "-c", ask).split()) == set(offered)


@pytest.mark.parametrize(("typed", "offered"), COMPLETED, ids=" ".join)
def test_fish_offers_what_fits(tmp_path: Path, typed: list[str], offered: list[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    line = " ".join(["mailslot", *typed])
    said = asked("fish", "--no-config", "-c", f"source {script(tmp_path, 'fish')}; complete -C '{line}'")
    assert {found.split("\t")[0] for found in said.splitlines()} == set(offered)


ASK_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -U compinit; compinit -D -u; setopt no_beep; source {script}'
zpty -w shell 'mailslot() {{ print "<$*>" }}; print re""ady'
zpty -r shell said '*ready*'
zpty -n -w shell $'{line}\t\n'
zpty -r shell said '*<*>*' && print -r -- "$said"
zpty -d shell
"""


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("mailslot ru", "<run>"),
        ("mailslot goal pau", "<goal pause>"),
        ("mailslot run --sess", "<run --session>"),
        ("mailslot send --delivery st", "<send --delivery steer>"),
    ],
)
def test_zsh_completes_at_a_prompt(tmp_path: Path, line: str, made: str) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    said = asked("zsh", "-f", "-c", ASK_ZSH.format(script=script(tmp_path, "zsh"), line=line))
    assert made in said


def test_what_is_a_quote_in_a_shell_is_only_a_letter_in_a_script() -> None:
    odd = Word(("odd",), "it's [a] $(thing): `x`", (completion.Option(("--o",), "don't [x]: \\", takes=True),))
    for shell, write in SHELLS.items():
        if shutil.which(shell) is not None:
            begun = "compdef() { :; }\n" if shell == "zsh" else ""  # a shell that reads a script has no completion
            assert asked(shell, given=begun + write([odd])) == ""
