if __name__ != "edge_spec.models":
    raise ImportError("import edge_spec.models, not models")
