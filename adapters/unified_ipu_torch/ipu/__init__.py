"""PyTorch on IPUs: a device of the core that drives PopTorch through the lowering.

``device`` puts it together; ``forms`` what a loss becomes, ``modules`` what is compiled,
``programs`` what runs it, ``optimizers`` what changes the weights, ``sdk`` where PopTorch is from.
"""
