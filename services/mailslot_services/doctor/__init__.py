"""`mailslot doctor`: is everything that is kept what the ledgers say, and can the server keep what is promised.

    server ------------> findings     version, clock, memory, files, durability, functions
    each partition ----> findings     queues, leases, alarms, dead letters; entries and keys of sessions that are gone
    each session:                     wrong   something is not as promised; exit 1
      indexes at seq n                advice  it works, and would work better otherwise
      ledger 1 .. n --check, fold--> the same indexes?  --> findings

    finding         what was found, and damage       session    one session against its ledger
    server          what the server is and gives     place      where a session stands in its partition
    partition       queues and what waits in them    orphan     what names or holds sessions that are gone
    examination     everything, in order             settings screen cli

Rule 1: it only reads, and works on a live system. The indexes come in one transaction with the seq they stand at, and
        a ledger only grows: its first n events must fold to exactly these indexes, whatever was appended meanwhile.
Rule 2: message records that the sweep has forgotten may be missing, but only settled ones (semantics M3, L2).
Rule 3: a finding names the thing, its state, and what it should be or what to do. One finding, one line.
Rule 4: damage of any kind is a finding, never a traceback: what cannot be read is said to be unreadable.
Rule 5: what only a moment's look made seem wrong is looked at once more, in one transaction, before it is told.
"""

from mailslot_services.doctor.cli import command
from mailslot_services.doctor.examination import diagnose
from mailslot_services.doctor.finding import Finding, PartitionFacts, Report, Severity
from mailslot_services.doctor.session import examine
from mailslot_services.doctor.settings import DoctorSettings

__all__ = ["DoctorSettings", "Finding", "PartitionFacts", "Report", "Severity", "command", "diagnose", "examine"]
