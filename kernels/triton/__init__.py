"""Triton kernels. Importing them touches no driver; geowidth.ops chooses among them.

The feed-forward layer:
pointwise       activations and their slopes, shared by the kernels below
activation      elementwise forward and backward over matrices of any row stride
gate_up         h = act(x gate^T) * (x up^T) in one kernel
grad_hidden     grad_gate, grad_up and h again from grad_y down^T in one kernel
grad_input      grad_x = grad_gate gate + grad_up up in one accumulator
tiles           which kernel, with which tile, for which (chip, d, tokens, width)
Measurement, where there is a GPU and no nvcc:
elementary      elementary functions on blocks of float32 and float64
distances       all three geometries from one Gram matrix, near pairs again from the raw rows
sinkhorn        Sinkhorn's iterations in the log domain

resources       registers, shared memory and instructions of every kernel, compiled without a GPU
"""
