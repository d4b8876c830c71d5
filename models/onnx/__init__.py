"""Published ONNX models, as hubs distribute them: a graph with past key values, and configuration files.

The reader is our own because graphs come with up to gigabytes of weights: the ``onnx`` package takes 12 MiB to import
and reads the weights that a file holds itself into memory.
"""
