"""The conformance kit: laws that one's own mask, bias, score or back end can be held to, in one line each.

    check_mask(MyMask())      check_bias(MyBias())      check_score(MyScore())      check_backend(MyBackend())

Each returns None, or raises :class:`LawBroken`, which says which law broke, where, what came and what was wanted. The
formula that they compare with is written out in :mod:`unified_attn.testing.formula` and shares nothing
with the library.
"""

from unified_attn.testing.backends import check_backend
from unified_attn.testing.biases import check_bias
from unified_attn.testing.law import LawBroken
from unified_attn.testing.masks import check_mask
from unified_attn.testing.scores import check_score

__all__ = ["LawBroken", "check_backend", "check_bias", "check_mask", "check_score"]
