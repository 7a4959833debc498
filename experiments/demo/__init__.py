"""The demo: one `attention` call behind a decoder, a graph classifier and a table of models."""

import os

# Read by OpenMP when torch is first imported: threads that sleep, rather than spin, while they wait for one another.
# On an idle machine it costs little; where another program holds a core, spinning is several times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
