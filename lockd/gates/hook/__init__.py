"""What goes into a training environment: these parts, joined in this order to the one module `lockd_gate.py`.

Always holds: standard library alone, on any Python from 3.8 on; joined, the parts need no import of each other.
Never: does anything when lockd imports it.
"""

PARTS = ("which", "belongs", "saying", "daemon", "start", "gate")
