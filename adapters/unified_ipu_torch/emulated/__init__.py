"""The Poplar SDK's PyTorch modules on the host: same names and semantics, no IPU.

Nothing here takes part in an import of the SDK unless ``install`` is called.
"""

from __future__ import annotations
