"""What the kernels of ``contract`` are told: 64-bit integers, of which these are the places.

Addresses and strides are in bytes; an address of 0 means that the operand is absent. All but x is dense.
"""

BLOCK = 512
"""Nodes a task."""

# Of x [B, KV_HEADS, NODES, SIZE] address, strides and sizes, and the blocks of nodes of an item; dx, its stride, and
# whether it is added to.
X, X_B, X_N, X_H, KV_HEADS, SIZE, NODES, BLOCKS, DX, DX_B, ADDS = range(11)

# Then of either side: att [HEADS, SIZE]; the product [B, NODES, HEADS], or its gradient, and its stride; datt
# [B * BLOCKS, HEADS, SIZE] and its stride.
FIRST, SECOND = 11, 17
ATT, HEADS, PRODUCT, PRODUCT_B, DATT, DATT_B = range(6)
