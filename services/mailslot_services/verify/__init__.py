"""`mailslot verify`: load and faults against a real store, and an independent check of what came of it.

ledger recorder report     what was kept, what was said, what it comes to
walk life turn checker     the checker, which shares no code with the store
"""
