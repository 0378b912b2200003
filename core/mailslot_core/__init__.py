"""What mailslot decides, and where it is kept.

session inbox activity turn goal invariants errors     pure decisions, as tables
store                                                  the port, a promise a method
memory  redis                                          its implementations
agent   clock   settings   metrics                     the other ports, the options, what is counted
"""
