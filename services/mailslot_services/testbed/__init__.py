"""What stands behind `mailslot.testing`: the product in one thread of the process that tests.

engine   the thread, its loop, and who works on it     store     sessions in memory; the lines to them
stage    models that are held and scripted             switch    faults, and the front they stand in
clock    time that can be moved                        listener  connections that can be cut
plugin   for pytest; loads nothing until a test asks for a server
"""
