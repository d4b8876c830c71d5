if __name__ != "edge_spec.memory":
    raise ImportError("import edge_spec.memory, not memory")
