"""A network of its own for a process: what firewalls and broken switches do to it, done by the kernel.

    this machine                        namespace
    ┌──────────────┐      veth      ┌──────────────────────────┐
    │ Redis  <host>├────────────────┤ <inside>  worker, ingest │
    └──────────────┘                │ iptables: DROP, REJECT   │
                                    └──────────────────────────┘

Rule 1: the rules stand inside the namespace and go with it; nothing of the machine's own network is changed but one
        interface, which is removed with its other end.
Rule 2: it needs root, `ip` and `iptables`. Where they are missing a test is skipped and says why, unless
        CHAOS_FAULTS=required, as in `.ci/run`: then it fails.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

numbers: Final = itertools.count()
REQUIRED: Final = "CHAOS_FAULTS"
STRING: Final = ("-m", "string", "--algo", "bm")
PROGRAMS: Final = ("ip", "iptables")


@dataclass
class Namespace:
    """A network that a process can be put into. `faults` counts how often it was broken."""

    name: str
    host_ip: str
    inside_ip: str
    faults: int = 0

    @property
    def within(self) -> tuple[str, ...]:
        """What a command line begins with to run inside."""
        return ("ip", "netns", "exec", self.name)

    def drop(self, port: str) -> None:
        """Packets to and from a port outside vanish; connections stay open, and what was written is sent again once it
        heals."""
        self._both_ways(port, "-j", "DROP")

    def drop_at(self, port: str, words: str) -> None:
        """Packets to a port outside that hold these words vanish, and are sent again until it heals."""
        self._rule("-A", "OUTPUT", "-p", "tcp", "--dport", port, *STRING, "--string", words, "-j", "DROP")
        self.faults += 1

    def dropped(self) -> int:
        """How many packets vanished by the first rule on the way out."""
        lines = run(*self.within, "iptables", "-w", "-L", "OUTPUT", "-v", "-x", "-n").splitlines()
        return int(lines[2].split()[0])

    def reset(self, port: str) -> None:
        """Whatever is sent there is answered with a reset; the other side learns nothing (half-open there)."""
        self._rule("-A", "OUTPUT", "-p", "tcp", "--dport", port, "-j", "REJECT", "--reject-with", "tcp-reset")
        self.faults += 1

    def lose(self, port: str, share: float = 0.5) -> None:
        """That share of the packets to and from a port outside vanishes, at random."""
        self._both_ways(port, "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")

    def _both_ways(self, port: str, *words: str) -> None:
        self._rule("-A", "OUTPUT", "-p", "tcp", "--dport", port, *words)
        self._rule("-A", "INPUT", "-p", "tcp", "--sport", port, *words)
        self.faults += 1

    def heal(self) -> None:
        """Everything passes again."""
        self._rule("-F")

    def _rule(self, *words: str) -> None:
        run(*self.within, "iptables", "-w", *words)


def run(*words: str) -> str:
    """What a command that has to succeed says. What it says if it does not is the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def unable() -> str | None:
    """Why no namespace can be had here; None: it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install iproute2 iptables"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with namespace() as own:
            own.drop("1")
            own.heal()
    except RuntimeError as error:
        return f"the kernel gives no network namespace: {error}"
    return None


@contextmanager
def namespace() -> Iterator[Namespace]:
    """A namespace that reaches this machine, for the length of the block."""
    number = next(numbers)
    # Names are at most 15 characters; addresses of one process and of several at once must not meet.
    tag = f"ms{os.getpid() % 100_000}{number % 100:02d}"
    third, fourth = os.getpid() % 250, number % 60 * 4
    own = Namespace(tag, f"10.203.{third}.{fourth + 1}", f"10.203.{third}.{fourth + 2}")
    run("ip", "netns", "add", tag)
    try:
        run("ip", "link", "add", f"{tag}h", "type", "veth", "peer", "name", f"{tag}i", "netns", tag)
        run("ip", "addr", "add", f"{own.host_ip}/30", "dev", f"{tag}h")
        run("ip", "link", "set", f"{tag}h", "up")
        run(*own.within, "ip", "addr", "add", f"{own.inside_ip}/30", "dev", f"{tag}i")
        run(*own.within, "ip", "link", "set", f"{tag}i", "up")
        run(*own.within, "ip", "link", "set", "lo", "up")
        yield own
    finally:
        subprocess.run(["ip", "netns", "del", tag], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{tag}h"], capture_output=True, check=False)
