"""The model explorer: real operations of nodes and control plane, in every order, with faults, held to invariants.

``tape`` brings a generator back to where it was; ``task`` is one operation under way; ``network`` holds messages;
``world`` offers the choices of a state and makes one; ``search`` tries them all, or at random; ``invariants`` says what
must hold (spec: generations, §10).
"""
